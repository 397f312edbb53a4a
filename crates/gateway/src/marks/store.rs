//! The database of the marks. See the module above for the map.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use fencepost_base::{Error, Result};
use fencepost_core::Label;
use fencepost_fence::{Admission, Mark, admit, sqlite};
use rusqlite::{self, Connection, OptionalExtension as _, TransactionBehavior};

use super::{MarkRequest, directory};

/// How long to wait for another program that writes, such as `fencepost fence reset`.
const BUSY: Duration = Duration::from_secs(5);

const STATE: &str = "
    CREATE TABLE IF NOT EXISTS main.fencepost_gateway (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        outcome_unknown INTEGER NOT NULL CHECK (outcome_unknown IN (0, 1)),
        at TEXT NOT NULL
    ) STRICT;
";
const NOTE: &str = "
    INSERT OR REPLACE INTO main.fencepost_gateway (only, outcome_unknown, at)
    VALUES (1, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))";

/// The database, and the lock that keeps a second gateway out.
pub(super) struct Store {
    db: Connection,
    data_version: i64,
    _only_one: File,
}

/// The result of a batch.
pub(super) struct Batch {
    /// In the order of the requests.
    pub(super) answers: Vec<Result<(), Mark>>,
    /// How many marks were raised.
    pub(super) raised: u64,
}

impl Store {
    /// Opens it, and records that requests may be at the upstream from now on. Returns whether the last run left such a
    /// record.
    pub(super) fn open(directory: &Path) -> Result<(Self, bool)> {
        let shown = directory.display();
        directory::prepare(directory)?;
        let only_one =
            File::options().write(true).open(directory.join(directory::LOCK)).map_err(|error| {
                Error::refused(format!("cannot write in the directory {shown}")).with_source(error)
            })?;
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&only_one, operation).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => Error::refused(format!(
                "another gateway uses the marks in {shown}: a directory of marks serves one gateway; stop that \
                 one, or give this one another directory and another service"
            )),
            other => Error::refused(format!("cannot lock the marks in {shown}")).with_source(other),
        })?;
        let failed = |error| sqlite::explain(&error);
        let db = connect(directory).map_err(failed)?;
        if has_older_layout(&db).map_err(failed)? {
            return Err(Error::refused(format!(
                "the marks in {shown} have the table of an older version, which may say that the outcome of a request \
                 is unknown: make sure that no request of the last run is left at the service, then run \
                 `sqlite3 {shown}/{} 'DROP TABLE fencepost_proxy'`; the marks stay",
                directory::DB
            )));
        }
        let outcome_unknown = begin_run(&db).map_err(failed)?;
        sqlite::install(&db)?;
        Ok((Self { db, data_version: 0, _only_one: only_one }, outcome_unknown))
    }

    /// Whether another program has written since the last check.
    pub(super) fn was_changed(&mut self) -> Result<bool> {
        let now = self.db.query_row("PRAGMA main.data_version", [], |row| row.get(0));
        let now: i64 = now.map_err(|error| sqlite::explain(&error))?;
        Ok(std::mem::replace(&mut self.data_version, now) != now)
    }

    /// Enters all of them in one transaction. If it fails, none has entered.
    pub(super) fn enter(&mut self, requests: &[MarkRequest]) -> Result<Batch> {
        let failed = |error| sqlite::explain(&error);
        let tx =
            self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        // The fence would create its tables again, and then any token could enter.
        if !sqlite::is_installed(&tx)? {
            return Err(Error::refused(
                "the tables of the marks are missing: restore the database",
            ));
        }
        let mut batch = Batch { answers: Vec::with_capacity(requests.len()), raised: 0 };
        for request in requests {
            let mark = sqlite::mark(&tx, request.fencing.name())?;
            batch.answers.push(match admit(mark.as_ref(), &request.fencing) {
                Admission::Stale(mark) | Admission::OtherLock(mark) => Err(mark.clone()),
                // Nothing is written, so nobody waits for a sync.
                Admission::Equal => Ok(()),
                Admission::Raise => {
                    sqlite::enter_as(&tx, &request.fencing, &Label::new(&request.who)?)?;
                    batch.raised += 1;
                    Ok(())
                }
            });
        }
        tx.commit().map_err(failed)?;
        Ok(batch)
    }

    /// Records that no request has an unknown outcome.
    pub(super) fn note_clean(&self) -> Result<()> {
        self.db.execute(NOTE, [false]).map(|_| ()).map_err(|error| sqlite::explain(&error))
    }
}

fn connect(directory: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(directory.join(directory::DB))?;
    db.busy_timeout(BUSY)?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    // Each commit is synced: a mark is on disk before anybody acts on it.
    db.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(db)
}

fn has_older_layout(db: &Connection) -> rusqlite::Result<bool> {
    let ask = "SELECT count(*) > 0 FROM main.sqlite_schema WHERE name = 'fencepost_proxy'";
    db.query_row(ask, [], |row| row.get(0))
}

/// Records that requests may be at the upstream. Returns whether the last run left such a record.
fn begin_run(db: &Connection) -> rusqlite::Result<bool> {
    db.execute_batch(STATE)?;
    let before = "SELECT outcome_unknown FROM main.fencepost_gateway";
    let outcome_unknown = db.query_row(before, [], |row| row.get(0)).optional()?;
    db.execute(NOTE, [true])?;
    Ok(outcome_unknown.unwrap_or(false))
}
