//! What an answer that is no answer means to the caller.

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// Why a call to a server failed. Unlike [`Error`] it can be told to several who asked.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// There is no connection: nothing was asked.
    Away,
    /// The connection is gone, or stands still: what was asked may or may not have been done.
    Cut,
    /// The server can not do it now.
    NotNow,
    /// A key of this lock holds something else: nobody can have the lock.
    NotALock,
    /// The server will not do it.
    Refused,
}

impl Fault {
    pub(crate) fn cut(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Cut, message: message.into() }
    }

    /// What the server or the connection to it said.
    pub(crate) fn of(error: &RedisError, shown: &str) -> Self {
        let said = said(error);
        let (kind, message) = match error.kind() {
            Kind::Server(ServerErrorKind::ReadOnly) => (
                FaultKind::Refused,
                format!("{shown} is a replica and takes no locks: name its primary"),
            ),
            Kind::Server(ServerErrorKind::NoPerm) => (
                FaultKind::Refused,
                format!("this user may not do that at {shown}: widen its ACL ({said})"),
            ),
            Kind::Server(
                ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot,
            ) => (
                FaultKind::Refused,
                format!("{shown} is part of a Redis Cluster, which is not supported"),
            ),
            Kind::AuthenticationFailed => (FaultKind::Refused, wrong_password(shown, &said)),
            Kind::RESP3NotSupported => (
                FaultKind::Refused,
                format!("{shown} does not speak RESP3: Redis 6 or later is needed"),
            ),
            _ => by_code(error.code().unwrap_or_default(), shown, &said),
        };
        Self { kind, message }
    }

    /// Whether to ask again does not help.
    pub(crate) fn refuses(&self) -> bool {
        matches!(self.kind, FaultKind::NotALock | FaultKind::Refused)
    }

    pub(crate) fn into_error(self) -> Error {
        let kind = match self.kind {
            FaultKind::Away | FaultKind::Cut | FaultKind::NotNow => ErrorKind::Unreachable,
            FaultKind::NotALock | FaultKind::Refused => ErrorKind::Refused,
        };
        Error::new(kind, self.message)
    }
}

/// What Redis puts before a message tells what it is about.
fn by_code(code: &str, shown: &str, said: &str) -> (FaultKind, String) {
    match code {
        "NOAUTH" => (
            FaultKind::Refused,
            format!("{shown} wants a password: write it in the URL, redis://:PASSWORD@HOST"),
        ),
        "WRONGPASS" => (FaultKind::Refused, wrong_password(shown, said)),
        _ if said.contains("unknown command") && said.to_uppercase().contains("HELLO") => (
            FaultKind::Refused,
            format!("{shown} does not speak RESP3: Redis 6 or later is needed"),
        ),
        _ if said.contains("max number of clients") => {
            (FaultKind::NotNow, format!("{shown} takes no more connections: raise its maxclients"))
        }
        _ if said.contains("WRONGTYPE") => (
            FaultKind::NotALock,
            format!(
                "a key of this lock at {shown} holds something else than a lock: use another name, \
                 or a prefix of your own (?prefix=)"
            ),
        ),
        "BUSY" => (
            FaultKind::NotNow,
            format!("{shown} is busy with somebody's script: wait for it, or end it (SCRIPT KILL)"),
        ),
        "OOM" => (
            FaultKind::NotNow,
            format!("{shown} has no memory left: raise its maxmemory, or free some"),
        ),
        "LOADING" => (FaultKind::NotNow, format!("{shown} is still loading its data")),
        "MISCONF" => (
            FaultKind::NotNow,
            format!("{shown} can not save its data and takes no writes: see its log ({said})"),
        ),
        "" => (FaultKind::Cut, format!("no connection to {shown}: {said}")),
        "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS" => {
            (FaultKind::NotNow, format!("{shown} can not take writes now ({said})"))
        }
        _ => (FaultKind::Refused, format!("{shown} refused: {said}")),
    }
}

fn wrong_password(shown: &str, said: &str) -> String {
    format!("{shown} does not take this user and password ({said}): mend the URL")
}

/// The server's own words, on one line.
pub(crate) fn said(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    // An unknown command is quoted with its arguments, a password among them.
    let words = words.split("with args beginning with").next().unwrap_or_default();
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    words.trim().trim_end_matches('.').to_owned()
}
