//! What an answer that is no answer means to the caller.

use crate::error::{Error, ErrorKind};

/// Why a request failed. Unlike [`Error`] it can be told to several who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no connection: nothing was asked.
    Away(String),
    /// The connection is gone, or stands still: what was asked may or may not have been done.
    Cut(String),
    /// The servers can not do it now.
    NotNow(String),
    /// They will not do it.
    Refused(String),
    /// The session has ended, and all its nodes with it.
    Gone,
    /// What a server says about a node.
    Said(Code),
}

/// An answer that the caller has to make sense of.
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
}

impl Fault {
    /// What a server's error number means. `shown` is the server.
    pub(super) fn of(error: i32, shown: &str) -> Self {
        match error {
            -101 => Self::Said(Code::NoNode),
            -110 => Self::Said(Code::NodeExists),
            -111 => Self::Said(Code::NotEmpty),
            -103 => Self::Said(Code::BadVersion),
            -102 => Self::Said(Code::NoAuth),
            -108 => Self::Said(Code::NoChildren),
            -6 => Self::Said(Code::Unimplemented),
            -112 => Self::Gone,
            -114 => Self::Refused(format!(
                "{shown} takes no nodes with acl=creator without credentials: write \
                 USER:PASSWORD@ before the hosts in the URL"
            )),
            -115 => Self::Refused(format!(
                "{shown} does not take this user and password: mend the URL, or allow digest \
                 authentication"
            )),
            // The session is attached to another server by now; or a write did not come through.
            -118 | -4 | -7 => Self::Cut(format!("{shown} lost the request (error {error})")),
            -119 => Self::NotNow(format!("{shown} is read-only: it has no quorum")),
            -127 => Self::NotNow(format!("{shown} has too much to do")),
            -125 => Self::Refused(format!("a quota at {shown} is used up: raise it (setquota)")),
            _ => Self::Refused(format!("{shown} refused (error {error})")),
        }
    }

    /// It may work a moment later.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Cut(_) | Self::NotNow(_))
    }

    /// It may work if all of it is asked again, in another session if this one has ended.
    pub(super) fn may_be_tried_again(&self) -> bool {
        self.passes() || *self == Self::Gone
    }

    pub(super) fn into_error(self) -> Error {
        let (kind, message) = match self {
            Self::Away(message) | Self::Cut(message) | Self::NotNow(message) => {
                (ErrorKind::Unreachable, message)
            }
            Self::Refused(message) => (ErrorKind::Refused, message),
            Self::Gone => (
                ErrorKind::Unreachable,
                "the ZooKeeper session has ended before the answer came: try again".into(),
            ),
            Self::Said(code) => code.in_words(),
        };
        Error::new(kind, message)
    }
}

impl Code {
    fn in_words(self) -> (ErrorKind, String) {
        let (kind, message) = match self {
            Self::NoAuth => (
                ErrorKind::Refused,
                "ZooKeeper does not let us do that: write USER:PASSWORD@ before the hosts in the \
                 URL, or widen the ACL of the lock's directory (setAcl)",
            ),
            Self::NoChildren => (
                ErrorKind::Refused,
                "a node on the way to this lock is ephemeral and can have no children: use another \
                 name or chroot",
            ),
            Self::Unimplemented => {
                (ErrorKind::Refused, "this ZooKeeper is too old: 3.5 or later is needed")
            }
            // Somebody works on the same nodes; whoever asks again finds them settled.
            Self::NoNode | Self::NodeExists | Self::NotEmpty | Self::BadVersion => {
                (ErrorKind::Unreachable, "the nodes of this lock keep changing: try again")
            }
        };
        (kind, message.to_owned())
    }
}

pub(super) fn malformed(shown: &str) -> Fault {
    Fault::Cut(format!("{shown} does not speak ZooKeeper's protocol"))
}
