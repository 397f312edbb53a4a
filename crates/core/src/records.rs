//! The rules of records: what a claim, and the end of a run, do to the record that they find.
//!
//! A record is a resource with a fence. It has the token of the last runner that claimed it. A rule gets the record
//! that a store has read, and decides what the store writes and answers. The store reads and writes in one atomic
//! step: in one transaction, or by a write that fails if the record was changed since. Redis and PostgreSQL run the
//! same rules on the server.
//!
//! There is no clock here: a record that has expired, by the store's clock, counts as absent.
//!
//! *Why at most one run is recorded as done.* A claim takes a running record only from a token that is not higher, and a
//! finished record never. A run finishes only the record that is running with its own token. So once another run
//! has claimed the record or finished it, a run that was overtaken writes nothing. That holds until the record expires
//! or is forgotten; and for a value that is replaced ([`Over::Older`]), the token at least never falls.

use std::time::Duration;

use crate::types::{Label, LockName, Token};

/// Who wants to run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock that the caller holds; the record lies under it.
    pub name: LockName,
    /// The token of that grant.
    pub token: Token,
    /// What a person reads as the runner.
    pub label: Label,
    /// How long the record stays if nobody settles it.
    pub keep: Duration,
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    /// The caller may run.
    Ours,
    /// It is done or has failed.
    Settled(Entry),
    /// One with a higher token runs: the caller has been overtaken.
    Overtaken,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The lock that the caller holds, or held.
    pub name: LockName,
    /// The token of that grant.
    pub token: Token,
    /// What a person reads as the runner.
    pub label: Label,
    /// What to record.
    pub outcome: Outcome,
    /// How long to keep that.
    pub keep: Duration,
    /// What it may be written over.
    pub over: Over,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, with this result.
    Done(Vec<u8>),
    /// It failed for good, with this message.
    Failed(Vec<u8>),
    /// It failed and may be tried again: the record goes.
    Abandoned,
}

/// What the end of a run may be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its own `running` record. If it was settled by this very token already, that is success as well.
    OwnClaim,
    /// Anything whose token is not above this one, or nothing: for a value that is replaced.
    Older,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The lock under which it lies.
    pub name: LockName,
    /// Where the work stands.
    pub state: State,
    /// The token of the last runner.
    pub token: Token,
    /// What a person reads as that runner.
    pub label: Label,
    /// The result, or the message of the failure; empty while it runs, and in a list.
    pub result: Vec<u8>,
    /// How long ago it came to stand so.
    pub since: Duration,
    /// How long it will be kept.
    pub kept_for: Duration,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody claimed it. Whether it still runs, the lock tells.
    Running,
    /// One run succeeded.
    Done,
    /// One run failed, for good.
    Failed,
}

impl State {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

impl Entry {
    /// The longest result, in bytes.
    pub const MAX_RESULT: usize = 64 * 1024;

    /// Whether it is done or has failed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state != State::Running
    }
}

/// What a store does to the record in the step that has read it, and what it answers once that is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<T> {
    /// Writes nothing.
    Answer(T),
    /// Writes this record, over the one that was found if there was one.
    Write(Record, T),
    /// Deletes the record that was found.
    Remove(T),
}

/// A record to be written. Its age and its retention count from that write, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where the work stands.
    pub state: State,
    /// The token of the runner.
    pub token: Token,
    /// What a person reads as that runner.
    pub label: Label,
    /// The result, or the message of the failure; empty while it runs.
    pub result: Vec<u8>,
    /// How long it stays.
    pub retention: Duration,
}

/// What a store knows besides the record, if it retries a step whose reply was lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// An earlier attempt of this step may have been applied.
    pub retried: bool,
    /// Whose run finished the record, if it has expired since.
    pub finished_by: Option<Token>,
}

/// Makes the record `running`, unless it is finished or a higher token runs.
#[must_use]
pub fn claim(found: Option<Entry>, claim: &Claim) -> Decision<Claimed> {
    match found {
        Some(entry) if entry.is_settled() => Decision::Answer(Claimed::Settled(entry)),
        Some(entry) if entry.token > claim.token => Decision::Answer(Claimed::Overtaken),
        _ => {
            let (token, label, retention) = (claim.token, claim.label.clone(), claim.keep);
            let (state, result) = (State::Running, Vec::new());
            Decision::Write(Record { state, token, label, result, retention }, Claimed::Ours)
        }
    }
}

/// Records how a run ended, if the run may: see [`Over`].
#[must_use]
pub fn finish(found: Option<&Entry>, past: Past, finish: &Finish) -> Decision<bool> {
    let token = finish.token;
    let abandoned = finish.outcome == Outcome::Abandoned;
    let allowed = match (finish.over, found) {
        // This run finished it already, and the reply was lost.
        (Over::OwnClaim, Some(entry)) if entry.token == token && entry.is_settled() => {
            return Decision::Answer(true);
        }
        (Over::OwnClaim, None) if past.finished_by == Some(token) => return Decision::Answer(true),
        (Over::OwnClaim, Some(entry)) => entry.token == token,
        (Over::OwnClaim, None) => abandoned,
        (Over::Older, found) => found.is_none_or(|entry| entry.token <= token),
    };
    if !allowed {
        // This run deleted it already, the reply was lost, and another run has claimed it since.
        return Decision::Answer(abandoned && past.retried);
    }
    let (state, result) = match &finish.outcome {
        Outcome::Done(result) => (State::Done, result.clone()),
        Outcome::Failed(message) => (State::Failed, message.clone()),
        Outcome::Abandoned if found.is_some() => return Decision::Remove(true),
        Outcome::Abandoned => return Decision::Answer(true),
    };
    let (label, retention) = (finish.label.clone(), finish.keep);
    Decision::Write(Record { state, token, label, result, retention }, true)
}

#[cfg(test)]
mod tests;
