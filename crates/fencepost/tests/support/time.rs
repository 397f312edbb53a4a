//! Time, real as it is, and waiting with a deadline.

use std::future::Future;
use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};

use super::{POLL, SOON};

pub(crate) const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where that is what the test is about.
pub(crate) async fn pass(span: Duration) {
    BootClock.alarm(now() + span).await;
}

/// Waits until the condition holds; a test that would hang fails instead.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = now() + SOON;
    while !holds().await {
        assert!(now() < end, "not within {SOON:?}: {what}");
        pass(POLL).await;
    }
}

/// What the future gives, unless it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = pass(limit) => panic!("not within {limit:?}: {what}"),
    }
}
