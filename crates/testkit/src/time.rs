//! Time, real as it is, and waiting with a deadline.

use std::future::Future;
use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub const LONG: Duration = Duration::from_mins(1);
/// How long a thing may take that should happen at once; far below [`LONG`].
pub const SOON: Duration = Duration::from_secs(10);
/// The same where an election of a cluster may come in between: the limit of all that is waited for here.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);
/// How often a condition is looked at.
const POLL: Duration = ms(2);

/// Milliseconds.
pub const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// What time it is, on the clock that the library reads.
pub fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where that is what the test is about.
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

/// What the future gives, unless it takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = pass(limit) => panic!("not within {limit:?}: {what}"),
    }
}
