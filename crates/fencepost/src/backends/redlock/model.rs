//! A model of Redlock: the real [`Attempt`](super::attempt::Attempt) against simulated nodes, network and time.
//! Messages are delayed, lost, duplicated and reordered; nodes are partitioned; clients freeze, crash and renew.
//! Depending on the [`FaultProfile`], clocks jump, operators delete keys, and nodes lose their data.
//!
//! What must hold is in `checks`. A check that never fails proves nothing, so each rule is left out once, as a
//! [`Variant`], and the checks must notice.
//!
//! A failure prints its seed. `FENCEPOST_MODEL_SEED=n` repeats only that run; `FENCEPOST_MODEL_RUNS=n` makes every
//! test do at least `n` runs.

mod checks;
mod client;
mod exhaustive;
mod node;
mod rng;
mod world;

use std::env;

use checks::{
    EXCLUSION, Grant, NO_GRANT_WITHOUT_KEYS, Predicate, REAL_TIME_ORDER, TOKENS, UNIQUE, broken,
};
use fencepost_core::invariants::{Held, p1_no_overlap, p2_tokens_rise};
use fencepost_core::{LockName, Moment, Token};

/// The lease, in microseconds. It is also the longest one.
const TTL: u64 = 1_000_000;
const MAX_TTL: u64 = TTL;
/// Taken off a lease because clocks run at different rates.
const DRIFT: u64 = TTL / 100 + 2_000;
/// How long a node remembers a release that found nothing.
const TOMBSTONE: u64 = 6 * TTL;
/// When a run ends. Many short runs find more than a few long ones: once a fast clock has been read, the
/// last tokens carry its time, and clocks make no difference any more.
const END: u64 = 8 * TTL;

/// Runs in CI: of the rules as they are, and of the controls.
const SLICE: u64 = 400;
const CONTROL: u64 = 200;

/// The rules as they are, or with one left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variant {
    AsBuilt,
    /// No phase 2: each node counts its votes, and the token is the highest count of a majority.
    MaxOfCounters,
    /// Phase 2 checks only the last token.
    NoOwnerCheck,
    /// A node that has just restarted empty votes at once.
    VotesAtOnce,
    /// The lease counts from the grant (proposed in node-redlock#167).
    CountsFromTheGrant,
    /// The remaining lease is checked only after the first use (node-redlock#296).
    NotCheckedAfterPhase2,
    /// The undo of an attempt deletes any key of its owner.
    UndoByOwner,
    /// A vote of an earlier attempt takes the key of a later one of the same owner.
    OldVotesCount,
}

/// Faults of the nodes. Messages are lost and clients freeze in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultProfile {
    /// Nodes keep their data, and their clock rates differ by the drift.
    Stable,
    /// Clocks jump both ways and show any time; operators delete keys.
    ClockJumps,
    /// Nodes lose their data and restart.
    DataLoss,
    ClockJumpsAndDataLoss,
}

impl FaultProfile {
    const fn clocks_jump(self) -> bool {
        matches!(self, Self::ClockJumps | Self::ClockJumpsAndDataLoss)
    }

    const fn loses_data(self) -> bool {
        matches!(self, Self::DataLoss | Self::ClockJumpsAndDataLoss)
    }
}

/// How often each event happened.
#[derive(Debug, Default)]
struct Counters {
    attempts: u64,
    grants: u64,
    /// Failed attempts, by cause.
    held: u64,
    unreachable: u64,
    outrun: u64,
    exhausted: u64,
    late: u64,
    renewals: u64,
    releases: u64,
    crashes: u64,
    pauses: u64,
    clock_jumps: u64,
    deletions: u64,
    restarts: u64,
    /// Grants that were reported when fewer than a quorum of keys existed.
    below_quorum: u64,
}

/// How many pairs of grants violate each check.
#[derive(Debug, Default)]
struct Violations {
    repeated: usize,
    fallen: usize,
    without_keys: usize,
    overlaps: usize,
}

fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}

/// The seed of the one run to repeat.
fn repeated() -> Option<u64> {
    variable("FENCEPOST_MODEL_SEED")
}

fn seeds(slice: u64) -> Vec<u64> {
    let runs = variable("FENCEPOST_MODEL_RUNS").unwrap_or(slice).max(slice);
    repeated().map_or_else(|| (0..runs).collect(), |seed| vec![seed])
}

/// Runs the rules as they are and panics at the first pair of grants that violates one of `predicates`.
fn must_hold(fault_profile: FaultProfile, predicates: &[Predicate]) -> Counters {
    let mut counters = Counters::default();
    for seed in seeds(SLICE) {
        let grants = world::run(seed, fault_profile, Variant::AsBuilt, &mut counters);
        for predicate in predicates {
            if let Some((a, b)) = broken(predicate, &grants).first() {
                let name = predicate.name;
                panic!(
                    "\"{name}\" is broken in {fault_profile:?}, FENCEPOST_MODEL_SEED={seed}:\n{a:?}\n{b:?}"
                );
            }
        }
        if fault_profile == FaultProfile::Stable {
            as_seen_from_outside(seed, &grants);
        }
    }
    println!("{fault_profile:?}: {counters:?}");
    counters
}

