//! Deadlines that cost nothing while they are kept.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use fencepost::Moment;
use fencepost::backend::BoxFuture;
use fencepost::clock::{BootClock, Clock as _};
use tokio::sync::watch::Receiver;

/// The time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// One alarm for all deadlines of a connection, one after the other. It stays set when a deadline was kept: it is
/// looked at again when it rings, and a request that ends in time sets no timer at all.
#[derive(Default)]
pub(crate) struct Watch {
    armed: Option<(Moment, BoxFuture<'static, ()>)>,
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
            loop {
                if self.armed.as_ref().is_none_or(|(at, _)| *at > deadline) {
                    self.armed = Some((deadline, BootClock.alarm(deadline)));
                }
                let Some((at, alarm)) = &mut self.armed else { continue };
                if alarm.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                if *at >= deadline {
                    self.armed = None;
                    return Poll::Ready(Err(Late));
                }
                // It rang for an earlier deadline, which was kept.
                self.armed = None;
            }
        })
        .await
    }
}
