//! SQLite for the fence suite: a file of its own for each case.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::BoxFuture;
use fencepost::fences::sqlite::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use fencepost::fences::{Mark, Reset, Row, column, sqlite};
use fencepost::{Error, Label, LockName, Result, Token};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{Fence, Marks, Resource};
use parking_lot::{Mutex, MutexGuard};

use super::fencing;

/// With marks beside the data, or with a column of the row itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InFile {
    Marks,
    Column,
}

const COUNTER: Row<'static> = Row { table: "counters", key: "name", guard: "fence" };

impl Fence for InFile {
    fn name(&self) -> &'static str {
        match self {
            Self::Marks => "sqlite",
            Self::Column => "sqlite_column",
        }
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        Box::pin(async {
            let counters = Counters::open(*self, Arc::new(tempfile::tempdir()?))?;
            let table = "CREATE TABLE counters (
                name TEXT PRIMARY KEY, value INTEGER, fence INTEGER NOT NULL DEFAULT 0)";
            counters.lock().execute_batch(table).map_err(failed)?;
            Ok(Box::new(counters) as Box<dyn Resource>)
        })
    }
}

struct Counters {
    kind: InFile,
    db: Mutex<Connection>,
    directory: Arc<tempfile::TempDir>,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: rusqlite::Error) -> Error {
    Error::unreachable(error.to_string())
}

impl Counters {
    fn open(kind: InFile, directory: Arc<tempfile::TempDir>) -> Result<Self> {
        let db = Connection::open(directory.path().join("counters.db")).map_err(failed)?;
        db.busy_timeout(Duration::from_secs(30)).map_err(failed)?;
        // The suite is not about crashes.
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").map_err(failed)?;
        Ok(Self { kind, db: Mutex::new(db), directory })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.db.lock()
    }

    fn within<T>(
        &self,
        name: &LockName,
        token: Option<Token>,
        work: impl FnOnce(Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let mut db = self.lock();
        if let (InFile::Marks, Some(token)) = (self.kind, token) {
            return work(sqlite::begin(&mut db, &fencing(name, token))?).map_err(failed);
        }
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        if let Some(token) = token {
            let make = "INSERT OR IGNORE INTO counters (name, value) VALUES (?, 0)";
            tx.execute(make, [name.as_str()]).map_err(failed)?;
            assert!(column::sqlite::enter(&tx, &COUNTER, &name.as_str(), &fencing(name, token))?);
        }
        work(tx).map_err(failed)
    }
}

fn set(tx: &Transaction<'_>, name: &LockName, value: i64) -> rusqlite::Result<usize> {
    let sql = "INSERT INTO counters (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2";
    tx.execute(sql, (name.as_str(), value))
}

fn ready<T: Send + 'static>(result: Result<T>) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move { result })
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        let other = Self::open(self.kind, Arc::clone(&self.directory));
        ready(other.map(|other| Box::new(other) as Box<dyn Resource>))
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        ready(self.within(name, token, |tx| {
            let sql = "SELECT coalesce(max(value), 0) FROM counters WHERE name = ?";
            let value = tx.query_row(sql, [name.as_str()], |row| row.get(0))?;
            tx.commit()?;
            Ok(value)
        }))
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        ready(self.within(name, token, |tx| {
            set(&tx, name, value)?;
            tx.commit()
        }))
    }

    fn abandon<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        value: i64,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        Some(ready(self.within(name, Some(token), |tx| {
            set(&tx, name, value)?;
            tx.rollback()
        })))
    }

    fn marks(&self) -> Option<&dyn Marks> {
        (self.kind == InFile::Marks).then_some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        let mut db = self.lock();
        ready(db.transaction().map_err(failed).and_then(|tx| {
            sqlite::enter_as(&tx, &fencing(name, token), who)?;
            tx.commit().map_err(failed)
        }))
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        ready(sqlite::mark(&self.lock(), name))
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        ready(sqlite::show(&self.lock(), name))
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        ready(sqlite::reset(&mut self.lock(), name, to, by, why))
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        ready(sqlite::audit(&self.lock(), name))
    }
}
