//! The database of the marks. See the module above for the map.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use fencepost_base::{Error, Result};
use fencepost_core::Label;
use fencepost_fence::{Admission, Mark, admit, sqlite};
use rusqlite::{self, Connection, OptionalExtension as _, TransactionBehavior};

use super::{Ask, directory};

/// How long we wait for another program that writes, such as `fencepost fence reset`.
const BUSY: Duration = Duration::from_secs(5);

const STATE: &str = "
    CREATE TABLE IF NOT EXISTS main.fencepost_proxy (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        in_doubt INTEGER NOT NULL CHECK (in_doubt IN (0, 1)),
        at TEXT NOT NULL
    ) STRICT;
";
const NOTE: &str = "
    INSERT OR REPLACE INTO main.fencepost_proxy (only, in_doubt, at)
    VALUES (1, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))";

/// The database, and the lock that keeps a second proxy out.
pub(super) struct Store {
    db: Connection,
    seen: i64,
    _only_one: File,
}

/// What came of a batch.
pub(super) struct Batch {
    /// In the order of what was asked.
    pub(super) answers: Vec<Result<(), Mark>>,
    /// How many marks were raised.
    pub(super) raised: u64,
}

impl Store {
    /// Opens it, and notes that requests may be at the upstream from now on. Says whether the last run had left
    /// that note.
    pub(super) fn open(directory: &Path) -> Result<(Self, bool)> {
        let shown = directory.display();
        directory::prepare(directory)?;
        let only_one =
            File::options().write(true).open(directory.join(directory::LOCK)).map_err(|error| {
                Error::refused(format!("cannot write in the directory {shown}")).because(error)
            })?;
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&only_one, operation).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => Error::refused(format!(
                "another proxy uses the marks in {shown}: one proxy per marks directory; end that \
                 one, or give this one another directory and another resource"
            )),
            other => Error::refused(format!("can not lock the marks in {shown}")).because(other),
        })?;
        let opened = || -> rusqlite::Result<(Connection, bool)> {
            let db = Connection::open(directory.join(directory::DB))?;
            db.busy_timeout(BUSY)?;
            db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
            // Each commit is synced: a mark is on disk before anybody acts on it.
            db.execute_batch("PRAGMA synchronous = FULL")?;
            db.execute_batch(STATE)?;
            let before = "SELECT in_doubt FROM main.fencepost_proxy";
            let in_doubt = db.query_row(before, [], |row| row.get(0)).optional()?;
            db.execute(NOTE, [true])?;
            Ok((db, in_doubt.unwrap_or(false)))
        };
        let (db, in_doubt) = opened().map_err(|error| sqlite::explain(&error))?;
        sqlite::install(&db)?;
        Ok((Self { db, seen: 0, _only_one: only_one }, in_doubt))
    }

    /// Whether another program has written since the last look.
    pub(super) fn was_changed(&mut self) -> Result<bool> {
        let now = self.db.query_row("PRAGMA main.data_version", [], |row| row.get(0));
        let now: i64 = now.map_err(|error| sqlite::explain(&error))?;
        Ok(std::mem::replace(&mut self.seen, now) != now)
    }

    /// Enters for all of them, in one transaction. If it fails, nobody has entered.
    pub(super) fn enter(&mut self, asks: &[Ask]) -> Result<Batch> {
        let failed = |error| sqlite::explain(&error);
        let tx =
            self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        // The fence makes its tables anew, and then anybody may enter.
        if !sqlite::is_installed(&tx)? {
            return Err(Error::refused("the tables of the marks are gone: restore the database"));
        }
        let mut batch = Batch { answers: Vec::with_capacity(asks.len()), raised: 0 };
        for ask in asks {
            let mark = sqlite::mark(&tx, &ask.name)?;
            batch.answers.push(match admit(mark.as_ref(), ask.token) {
                Admission::Stale(mark) => Err(mark.clone()),
                // Nothing is written, so that nobody waits for a sync.
                Admission::Equal => Ok(()),
                Admission::Raise => {
                    sqlite::enter_as(&tx, &ask.name, ask.token, &Label::new(&ask.who)?)?;
                    batch.raised += 1;
                    Ok(())
                }
            });
        }
        tx.commit().map_err(failed)?;
        Ok(batch)
    }

    /// Notes that nothing is in doubt.
    pub(super) fn note_clean(&self) -> Result<()> {
        self.db.execute(NOTE, [false]).map(|_| ()).map_err(|error| sqlite::explain(&error))
    }
}
