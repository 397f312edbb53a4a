//! A second connection, driven by the caller's own runtime.
//!
//! The link's connection lives on the client's thread, so that heartbeats do not depend on the caller. For
//! a caller that locks and unlocks all the time, the hop to that thread and back is what it waits for most:
//! one task alone waits half as long again. Such a caller, if it runs on a runtime whose threads
//! drive it at any time, gets a connection there, for what it asks itself. When anything is odd about it,
//! it is dropped and the link takes over: all steps can be sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use redis::{AsyncConnectionConfig, from_redis_value};
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::link::{ANSWER, Shared};
use super::live::Live;
use crate::race::{First, race};

/// After so many calls from a runtime it is worth a connection of its own.
const BUSY: usize = 64;

/// The lane of one runtime, if there is one.
#[derive(Default)]
pub(super) struct Lane {
    open: Mutex<Option<(Id, Arc<Live>)>>,
    calls: AtomicUsize,
    opening: AtomicBool,
}

impl Lane {
    fn open(&self) -> MutexGuard<'_, Option<(Id, Arc<Live>)>> {
        self.open.lock()
    }

    /// The connection of the runtime that asks, if it has one; it may be given one for later.
    pub(super) fn of_caller(&self, shared: &Arc<Shared>) -> Option<Arc<Live>> {
        let caller = Handle::try_current().ok()?;
        if let Some((owner, live)) = &*self.open() {
            return (*owner == caller.id()).then(|| Arc::clone(live));
        }
        // A runtime of one thread stands still whenever nobody waits on it.
        let fit = caller.runtime_flavor() == RuntimeFlavor::MultiThread;
        let busy = self.calls.fetch_add(1, Ordering::Relaxed) % BUSY == BUSY - 1;
        if fit && busy && !self.opening.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(shared);
            caller.spawn(async move {
                let id = Handle::current().id();
                let limit = shared.clock.alarm(shared.clock.now() + ANSWER);
                if let First::Left(Some(live)) = race(connect(&shared), limit).await {
                    *shared.lane.open() = Some((id, live));
                }
                shared.lane.opening.store(false, Ordering::Relaxed);
            });
        }
        None
    }

    /// The lane, for whoever looks after it.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        self.open().as_ref().map(|(_, live)| Arc::clone(live))
    }

    /// Closes it. Calls that wait for an answer there go to the link.
    pub(super) fn close(&self) {
        if let Some((_, live)) = self.open().take() {
            live.end();
        }
    }
}

/// A connection to the very server that the link is connected to.
async fn connect(shared: &Shared) -> Option<Arc<Live>> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024);
    let opened = shared.address.client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = opened.await.ok()?;
    let info = connection.send_packed_command(redis::cmd("INFO").arg("server")).await.ok()?;
    let info: String = from_redis_value(info).ok()?;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim().to_owned();
    let known = shared.found().as_ref().and_then(|(found, _)| found.run_id().map(str::to_owned))?;
    (run == known).then(|| Arc::new(Live::lane(connection)))
}
