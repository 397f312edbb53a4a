//! What an answer that is no answer means to the user of a fence.

use fencepost_base::redis::error::{classify, said};
use fencepost_base::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

const REPLICA: &str = "this server is a replica, and to enter is to write: name its primary";

/// What an error of the crate `redis` means to the user of a fence.
#[must_use]
pub fn explain(error: &RedisError) -> Error {
    let said = said(error);
    let found = match error.kind() {
        Kind::Server(Server::CrossSlot) => Error::invalid(
            "this is a cluster, and the mark lies in another slot than the keys: name one of them \
             with Fence::beside, and give all keys that the lock protects one hash tag, like \
             {user:7}:cart; nothing was done",
        ),
        Kind::Server(Server::Moved | Server::Ask) => match error.redirect_node() {
            Some((node, slot)) => Error::refused(format!(
                "this node of the cluster does not have slot {slot}: ask {node}, or use a connection \
                 to the cluster"
            )),
            None => Error::refused("the keys lie at another node of the cluster"),
        },
        Kind::Server(Server::ReadOnly) => Error::refused(REPLICA),
        _ if error.code() == Some("WRONGTYPE") => Error::refused(
            "a key of the fence (fencepost:mark:..., fencepost:resets:...) holds what fencepost did \
             not write: see who did, and delete it",
        ),
        _ => return classify(error, "the Redis server").into(),
    };
    found.because(said)
}

/// A command behind the check failed.
pub(super) fn of_command(which: usize, name: &str, said: &str) -> Error {
    let before = match which {
        0 | 1 => "nothing was written but the mark".to_owned(),
        2 => "the one before it was done, those behind it were not".to_owned(),
        _ => format!("the {} before it were done, those behind it were not", which - 1),
    };
    Error::new(kind_of(said), format!("command {which}, {name}, failed: {before}; mend it"))
        .because(one_line(said))
}

/// The commands ran; how long the mark stays could not be set.
pub(super) fn of_mark(said: &str) -> Error {
    let error = if said.starts_with("READONLY") {
        Error::refused(REPLICA)
    } else {
        let message = "the commands ran, but how long the mark stays could not be set (PERSIST, \
                       PEXPIRE): mend it, and enter again";
        Error::new(kind_of(said), message)
    };
    error.because(one_line(said))
}

fn kind_of(said: &str) -> ErrorKind {
    match said.split(' ').next().unwrap_or_default() {
        "OOM" | "MISCONF" | "NOREPLICAS" | "MASTERDOWN" | "CLUSTERDOWN" => ErrorKind::Unreachable,
        "NOPERM" | "READONLY" => ErrorKind::Refused,
        _ => ErrorKind::Invalid,
    }
}

fn one_line(said: &str) -> String {
    let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    said.trim().to_owned()
}

/// Something stands between us and a Redis.
pub(super) fn not_ours() -> Error {
    Error::unreachable("the server's answer is none that our script gives: is it a Redis?")
}
