//! What the tests of both Redis stores share.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost_testbed::Redis;

#[path = "../support/mod.rs"]
mod support;

pub(crate) use support::*;

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// How long a thing may take that should happen at once; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// How often a condition is looked at.
const POLL: Duration = ms(2);

/// Two clients that know nothing of each other.
pub(crate) async fn two(url: &str) -> (Fencepost, Fencepost) {
    (connect(url).await, connect(url).await)
}

pub(crate) fn has(server: &Redis, key: &str) -> bool {
    server.command(&["EXISTS", key]).unwrap().int().unwrap() == 1
}

/// Whether one line of the log has all these words. Tests run side by side: one of the words tells whose
/// line it is.
pub(crate) fn logged(words: &[&str]) -> bool {
    log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}
