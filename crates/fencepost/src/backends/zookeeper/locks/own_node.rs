//! Watches a grant, in a task of its own.

use std::sync::Arc;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::super::error::{Code, code};
use super::super::positions::Position;
use super::super::shared::Shared;
use super::start_release;
use crate::backend::{Liveness, LossCause};
use crate::race::{First, race};

/// Notifies the guard when its node or its session is gone, and deletes the node of a grant that is not renewed.
pub(crate) async fn watch_own_node(
    shared: &Arc<Shared>,
    position: &Arc<Position>,
    own: oneshot::Receiver<()>,
) {
    let (Some(session), Some(node)) = (position.session(), position.node()) else { return };
    let mut own = Some(own);
    loop {
        let event = match own.take() {
            Some(watch) => next_event(shared, position, watch).await,
            None => NodeEvent::Nothing,
        };
        match event {
            NodeEvent::Gone if position.is_over() => return,
            NodeEvent::Gone => {
                shared.ended(position, &session).await;
                return;
            }
            // The guard is lost before the request to delete the node leaves: a grant that is being confirmed has no
            // deadline of its own yet, and its confirmation may be answered after this.
            NodeEvent::LeaseOver => {
                shared.lost(position, LossCause::Expired);
                start_release(shared, position);
                return;
            }
            NodeEvent::Nothing => {}
        }
        // The connection broke, and the watch with it.
        if !session.up_or_over().await {
            return shared.lost(position, LossCause::SessionGone);
        }
        match session.children_watched(&node).await {
            Ok((_, _, watch)) => own = Some(watch),
            Err(error) => match code(&error) {
                Some(Code::NoNode) if position.is_over() => return,
                Some(Code::NoNode) => {
                    shared.ended(position, &session).await;
                    return;
                }
                Some(Code::SessionGone) => return shared.lost(position, LossCause::SessionGone),
                _ => shared.pause().await,
            },
        }
    }
}

enum NodeEvent {
    /// Our node is gone.
    Gone,
    /// The connection broke.
    Nothing,
    /// The grant's guard is gone, or its lease has ended.
    LeaseOver,
}

/// Waits for a change of our node, or for the end of the lease. The session is shared and stays: a guard that is lost,
/// or that never reached its caller, must not hold the lock for as long as other guards live.
async fn next_event(
    shared: &Shared,
    position: &Position,
    mut watch: oneshot::Receiver<()>,
) -> NodeEvent {
    loop {
        let end = match position.liveness {
            Liveness::Process => position.lease_end(),
            // Its session ends with its lease, and other processes may renew it.
            Liveness::LeaseOnly => Moment::NEVER,
        };
        match race(&mut watch, shared.context.clock.alarm(end)).await {
            First::Left(Ok(())) => return NodeEvent::Gone,
            First::Left(Err(_)) => return NodeEvent::Nothing,
            First::Right(()) if position.lease_end() <= shared.now() => {
                return NodeEvent::LeaseOver;
            }
            First::Right(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::{Label, LockName, OwnerId, Ttl};
    use fencepost_testkit::until;
    use parking_lot::Mutex;

    use super::super::super::records::tests::start;
    use super::*;
    use crate::backend::{Acquired, Backend as _, GrantId, LossSignal, OnLoss, Queue, Request};
    use crate::clock::{BootClock, Clock as _};

    #[derive(Debug, Default)]
    struct RecordedLoss(Mutex<Option<LossCause>>);

    impl OnLoss for RecordedLoss {
        fn renew_now(&self) {}
        fn lose(&self, cause: LossCause) {
            *self.0.lock() = Some(cause);
        }
        fn shorten(&self, _: Moment, _: Ttl) -> Option<Moment> {
            None
        }
        fn expire_if_due(&self) {}
        fn is_connected(&self) -> bool {
            true
        }
    }

    /// A queued grant has no deadline until its confirmation is answered, which may be after its node was deleted. By
    /// then the next waiter has the lock, and both guards would be held.
    #[tokio::test]
    async fn expired_queued_grant_is_lost_before_it_has_a_deadline() {
        let (_server, store) = start().await;
        let recorded = Arc::new(RecordedLoss::default());
        let grant = GrantId { name: LockName::new("a").unwrap(), owner: OwnerId::from_bits(1) };
        let request = Request {
            grant,
            ttl: Ttl::new(Duration::from_millis(500)).unwrap(),
            label: Label::new("me").unwrap(),
            value: None,
            liveness: Liveness::Process,
            loss: LossSignal::to(recorded.clone()),
        };
        let limit = BootClock.now() + Duration::from_secs(10);
        let reply = store.try_acquire(request.clone(), Queue::Skip, limit).await.unwrap();
        assert!(matches!(reply.value, Acquired::Granted(_)));
        // Nothing renews it.
        until("its guard learns that its node was deleted", async || recorded.0.lock().is_some())
            .await;
        assert_eq!(*recorded.0.lock(), Some(LossCause::Expired));
    }
}
