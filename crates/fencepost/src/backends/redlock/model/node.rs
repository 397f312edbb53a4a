//! One node and its rules: what the scripts do on a Redis. The node's own time is an argument, and may be wrong.

use super::super::attempt::Vote;
use super::{MAX_TTL, TOMBSTONE, TTL, Variant};

/// Who wants the lock: a number here, 128 random bits in the library.
pub(super) type Owner = u64;

/// What a key contains: the owner and the attempt. Later attempts have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) owner: Owner,
    pub(super) attempt: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    variant: Variant,
    key: Option<Key>,
    /// The highest accepted token, and from whom.
    last: (u64, Owner),
    /// Requests that were undone before they arrived.
    tombstones: Vec<Tombstone>,
    /// When it was restarted empty, if it was.
    started: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    claim: Claim,
    expires: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tombstone {
    owner: Owner,
    /// One attempt, or all.
    attempt: Option<u64>,
    expires: u64,
}

impl Node {
    /// A node that has always been up and has accepted `last` from an unrelated owner.
    pub(super) const fn new(variant: Variant, last: u64) -> Self {
        Self { variant, key: None, last: (last, 0), tombstones: Vec::new(), started: None }
    }

    /// Phase 1. `time` is the node's clock as it reports it.
    pub(super) fn vote(&mut self, claim: Claim, now: u64, time: u64) -> Vote {
        self.reap(now);
        let Claim { owner, attempt } = claim;
        let undone_before = |tombstone: &Tombstone| {
            tombstone.owner == owner && tombstone.attempt.is_none_or(|undone| undone == attempt)
        };
        let old_votes_count = self.variant == Variant::OldVotesCount;
        let refused = self.tombstones.iter().any(undone_before)
            || self.key.is_some_and(|Key { claim: held, .. }| {
                held.owner != owner || (held.attempt > attempt && !old_votes_count)
            });
        if refused {
            return Vote::Theirs;
        }
        self.key = Some(Key { claim, expires: now + TTL });
        if self.variant == Variant::MaxOfCounters {
            self.last.0 += 1;
            return Vote::Ours { last: self.last.0, time: 0, mine: false };
        }
        Vote::Ours { last: self.last.0, time, mine: self.last.1 == owner }
    }

    /// Phase 2.
    pub(super) fn accept(&mut self, claim: Claim, token: u64, now: u64) -> bool {
        let ours = self.holder(now) == Some(claim) || self.variant == Variant::NoOwnerCheck;
        let accepted = ours && (token > self.last.0 || (token, claim.owner) == self.last);
        if accepted {
            self.last = (token, claim.owner);
        }
        accepted
    }

    /// A renewal. A node that has not accepted the owner's token is no part of its grant.
    pub(super) fn extend(&mut self, owner: Owner, now: u64) -> bool {
        self.reap(now);
        match &mut self.key {
            Some(key) if key.claim.owner == owner && self.last.1 == owner => {
                key.expires = now + TTL;
                true
            }
            _ => false,
        }
    }

    /// Undoes one attempt.
    pub(super) fn undo(&mut self, claim: Claim, now: u64) {
        let Claim { owner, attempt } = claim;
        let held = self.holder(now);
        if self.variant == Variant::UndoByOwner {
            self.key = self.key.filter(|key| key.claim.owner != owner);
        } else if held == Some(claim) {
            self.key = None;
        } else {
            self.add_tombstone(owner, Some(attempt), now);
        }
    }

    /// Undoes everything of the owner.
    pub(super) fn release(&mut self, owner: Owner, now: u64) {
        if self.holder(now).is_some_and(|held| held.owner == owner) {
            self.key = None;
        } else {
            self.add_tombstone(owner, None, now);
        }
    }

    fn add_tombstone(&mut self, owner: Owner, attempt: Option<u64>, now: u64) {
        self.tombstones.push(Tombstone { owner, attempt, expires: now + TOMBSTONE });
    }

    /// What `DEL` does.
    pub(super) const fn delete(&mut self) {
        self.key = None;
    }

    /// Loses its data and restarts.
    pub(super) fn restart(&mut self, now: u64) {
        *self = Self { started: Some(now), ..Self::new(self.variant, 0) };
    }

    /// Whether keys that it lost may still be relied on.
    pub(super) fn is_young(&self, now: u64) -> bool {
        self.variant != Variant::VotesAtOnce
            && self.started.is_some_and(|started| now.saturating_sub(started) < MAX_TTL)
    }

    /// Whose key exists.
    pub(super) fn holder(&self, now: u64) -> Option<Claim> {
        self.key.filter(|key| key.expires > now).map(|key| key.claim)
    }

    /// Deletes what has expired. A key that was not read exists again when the clock goes back.
    pub(super) fn reap(&mut self, now: u64) {
        self.key = self.key.filter(|key| key.expires > now);
        self.tombstones.retain(|tombstone| tombstone.expires > now);
    }
}

/// The vote and the undo of an old attempt arrive after the next attempt of the same owner was granted. If the vote
/// renamed the key to the old attempt, the undo would delete it. In the random model only 9 pairs of grants in 20,000
/// runs overlap because of this.
#[test]
fn late_vote_and_undo_leave_the_key_of_a_later_attempt() {
    let [old, new] = [1, 2].map(|attempt| Claim { owner: 7, attempt });
    for (variant, left) in [(Variant::AsBuilt, Some(new)), (Variant::OldVotesCount, None)] {
        let mut node = Node::new(variant, 0);
        node.vote(new, 0, 0);
        assert!(node.accept(new, 1, 0));
        node.vote(old, 0, 0);
        node.undo(old, 0);
        assert_eq!(node.holder(0), left);
    }
}
