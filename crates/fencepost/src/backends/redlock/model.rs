//! A model of Redlock: the real [`Attempt`](super::attempt::Attempt) against simulated nodes, a simulated
//! network and simulated time. Messages are late, lost, doubled and out of order; nodes are cut off; clients
//! freeze, crash and renew; and by the [`Weather`], clocks leap, keys are deleted by hand, nodes forget.
//!
//! What must hold is in `checks`. A check that never fails proves nothing, so every rule that is there for
//! a reason is left out once, as a [`Variant`], and the checks must notice.
//!
//! A failure prints its seed. `FENCEPOST_MODEL_SEED=n` repeats that run and no other;
//! `FENCEPOST_MODEL_RUNS=n` makes every test do `n` runs, if that is more than what CI has time for.

mod checks;
mod client;
mod dice;
mod exhaustive;
mod node;
mod world;

use std::env;

use checks::{EXCLUSION, Grant, NO_REVENANT, Predicate, REAL_TIME_ORDER, TOKENS, UNIQUE, broken};
use fencepost_core::invariants::{Held, p1_no_overlap, p2_tokens_rise};
use fencepost_core::{LockName, Moment, Token};

/// A lease, in microseconds; there are no longer ones.
const TTL: u64 = 1_000_000;
const MAX_TTL: u64 = TTL;
/// What is taken off a lease because clocks do not run alike.
const DRIFT: u64 = TTL / 100 + 2_000;
/// How long a node remembers a release that found nothing.
const TOMBSTONE: u64 = 6 * TTL;
/// When a run ends. Many short runs find more than a few long ones: once a clock that runs ahead has told
/// its time, the marks carry it, and no clock makes a difference any more.
const END: u64 = 8 * TTL;

/// Runs in CI, for what must hold and for what must not.
const SLICE: u64 = 400;
const CONTROL: u64 = 200;

/// The rules as they are, or one left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variant {
    AsBuilt,
    /// No phase 2: each node counts its votes, and the token is the highest count of a majority.
    MaxOfCounters,
    /// Phase 2 looks at the mark only.
    NoOwnerCheck,
    /// A node that has just started empty votes like any other.
    VotesAtOnce,
    /// The lease is counted from the moment the grant is told (proposed in node-redlock#167).
    CountsFromTheGrant,
    /// What is left of the lease is looked at after first use (node-redlock#296).
    NotCheckedAfterPhase2,
    /// The undo of an attempt deletes any key of its owner; a tombstone would stop the next attempt.
    UndoByOwner,
    /// A vote of an earlier attempt takes the key of a later one of the same owner.
    OldVotesCount,
}

/// What may befall the nodes. Messages and clients fare badly in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Nodes keep their data, and their clocks run alike within the drift.
    Fair,
    /// Clocks leap both ways, and their time is anything; keys are deleted by hand.
    Leaping,
    /// Nodes restart empty.
    Forgetful,
    LeapingAndForgetful,
}

impl Weather {
    const fn leaps(self) -> bool {
        matches!(self, Self::Leaping | Self::LeapingAndForgetful)
    }

    const fn forgets(self) -> bool {
        matches!(self, Self::Forgetful | Self::LeapingAndForgetful)
    }
}

/// How much of what has happened.
#[derive(Debug, Default)]
struct Tally {
    attempts: u64,
    grants: u64,
    /// Attempts that failed, by cause.
    held: u64,
    unreachable: u64,
    outrun: u64,
    exhausted: u64,
    late: u64,
    renewals: u64,
    releases: u64,
    crashes: u64,
    pauses: u64,
    leaps: u64,
    deletions: u64,
    restarts: u64,
    /// Grants that were told when fewer keys stood than a quorum.
    hollow: u64,
}

/// How many pairs of grants broke what.
#[derive(Debug, Default)]
struct Faults {
    repeated: usize,
    fallen: usize,
    revenants: usize,
    overlaps: usize,
}

fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}

/// The one run that is to be repeated.
fn repeated() -> Option<u64> {
    variable("FENCEPOST_MODEL_SEED")
}

fn seeds(slice: u64) -> Vec<u64> {
    let runs = variable("FENCEPOST_MODEL_RUNS").unwrap_or(slice).max(slice);
    repeated().map_or_else(|| (0..runs).collect(), |seed| vec![seed])
}

/// Runs the rules as they are and panics at the first pair of grants that breaks one of `predicates`.
fn must_hold(weather: Weather, predicates: &[Predicate]) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds(SLICE) {
        let grants = world::run(seed, weather, Variant::AsBuilt, &mut tally);
        for predicate in predicates {
            if let Some((a, b)) = broken(predicate, &grants).first() {
                let name = predicate.name;
                panic!(
                    "\"{name}\" is broken in {weather:?}, FENCEPOST_MODEL_SEED={seed}:\n{a:?}\n{b:?}"
                );
            }
        }
        if weather == Weather::Fair {
            as_seen_from_outside(seed, &grants);
        }
    }
    println!("{weather:?}: {tally:?}");
    tally
}

