//! When leases run out: the clock side of the machine.
//!
//! The machine never sees time. The wheel sees every effect of it together with the time, keeps one
//! deadline per live lease, and says which [`Command::Expire`] is due. It decides nothing: until the
//! machine has applied the `Expire`, the grant stands.
//!
//! *Never early.* A lease is due from `observed + ttl` on, and every renewal that was observed moves it.
//!
//! *Never forgotten, never spinning.* A lease leaves the wheel only when the machine says that it is over.
//! One that is due is handed out once and then, in case that command got lost (a leader that lost its
//! term before the entry was in), again every [`LeaseWheel::OFFERED_AGAIN_AFTER`]. So
//! `while let Some(expire) = wheel.expired(now)` ends even if nothing is applied.
//!
//! *The caller's part.* The machine obeys an `Expire` whatever was renewed meanwhile, so whoever has taken
//! one applies it before any later command on that lease, or drops it.
//!
//! Inside: a four-way heap of deadlines, each of which knows its lease and is known by it, so a renewal
//! moves one entry and a release removes one: O(log n), and nothing stale is left to be skipped later.
//! The vectors keep their capacity; 48 bytes a lease and a table of 17 a bucket.

use std::time::Duration;

use crate::command::{Command, Effect, Lease, Ticket};
use crate::moment::Moment;
use crate::table::Table;
use crate::types::{LockName, Token};

/// The deadlines of all live leases.
#[derive(Clone, Debug, Default)]
pub struct LeaseWheel {
    /// The earliest first; no entry is before its parent.
    heap: Vec<Node>,
    /// In no order, without gaps.
    slots: Vec<Slot>,
    /// Where a lease has its slot.
    index: Table<Key, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    at: Moment,
    slot: u32,
}

#[derive(Clone, Debug)]
struct Slot {
    name: LockName,
    key: Key,
    /// Where in the heap its deadline is.
    node: u32,
    /// Handed out already: the heap has the moment of the next offer, not the deadline.
    offered: bool,
}

/// A [`Lease`] in eight bytes instead of sixteen: tokens end below 2^53, and the top bit marks a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// Children per heap entry: four deadlines share a cache line.
const CHILDREN: usize = 4;

impl LeaseWheel {
    /// How long after a lease was handed out, and its end was not observed, it is handed out again.
    pub const OFFERED_AGAIN_AFTER: Duration = Duration::from_secs(1);

    /// A wheel without leases.
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

    /// An `Expire` that is due at `now`, the one that has been due longest; `None` when there is no more.
    pub fn expired(&mut self, now: Moment) -> Option<Command> {
        let Node { at, slot } = *self.heap.first()?;
        if now < at {
            return None;
        }
        let due = &mut self.slots[slot as usize];
        due.offered = true;
        let expire = Command::Expire { name: due.name.clone(), lease: due.key.lease() };
        self.heap[0].at = now + Self::OFFERED_AGAIN_AFTER;
        self.settle(0);
        Some(expire)
    }

    /// When to call [`LeaseWheel::expired`] next; `None` while there are no leases.
    #[must_use]
    pub fn next(&self) -> Option<Moment> {
        self.heap.first().map(|node| node.at)
    }

    /// When that lease runs out. For one that was handed out already it is the moment of that, which is
    /// past as well.
    #[must_use]
    pub fn deadline(&self, lease: Lease) -> Option<Moment> {
        let slot = &self.slots[*self.index.get(&Key::new(lease))? as usize];
        let at = self.heap[slot.node as usize].at;
        Some(if slot.offered { at.back(Self::OFFERED_AGAIN_AFTER) } else { at })
    }

    /// How many leases are live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no lease is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn arm(&mut self, name: &LockName, lease: Lease, at: Moment) {
        let key = Key::new(lease);
        let node = if let Some(&slot) = self.index.get(&key) {
            let armed = &mut self.slots[slot as usize];
            armed.offered = false;
            let node = armed.node as usize;
            self.heap[node].at = at;
            node
        } else {
            let (slot, node) = (self.slots.len() as u32, self.heap.len());
            self.index.insert(key, slot);
            self.slots.push(Slot { name: name.clone(), key, node: node as u32, offered: false });
            self.heap.push(Node { at, slot });
            node
        };
        self.settle(node);
    }

    /// Takes the lease out, and closes the two gaps it leaves with the last of each vector.
    fn disarm(&mut self, lease: Lease) {
        let Some(slot) = self.index.remove(&Key::new(lease)) else { return };
        let node = self.slots[slot as usize].node as usize;
        self.heap.swap_remove(node);
        if let Some(&moved) = self.heap.get(node) {
            self.slots[moved.slot as usize].node = node as u32;
            self.settle(node);
        }
        self.slots.swap_remove(slot as usize);
        if let Some(moved) = self.slots.get(slot as usize) {
            self.heap[moved.node as usize].slot = slot;
            self.index.insert(moved.key, slot);
        }
    }

    /// Moves the heap entry at `node`, whose time has changed, to where it belongs.
    fn settle(&mut self, mut node: usize) {
        let moving = self.heap[node];
        while node > 0 {
            let parent = (node - 1) / CHILDREN;
            if self.heap[parent].at <= moving.at {
                break;
            }
            self.put(node, self.heap[parent]);
            node = parent;
        }
        loop {
            let first = node * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            match children.min_by_key(|&child| self.heap[child].at) {
                Some(child) if self.heap[child].at < moving.at => {
                    self.put(node, self.heap[child]);
                    node = child;
                }
                _ => break,
            }
        }
        self.put(node, moving);
    }

    fn put(&mut self, node: usize, entry: Node) {
        self.heap[node] = entry;
        self.slots[entry.slot as usize].node = node as u32;
    }
}

#[cfg(test)]
mod tests;
