//! Real time, and waiting with a limit.

use std::future::Future;
use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};

/// A TTL that does not run out during a test: what ends earlier was ended.
pub const LONG: Duration = Duration::from_mins(1);
/// How long something immediate may take; far below [`LONG`].
pub const SOON: Duration = Duration::from_secs(10);
/// The same if a cluster may hold an election meanwhile: the limit of every wait here.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);
/// How often a condition is checked.
const POLL: Duration = ms(2);

/// Milliseconds.
pub const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// The current time on the library's clock.
pub fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where the test is about time.
pub async fn pass(span: Duration) {
    BootClock.alarm(now() + span).await;
}

/// Waits until the condition holds; a test that would hang fails instead.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = now() + LIMIT;
    while !holds().await {
        assert!(now() < end, "not within {LIMIT:?}: {what}");
        pass(POLL).await;
    }
}

/// The output of the future, unless it takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = pass(limit) => panic!("not within {limit:?}: {what}"),
    }
}
