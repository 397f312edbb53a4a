//! The promises as predicates, checked by the property tests and the conformance suite.
//!
//! Two forms. A [`Step`] is one command with the machine before and after it, and is judged by the
//! machine's public view only; a predicate does not repeat how the machine came to its answer, it says
//! what must be true of any answer. A history of [`Held`] is what an observer saw of any store.
//!
//! A violation names locks, tokens and tickets and never an owner, which is a secret.

mod history;
pub use history::{Held, p1_no_overlap, p2_tokens_rise};

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::{Command, Effect, Grant, Lease, LockName, Machine, OwnerId, Token, Waiter};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one: `P1`, `P2` ...
    pub promise: &'static str,
    /// What was seen instead.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.promise, self.what)
    }
}

impl std::error::Error for Violation {}

/// One command and what it did.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The machine before it.
    pub before: &'a Machine,
    /// The command.
    pub command: &'a Command,
    /// What it answered.
    pub effects: &'a [Effect],
    /// The machine after it.
    pub after: &'a Machine,
}

impl<'a> Step<'a> {
    fn name(&self) -> &'a LockName {
        self.command.name()
    }

    fn held_before(&self) -> Option<&'a Grant> {
        self.before.holder(self.name())
    }

    fn held_after(&self) -> Option<&'a Grant> {
        self.after.holder(self.name())
    }

    fn queue_before(&self) -> Vec<&'a Waiter> {
        self.before.waiters(self.name()).collect()
    }

    fn queue_after(&self) -> Vec<&'a Waiter> {
        self.after.waiters(self.name()).collect()
    }

    fn changes_nothing_here(&self) -> bool {
        self.held_before() == self.held_after() && self.queue_before() == self.queue_after()
    }
}

macro_rules! ensure {
    ($promise:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(Violation { promise: $promise, what: format!($($what)+) });
        }
    };
}
use ensure;

/// Checks all promises over one step.
pub fn check(step: &Step<'_>) -> Result<(), Violation> {
    p1_exclusion(step)?;
    p2_monotonic_tokens(step)?;
    p3_owner_only(step)?;
    p6_no_orphans_no_duplicates(step)?;
    p7_no_herd(step)
}

/// P1: a name is granted only after the grant before it has ended, and the effects report every change of holder: an
/// observer of the effects never sees two.
pub fn p1_exclusion(step: &Step<'_>) -> Result<(), Violation> {
    let name = step.name();
    let mut holds = step.held_before().map(|grant| (grant.token, grant.owner));
    for effect in step.effects {
        ensure!(
            "P1",
            effect.name() == name,
            "a command on {name} had an effect on {}",
            effect.name()
        );
        match *effect {
            Effect::Granted { token, owner, .. } => {
                let free = holds.is_none_or(|held| held == (token, owner));
                ensure!("P1", free, "{name} was granted with token {token} while another held it");
                holds = Some((token, owner));
            }
            Effect::Released { token, owner, .. }
            | Effect::Broken { token, owner, .. }
            | Effect::Expired { lease: Lease::Held(token), owner, .. } => {
                let ended = holds == Some((token, owner));
                ensure!("P1", ended, "token {token} on {name} was ended, and was not what held it");
                holds = None;
            }
            _ => {}
        }
    }
    let reported = holds == step.held_after().map(|grant| (grant.token, grant.owner));
    ensure!("P1", reported, "the holder of {name} is not the one in the effects");
    let mut tokens = HashSet::new();
    let shared = step.after.locks().find(|(_, grant)| !tokens.insert(grant.token));
    ensure!("P1", shared.is_none(), "two names are held with one token");
    Ok(())
}

/// P2: every token that a step draws, for a grant or as the floor of a break, is above all that were
/// drawn before it, and the machine remembers the highest.
pub fn p2_monotonic_tokens(step: &Step<'_>) -> Result<(), Violation> {
    let name = step.name();
    let kept = step.held_before().map(|grant| grant.token);
    let mut last = step.before.last_token();
    for effect in step.effects {
        let drawn = match *effect {
            Effect::Granted { token, .. } if Some(token) != kept => token,
            Effect::Broken { floor, .. } => floor,
            _ => continue,
        };
        ensure!("P2", Some(drawn) > last, "{name} drew token {drawn} after {}", shown(last));
        last = Some(drawn);
    }
    let now = step.after.last_token();
    ensure!("P2", now == last, "token {} was the last, not {}", shown(last), shown(now));
    for (name, grant) in step.after.locks() {
        let drawn = Some(grant.token) <= last;
        ensure!("P2", drawn, "{name} has token {}, which was never drawn", grant.token);
    }
    Ok(())
}

