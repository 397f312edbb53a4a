//! Waiting for a condition, and the only clock of the servers and the proxy.
//!
//! The library under test has its own clock, which a test may control. Servers and proxy must not share it. So the clocks
//! that `clippy.toml` forbids are read here, and nowhere else in this crate.

use std::io;
use std::time::{Duration, Instant, SystemTime};

/// How long something immediate may take. Generous, because a loaded machine is not a failure.
pub const SOON: Duration = Duration::from_secs(10);

/// How often a condition is checked. Servers start within a few of these.
const POLL: Duration = Duration::from_millis(1);

/// Waits until `holds` returns true. Fails with the error of `holds` or, after `limit`, with `what`.
///
/// The condition is checked one last time after the limit, so a test that was paused does not fail for it.
#[expect(clippy::disallowed_methods, reason = "this file is where waiting is allowed")]
pub fn until(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let deadline = now() + limit;
    loop {
        let last = now() >= deadline;
        if holds()? {
            return Ok(());
        }
        if last {
            let message = format!("waited {limit:?} until {what}: it did not happen");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(POLL);
    }
}

/// The current time, for limits and delays.
#[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The host's wall clock as time since 1970, to compare with a server's shifted clock.
#[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Resolves once `at` has come. For the proxy, whose thread runs timers.
#[expect(clippy::disallowed_methods, reason = "this file is where waiting is allowed")]
pub(crate) async fn sleep_until(at: Instant) {
    tokio::time::sleep_until(at.into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_checked_until_it_holds() {
        let mut asked = 0;
        until(SOON, "it was asked thrice", || {
            asked += 1;
            Ok(asked == 3)
        })
        .unwrap();
        assert_eq!(asked, 3);
    }

    #[test]
    fn timeout_names_the_condition() {
        let error = until(Duration::ZERO, "pigs fly", || Ok(false)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("pigs fly"), "{error}");
    }

    #[test]
    fn failing_condition_ends_the_wait() {
        let error = until(SOON, "pigs fly", || Err(io::Error::other("no pigs"))).unwrap_err();
        assert_eq!(error.to_string(), "no pigs");
    }
}
