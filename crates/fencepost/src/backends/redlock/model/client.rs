//! A client: makes attempts with the real [`Attempt`], holds, renews, releases, crashes. It decides; the world
//! carries its messages and gives it the time.

use super::super::attempt::{Attempt, Vote, quorum};
use super::node::Claim;
use super::{DRIFT, TTL};

/// A request to a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Vote,
    Accept(u64),
    Extend { round: u64 },
    Undo,
    Release,
}

/// A node's reply. A node that has restarted too recently abstains.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Voted(Vote),
    /// With the step of the node at which it accepted, which only the checks read.
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

/// What a client's alarm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    Begin,
    /// Nodes that have not replied by now in this phase count as silent.
    GiveUp {
        proposed: bool,
    },
    /// Time to renew, release or crash.
    Decide,
}

pub(super) struct Client {
    /// Microseconds of its monotonic clock per million true ones.
    pub(super) rate: u64,
    /// How many of a hundred messages from and to it are slow.
    pub(super) slow: u64,
    /// How long it waits for the replies of a phase.
    pub(super) timeout: u64,
    /// It is frozen until then.
    pub(super) asleep_until: u64,
    /// Its owner, new for each acquisition, and its current attempt, or the one that led to its grant. Replies to
    /// other attempts are ignored.
    pub(super) claim: Claim,
    pub(super) doing: Doing,
}

pub(super) enum Doing {
    Idle,
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
    /// Index of the grant.
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
        let timeout = if slow > 1 { TTL / 2 } else { TTL / 25 };
        let claim = Claim { owner, attempt: 0 };
        Self { rate, slow, timeout, asleep_until: 0, claim, doing: Doing::Idle }
    }
}

/// The true time at which a lease requested at `asked` may have expired, by a clock of this rate.
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

    /// Whether this reply completes a quorum.
    pub(super) fn is_won_by(&mut self, node: usize, nodes: usize) -> bool {
        if self.extended.contains(&node) {
            return false;
        }
        self.extended.push(node);
        self.extended.len() == quorum(nodes)
    }
}