/// Checks the promises that every backend makes.
fn as_seen_from_outside(seed: u64, grants: &[Grant]) {
    let name = LockName::new("model").unwrap();
    let held = |grant: &Grant| Held {
        name: name.clone(),
        token: Token::new(grant.token).unwrap(),
        from: Moment::from_nanos(grant.reported * 1_000),
        until: Moment::from_nanos(grant.until * 1_000),
    };
    let history: Vec<Held> = grants.iter().map(held).collect();
    for promise in [p1_no_overlap, p2_tokens_rise] {
        if let Err(violation) = promise(&history) {
            panic!("{violation}, FENCEPOST_MODEL_SEED={seed}");
        }
    }
}

/// Runs a negative control and counts the violations; `None` if a seed is repeated.
fn violations(fault_profile: FaultProfile, variant: Variant) -> Option<Violations> {
    if repeated().is_some() {
        return None;
    }
    let (mut counters, mut violations) = (Counters::default(), Violations::default());
    for seed in seeds(CONTROL) {
        let grants = world::run(seed, fault_profile, variant, &mut counters);
        violations.repeated += broken(&UNIQUE, &grants).len();
        violations.fallen += broken(&REAL_TIME_ORDER, &grants).len();
        violations.without_keys += broken(&NO_GRANT_WITHOUT_KEYS, &grants).len();
        violations.overlaps += broken(&EXCLUSION, &grants).len();
    }
    println!("{variant:?} in {fault_profile:?}: {} grants, {violations:?}", counters.grants);
    Some(violations)
}

/// Checks that the runs were eventful.
fn was_eventful(counters: &Counters) {
    if repeated().is_some() {
        return;
    }
    assert!(counters.grants > 2_500, "{counters:?}");
    assert!(counters.held > counters.grants, "{counters:?}");
    let often = [
        counters.unreachable,
        counters.outrun,
        counters.renewals,
        counters.releases,
        counters.pauses,
    ];
    assert!(often.iter().all(|count| *count > 300), "{counters:?}");
    assert!(counters.crashes > 100 && counters.late > 10, "{counters:?}");
}

#[test]
fn tokens_stay_unique_and_ordered_while_clocks_jump() {
    let counters = must_hold(FaultProfile::ClockJumps, &TOKENS);
    was_eventful(&counters);
    if repeated().is_none() {
        assert!(counters.clock_jumps > 1_000 && counters.deletions > 1_000, "{counters:?}");
        assert!(counters.exhausted > 10 && counters.below_quorum > 10, "{counters:?}");
    }
}

#[test]
fn grants_do_not_overlap_without_clock_jumps() {
    let mut all = TOKENS.to_vec();
    all.push(EXCLUSION);
    was_eventful(&must_hold(FaultProfile::Stable, &all));
}

/// Here tokens depend on the clocks: a node that lost its last token votes with its time one lease later, and the clocks
/// differ by less than that.
#[test]
fn nodes_that_lose_data_and_wait_before_they_vote_are_safe() {
    let mut all = TOKENS.to_vec();
    all.push(EXCLUSION);
    let counters = must_hold(FaultProfile::DataLoss, &all);
    was_eventful(&counters);
    assert!(counters.restarts > 1_000 || repeated().is_some(), "{counters:?}");
}

#[test]
fn control_highest_of_several_counters_repeats_and_falls() {
    let Some(violations) = violations(FaultProfile::Stable, Variant::MaxOfCounters) else { return };
    assert!(violations.repeated > 0 && violations.fallen > 0, "{violations:?}");
}

#[test]
fn control_without_the_owner_check_an_expired_attempt_is_granted() {
    let Some(violations) = violations(FaultProfile::ClockJumps, Variant::NoOwnerCheck) else {
        return;
    };
    assert!(violations.without_keys > 0, "{violations:?}");
    assert_eq!(
        (violations.repeated, violations.fallen),
        (0, 0),
        "the last tokens alone ensure that"
    );
}

#[test]
fn control_clock_jumps_cause_overlaps() {
    let Some(violations) = violations(FaultProfile::ClockJumps, Variant::AsBuilt) else { return };
    assert!(violations.overlaps > 0, "{violations:?}");
}

#[test]
fn control_nodes_that_lose_data_and_vote_at_once_cause_overlaps() {
    let Some(violations) = violations(FaultProfile::DataLoss, Variant::VotesAtOnce) else {
        return;
    };
    assert!(violations.overlaps > 0, "{violations:?}");
}

#[test]
fn control_data_loss_with_clock_jumps_breaks_the_token_order() {
    let Some(violations) = violations(FaultProfile::ClockJumpsAndDataLoss, Variant::AsBuilt) else {
        return;
    };
    assert!(violations.fallen > 0, "{violations:?}");
}

/// node-redlock#169 counted from the first attempt, which is only too careful. The fix that its #167 proposed causes
/// overlaps.
#[test]
fn control_lease_counted_from_the_grant_causes_overlaps() {
    let Some(violations) = violations(FaultProfile::Stable, Variant::CountsFromTheGrant) else {
        return;
    };
    assert!(violations.overlaps > 0, "{violations:?}");
}

#[test]
fn control_lease_not_checked_after_phase_2_causes_overlaps() {
    let Some(violations) = violations(FaultProfile::Stable, Variant::NotCheckedAfterPhase2) else {
        return;
    };
    assert!(violations.overlaps > 0, "{violations:?}");
}

/// The undo arrives during the next attempt and deletes its keys.
#[test]
fn control_undo_by_owner_causes_overlaps() {
    let Some(violations) = violations(FaultProfile::Stable, Variant::UndoByOwner) else { return };
    assert!(violations.overlaps > 0, "{violations:?}");
}
