//! A connection to the file, and how long it waits for other processes.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use fencepost_core::Moment;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::clock::{BootClock, Clock as _, pause};

thread_local! {
    static GIVE_UP_AT: Cell<Moment> = const { Cell::new(Moment::NEVER) };
}

pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_handler(Some(wait_for_the_file))?;
    // A program that ends should not first checkpoint the log; a later one that grows it does.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise SQLite recompiles a statement whenever a value is bound that its plan might depend on.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

/// SQLite calls it while another process has the file. SQLite's own handler sleeps up to 100 ms at a time; our
/// transactions take a fraction of a millisecond.
fn wait_for_the_file(tries: i32) -> bool {
    if BootClock.now() >= GIVE_UP_AT.get() {
        return false;
    }
    pause(Duration::from_micros(50 << tries.clamp(0, 5)));
    true
}

/// How long the next statements of this thread wait for the file.
pub(super) fn set_busy_timeout(timeout: Duration) {
    GIVE_UP_AT.set(BootClock.now() + timeout);
}
