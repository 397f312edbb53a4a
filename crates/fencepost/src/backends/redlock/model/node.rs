//! One node and its rules: what the scripts do on a Redis, without the Redis. What time it is on the node's
//! own clock is an argument, and need not be the truth.

use super::super::attempt::Vote;
use super::{MAX_TTL, TOMBSTONE, TTL, Variant};

/// Who made an attempt. A number here; 128 random bits in the real thing.
pub(super) type Owner = u64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    variant: Variant,
    key: Option<Key>,
    /// The mark: the highest token it has accepted, and from whom.
    last: (u64, Owner),
    /// Whose release came before their vote, and until when that is remembered.
    tombstones: Vec<(Owner, u64)>,
    /// When it was started empty, if it was.
    started: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    owner: Owner,
    expires: u64,
}

impl Node {
    /// A node that has been up for ever and has accepted `mark` from nobody who is here.
    pub(super) const fn new(variant: Variant, mark: u64) -> Self {
        Self { variant, key: None, last: (mark, 0), tombstones: Vec::new(), started: None }
    }

    /// Phase 1. `time` is what it says its clock says.
    pub(super) fn vote(&mut self, owner: Owner, now: u64, time: u64) -> Vote {
        self.reap(now);
        let refused = self.tombstones.iter().any(|(whose, _)| *whose == owner)
            || self.key.is_some_and(|key| key.owner != owner);
        if refused {
            return Vote::Theirs;
        }
        self.key = Some(Key { owner, expires: now + TTL });
        if self.variant == Variant::MaxOfCounters {
            self.last.0 += 1;
            return Vote::Ours { mark: self.last.0, time: 0 };
        }
        Vote::Ours { mark: self.last.0, time }
    }

    /// Phase 2.
    pub(super) fn accept(&mut self, owner: Owner, token: u64, now: u64) -> bool {
        self.reap(now);
        let ours = self.holder(now) == Some(owner) || self.variant == Variant::NoOwnerCheck;
        let accepted = ours && (token > self.last.0 || (token, owner) == self.last);
        if accepted {
            self.last = (token, owner);
        }
        accepted
    }

    /// A renewal.
    pub(super) fn extend(&mut self, owner: Owner, now: u64) -> bool {
        self.reap(now);
        match &mut self.key {
            Some(key) if key.owner == owner => {
                key.expires = now + TTL;
                true
            }
            _ => false,
        }
    }

    /// A release, or the undoing of an attempt.
    pub(super) fn release(&mut self, owner: Owner, now: u64) {
        self.reap(now);
        if self.holder(now) == Some(owner) {
            self.key = None;
        } else if self.variant != Variant::OneOwnerForAll {
            self.tombstones.push((owner, now + TOMBSTONE));
        }
    }

    /// What `DEL` does.
    pub(super) const fn delete(&mut self) {
        self.key = None;
    }

    /// Loses everything.
    pub(super) fn restart(&mut self, now: u64) {
        *self = Self { started: Some(now), ..Self::new(self.variant, 0) };
    }

    /// Whether keys that it has forgotten may still be counted on.
    pub(super) fn is_young(&self, now: u64) -> bool {
        self.variant != Variant::VotesAtOnce
            && self.started.is_some_and(|started| now.saturating_sub(started) < MAX_TTL)
    }

    /// Whose key stands.
    pub(super) fn holder(&self, now: u64) -> Option<Owner> {
        self.key.filter(|key| key.expires > now).map(|key| key.owner)
    }

    /// Deletes what has run out. A key that nobody looked at stands again when the clock goes back.
    pub(super) fn reap(&mut self, now: u64) {
        self.key = self.key.filter(|key| key.expires > now);
        self.tombstones.retain(|(_, until)| *until > now);
    }
}