/// P3: a grant ends by its owner, its own expiry or a break; a position by its owner, its own expiry or its grant. An owner
/// without either changes nothing and gets `NotHeld`. A command on one name leaves all others unchanged.
pub fn p3_owner_only(step: &Step<'_>) -> Result<(), Violation> {
    let name = step.name();
    let holder = step.held_before();
    let holds = |owner| holder.is_some_and(|grant| grant.owner == owner);
    let queue = step.queue_before();
    let waits = |owner| queue.iter().any(|waiter| waiter.owner == owner);

    let refused = match *step.command {
        Command::Release { owner, .. } if !holds(owner) => Some(owner),
        Command::Renew { owner, .. } | Command::Cancel { owner, .. }
            if !holds(owner) && !waits(owner) =>
        {
            Some(owner)
        }
        _ => None,
    };
    if let Some(owner) = refused {
        let said = matches!(step.effects, [Effect::NotHeld { owner: to, .. }] if *to == owner);
        ensure!("P3", said, "a caller without a grant on {name} did not get NotHeld");
        ensure!("P3", step.changes_nothing_here(), "a caller without a grant changed {name}");
    }

    let stays =
        holder.is_none_or(|grant| step.held_after().is_some_and(|a| a.token == grant.token));
    let may_end = holder.is_some_and(|grant| match *step.command {
        Command::Release { owner, .. } | Command::Cancel { owner, .. } => owner == grant.owner,
        Command::Expire { lease, .. } => lease == Lease::Held(grant.token),
        Command::Break { .. } => true,
        Command::Acquire { .. } | Command::Renew { .. } => false,
    });
    ensure!("P3", stays || may_end, "the grant of {name} was ended by a command that may not");

    let retries = |by| matches!(*step.command, Command::Acquire { owner, .. } if owner == by);
    if let (Some(old), Some(new)) = (holder, step.held_after()) {
        let edited = old.token == new.token && old != new && !retries(old.owner);
        ensure!("P3", !edited, "the grant of {name} was altered by another owner");
    }
    let after: HashMap<_, _> = step.queue_after().into_iter().map(|w| (w.ticket, w)).collect();
    for waiter in &queue {
        let allowed = match (after.get(&waiter.ticket), step.command) {
            (Some(now), _) => now == waiter || retries(waiter.owner),
            (None, Command::Cancel { owner, .. }) if *owner == waiter.owner => true,
            (None, Command::Expire { lease: Lease::Queued(t), .. }) if *t == waiter.ticket => true,
            (None, _) => step.held_after().is_some_and(|grant| grant.owner == waiter.owner),
        };
        let n = waiter.ticket.get();
        ensure!("P3", allowed, "position {n} on {name} was altered by another owner");
    }
    untouched_elsewhere(step)
}

fn untouched_elsewhere(step: &Step<'_>) -> Result<(), Violation> {
    let view = |machine: &'_ Machine| -> HashMap<LockName, (Grant, Vec<Waiter>)> {
        let others = machine.locks().filter(|(name, _)| *name != step.name());
        others
            .map(|(name, grant)| {
                (name.clone(), (grant.clone(), machine.waiters(name).cloned().collect()))
            })
            .collect()
    };
    let same = view(step.before) == view(step.after);
    ensure!("P3", same, "a command on {} changed another name", step.name());
    Ok(())
}

/// P6: a retry gets what it had and nothing new; an owner has one grant or one position on a name, not both and not two;
/// what was released is gone; a free name leaves nothing.
pub fn p6_no_orphans_no_duplicates(step: &Step<'_>) -> Result<(), Violation> {
    let name = step.name();
    let queue = step.queue_after();
    let mut owners: HashSet<OwnerId> = step.held_after().iter().map(|grant| grant.owner).collect();
    let mut tickets = HashSet::new();
    for waiter in &queue {
        let n = waiter.ticket.get();
        ensure!("P6", owners.insert(waiter.owner), "position {n} on {name}: its owner has another");
        ensure!("P6", tickets.insert(waiter.ticket), "position {n} on {name} was assigned twice");
    }
    ensure!("P6", queue.len() == step.after.waiting(name), "{name} miscounts its waiters");
    let orphans = step.held_after().is_none() && !queue.is_empty();
    ensure!("P6", !orphans, "{name} is free and has {} waiters", queue.len());
    let listed = step.after.locks().filter(|(listed, _)| *listed == name).count();
    let counted = usize::from(step.held_after().is_some());
    ensure!("P6", listed == counted, "{name} is listed {listed} times and held {counted} times");
    ensure!(
        "P6",
        step.after.locks().count() == step.after.len(),
        "the machine miscounts its names"
    );

    match *step.command {
        Command::Acquire { owner, .. } | Command::Renew { owner, .. } => retry(step, owner),
        Command::Cancel { owner, .. } => {
            ensure!("P6", !owners.contains(&owner), "something was left on {name} after a cancel");
            Ok(())
        }
        Command::Release { owner, .. } => {
            let released = step.effects.iter().any(|e| matches!(e, Effect::Released { .. }));
            let left = released && owners.contains(&owner);
            ensure!("P6", !left, "something was left on {name} after a release");
            Ok(())
        }
        Command::Expire { .. } | Command::Break { .. } => Ok(()),
    }
}

