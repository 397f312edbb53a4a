//! Follows a lock on a store that does not notify observers.

use std::time::Duration;

use fencepost_core::LockName;

use crate::backend::{LockInfo, LockVersion, Observe, StoreResult};
use crate::clock::Clock;
use crate::retry::CALL_TIMEOUT;

/// Inspects the lock until it differs from what was seen.
pub(super) async fn inspect_until_changed(
    store: &dyn Observe,
    clock: &dyn Clock,
    every: Duration,
    name: LockName,
    seen: Option<LockVersion>,
) -> StoreResult<LockInfo> {
    loop {
        let reply = store.inspect(name.clone(), clock.now() + CALL_TIMEOUT).await?;
        if seen != Some(reply.value.version()) {
            return Ok(reply);
        }
        clock.alarm(clock.now() + every).await;
    }
}
