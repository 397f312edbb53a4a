//! Deadlines that cost nothing while they are kept.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use fencepost_base::BoxFuture;
use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_core::Moment;
use tokio::sync::watch::Receiver;

/// The time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// One alarm for all deadlines of a connection, one after the other. It stays set when a deadline was kept, and is looked
/// at when it should have rung: a request that ends in time neither sets a timer nor touches one.
#[derive(Default)]
pub(crate) struct Watch {
    armed: Option<Armed>,
}

struct Armed {
    at: Moment,
    /// Whom it wakes.
    whom: Waker,
    /// Set as long as it is kept.
    _alarm: BoxFuture<'static, ()>,
}

/// What time it is.
pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// Resolves once it is said that something ends.
pub(crate) async fn told(ends: &mut Receiver<bool>) {
    // Whoever could say so being gone means the same.
    let _ = ends.wait_for(|ends| *ends).await;
}

impl Watch {
    /// What comes of `work`, if it does until then.
    pub(crate) async fn until<T>(
        &mut self,
        deadline: Moment,
        work: impl Future<Output = T>,
    ) -> Result<T, Late> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            if let Some(armed) = &self.armed
                && armed.at <= deadline
                && armed.whom.will_wake(context.waker())
                && now() < armed.at
            {
                return Poll::Pending;
            }
            // None is set in time; or it rang, for this deadline or for an earlier one that was kept.
            let mut alarm = BootClock.alarm(deadline);
            if alarm.as_mut().poll(context).is_ready() {
                self.armed = None;
                return Poll::Ready(Err(Late));
            }
            self.armed = Some(Armed { at: deadline, whom: context.waker().clone(), _alarm: alarm });
            Poll::Pending
        })
        .await
    }
}
