//! Turns a failed request into a [`StoreError`]: one for each way in which a Redis refuses.

use std::fmt;

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind};

use crate::store_error::{Outcome, StoreError};

/// The version of what locks and records are on a server.
pub const LAYOUT: u32 = 2;
const NO_RESP3: &str = "does not speak RESP3: Redis 6 or later is needed";

/// Classifies an error by the server's reply, or by what happened to the connection.
pub fn classify(error: &RedisError, shown: &str) -> StoreError {
    let server_message = server_message(error);
    match error.kind() {
        Kind::Server(ServerErrorKind::ReadOnly) => StoreError::refused(format!(
            "{shown} is a replica and grants no locks: name its primary"
        )),
        Kind::Server(ServerErrorKind::NoPerm) => in_script(StoreError::refused(format!(
            "this user may not do that at {shown}: widen its ACL ({server_message})"
        ))),
        Kind::Server(
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot,
        ) => StoreError::refused(format!(
            "{shown} is part of a Redis Cluster, which is not supported"
        )),
        Kind::AuthenticationFailed => wrong_password(shown, &server_message),
        Kind::RESP3NotSupported => StoreError::refused(format!("{shown} {NO_RESP3}")),
        _ => by_code(error.code().unwrap_or_default(), shown, &server_message),
    }
}

/// Classifies an error by the code at the start of its message.
fn by_code(code: &str, shown: &str, server_message: &str) -> StoreError {
    if let Some(error) = other_layout(server_message, shown) {
        return error;
    }
    match code {
        "NOAUTH" => StoreError::refused(format!(
            "{shown} requires a password: write it in the URL, redis://:PASSWORD@HOST"
        )),
        "WRONGPASS" => wrong_password(shown, server_message),
        _ if server_message.contains("unknown command")
            && server_message.to_uppercase().contains("HELLO") =>
        {
            StoreError::refused(format!("{shown} {NO_RESP3}"))
        }
        _ if server_message.contains("max number of clients") => StoreError::unavailable(format!(
            "{shown} has no connections left: raise its maxclients"
        )),
        _ if server_message.contains("WRONGTYPE") => in_script(StoreError::refused(format!(
            "a key of this lock at {shown} holds something other than a lock: use another name, \
             or your own prefix (?prefix=)"
        )))
        .with_source(NotOurs::WrongType),
        "BUSY" => StoreError::unavailable(format!(
            "{shown} is busy with a script: wait for it, or end it (SCRIPT KILL)"
        )),
        "OOM" => in_script(StoreError::unavailable(format!(
            "{shown} has no memory left: raise its maxmemory, or free some"
        ))),
        "LOADING" => StoreError::unavailable(format!("{shown} is still loading its data")),
        "MISCONF" => in_script(StoreError::unavailable(format!(
            "{shown} cannot save its data and refuses writes: see its log ({server_message})"
        ))),
        "" => StoreError::no_reply(format!("no connection to {shown}: {server_message}")),
        "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS" => {
            StoreError::unavailable(format!("{shown} cannot take writes now ({server_message})"))
        }
        _ => in_script(StoreError::refused(format!("{shown} refused: {server_message}"))),
    }
}

/// Parses the error of our scripts about keys that another version of fencepost wrote: "LAYOUT VERSION TOKEN". They
/// report it before they write anything.
fn other_layout(server_message: &str, shown: &str) -> Option<StoreError> {
    let mut words = server_message.split_once(": LAYOUT ")?.1.split(' ');
    let (version, token) = (words.next()?, words.next()?.trim_start_matches('0'));
    let lost = match token {
        "" => RECORDS_LOST.to_owned(),
        _ => format!("tokens must start above {token}: that is µs of the server's clock (TIME)"),
    };
    Some(layout_error(version, &lost, shown))
}

/// What is lost with the records of an older layout.
pub const RECORDS_LOST: &str = "work that is recorded there would run again";

/// Refuses keys of another layout at a server. `lost` says what would be lost with those of an older one.
#[must_use]
pub fn layout_error(version: &str, lost: &str, shown: &str) -> StoreError {
    let message = if version == "1" {
        format!(
            "{shown} has keys of layout 1, and this program uses layout {LAYOUT}: stop all clients of \
             the earlier fencepost, then delete those keys as docs/layouts/redis.md says ({lost})"
        )
    } else {
        format!(
            "{shown} has keys of layout {version}, and this program uses layout {LAYOUT}: update \
             this program"
        )
    };
    StoreError::refused(message).with_source(NotOurs::OtherLayout)
}

/// An error that may come from the middle of a script. Scripts do not roll back, so earlier writes stay.
fn in_script(error: StoreError) -> StoreError {
    error.with_outcome(Outcome::Unknown)
}

fn wrong_password(shown: &str, server_message: &str) -> StoreError {
    StoreError::refused(format!(
        "{shown} rejected the credentials ({server_message}): check the URL"
    ))
}

/// What a key holds that is not ours.
#[derive(Debug)]
enum NotOurs {
    /// Another type than the script expects.
    WrongType,
    /// A lock or a record of another layout.
    OtherLayout,
}

impl fmt::Display for NotOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongType => "WRONGTYPE",
            Self::OtherLayout => "LAYOUT",
        })
    }
}

impl std::error::Error for NotOurs {}

/// Whether a key holds something that is not a lock at all.
#[must_use]
pub fn is_wrong_type(error: &StoreError) -> bool {
    matches!(error.source_as(), Some(NotOurs::WrongType))
}

/// Whether a key holds something that no grant of ours can be in: then nobody of ours can hold the lock at that server, and
/// nothing of ours can be left there, also later.
#[must_use]
pub fn is_not_ours(error: &StoreError) -> bool {
    error.source_as::<NotOurs>().is_some()
}

/// The server's own message, on one line.
pub fn server_message(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    // An unknown command is quoted with its arguments, which may include a password.
    let words = words.split("with args beginning with").next().unwrap_or_default();
    words.replace(char::is_control, " ").trim().trim_end_matches('.').to_owned()
}
