//! A client: attempts with the real [`Attempt`], holds, renews, releases, crashes. It decides; the world
//! carries its messages and tells it the time.

use super::super::attempt::{Attempt, Vote, quorum};
use super::node::Claim;
use super::{DRIFT, TTL};

/// What a client sends to a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Vote,
    Accept(u64),
    Extend { round: u64 },
    Undo,
    Release,
}

/// What a node answers. A node that is too young for a say abstains.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Voted(Vote),
    /// With the step of the node at which it accepted, which only the checks look at.
    Accepted {
        yes: bool,
        step: u64,
    },
    Extended {
        round: u64,
        yes: bool,
    },
    Abstained,
}

/// What a client set itself an alarm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    Begin,
    /// Whoever has not answered by now in phase 1, or in phase 2, is silent.
    GiveUp {
        proposed: bool,
    },
    /// Time to do something with the grant.
    Decide,
}

pub(super) struct Client {
    /// Its monotonic clock's microseconds in a million true ones.
    pub(super) rate: u64,
    /// How many of a hundred messages from and to it take long.
    pub(super) slow: u64,
    /// How long it waits for the answers of a phase.
    pub(super) patience: u64,
    /// It neither hears nor acts before that.
    pub(super) asleep_until: u64,
    /// Its owner, new for each acquisition, and its present attempt, or the one that led to what it holds:
    /// answers to others are not for it.
    pub(super) claim: Claim,
    pub(super) doing: Doing,
}

pub(super) enum Doing {
    Resting,
    Trying(Trying),
    Holding(Holding),
}

pub(super) struct Trying {
    pub(super) began: u64,
    pub(super) proposed: bool,
    pub(super) attempt: Attempt,
    pub(super) accepted: Vec<(usize, u64)>,
}

pub(super) struct Holding {
    /// Which of the grants.
    pub(super) grant: usize,
    pub(super) deadline: u64,
    pub(super) renewal: Renewal,
}

#[derive(Default)]
pub(super) struct Renewal {
    pub(super) round: u64,
    pub(super) sent: u64,
    extended: Vec<usize>,
}

impl Client {
    pub(super) const fn new(owner: u64, rate: u64, slow: u64) -> Self {
        let patience = if slow > 1 { TTL / 2 } else { TTL / 25 };
        let claim = Claim { owner, attempt: 0 };
        Self { rate, slow, patience, asleep_until: 0, claim, doing: Doing::Resting }
    }
}

/// The true time at which a lease that was asked for at `asked` may have run out, by a clock of this rate.
pub(super) const fn deadline(asked: u64, rate: u64) -> u64 {
    asked + (TTL - DRIFT) * 1_000_000 / rate
}

impl Trying {
    pub(super) fn new(nodes: usize, began: u64) -> Self {
        let attempt = Attempt::new(nodes);
        Self { began, proposed: false, attempt, accepted: Vec::new() }
    }

    pub(super) fn note(&mut self, node: usize, step: u64) {
        if self.accepted.iter().all(|(other, _)| *other != node) {
            self.accepted.push((node, step));
        }
    }
}

impl Renewal {
    pub(super) fn new(round: u64, sent: u64) -> Self {
        Self { round, sent, extended: Vec::new() }
    }

    /// Whether this answer is the one that makes a quorum.
    pub(super) fn is_won_by(&mut self, node: usize, nodes: usize) -> bool {
        if self.extended.contains(&node) {
            return false;
        }
        self.extended.push(node);
        self.extended.len() == quorum(nodes)
    }
}
