//! Acquires whose outcome is unknown: sent, and not answered yet, or answered only after a retry.
//!
//! Such a request may arrive after the release that undoes it: over another connection, or behind it in a batch. So the
//! owner is noted before the request leaves, and the note is removed when the first request is answered. The release of a
//! noted owner leaves a note at the server, whatever it finds there; other releases do not pay for one.

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::{Moment, OwnerId};
use parking_lot::Mutex;

use crate::backend::{Outcome, StoreResult};

/// How many owners are noted. With more, every release leaves a note for a while.
const MOST: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Unanswered {
    /// For how long after it left a request counts as still under way.
    late: Duration,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// When the last request of each left.
    sent: HashMap<OwnerId, Moment>,
    /// The number of entries at which old ones are dropped.
    full: usize,
    /// There were too many entries: until this moment every owner counts as noted.
    all_until: Option<Moment>,
}

impl Unanswered {
    pub(super) fn new(late: Duration) -> Self {
        Self { late, noted: Mutex::default() }
    }

    /// Notes that an acquire is about to leave. Returns whether it is the first one of this owner.
    pub(super) fn note(&self, owner: OwnerId, now: Moment) -> bool {
        let mut noted = self.noted.lock();
        if noted.sent.len() >= noted.full {
            noted.sent.retain(|_, sent| now.since(*sent) < self.late);
            if noted.sent.len() >= MOST {
                noted.sent.clear();
                noted.all_until = Some(now + self.late);
            }
            noted.full = (noted.sent.len() * 2).clamp(64, MOST);
        }
        noted.sent.insert(owner, now).is_none()
    }

    /// The acquire that was noted at `sent` was answered; `first` says whether it was the owner's first one. The owner
    /// stays noted while a request of it may still be under way: an earlier one, or one that was noted since.
    pub(super) fn settle<T>(
        &self,
        owner: OwnerId,
        first: bool,
        sent: Moment,
        reply: &StoreResult<T>,
    ) {
        let open = match reply {
            Ok(reply) => reply.retried,
            Err(error) => error.outcome() == Outcome::Unknown,
        };
        let mut noted = self.noted.lock();
        if first && !open && noted.sent.get(&owner) == Some(&sent) {
            noted.sent.remove(&owner);
        }
    }

    /// No request of this owner is under way any more, or the server has a note of the owner.
    pub(super) fn clear(&self, owner: OwnerId) {
        self.noted.lock().sent.remove(&owner);
    }

    /// Whether an acquire of this owner may still arrive.
    pub(super) fn has(&self, owner: OwnerId, now: Moment) -> bool {
        let noted = self.noted.lock();
        let sent = noted.sent.get(&owner).is_some_and(|sent| now.since(*sent) < self.late);
        sent || noted.all_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_mins(2);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn owner(number: usize) -> OwnerId {
        OwnerId::from_bits(number as u128 + 1)
    }

    #[test]
    fn unanswered_acquire_is_noted_until_it_is_too_old() {
        let unanswered = Unanswered::new(LATE);
        assert!(unanswered.note(owner(0), at(1)));
        assert!(!unanswered.note(owner(0), at(2)), "an earlier request is still open");
        assert!(unanswered.has(owner(0), at(100)) && !unanswered.has(owner(1), at(100)));
        assert!(!unanswered.has(owner(0), at(200)));
        unanswered.clear(owner(0));
        assert!(!unanswered.has(owner(0), at(2)));
    }

    /// The reply to a late vote arrives when the next vote is in flight, and the connection of that one may fail.
    #[cfg(feature = "redis")]
    #[test]
    fn owner_stays_noted_while_a_later_acquire_is_open() {
        let unanswered = Unanswered::new(LATE);
        let reply = Ok(crate::backend::Reply::new((), at(1)));
        let first = unanswered.note(owner(0), at(1));
        unanswered.settle(owner(0), first, at(1), &reply);
        assert!(!unanswered.has(owner(0), at(1)), "it was the only one");
        let first = unanswered.note(owner(0), at(2));
        unanswered.note(owner(0), at(3));
        unanswered.settle(owner(0), first, at(2), &reply);
        assert!(unanswered.has(owner(0), at(4)), "the later one may still arrive");
    }

    #[test]
    fn noted_owners_are_bounded_in_time_and_number() {
        let unanswered = Unanswered::new(LATE);
        for number in 0..1000 {
            unanswered.note(owner(number), at(1000 * number as u64));
        }
        assert!(unanswered.noted.lock().sent.len() <= 64, "{}", unanswered.noted.lock().sent.len());
        let now = at(2_000_000);
        for number in 0..=MOST {
            unanswered.note(owner(number), now);
        }
        assert!(unanswered.noted.lock().sent.len() <= MOST);
        // No owner is forgotten: for a while all count as noted.
        assert!((0..=MOST).all(|number| unanswered.has(owner(number), now)));
        assert!(!unanswered.has(owner(0), now + LATE));
    }
}
