//! Periodic work, as long as the store is used.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::server_info::ServerInfo;
use crate::postgres::{Pool, Use};
use crate::random;

/// How often the server's settings are read again.
const REFRESH: Duration = Duration::from_secs(5);
/// How often unused rows are removed.
const GC_INTERVAL: Duration = Duration::from_mins(10);
/// The functions that remove them, with their calls. Rows of locks are removed after an hour.
pub(super) const GC_CALLS: [(&str, &str); 3] = [
    ("gc_locks", "SELECT fencepost.gc_locks(3600000)"),
    ("gc_records", "SELECT fencepost.gc_records(1000)"),
    ("gc_candidate_values", "SELECT fencepost.gc_candidate_values()"),
];

/// Reads the server's settings regularly, as long as the store is used, and runs gc, unless the client only reads.
pub(super) async fn maintain(pool: Weak<Pool>, server_info: Arc<Mutex<ServerInfo>>, gc: bool) {
    let Some(clock) = pool.upgrade().map(|pool| Arc::clone(pool.clock())) else { return };
    // Not all clients at the same time.
    let mut gc_at = clock.now() + GC_INTERVAL / 10 + random::part_of(GC_INTERVAL);
    loop {
        clock.alarm(clock.now() + REFRESH).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.let_go();
        pool.recheck_schema().await;
        if let Ok(read) = ServerInfo::read(&pool).await {
            let mut server_info = server_info.lock();
            *server_info = read.after(&server_info);
        }
        if gc && clock.now() >= gc_at {
            gc_at = clock.now() + GC_INTERVAL;
            // Do not try functions that this role may not call: the server would log each attempt.
            let may = server_info.lock().gc_calls();
            for sql in may {
                if let Err(error) = pool.call(Use::Asking, sql, &[], pool.call_limit()).await {
                    tracing::debug!(server = %pool.shown(), why = %error, "garbage collection failed");
                }
            }
        }
    }
}
