//! Why a store did not decide: what every backend and fence returns before it is an [`Error`] of the public API.

use std::fmt;
use std::sync::Arc;

use fencepost_core::Invalid;

use crate::error::{Error, ErrorKind, Inner, Source};

/// A call that got no decision from the store. It is `Clone`, so that one failed batch can answer each of its callers.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    outcome: Outcome,
    message: String,
    source: Option<Source>,
}

/// What helps against a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The connection broke, or this server cannot do it now: another attempt may succeed at once.
    Interrupted,
    /// The store cannot be used now. Only time helps, so a wait continues and a single call fails.
    Unavailable,
    /// The store cannot be used until an operator repairs it. A wait ends too.
    Unusable,
    /// The store refuses. The message has the remedy.
    Refused,
    /// The call itself is invalid.
    Invalid,
}

/// Whether a failed request changed anything. Ordered, so that `max` keeps the doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It changed nothing, and will not.
    NotApplied,
    /// It may have been applied, or be applied later.
    Unknown,
}

impl StoreError {
    fn new(kind: StoreErrorKind, outcome: Outcome, message: impl Into<String>) -> Self {
        Self { kind, outcome, message: message.into(), source: None }
    }

    /// The request was sent and not answered: the connection broke, or the server is silent.
    pub fn no_reply(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Interrupted, Outcome::Unknown, message)
    }

    /// The store did not apply the request, and may if it is retried at once.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Interrupted, Outcome::NotApplied, message)
    }

    /// The store cannot be used now, and nothing was sent or applied.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unavailable, Outcome::NotApplied, message)
    }

    /// The store cannot be used until an operator repairs it.
    pub fn unusable(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unusable, Outcome::NotApplied, message)
    }

    /// The store refuses.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Refused, Outcome::NotApplied, message)
    }

    /// The call is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Invalid, Outcome::NotApplied, message)
    }

    /// Adds the source.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets the outcome, unless the present one leaves more open.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = self.outcome.max(outcome);
        self
    }

    /// What helps against it.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the request changed anything.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What failed, why, and the remedy, on one line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether another attempt may succeed at once.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.kind == StoreErrorKind::Interrupted
    }

    /// Whether the store may recover without an operator: a wait continues.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Interrupted | StoreErrorKind::Unavailable)
    }

    /// The source, if it is a `T`.
    #[must_use]
    pub fn source_as<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.source.as_deref().and_then(|source| source.downcast_ref())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// An error from before a call reached the store, as when it had to be opened first.
impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let Inner { kind, transient, message, source, .. } = error.into_inner();
        let made = match kind {
            ErrorKind::Unreachable if transient => Self::unavailable(message),
            ErrorKind::Unreachable => Self::unusable(message),
            ErrorKind::Invalid => Self::invalid(message),
            _ => Self::refused(message),
        };
        Self { source, ..made }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind {
            StoreErrorKind::Interrupted
            | StoreErrorKind::Unavailable
            | StoreErrorKind::Unusable => ErrorKind::Unreachable,
            StoreErrorKind::Refused => ErrorKind::Refused,
            StoreErrorKind::Invalid => ErrorKind::Invalid,
        };
        let transient = error.is_transient();
        let StoreError { message, source, .. } = error;
        Self::from_inner(Inner { kind, message, holder: None, loss: None, source, transient })
    }
}

impl From<Invalid> for StoreError {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}
