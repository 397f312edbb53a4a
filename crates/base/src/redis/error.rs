//! What a failed request means: one [`StoreError`] for each way in which a Redis says no.

use std::fmt;

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind};

use crate::store_error::{Outcome, StoreError};

const NO_RESP3: &str = "does not speak RESP3: Redis 6 or later is needed";

/// What the server said, or became of the connection to it.
pub fn classify(error: &RedisError, shown: &str) -> StoreError {
    let said = said(error);
    match error.kind() {
        Kind::Server(ServerErrorKind::ReadOnly) => StoreError::refused(format!(
            "{shown} is a replica and takes no locks: name its primary"
        )),
        Kind::Server(ServerErrorKind::NoPerm) => in_script(StoreError::refused(format!(
            "this user may not do that at {shown}: widen its ACL ({said})"
        ))),
        Kind::Server(
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot,
        ) => StoreError::refused(format!(
            "{shown} is part of a Redis Cluster, which is not supported"
        )),
        Kind::AuthenticationFailed => wrong_password(shown, &said),
        Kind::RESP3NotSupported => StoreError::refused(format!("{shown} {NO_RESP3}")),
        _ => by_code(error.code().unwrap_or_default(), shown, &said),
    }
}

/// What Redis puts before a message tells what it is about.
fn by_code(code: &str, shown: &str, said: &str) -> StoreError {
    match code {
        "NOAUTH" => StoreError::refused(format!(
            "{shown} wants a password: write it in the URL, redis://:PASSWORD@HOST"
        )),
        "WRONGPASS" => wrong_password(shown, said),
        _ if said.contains("unknown command") && said.to_uppercase().contains("HELLO") => {
            StoreError::refused(format!("{shown} {NO_RESP3}"))
        }
        _ if said.contains("max number of clients") => StoreError::unavailable(format!(
            "{shown} takes no more connections: raise its maxclients"
        )),
        _ if said.contains("WRONGTYPE") => in_script(StoreError::refused(format!(
            "a key of this lock at {shown} holds something else than a lock: use another name, \
             or a prefix of your own (?prefix=)"
        )))
        .with_source(WrongType),
        "BUSY" => StoreError::unavailable(format!(
            "{shown} is busy with somebody's script: wait for it, or end it (SCRIPT KILL)"
        )),
        "OOM" => in_script(StoreError::unavailable(format!(
            "{shown} has no memory left: raise its maxmemory, or free some"
        ))),
        "LOADING" => StoreError::unavailable(format!("{shown} is still loading its data")),
        "MISCONF" => in_script(StoreError::unavailable(format!(
            "{shown} can not save its data and takes no writes: see its log ({said})"
        ))),
        "" => StoreError::no_reply(format!("no connection to {shown}: {said}")),
        "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS" => {
            StoreError::unavailable(format!("{shown} can not take writes now ({said})"))
        }
        _ => in_script(StoreError::refused(format!("{shown} refused: {said}"))),
    }
}

/// An error that may come from the middle of a script. A script does not roll back, so what it did before stays.
fn in_script(error: StoreError) -> StoreError {
    error.with_outcome(Outcome::Unknown)
}

fn wrong_password(shown: &str, said: &str) -> StoreError {
    StoreError::refused(format!(
        "{shown} does not take this user and password ({said}): mend the URL"
    ))
}

/// A key holds another type than the script expects.
#[derive(Debug)]
struct WrongType;

impl fmt::Display for WrongType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WRONGTYPE")
    }
}

impl std::error::Error for WrongType {}

/// Whether a key holds something else than we keep there. Nobody can have the lock at that server, so nothing of ours
/// can be left there.
pub fn is_wrong_type(error: &StoreError) -> bool {
    error.source_as::<WrongType>().is_some()
}

/// The server's own words, on one line.
pub fn said(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    // An unknown command is quoted with its arguments, a password among them.
    let words = words.split("with args beginning with").next().unwrap_or_default();
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    words.trim().trim_end_matches('.').to_owned()
}
