//! One public error. Its kind says what to do next; its message names the lock, the store and the remedy.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{HolderInfo, Invalid, LockName, LossCause};

/// What an error comes from.
pub(crate) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What went wrong, in the one form that every call here returns.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
    /// The store may answer again without anybody's doing.
    transient: bool,
}

/// What the caller can do about an [`Error`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else has the lock. Wait longer, try later, or leave the work to them.
    Held(Option<Box<HolderInfo>>),
    /// The store can not be reached or used now. Nothing was granted; retry when it is back.
    Unreachable,
    /// The guard can no longer be trusted. Stop the work it protected; acquire anew to go on.
    Lost(LossCause),
    /// This owner holds nothing under that name: it ended, was taken over, or never was.
    NotHeld(Option<LossCause>),
    /// A later holder has entered the resource: its fence refused this token, and nothing was written. Stop
    /// the work; acquire anew and begin again from a fresh read.
    Stale,
    /// The store can not give what was asked for, and waiting will not help. The message has the remedy.
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
    /// An error of this kind. For backends; a message is one line, without secrets.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let transient = kind == ErrorKind::Unreachable;
        Self { kind, message: message.into(), source: None, transient }
    }

    /// The same error with what it comes from.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(Source::from(source.into()));
        self
    }

    /// The store can not be reached or used.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, message)
    }

    /// The store can not give what was asked for.
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
        Self::new(ErrorKind::NotHeld(cause), format!("lock \"{name}\" is not held: {why}"))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn lost(name: &LockName, cause: LossCause) -> Self {
        let message = format!("lock \"{name}\" is lost: {cause}; stop the work that it protected");
        Self::new(ErrorKind::Lost(cause), message)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn held(name: &LockName, holder: Option<HolderInfo>) -> Self {
        let who = match &holder {
            Some(holder) => holder.in_words(),
            None => "is held, or others wait for it first".into(),
        };
        let message = format!("lock \"{name}\" {who}; wait longer or try later");
        Self::new(ErrorKind::Held(holder.map(Box::new)), message)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this client is closed: connect again")
    }

    /// What a store said that did not decide.
    pub(crate) const fn of_store(
        kind: ErrorKind,
        transient: bool,
        message: String,
        source: Option<Source>,
    ) -> Self {
        Self { kind, message, source, transient }
    }

    /// What [`of_store`](Self::of_store) takes.
    pub(crate) fn into_parts(self) -> (ErrorKind, bool, String, Option<Source>) {
        (self.kind, self.transient, self.message, self.source)
    }

    /// Whether the store may answer again without anybody's doing: a wait goes on.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_outage(&self) -> bool {
        self.transient
    }

    /// What to do about it.
    #[must_use]
    pub const fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Who has the lock, when the kind is [`ErrorKind::Held`] and the store could say.
    #[must_use]
    pub fn holder(&self) -> Option<&HolderInfo> {
        match &self.kind {
            ErrorKind::Held(holder) => holder.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // A message that quotes its source does not repeat it.
        let source = self.source.as_ref().map(ToString::to_string);
        match source.filter(|source| !self.message.contains(source)) {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.to_string();
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &message)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}
