//! Random commands under a random clock: every step keeps every promise, and the queue knows exactly the
//! leases that the machine has. Few names and owners, so that they meet. A failure is shrunk to the
//! shortest run, and proptest prints the seed.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::invariants::{Held, Step, check, p1_no_overlap, p2_tokens_rise};
use fencepost_core::{
    Command, Effect, ExpiryQueue, Label, Lease, LockName, Machine, Moment, OwnerId, Ticket, Token,
    Ttl,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[derive(Clone, Debug)]
enum Op {
    Apply(Command),
    /// The clock advances, and each `Expire` that is due is applied, or handed out and lost (by a leader that lost its term).
    Tick {
        millis: u64,
        lost: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = (0..3_u8).prop_map(|n| LockName::new(&format!("n{n}")).unwrap());
    let owner = (1..6_u128).prop_map(OwnerId::from_bits);
    let ttl = (100..4000_u64).prop_map(|millis| Ttl::new(Duration::from_millis(millis)).unwrap());
    // Small numbers: some of these leases are live, some are over, some do not exist yet.
    let lease = prop_oneof![
        (1..40_u64).prop_map(|n| Lease::Held(Token::new(n).unwrap())),
        (1..40_u64).prop_map(|n| Lease::Queued(Ticket::new(n).unwrap())),
    ];
    let label = Label::new("test:1").unwrap();
    let acquire = (name.clone(), owner.clone(), ttl, prop::bool::weighted(0.8)).prop_map(
        move |(name, owner, ttl, queue)| {
            Op::Apply(Command::Acquire { name, owner, ttl, label: label.clone(), queue })
        },
    );
    let pair = (name.clone(), owner);
    let op = prop_oneof![
        6 => acquire,
        2 => pair.clone().prop_map(|(name, owner)| Op::Apply(Command::Renew { name, owner })),
        3 => pair.clone().prop_map(|(name, owner)| Op::Apply(Command::Release { name, owner })),
        1 => pair.prop_map(|(name, owner)| Op::Apply(Command::Cancel { name, owner })),
        1 => (name.clone(), lease).prop_map(|(name, lease)| Op::Apply(Command::Expire { name, lease })),
        1 => name.prop_map(|name| Op::Apply(Command::Break { name })),
        3 => (0..2500_u64, prop::bool::weighted(0.2))
            .prop_map(|(millis, lost)| Op::Tick { millis, lost }),
    ];
    prop::collection::vec(op, 1..120)
}

/// The machine, the queue, and a plain model of both, built from the effects alone.
#[derive(Default)]
struct World {
    machine: Machine,
    expiry_queue: ExpiryQueue,
    now: Moment,
    deadlines: BTreeMap<Lease, Moment>,
    open: BTreeMap<Token, (LockName, Moment)>,
    history: Vec<Held>,
}

impl World {
    fn apply(&mut self, command: &Command) -> Result<(), TestCaseError> {
        let before = self.machine.clone();
        let effects = self.machine.apply(command.clone());
        let step = Step { before: &before, command, effects: &effects, after: &self.machine };
        check(&step).map_err(|violation| TestCaseError::fail(violation.to_string()))?;
        prop_assert_eq!(
            &before.clone().apply(command.clone()),
            &effects,
            "same command, same effects"
        );
        for effect in &effects {
            self.expiry_queue.observe(effect, self.now);
            self.note(effect);
        }
        self.expiry_queue_has_exactly_the_live_leases()
    }

    fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Granted { name, token, ttl, ticket, .. } => {
                if let Some(ticket) = ticket {
                    self.deadlines.remove(&Lease::Queued(*ticket));
                }
                self.deadlines.insert(Lease::Held(*token), self.now + ttl.as_duration());
                self.open.entry(*token).or_insert((name.clone(), self.now));
            }
            Effect::Renewed { token, ttl, .. } => {
                self.deadlines.insert(Lease::Held(*token), self.now + ttl.as_duration());
            }
            Effect::Queued { ticket, ttl, .. } => {
                self.deadlines.insert(Lease::Queued(*ticket), self.now + ttl.as_duration());
            }
            Effect::Released { token, .. } | Effect::Broken { token, .. } => {
                self.over(Lease::Held(*token));
            }
            Effect::Withdrawn { ticket, .. } => self.over(Lease::Queued(*ticket)),
            Effect::Expired { lease, .. } => self.over(*lease),
            _ => {}
        }
    }

    fn over(&mut self, lease: Lease) {
        self.deadlines.remove(&lease);
        if let Lease::Held(token) = lease
            && let Some((name, from)) = self.open.remove(&token)
        {
            self.history.push(Held { name, token, from, until: self.now });
        }
    }

    fn tick(&mut self, millis: u64, lost: bool) -> Result<(), TestCaseError> {
        self.now = self.now + Duration::from_millis(millis);
        let mut offered = 0;
        while let Some(expire) = self.expiry_queue.expired(self.now) {
            let Command::Expire { lease, .. } = expire else {
                return Err(TestCaseError::fail("the expiry queue offered another command"));
            };
            let deadline = self.deadlines.get(&lease).copied();
            prop_assert!(deadline.is_some_and(|at| at <= self.now), "{:?} is early", lease);
            offered += 1;
            prop_assert!(offered <= 20, "the expiry queue spins");
            if !lost {
                self.apply(&expire)?;
                prop_assert!(!self.deadlines.contains_key(&lease), "{:?} outlived its end", lease);
            }
        }
        prop_assert!(
            self.expiry_queue.next().is_none_or(|next| next > self.now),
            "it would wake at once"
        );
        Ok(())
    }

    fn expiry_queue_has_exactly_the_live_leases(&self) -> Result<(), TestCaseError> {
        let mut live = 0;
        for (name, grant) in self.machine.locks() {
            let queued = self.machine.waiters(name).map(|waiter| Lease::Queued(waiter.ticket));
            for lease in queued.chain([Lease::Held(grant.token)]) {
                live += 1;
                let real = self.deadlines.get(&lease).copied();
                prop_assert!(real.is_some());
                let known = self.expiry_queue.deadline(lease);
                // Past its deadline, after an offer that got lost, it may say the time of the offer.
                let overdue = real < known && known <= Some(self.now);
                prop_assert!(known == real || overdue, "{:?}: {:?}, not {:?}", lease, known, real);
            }
        }
        prop_assert_eq!(self.expiry_queue.len(), live);
        Ok(())
    }
}