/// The promises that every backend is judged by.
fn as_seen_from_outside(seed: u64, grants: &[Grant]) {
    let name = LockName::new("model").unwrap();
    let held = |grant: &Grant| Held {
        name: name.clone(),
        token: Token::new(grant.token).unwrap(),
        from: Moment::from_nanos(grant.told * 1_000),
        until: Moment::from_nanos(grant.until * 1_000),
    };
    let history: Vec<Held> = grants.iter().map(held).collect();
    for promise in [p1_no_overlap, p2_tokens_rise] {
        if let Err(violation) = promise(&history) {
            panic!("{violation}, FENCEPOST_MODEL_SEED={seed}");
        }
    }
}

/// Runs a negative control and counts what breaks; nothing if one seed is repeated.
fn faults(weather: Weather, variant: Variant) -> Option<Faults> {
    if repeated().is_some() {
        return None;
    }
    let (mut tally, mut faults) = (Tally::default(), Faults::default());
    for seed in seeds(CONTROL) {
        let grants = world::run(seed, weather, variant, &mut tally);
        faults.repeated += broken(&UNIQUE, &grants).len();
        faults.fallen += broken(&REAL_TIME_ORDER, &grants).len();
        faults.revenants += broken(&NO_REVENANT, &grants).len();
        faults.overlaps += broken(&EXCLUSION, &grants).len();
    }
    println!("{variant:?} in {weather:?}: {} grants, {faults:?}", tally.grants);
    Some(faults)
}

/// That the runs were about something.
fn was_eventful(tally: &Tally) {
    if repeated().is_some() {
        return;
    }
    assert!(tally.grants > 2_500, "{tally:?}");
    assert!(tally.held > tally.grants, "{tally:?}");
    let often = [tally.unreachable, tally.outrun, tally.renewals, tally.releases, tally.pauses];
    assert!(often.iter().all(|count| *count > 300), "{tally:?}");
    assert!(tally.crashes > 100 && tally.late > 10, "{tally:?}");
}

#[test]
fn while_clocks_leap_tokens_stay_unique_and_in_order_and_no_revenant_is_granted() {
    let tally = must_hold(Weather::Leaping, &TOKENS);
    was_eventful(&tally);
    if repeated().is_none() {
        assert!(tally.leaps > 1_000 && tally.deletions > 1_000, "{tally:?}");
        assert!(tally.exhausted > 10 && tally.hollow > 10, "{tally:?}");
    }
}

#[test]
fn in_fair_weather_grants_exclude_each_other_too() {
    let mut all = TOKENS.to_vec();
    all.push(EXCLUSION);
    was_eventful(&must_hold(Weather::Fair, &all));
}

/// The tokens live by the clocks here: a node that has forgotten its mark votes with its time, a full lease
/// later, and the clocks differ by less than that.
#[test]
fn nodes_that_forget_and_then_wait_before_they_vote_do_no_harm() {
    let mut all = TOKENS.to_vec();
    all.push(EXCLUSION);
    let tally = must_hold(Weather::Forgetful, &all);
    was_eventful(&tally);
    assert!(tally.restarts > 1_000 || repeated().is_some(), "{tally:?}");
}

#[test]
fn the_highest_of_several_counters_repeats_and_falls() {
    let Some(faults) = faults(Weather::Fair, Variant::MaxOfCounters) else { return };
    assert!(faults.repeated > 0 && faults.fallen > 0, "{faults:?}");
}

#[test]
fn without_the_owner_check_a_revenant_is_granted() {
    let Some(faults) = faults(Weather::Leaping, Variant::NoOwnerCheck) else { return };
    assert!(faults.revenants > 0, "{faults:?}");
    assert_eq!((faults.repeated, faults.fallen), (0, 0), "the marks alone see to that");
}

#[test]
fn leaping_clocks_end_exclusion() {
    let Some(faults) = faults(Weather::Leaping, Variant::AsBuilt) else { return };
    assert!(faults.overlaps > 0, "{faults:?}");
}

#[test]
fn nodes_that_forget_and_vote_at_once_end_exclusion() {
    let Some(faults) = faults(Weather::Forgetful, Variant::VotesAtOnce) else { return };
    assert!(faults.overlaps > 0, "{faults:?}");
}

#[test]
fn nodes_that_forget_while_clocks_lie_end_the_order_of_tokens() {
    let Some(faults) = faults(Weather::LeapingAndForgetful, Variant::AsBuilt) else { return };
    assert!(faults.fallen > 0, "{faults:?}");
}

/// node-redlock#169 counted from the first attempt and was only too careful; the cure that was proposed in
/// its #167 is what hurts.
#[test]
fn a_lease_that_is_counted_from_the_grant_ends_exclusion() {
    let Some(faults) = faults(Weather::Fair, Variant::CountsFromTheGrant) else { return };
    assert!(faults.overlaps > 0, "{faults:?}");
}

#[test]
fn a_lease_that_is_not_checked_after_phase_2_ends_exclusion() {
    let Some(faults) = faults(Weather::Fair, Variant::NotCheckedAfterPhase2) else { return };
    assert!(faults.overlaps > 0, "{faults:?}");
}

/// It arrives during the next attempt and deletes its keys.
#[test]
fn an_undo_that_goes_by_the_owner_ends_exclusion() {
    let Some(faults) = faults(Weather::Fair, Variant::UndoByOwner) else { return };
    assert!(faults.overlaps > 0, "{faults:?}");
}
