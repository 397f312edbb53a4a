//! Why a request was not carried out: ZooKeeper's error numbers as [`StoreError`]s.

use std::fmt;

use crate::backend::{StoreError, StoreErrorKind};

/// What a server says about a node or a session: the caller may have to make sense of it. It is the source of the
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NodeExists,
    NotEmpty,
    BadVersion,
    NoAuth,
    /// The server is older than this request.
    Unimplemented,
    /// A node on the way ends with a session, and so has no children.
    NoChildren,
    /// The session has ended, and all its nodes with it.
    SessionGone,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper says {self:?}")
    }
}

impl std::error::Error for Code {}

impl From<Code> for StoreError {
    fn from(code: Code) -> Self {
        let error = match code {
            Code::NoAuth => Self::refused(
                "ZooKeeper does not let us do that: write USER:PASSWORD@ before the hosts in the \
                 URL, or widen the ACL of the lock's directory (setAcl)",
            ),
            Code::NoChildren => Self::refused(
                "a node on the way to this lock is ephemeral and can have no children: use another \
                 name or chroot",
            ),
            Code::Unimplemented => {
                Self::refused("this ZooKeeper is too old: 3.5 or later is needed")
            }
            Code::SessionGone => {
                Self::busy("the ZooKeeper session has ended before the answer came: try again")
            }
            // Other clients change the same nodes; whoever asks again finds them settled.
            Code::NoNode | Code::NodeExists | Code::NotEmpty | Code::BadVersion => {
                Self::busy("the nodes of this lock keep changing: try again")
            }
        };
        error.with_source(code)
    }
}

/// What a server's error number means.
pub(super) fn server_error(number: i32, server: &str) -> StoreError {
    match number {
        -101 => Code::NoNode.into(),
        -110 => Code::NodeExists.into(),
        -111 => Code::NotEmpty.into(),
        -103 => Code::BadVersion.into(),
        -102 => Code::NoAuth.into(),
        -108 => Code::NoChildren.into(),
        -6 => Code::Unimplemented.into(),
        -112 => Code::SessionGone.into(),
        -114 => StoreError::refused(format!(
            "{server} takes no nodes with acl=creator without credentials: write \
             USER:PASSWORD@ before the hosts in the URL"
        )),
        -115 => StoreError::refused(format!(
            "{server} does not take this user and password: mend the URL, or allow digest \
             authentication"
        )),
        // The session is attached to another server by now; or a write did not come through.
        -118 | -4 | -7 => {
            StoreError::no_reply(format!("{server} lost the request (error {number})"))
        }
        -119 => StoreError::busy(format!("{server} is read-only: it has no quorum")),
        -127 => StoreError::busy(format!("{server} has too much to do")),
        -125 => StoreError::refused(format!("a quota at {server} is used up: raise it (setquota)")),
        _ => StoreError::refused(format!("{server} refused (error {number})")),
    }
}

pub(super) fn malformed(server: &str) -> StoreError {
    StoreError::no_reply(format!("{server} does not speak ZooKeeper's protocol"))
}

/// What the server said, if that is one of these.
pub(super) fn code(error: &StoreError) -> Option<Code> {
    error.source_as().copied()
}

/// No server takes us while a leader is elected. The same error for a request that is worth another attempt then.
pub(super) fn retry_if_unavailable(error: StoreError) -> StoreError {
    match error.kind() {
        StoreErrorKind::Unavailable => StoreError::busy(error.message()),
        _ => error,
    }
}

/// The answer, or `None` if there is no such node.
pub(super) fn found<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if code(&error) == Some(Code::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same, and `None` if it is not for us to read.
pub(super) fn readable<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Err(error) if code(&error) == Some(Code::NoAuth) => Ok(None),
        answer => found(answer),
    }
}

/// A server that does not do what it was asked has at least answered.
pub(super) fn said<T>(answer: Result<T, StoreError>) -> Result<(), StoreError> {
    match answer {
        Err(error) if code(&error).is_none_or(|code| code == Code::SessionGone) => Err(error),
        _ => Ok(()),
    }
}

/// A node that was to go is gone, whoever deleted it.
pub(super) fn gone(deleted: Result<(), StoreError>) -> Result<(), StoreError> {
    match deleted {
        Err(error) if matches!(code(&error), Some(Code::NoNode | Code::SessionGone)) => Ok(()),
        deleted => deleted,
    }
}
