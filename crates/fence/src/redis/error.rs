//! Explains errors of Redis to the user of a fence.

use fencepost_base::redis::error::{classify, server_message};
use fencepost_base::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

const REPLICA: &str = "this server is a replica, and `enter` writes: name its primary";

/// Explains an error of the crate `redis` to the user of a fence.
#[must_use]
pub fn explain(error: &RedisError) -> Error {
    // Its text only: the error may quote a command with a password.
    let server_message = server_message(error);
    let found = match error.kind() {
        Kind::Server(Server::CrossSlot) => Error::invalid(
            "this is a cluster, and the mark is in another slot than the keys: name one of them \
             with Fence::beside, and give all keys that the lock protects one hash tag, like \
             {user:7}:cart; nothing was done",
        ),
        Kind::Server(Server::Moved | Server::Ask) => match error.redirect_node() {
            Some((node, slot)) => Error::refused(format!(
                "this node of the cluster does not have slot {slot}: ask {node}, or use a connection \
                 to the cluster"
            )),
            None => Error::refused(
                "the keys are on another node of the cluster: use a connection to the cluster",
            ),
        },
        Kind::Server(Server::ReadOnly) => Error::refused(REPLICA),
        _ if error.code() == Some("WRONGTYPE") => Error::refused(
            "a key of the fence (fencepost:mark:..., fencepost:resets:...) has a value that fencepost did \
             not write: find out which program did, and delete the key",
        ),
        _ => return classify(error, "the Redis server").into(),
    };
    found.with_source(server_message)
}

/// A command after the check failed.
pub(super) fn of_command(which: usize, name: &str, server_message: &str) -> Error {
    let before = match which {
        0 | 1 => "nothing was written but the mark".to_owned(),
        2 => "the one before it was done, those after it were not".to_owned(),
        _ => format!("the {} before it were done, those after it were not", which - 1),
    };
    Error::new(
        kind_of(server_message),
        format!("command {which}, {name}, failed: {before}; fix it"),
    )
    .with_source(one_line(server_message))
}

/// The commands ran, but the expiry of the mark could not be set.
pub(super) fn of_mark(server_message: &str) -> Error {
    let error = if server_message.starts_with("READONLY") {
        Error::refused(REPLICA)
    } else {
        let message = "the commands ran, but the expiry of the mark could not be set (PERSIST, \
                       PEXPIRE): fix the cause, and enter again";
        Error::new(kind_of(server_message), message)
    };
    error.with_source(one_line(server_message))
}

fn kind_of(server_message: &str) -> ErrorKind {
    match server_message.split(' ').next().unwrap_or_default() {
        "OOM" | "MISCONF" | "NOREPLICAS" | "MASTERDOWN" | "CLUSTERDOWN" => ErrorKind::Unreachable,
        "NOPERM" | "READONLY" => ErrorKind::Refused,
        _ => ErrorKind::Invalid,
    }
}

fn one_line(server_message: &str) -> String {
    let server_message: String =
        server_message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    server_message.trim().to_owned()
}

/// A reply that our script does not give, perhaps of a proxy.
pub(super) fn not_ours() -> Error {
    Error::unreachable(
        "unexpected reply to the script of the fence: check that the server is a Redis, with no proxy before it",
    )
}
