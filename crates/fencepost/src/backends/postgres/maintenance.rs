//! What is done now and then, as long as the store is used.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::server_info::Found;
use crate::postgres::{Pool, Use};

/// How often the server's settings are read again.
const REFRESH: Duration = Duration::from_secs(5);
/// How often rows are removed that nobody uses any more.
const TIDY: Duration = Duration::from_mins(10);
/// What removes them, and how it is called. Rows of locks go after an hour.
pub(super) const TIDYING: [(&str, &str); 3] = [
    ("tidy", "SELECT fencepost.tidy(3600000)"),
    ("tidy_records", "SELECT fencepost.tidy_records(1000)"),
    ("tidy_leaders", "SELECT fencepost.tidy_leaders()"),
];

/// Reads the server's settings again and again, as long as the store is used, and tidies up, unless the client only looks.
pub(super) async fn keep_up(pool: Weak<Pool>, found: Arc<Mutex<Found>>, tidies: bool) {
    let Some(clock) = pool.upgrade().map(|pool| Arc::clone(pool.clock())) else { return };
    // Not all clients at the same time.
    let part = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    let mut tidy = clock.now() + TIDY.mul_f64(0.1 + part);
    loop {
        clock.alarm(clock.now() + REFRESH).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.let_go();
        pool.look_again().await;
        if let Ok(read) = Found::read(&pool).await {
            let mut found = found.lock();
            *found = read.after(&found);
        }
        if tidies && clock.now() >= tidy {
            tidy = clock.now() + TIDY;
            // What this role may not call is not tried: the server would write that into its log each time.
            let may = found.lock().tidies();
            for sql in may {
                if let Err(error) = pool.call(Use::Asking, sql, &[], pool.call_limit()).await {
                    tracing::debug!(server = %pool.shown(), why = %error, "could not tidy up");
                }
            }
        }
    }
}
