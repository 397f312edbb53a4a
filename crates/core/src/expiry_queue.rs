//! When leases end: the clock side of the machine.
//!
//! The machine never sees time. The queue sees every effect of it together with the time, keeps one
//! deadline per live lease, and says which [`Command::Expire`] is due. It decides nothing: until the
//! machine has applied the `Expire`, the grant is in force.
//!
//! *Never early.* A lease is due from `observed + ttl` on, and every renewal that was observed moves it.
//!
//! *Never forgotten, never spinning.* A lease leaves the queue only when the machine says that it is over. A due lease is
//! offered once and, in case that command was lost (a leader that lost its term before the entry was in), again every
//! [`ExpiryQueue::OFFERED_AGAIN_AFTER`]. So `while let Some(expire) = expiry_queue.expired(now)` ends even if nothing is
//! applied.
//!
//! *The caller's part.* The machine obeys an `Expire` whatever was renewed meanwhile. So the caller must apply it before any
//! later command on that lease, or drop it.
//!
//! Inside: a set of all deadlines in order, and a map from each lease to its own. A renewal moves one entry and a release
//! removes one: O(log n), and no stale entries remain. Trees, because they never move all entries in one step
//! (docs/decisions/0012).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::command::{Command, Effect, Lease, Ticket};
use crate::moment::Moment;
use crate::types::{LockName, Token};

/// The deadlines of all live leases.
#[derive(Clone, Debug, Default)]
pub struct ExpiryQueue {
    /// The earliest first.
    order: BTreeSet<(Moment, Key)>,
    leases: BTreeMap<Key, LiveLease>,
}

#[derive(Clone, Debug)]
struct LiveLease {
    name: LockName,
    /// Its key in the order.
    at: Moment,
    /// Offered already: `at` is the moment of the next offer, not the deadline.
    offered: bool,
}

/// A [`Lease`] in eight bytes instead of sixteen: tokens end below 2^53, and the top bit marks a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    const TICKET: u64 = 1 << 63;

    fn new(lease: Lease) -> Self {
        match lease {
            Lease::Held(token) => Self(token.get()),
            Lease::Queued(ticket) => Self(ticket.get() | Self::TICKET),
        }
    }

    fn lease(self) -> Lease {
        match Ticket::new(self.0 & !Self::TICKET) {
            Some(ticket) if self.0 & Self::TICKET != 0 => Lease::Queued(ticket),
            _ => Lease::Held(Token::new(self.0).expect("a key was made from a lease")),
        }
    }
}

impl ExpiryQueue {
    /// How long after a lease was handed out, and its end was not observed, it is handed out again.
    pub const OFFERED_AGAIN_AFTER: Duration = Duration::from_secs(1);

    /// A queue without leases.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from one effect of the machine. Every effect must pass here, in the machine's order.
    pub fn observe(&mut self, effect: &Effect, now: Moment) {
        match effect {
            Effect::Granted { name, token, ttl, ticket, .. } => {
                if let Some(ticket) = *ticket {
                    self.disarm(Lease::Queued(ticket));
                }
                self.arm(name, Lease::Held(*token), now + ttl.as_duration());
            }
            Effect::Renewed { name, token, ttl, .. } => {
                self.arm(name, Lease::Held(*token), now + ttl.as_duration());
            }
            Effect::Queued { name, ticket, ttl, .. } => {
                self.arm(name, Lease::Queued(*ticket), now + ttl.as_duration());
            }
            Effect::Released { token, .. } | Effect::Broken { token, .. } => {
                self.disarm(Lease::Held(*token));
            }
            Effect::Withdrawn { ticket, .. } => self.disarm(Lease::Queued(*ticket)),
            Effect::Expired { lease, .. } => self.disarm(*lease),
            Effect::Held { .. }
            | Effect::NotHeld { .. }
            | Effect::NotBroken { .. }
            | Effect::Exhausted { .. } => {}
        }
    }

    /// The `Expire` that has been due longest at `now`; `None` if no more are due.
    pub fn expired(&mut self, now: Moment) -> Option<Command> {
        let (_, key) = *self.order.first().filter(|(at, _)| *at <= now)?;
        let live = self.leases.get_mut(&key)?;
        (live.at, live.offered) = (now + Self::OFFERED_AGAIN_AFTER, true);
        self.order.pop_first();
        self.order.insert((live.at, key));
        Some(Command::Expire { name: live.name.clone(), lease: key.lease() })
    }

    /// When to call [`ExpiryQueue::expired`] next; `None` while there are no leases.
    #[must_use]
    pub fn next(&self) -> Option<Moment> {
        self.order.first().map(|(at, _)| *at)
    }

    /// When that lease ends. For one that was handed out already it is the moment of the last offer, which is past
    /// as well.
    #[must_use]
    pub fn deadline(&self, lease: Lease) -> Option<Moment> {
        let live = self.leases.get(&Key::new(lease))?;
        Some(if live.offered { live.at.back(Self::OFFERED_AGAIN_AFTER) } else { live.at })
    }

    /// How many leases are live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no lease is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn arm(&mut self, name: &LockName, lease: Lease, at: Moment) {
        let key = Key::new(lease);
        if let Some(live) = self.leases.get_mut(&key) {
            self.order.remove(&(live.at, key));
            (live.at, live.offered) = (at, false);
        } else {
            self.leases.insert(key, LiveLease { name: name.clone(), at, offered: false });
        }
        self.order.insert((at, key));
    }

    fn disarm(&mut self, lease: Lease) {
        let key = Key::new(lease);
        if let Some(live) = self.leases.remove(&key) {
            self.order.remove(&(live.at, key));
        }
    }
}

#[cfg(test)]
mod tests;
