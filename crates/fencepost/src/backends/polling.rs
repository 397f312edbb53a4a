//! Waiting on stores that are polled: Redis, Redlock and PostgreSQL. A notification only shortens the pause before the
//! next poll, so a lost one costs time and never a grant.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, OwnerId};

use super::waiter_registry::WaiterRegistry;
use crate::backend::{Acquired, GrantId, StoreResult};
use crate::clock::Clock;
use crate::outage::Outage;
use crate::race::race;
use crate::retry::CALL_TIMEOUT;

/// The last poll starts at the limit and may take this long: less than `BoundedStore` allows.
const LAST_POLL: Duration = Duration::from_millis(200);
/// The pause before the next poll of a store that did not answer.
const OUTAGE_DELAY: Duration = Duration::from_millis(50);

/// What one poll found.
pub(in crate::backends) struct Polled {
    pub(in crate::backends) acquired: Acquired,
    /// When to poll again, if it is queued.
    pub(in crate::backends) poll_after: Duration,
}

/// Takes a position with one poll. [`wait_by_polling`] continues from there, so the waiter stays registered until then, or
/// until a release forgets it.
pub(in crate::backends) async fn join_by_polling(
    clock: &dyn Clock,
    waiters: &Arc<WaiterRegistry>,
    owner: OwnerId,
    poll: impl Future<Output = StoreResult<Polled>>,
) -> StoreResult<Acquired> {
    // Registered before the poll, so that no notification is missed after it.
    let waiter = waiters.register(owner);
    let reply = poll.await?;
    if matches!(reply.value.acquired, Acquired::Queued { .. }) {
        waiter.park(clock.now() + reply.value.poll_after);
    }
    Ok(reply.map(|polled| polled.acquired))
}

/// Polls until the lock is granted or refused, or `limit` comes. `poll` is given the limit of one call.
pub(in crate::backends) async fn wait_by_polling<F>(
    clock: &dyn Clock,
    waiters: &Arc<WaiterRegistry>,
    grant: &GrantId,
    limit: Moment,
    poll: impl Fn(Moment) -> F,
) -> StoreResult<Acquired>
where
    F: Future<Output = StoreResult<Polled>>,
{
    // Registered before the first poll, so that no notification is missed after it.
    let (waiter, mut poll_at) = waiters.resume(grant.owner);
    let mut outage = Outage::default();
    loop {
        if let Some(at) = poll_at {
            race(waiter.notified(), clock.alarm(at.min(limit))).await;
        }
        let pause = match poll((clock.now() + CALL_TIMEOUT).min(limit + LAST_POLL)).await {
            Ok(reply) => {
                outage.end();
                let queued = matches!(reply.value.acquired, Acquired::Queued { .. });
                if !queued || clock.now() >= limit {
                    return Ok(reply.map(|polled| polled.acquired));
                }
                reply.value.poll_after
            }
            // An outage does not end the wait; only the limit does.
            Err(error) if error.is_transient() && clock.now() < limit => {
                outage.log(clock.now(), &grant.name, &error);
                OUTAGE_DELAY
            }
            Err(error) => return Err(error),
        };
        poll_at = Some(clock.now() + pause);
    }
}
