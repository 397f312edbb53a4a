//! One public error. Its kind says what to do next; its message names the lock, the store and the remedy; its source is
//! the cause.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{HolderInfo, Invalid, LockName, LossCause};

/// What an error comes from.
pub(crate) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What every fallible call of this library returns.
///
/// [`kind`](Self::kind) says what to do next. `Display` is the message alone, and [`source`](std::error::Error::source)
/// is the cause, so that a reporter that prints the chain prints each part once. [`one_line`](Self::one_line) is both.
///
/// An HTTP service may answer 409 for `Stale`, `Lost` and `NotHeld`, where the client has to start from a fresh read, and
/// 503 for `Held` and `Unreachable`.
#[derive(Clone)]
pub struct Error(Box<Inner>);

/// Boxed, so that a `Result` stays small.
#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) holder: Option<HolderInfo>,
    pub(crate) loss: Option<LossCause>,
    pub(crate) source: Option<Source>,
    /// The store may answer again by itself.
    pub(crate) transient: bool,
}

/// What to do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client holds the lock. Wait longer, or retry later. [`Error::holder`] says who.
    Held,
    /// The store gave no answer, or cannot be used now. You hold nothing; retry when it is back.
    Unreachable,
    /// The guard can no longer be trusted. Stop the work that it protected; acquire again to continue.
    /// [`Error::loss_cause`] says why.
    Lost,
    /// This owner holds nothing under that name: its grant ended, or it never had one. [`Error::loss_cause`] says why,
    /// if the store knows.
    NotHeld,
    /// A fence has seen a later holder, and nothing was written. Stop the work, acquire again, and start from a fresh
    /// read.
    Stale,
    /// The store cannot do what was asked, and waiting does not help. The message has the remedy.
    Refused,
    /// The call itself is wrong: fix the value that the message names.
    Invalid,
    /// The work itself failed, now or in the run that is recorded. The message says how.
    Failed,
    /// The client was closed.
    Closed,
}

/// What the library's fallible calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind. For backends and fences; a message is one line, without secrets.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (message, transient) = (message.into(), kind == ErrorKind::Unreachable);
        Self(Box::new(Inner { kind, message, holder: None, loss: None, source: None, transient }))
    }

    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self(Box::new(inner))
    }

    pub(crate) fn into_inner(self) -> Inner {
        *self.0
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(Source::from(source.into()));
        self
    }

    /// The store gave no answer, or cannot be used now.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, message)
    }

    /// The store cannot do what was asked.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// The call is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// This owner does not hold `name` (any more).
    #[must_use]
    pub fn not_held(name: &LockName, cause: Option<LossCause>) -> Self {
        let why = match &cause {
            Some(cause) => format!("the grant ended: {cause}"),
            None => "this owner has no grant there".into(),
        };
        let message = format!("lock \"{name}\" is not held: {why}");
        Self::new(ErrorKind::NotHeld, message).with_loss(cause)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn lost(name: &LockName, cause: LossCause) -> Self {
        let message = format!("lock \"{name}\" is lost: {cause}; stop the work that it protected");
        Self::new(ErrorKind::Lost, message).with_loss(Some(cause))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn held(name: &LockName, holder: Option<HolderInfo>) -> Self {
        let who = match &holder {
            Some(holder) => holder.to_string(),
            None => "is held, or other waiters are ahead".into(),
        };
        let message = format!("lock \"{name}\" {who}; wait longer or try later");
        let mut error = Self::new(ErrorKind::Held, message);
        error.0.holder = holder;
        error
    }

    #[doc(hidden)]
    #[must_use]
    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this client is closed: connect again")
    }

    fn with_loss(mut self, cause: Option<LossCause>) -> Self {
        self.0.loss = cause;
        self
    }

    /// Whether the store may answer again by itself: then a wait continues.
    #[doc(hidden)]
    #[must_use]
    pub fn is_outage(&self) -> bool {
        self.0.transient
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Who holds the lock, if the kind is [`ErrorKind::Held`] and the store could say.
    #[must_use]
    pub fn holder(&self) -> Option<&HolderInfo> {
        self.0.holder.as_ref()
    }

    /// Why the grant ended, if the kind is [`ErrorKind::Lost`] or [`ErrorKind::NotHeld`] and that is known.
    #[must_use]
    pub fn loss_cause(&self) -> Option<LossCause> {
        self.0.loss
    }

    /// The message and its cause on one line: for a log, or for a person.
    #[must_use]
    pub fn one_line(&self) -> String {
        one_line(self)
    }
}

/// An error and its cause on one line. An error that is not ours may repeat its causes in its message, so that only the
/// message is shown.
#[doc(hidden)]
#[must_use]
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let message = error.to_string();
    let Some(Error(inner)) = error.downcast_ref() else { return message };
    let cause = inner.source.as_deref().map(|source| one_line(source));
    // A message that quotes its cause does not repeat it.
    match cause.filter(|cause| !message.contains(cause)) {
        Some(cause) => format!("{message} ({cause})"),
        None => message,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Error");
        shown.field("kind", &self.0.kind).field("message", &self.one_line());
        if let Some(holder) = &self.0.holder {
            shown.field("holder", holder);
        }
        if let Some(cause) = &self.0.loss {
            shown.field("loss_cause", cause);
        }
        shown.finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn message_and_cause_are_apart_and_joined_on_one_line() {
        let inner = Error::unreachable("no reply from 10.0.0.1").with_source("broken pipe");
        let outer = Error::new(ErrorKind::Failed, "the work failed").with_source(inner);
        assert_eq!(outer.to_string(), "the work failed");
        assert_eq!(outer.source().unwrap().to_string(), "no reply from 10.0.0.1");
        let line = "the work failed (no reply from 10.0.0.1 (broken pipe))";
        assert_eq!(outer.one_line(), line);
        let quoted = Error::refused("cannot open it: disk full").with_source("disk full");
        assert_eq!(quoted.one_line(), "cannot open it: disk full");
        assert!(quoted.source().is_some());
    }

    #[test]
    fn result_stays_small() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn holder_and_loss_cause_are_beside_the_kind() {
        let name = LockName::new("a").unwrap();
        let held = Error::held(&name, Some(HolderInfo::third_party()));
        assert_eq!((held.kind(), held.loss_cause()), (ErrorKind::Held, None));
        assert_eq!(held.holder(), Some(&HolderInfo::third_party()));
        let lost = Error::lost(&name, LossCause::Broken);
        assert_eq!((lost.kind(), lost.loss_cause()), (ErrorKind::Lost, Some(LossCause::Broken)));
        assert!(Error::held(&name, None).holder().is_none());
        assert!(Error::not_held(&name, None).loss_cause().is_none());
    }
}
