//! Waiting: a waiter polls at its position, and is notified when it is first and the lock is free (listen.rs).

use std::time::Duration;

use fencepost_core::Moment;

use super::{Postgres, locks};
use crate::backend::{Acquired, Queue, Request, StoreResult};
use crate::backends::polling::wait_by_polling;

/// How often a waiter or an observer polls.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn wait(
    store: &Postgres,
    request: Request,
    limit: Moment,
) -> StoreResult<Acquired> {
    let poll = |limit| locks::poll(store, &request, Queue::Join, limit);
    wait_by_polling(&*store.clock, &store.waiters, &request.grant, limit, poll).await
}
