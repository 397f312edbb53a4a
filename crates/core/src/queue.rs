//! The waiters of one name, in order of arrival.

use std::collections::BTreeMap;

use crate::command::Ticket;
use crate::types::{Label, OwnerId, Ttl};

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The owner that waits.
    pub owner: OwnerId,
    /// Its position.
    pub ticket: Ticket,
    /// The lease of the position, and later of the grant.
    pub ttl: Ttl,
    /// What a person reads.
    pub label: Label,
}

/// A FIFO that can also remove a waiter in the middle.
///
/// Tickets rise, so a map ordered by ticket is the queue; the second map finds a waiter by its
/// owner. Every step is O(log n). Trees rather than hash tables: a hundred thousand waiters come and go
/// without the one step that rehashes them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
    tickets: BTreeMap<OwnerId, Ticket>,
}

impl Queue {
    /// Adds `waiter` at the end; its ticket is higher than all before.
    pub(crate) fn push(&mut self, waiter: Waiter) {
        self.tickets.insert(waiter.owner, waiter.ticket);
        self.waiters.insert(waiter.ticket, waiter);
    }

    /// The ticket of `owner`.
    pub(crate) fn position_of(&self, owner: OwnerId) -> Option<Ticket> {
        self.tickets.get(&owner).copied()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        self.waiters.get_mut(&ticket)
    }

    /// Removes the waiter with this ticket.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.tickets.remove(&waiter.owner);
        Some(waiter)
    }

    /// Removes the waiter that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        let (_, waiter) = self.waiters.pop_first()?;
        self.tickets.remove(&waiter.owner);
        Some(waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A waiter that left must not stay known by its owner: a name that is always contended would collect them.
    #[test]
    fn waiter_that_left_is_forgotten() {
        let mut queue = Queue::default();
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        for number in 1..=9 {
            let (owner, ticket) = (OwnerId::from_bits(number.into()), Ticket::new(number).unwrap());
            queue.push(Waiter { owner, ticket, ttl, label: Label::new("test:1").unwrap() });
        }
        assert_eq!(queue.take(Ticket::new(5).unwrap()).unwrap().owner, OwnerId::from_bits(5));
        assert_eq!(queue.take(Ticket::new(5).unwrap()), None);
        assert_eq!(queue.position_of(OwnerId::from_bits(5)), None);
        assert_eq!(queue.pop().unwrap().ticket.get(), 1);
        assert_eq!((queue.waiters.len(), queue.tickets.len()), (7, 7));
    }
}