proptest! {
    // The seed of a failing run goes to a file beside this one, to be committed with the fix.
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_step_keeps_every_promise(ops in ops()) {
        let mut world = World::default();
        for op in ops {
            match op {
                Op::Apply(command) => world.apply(&command)?,
                Op::Tick { millis, lost } => world.tick(millis, lost)?,
            }
        }
        // Nothing is forgotten: without commands everything ends, each waiter after its grant.
        for _ in 0..100 {
            if world.expiry_queue.is_empty() {
                break;
            }
            world.tick(4000, false)?;
        }
        prop_assert!(world.expiry_queue.is_empty() && world.machine.is_empty());
        prop_assert_eq!(world.expiry_queue.next(), None);
        let judged = p1_no_overlap(&world.history).and_then(|()| p2_tokens_rise(&world.history));
        prop_assert_eq!(judged, Ok(()));
        prop_assert!(world.open.is_empty());
    }

    /// The outside predicates against their definitions, written the slow way.
    #[test]
    fn histories_are_judged_as_defined(
        spans in prop::collection::vec((0..2_u8, 1..12_u64, 0..20_u64, 1..6_u64), 0..6)
    ) {
        let history: Vec<Held> = spans
            .into_iter()
            .map(|(name, token, from, lasts)| Held {
                name: LockName::new(&format!("n{name}")).unwrap(),
                token: Token::new(token).unwrap(),
                from: Moment::from_nanos(from),
                until: Moment::from_nanos(from + lasts),
            })
            .collect();
        let mut overlap = false;
        let mut falls = false;
        for (i, a) in history.iter().enumerate() {
            for b in history.iter().skip(i + 1).filter(|b| a.name == b.name) {
                overlap |= a.from < b.until && b.from < a.until;
                falls |= a.token == b.token || (a.from < b.from) == (a.token > b.token) && a.from != b.from;
            }
        }
        prop_assert_eq!(p1_no_overlap(&history).is_err(), overlap);
        // Grants that start together overlap already; their order does not matter.
        if !overlap {
            prop_assert_eq!(p2_tokens_rise(&history).is_err(), falls);
        }
    }
}
