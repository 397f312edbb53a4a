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
//! or is forgotten; and for a value that is replaced ([`Precondition::Older`]), the token at least never falls.

use std::time::Duration;

use crate::types::{Label, LockName, Token};

/// A request to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The lock that the caller holds; the record has its name.
    pub name: LockName,
    /// The token of that grant.
    pub token: Token,
    /// What a person reads as the runner.
    pub label: Label,
    /// How long the record stays if it is not finished.
    pub retention: Duration,
}

impl Claim {
    /// A request to run what has this name, with this token.
    #[must_use]
    pub const fn new(name: LockName, token: Token, label: Label, retention: Duration) -> Self {
        Self { name, token, label, retention }
    }
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    /// The caller may run.
    Ours,
    /// It is done or has failed.
    Finished(RecordInfo),
    /// A run with a higher token has it: the caller has been overtaken.
    Overtaken,
}

/// How a run ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The lock that the caller holds, or held.
    pub name: LockName,
    /// The token of that grant.
    pub token: Token,
    /// What a person reads as the runner.
    pub label: Label,
    /// What to record.
    pub outcome: Outcome,
    /// How long the record stays.
    pub retention: Duration,
    /// What the record may replace.
    pub precondition: Precondition,
}

impl Completion {
    /// The end of a run over its own claim.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencepost_core::{Label, LockName, Token};
    /// use fencepost_core::records::{Completion, Outcome, Precondition};
    ///
    /// let (name, token) = (LockName::new("flight/rates")?, Token::new(7)?);
    /// let (label, rates) = (Label::new("web-3:4711")?, Outcome::Done(b"1.08".to_vec()));
    /// let finish = Completion::new(name, token, label, rates, Duration::from_secs(60))
    ///     .with_precondition(Precondition::Older);
    /// assert_eq!(finish.token, token);
    /// # Ok::<(), fencepost_core::Invalid>(())
    /// ```
    #[must_use]
    pub const fn new(
        name: LockName,
        token: Token,
        label: Label,
        outcome: Outcome,
        retention: Duration,
    ) -> Self {
        let precondition = Precondition::OwnClaim;
        Self { name, token, label, outcome, retention, precondition }
    }

    /// Sets what the record may replace.
    #[must_use]
    pub const fn with_precondition(mut self, precondition: Precondition) -> Self {
        self.precondition = precondition;
        self
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, with this result.
    Done(Vec<u8>),
    /// It failed for good, with this message.
    Failed(Vec<u8>),
    /// It failed and may be tried again: the record is deleted.
    Abandoned,
}

/// What the end of a run may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Its own `running` record. If this token finished it already, that is success as well.
    OwnClaim,
    /// Anything whose token is not above this one, or nothing: for a value that is replaced.
    Older,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo {
    /// The name of its lock.
    pub name: LockName,
    /// The state of the work.
    pub state: State,
    /// The token of the last runner.
    pub token: Token,
    /// What a person reads as that runner.
    pub label: Label,
    /// The result, or the message of the failure; empty while it runs, and in a list.
    pub result: Vec<u8>,
    /// How long ago it reached this state.
    pub since: Duration,
    /// How long it will stay.
    pub kept_for: Duration,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A runner claimed it. Only the lock shows whether it still runs.
    Running,
    /// One run succeeded.
    Done,
    /// One run failed, for good.
    Failed,
}

impl State {
    /// The name of the state.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The state with this name.
    #[doc(hidden)]
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Running, Self::Done, Self::Failed].into_iter().find(|state| state.as_str() == text)
    }
}

impl RecordInfo {
    /// The longest result, in bytes.
    pub const MAX_RESULT: usize = 64 * 1024;

    /// A record without a result, made just now and about to expire.
    #[must_use]
    pub const fn new(name: LockName, state: State, token: Token, label: Label) -> Self {
        let (since, kept_for) = (Duration::ZERO, Duration::ZERO);
        Self { name, state, token, label, result: Vec::new(), since, kept_for }
    }

    /// Sets the result, or the message of the failure.
    #[must_use]
    pub fn with_result(mut self, result: Vec<u8>) -> Self {
        self.result = result;
        self
    }

    /// Sets how long ago it reached its state, and how long it will stay.
    #[must_use]
    pub const fn with_times(mut self, since: Duration, kept_for: Duration) -> Self {
        (self.since, self.kept_for) = (since, kept_for);
        self
    }

    /// Whether it is done or has failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state != State::Running
    }
}

/// What a store does to the record in the step that has read it, and what it answers once that is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<T> {
    /// Writes nothing.
    Answer(T),
    /// Writes this record, over the found one if there was one.
    Write(Record, T),
    /// Deletes the record that was found.
    Remove(T),
}

/// A record to be written. Its age and its retention count from that write, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The state of the work.
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

/// What a store knows besides the record if it retries a step whose reply was lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// An earlier attempt of this step may have been applied.
    pub retried: bool,
    /// Whose run finished the record, if it has expired since.
    pub finished_by: Option<Token>,
}

/// Makes the record `running`, unless it is finished or a higher token runs.
#[must_use]
pub fn claim(found: Option<RecordInfo>, claim: &Claim) -> Decision<Claimed> {
    match found {
        Some(record) if record.is_finished() => Decision::Answer(Claimed::Finished(record)),
        Some(record) if record.token > claim.token => Decision::Answer(Claimed::Overtaken),
        _ => {
            let (token, label, retention) = (claim.token, claim.label.clone(), claim.retention);
            let (state, result) = (State::Running, Vec::new());
            Decision::Write(Record { state, token, label, result, retention }, Claimed::Ours)
        }
    }
}

/// Records how a run ended, if the run may: see [`Precondition`].
#[must_use]
pub fn finish(found: Option<&RecordInfo>, past: Past, finish: &Completion) -> Decision<bool> {
    let token = finish.token;
    let abandoned = finish.outcome == Outcome::Abandoned;
    let allowed = match (finish.precondition, found) {
        // This run finished it already, and the reply was lost.
        (Precondition::OwnClaim, Some(record)) if record.token == token && record.is_finished() => {
            return Decision::Answer(true);
        }
        (Precondition::OwnClaim, None) if past.finished_by == Some(token) => {
            return Decision::Answer(true);
        }
        (Precondition::OwnClaim, Some(record)) => record.token == token,
        (Precondition::OwnClaim, None) => abandoned,
        (Precondition::Older, found) => found.is_none_or(|record| record.token <= token),
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
    let (label, retention) = (finish.label.clone(), finish.retention);
    Decision::Write(Record { state, token, label, result, retention }, true)
}

#[cfg(test)]
mod tests;
