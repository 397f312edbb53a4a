//! Time limits that cost nothing if they are met.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Poll, Waker};

use fencepost_base::BoxFuture;
use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_core::Moment;
use tokio::sync::watch::Receiver;

/// The limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

impl From<TimedOut> for io::Error {
    fn from(_: TimedOut) -> Self {
        io::ErrorKind::TimedOut.into()
    }
}

/// One alarm for all limits of a connection, one after the other. It stays set when a limit is met, and is checked only
/// when it fires: a request that ends in time neither sets nor cancels an alarm.
#[derive(Default)]
pub(crate) struct Timer {
    armed: Option<Armed>,
}

struct Armed {
    at: Moment,
    /// The task that it wakes.
    waker: Waker,
    /// Active while this is kept.
    _alarm: BoxFuture<'static, ()>,
}

/// The current time.
pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// Resolves once a stop is requested.
pub(crate) async fn stop_requested(ends: &mut Receiver<bool>) {
    // A dropped sender means the same.
    let _ = ends.wait_for(|ends| *ends).await;
}

impl Timer {
    /// The output of `work`, unless the limit comes first.
    pub(crate) async fn until<T>(
        &mut self,
        limit: Moment,
        work: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            if let Some(armed) = &self.armed
                && armed.at <= limit
                && armed.waker.will_wake(context.waker())
                && now() < armed.at
            {
                return Poll::Pending;
            }
            // No alarm fires in time, or it fired: for this limit, or for an earlier one that was met.
            let mut alarm = BootClock.alarm(limit);
            if alarm.as_mut().poll(context).is_ready() {
                self.armed = None;
                return Poll::Ready(Err(TimedOut));
            }
            self.armed = Some(Armed { at: limit, waker: context.waker().clone(), _alarm: alarm });
            Poll::Pending
        })
        .await
    }
}