/// An acquire or a renewal by an owner that has a grant or a position already.
fn retry(step: &Step<'_>, caller: OwnerId) -> Result<(), Violation> {
    let name = step.name();
    let [answer] = step.effects else {
        ensure!("P6", false, "a caller on {name} got {} answers", step.effects.len());
        return Ok(());
    };
    let acquires = matches!(step.command, Command::Acquire { .. });
    if let Some(held) = step.held_before().filter(|grant| grant.owner == caller) {
        let reported = match *answer {
            Effect::Granted { token, owner, .. } if acquires => Some((token, owner)),
            Effect::Renewed { token, owner, .. } if !acquires => Some((token, owner)),
            _ => None,
        };
        let same = reported == Some((held.token, caller));
        let kept = step.held_after().is_some_and(|grant| grant.token == held.token);
        ensure!("P6", same && kept, "the holder of {name} retried and lost token {}", held.token);
    }
    if let Some(waiting) = step.queue_before().iter().find(|waiter| waiter.owner == caller) {
        let number = waiting.ticket.get();
        let same = match *answer {
            Effect::Queued { ticket, owner, .. } => (ticket, owner) == (waiting.ticket, caller),
            Effect::Held { .. } => matches!(step.command, Command::Acquire { queue: false, .. }),
            _ => false,
        };
        let kept = step.queue_after().iter().any(|waiter| waiter.ticket == waiting.ticket);
        ensure!("P6", same && kept, "a waiter on {name} retried and lost position {number}");
        let alone = step.queue_before().len() == step.queue_after().len();
        ensure!("P6", alone, "a waiter on {name} retried and got two positions");
    }
    Ok(())
}

/// P7: one step grants at most one owner, the first in the queue. No waiter is skipped, and a new one goes to the end. A free
/// name has no waiters: when a grant ends, the first in the queue gets the next one in the same step.
pub fn p7_no_herd(step: &Step<'_>) -> Result<(), Violation> {
    let name = step.name();
    let granted = step.effects.iter().filter(|e| matches!(e, Effect::Granted { .. })).count();
    ensure!("P7", granted <= 1, "one step on {name} granted {granted} owners");
    ensure!("P7", step.effects.len() <= 2, "one step on {name} had {} effects", step.effects.len());

    let mut before = step.queue_before();
    let old = step.held_before();
    let ended = old.is_some() && step.held_after().map(|g| g.token) != old.map(|g| g.token);
    let expected = (ended && !before.is_empty()).then(|| before.remove(0));
    let from_queue = step.effects.iter().find_map(|effect| match *effect {
        Effect::Granted { ticket: Some(ticket), owner, .. } => Some((ticket, owner)),
        _ => None,
    });
    let head = expected.map(|waiter| (waiter.ticket, waiter.owner));
    ensure!("P7", from_queue == head, "{name} did not go to the first in the queue");
    if let Some(first) = expected {
        let is_held = step.held_after().is_some_and(|grant| grant.owner == first.owner);
        ensure!("P7", is_held, "{name} is not with the one that was first in the queue");
    }

    // Each waiter afterwards was there before, in the same order, or is new and last.
    let mut last = None;
    let mut old = before.iter();
    for waiter in step.queue_after() {
        let n = waiter.ticket.get();
        ensure!("P7", last < Some(waiter.ticket), "position {n} on {name} is out of order");
        last = Some(waiter.ticket);
        if old.any(|earlier| earlier.ticket == waiter.ticket) {
            continue;
        }
        let newcomer = matches!(*step.command, Command::Acquire { owner, queue: true, .. } if owner == waiter.owner)
            && before.iter().all(|earlier| earlier.ticket < waiter.ticket);
        ensure!("P7", newcomer, "position {n} on {name} was not requested");
    }
    Ok(())
}

fn shown(token: Option<Token>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| token.to_string())
}

#[cfg(test)]
mod controls;
