//! Those who wait for one name, in the order they came.

use std::collections::BTreeMap;

use crate::command::Ticket;
use crate::types::{Label, OwnerId, Ttl};

/// One who waits for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who waits.
    pub owner: OwnerId,
    /// Its place.
    pub ticket: Ticket,
    /// The lease on the place, and later on the grant.
    pub ttl: Ttl,
    /// What a person reads.
    pub label: Label,
}

/// A FIFO that can also let go of somebody in the middle.
///
/// Tickets rise, so a map ordered by ticket is the line itself; the second map finds a waiter by its
/// owner. Every step is O(log n). Trees rather than hash tables: a hundred thousand waiters come and go
/// without the one step that rehashes them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    line: BTreeMap<Ticket, Waiter>,
    places: BTreeMap<OwnerId, Ticket>,
}

impl Queue {
    /// Puts `waiter` at the end of the line; its ticket is higher than all that were given before.
    pub(crate) fn push(&mut self, waiter: Waiter) {
        self.places.insert(waiter.owner, waiter.ticket);
        self.line.insert(waiter.ticket, waiter);
    }

    /// The place of `owner`.
    pub(crate) fn place_of(&self, owner: OwnerId) -> Option<Ticket> {
        self.places.get(&owner).copied()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.line.get(&ticket)
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter> {
        self.line.get_mut(&ticket)
    }

    /// Takes that place out of the line, wherever it stands.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.line.remove(&ticket)?;
        self.places.remove(&waiter.owner);
        Some(waiter)
    }

    /// Takes whoever has waited longest.
    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        let (_, waiter) = self.line.pop_first()?;
        self.places.remove(&waiter.owner);
        Some(waiter)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.line.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One who left must not stay known by its owner: a name that is always contended would gather them.
    #[test]
    fn whoever_leaves_is_forgotten() {
        let mut queue = Queue::default();
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        for number in 1..=9 {
            let (owner, ticket) = (OwnerId::from_bits(number.into()), Ticket::new(number).unwrap());
            queue.push(Waiter { owner, ticket, ttl, label: Label::new("test:1").unwrap() });
        }
        assert_eq!(queue.take(Ticket::new(5).unwrap()).unwrap().owner, OwnerId::from_bits(5));
        assert_eq!(queue.take(Ticket::new(5).unwrap()), None);
        assert_eq!(queue.place_of(OwnerId::from_bits(5)), None);
        assert_eq!(queue.pop().unwrap().ticket.get(), 1);
        assert_eq!((queue.line.len(), queue.places.len()), (7, 7));
    }
}
