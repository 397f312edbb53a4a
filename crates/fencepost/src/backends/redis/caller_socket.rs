//! A second socket, driven by the caller's own runtime.
//!
//! The connection's own socket is on the client's thread, so that heartbeats do not depend on the caller. For a caller
//! that locks and unlocks continuously, most of the wait is the hop to that thread and back: a single task waits one and
//! a half times as long. Such a caller gets a socket on its own runtime, if that runtime has several threads. After any
//! failure that socket is closed, and the request is retried on the connection's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use redis::from_redis_value;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::connection::{ANSWER, Shared, config};
use super::socket::Socket;
use crate::race::{First, race};

/// After this many calls from a runtime, a socket of its own is worth its cost.
const BUSY: usize = 64;

/// The socket on one caller's runtime, if there is one.
#[derive(Default)]
pub(super) struct CallerSocket {
    open: Mutex<Option<(Id, Arc<Socket>)>>,
    calls: AtomicUsize,
    opening: AtomicBool,
}

impl CallerSocket {
    /// The socket on the caller's runtime, if it has one; it may get one for later calls.
    pub(super) fn of_caller(&self, shared: &Arc<Shared>) -> Option<Arc<Socket>> {
        let caller = Handle::try_current().ok()?;
        if let Some((owner, socket)) = &*self.open.lock() {
            return (*owner == caller.id()).then(|| Arc::clone(socket));
        }
        // A runtime with one thread stops whenever nothing blocks on it.
        let fit = caller.runtime_flavor() == RuntimeFlavor::MultiThread;
        let busy = self.calls.fetch_add(1, Ordering::Relaxed) % BUSY == BUSY - 1;
        if fit && busy && !self.opening.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(shared);
            caller.spawn(async move {
                let id = Handle::current().id();
                let limit = shared.clock.alarm(shared.clock.now() + ANSWER);
                if let First::Left(Some(socket)) = race(connect(&shared), limit).await {
                    *shared.caller_socket.open.lock() = Some((id, socket));
                }
                shared.caller_socket.opening.store(false, Ordering::Relaxed);
            });
        }
        None
    }

    /// The socket, for the maintenance.
    pub(super) fn current(&self) -> Option<Arc<Socket>> {
        self.open.lock().as_ref().map(|(_, socket)| Arc::clone(socket))
    }

    /// Closes it. Requests that wait for a reply there are retried.
    pub(super) fn close(&self) {
        if let Some((_, socket)) = self.open.lock().take() {
            socket.end();
        }
    }
}

/// A socket to the same server as the connection's.
async fn connect(shared: &Shared) -> Option<Arc<Socket>> {
    let config = config();
    let opened = shared.address.client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = opened.await.ok()?;
    let info = connection.send_packed_command(redis::cmd("INFO").arg("server")).await.ok()?;
    let info: String = from_redis_value(info).ok()?;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim().to_owned();
    let known = shared
        .server_info()
        .as_ref()
        .and_then(|(server_info, _)| server_info.run_id().map(str::to_owned))?;
    (run == known).then(|| Arc::new(Socket::new(connection, Arc::default())))
}
