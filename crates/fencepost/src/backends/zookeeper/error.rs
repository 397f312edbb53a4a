//! Why a request failed: ZooKeeper's error numbers as [`StoreError`]s.

use std::fmt;

use crate::backend::{StoreError, StoreErrorKind};

/// An error about a node or a session, which the caller may handle. It is the source of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NodeExists,
    NotEmpty,
    BadVersion,
    NoAuth,
    /// The server is older than this request.
    Unimplemented,
    /// A parent node is ephemeral, and so cannot have children.
    NoChildren,
    /// The session has ended, and all its nodes with it.
    SessionGone,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper error {self:?}")
    }
}

impl std::error::Error for Code {}

impl From<Code> for StoreError {
    fn from(code: Code) -> Self {
        let error = match code {
            Code::NoAuth => Self::refused(
                "ZooKeeper denied access: write USER:PASSWORD@ before the hosts in the \
                 URL, or widen the ACL of the lock's directory (setAcl)",
            ),
            Code::NoChildren => Self::refused(
                "a parent node of this lock is ephemeral and cannot have children: use another \
                 name or chroot",
            ),
            Code::Unimplemented => {
                Self::refused("this ZooKeeper is too old: 3.5 or later is needed")
            }
            Code::SessionGone => {
                Self::busy("the ZooKeeper session ended before the reply came: retry")
            }
            // Other clients change the same nodes; a retry usually succeeds.
            Code::NoNode | Code::NodeExists | Code::NotEmpty | Code::BadVersion => {
                Self::busy("other clients keep changing the nodes of this lock: retry")
            }
        };
        error.with_source(code)
    }
}

/// Classifies a server's error number.
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
            "{server} refuses acl=creator without credentials: write USER:PASSWORD@ before \
            the hosts in the URL"
        )),
        -115 => StoreError::refused(format!(
            "{server} rejected the credentials: check the URL, or allow digest \
            authentication"
        )),
        // The session is attached to another server by now, or a write did not get through.
        -118 | -4 | -7 => {
            StoreError::no_reply(format!("{server} lost the request (error {number})"))
        }
        -119 => StoreError::busy(format!("{server} is read-only: it has no quorum")),
        -127 => StoreError::busy(format!("{server} is overloaded")),
        -125 => StoreError::refused(format!("a quota at {server} is used up: raise it (setquota)")),
        _ => StoreError::refused(format!("{server} refused (error {number})")),
    }
}

pub(super) fn malformed(server: &str) -> StoreError {
    StoreError::no_reply(format!("{server} does not speak ZooKeeper's protocol"))
}

/// The server's error, if it is one of these.
pub(super) fn code(error: &StoreError) -> Option<Code> {
    error.source_as().copied()
}

/// No server accepts a session while a leader is elected. Makes that error one that is retried.
pub(super) fn retry_if_unavailable(error: StoreError) -> StoreError {
    match error.kind() {
        StoreErrorKind::Unavailable => StoreError::busy(error.message()),
        _ => error,
    }
}

/// The reply, or `None` if there is no such node.
pub(super) fn if_exists<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if code(&error) == Some(Code::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same, and `None` if we may not read it.
pub(super) fn readable<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Err(error) if code(&error) == Some(Code::NoAuth) => Ok(None),
        answer => if_exists(answer),
    }
}

/// A server that refused a request has at least answered.
pub(super) fn ignore_refusal<T>(answer: Result<T, StoreError>) -> Result<(), StoreError> {
    match answer {
        Err(error) if code(&error).is_none_or(|code| code == Code::SessionGone) => Err(error),
        _ => Ok(()),
    }
}

/// Succeeds if the node is gone, whoever deleted it.
pub(super) fn gone(deleted: Result<(), StoreError>) -> Result<(), StoreError> {
    match deleted {
        Err(error) if matches!(code(&error), Some(Code::NoNode | Code::SessionGone)) => Ok(()),
        deleted => deleted,
    }
}
