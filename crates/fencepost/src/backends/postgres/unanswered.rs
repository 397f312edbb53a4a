//! Owners of whom an acquire was sent whose outcome is unknown. It may be carried out late, so a release of theirs leaves a
//! note at the server.
//!
//! Only a release forgets an owner, and not every owner is released here. So there is a bound: an owner goes after
//! [`KEPT`], which is far more than a request spends under way, and the oldest go when there are too many. At worst a
//! late acquire is then granted to nobody until its lease is over.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::{Moment, OwnerId};

const KEPT: Duration = Duration::from_mins(10);
const MOST: usize = 10_000;
/// So few are not looked through.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<Owners>);

#[derive(Debug, Default)]
struct Owners {
    /// With when the last acquire was sent.
    sent: HashMap<OwnerId, Moment>,
    /// How many there were when they were last looked through.
    kept: usize,
}

impl Unanswered {
    /// An acquire is about to be sent. Whether one was before.
    pub(super) fn insert(&self, owner: OwnerId, now: Moment) -> bool {
        let mut owners = self.lock();
        let known = owners.sent.insert(owner, now).is_some();
        // Seldom enough that it costs nothing, often enough that they are never more than twice as many.
        if owners.sent.len() > (2 * owners.kept).clamp(FEW, MOST) {
            owners.sent.retain(|_, sent| now.since(*sent) < KEPT);
            if owners.sent.len() > MOST {
                let mut times: Vec<Moment> = owners.sent.values().copied().collect();
                let (_, middle, _) = times.select_nth_unstable(MOST / 2);
                let middle = *middle;
                owners.sent.retain(|_, sent| *sent > middle);
                owners.sent.insert(owner, now);
            }
            owners.kept = owners.sent.len();
        }
        known
    }

    pub(super) fn contains(&self, owner: OwnerId) -> bool {
        self.lock().sent.contains_key(&owner)
    }

    pub(super) fn remove(&self, owner: OwnerId) {
        self.lock().sent.remove(&owner);
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: usize) -> OwnerId {
        OwnerId::from_bits(number as u128)
    }

    #[test]
    fn owners_that_nobody_releases_do_not_pile_up() {
        let unanswered = Unanswered::default();
        let start = Moment::from_nanos(0) + Duration::from_hours(1);
        for number in 0..5 * MOST {
            unanswered.insert(owner(number), start + Duration::from_micros(number as u64));
        }
        assert!(unanswered.lock().sent.len() <= MOST + 1);
        assert!(unanswered.contains(owner(5 * MOST - 1)), "the last one stays");
        assert!(!unanswered.contains(owner(0)), "the oldest goes first");
        // And all of them after a while.
        for number in 0..2 * MOST {
            unanswered.insert(owner(9 * MOST + number), start + 2 * KEPT);
            unanswered.remove(owner(9 * MOST + number));
        }
        let later = start + 2 * KEPT;
        for number in 0..=MOST {
            unanswered.insert(owner(20 * MOST + number), later);
        }
        assert!(!unanswered.contains(owner(5 * MOST - 1)));
    }

    #[test]
    fn owner_that_was_sent_before_is_known() {
        let (unanswered, now) = (Unanswered::default(), Moment::from_nanos(1));
        assert!(!unanswered.insert(owner(1), now));
        assert!(unanswered.insert(owner(1), now));
        unanswered.remove(owner(1));
        assert!(!unanswered.insert(owner(1), now));
    }
}
