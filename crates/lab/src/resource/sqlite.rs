//! The resource in a SQLite file.

use std::path::Path;
use std::time::Duration;

use fencepost::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use fencepost::{Error, LockName, fences};

use super::{Fence, Tables};
use crate::fault::Result;

/// How long a transaction waits for another one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same when the lab is over and somebody waits for its end.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(3);

pub(crate) struct Session {
    connection: Connection,
    /// The file is the lab's own.
    own: bool,
    tables: Tables,
}

impl Session {
    pub(super) fn open(path: &Path, own: bool, tables: Tables) -> Result<Self> {
        let connection = Connection::open(path).map_err(|error| {
            Error::unreachable(format!(
                "the resource {} can not be opened: see that its directory is there and may be written",
                path.display()
            ))
            .because(error)
        })?;
        connection.busy_timeout(PATIENCE).map_err(failed)?;
        Ok(Self { connection, own, tables })
    }

    pub(super) fn install_fence(&self) -> Result<bool> {
        if fences::sqlite::is_installed(&self.connection)? {
            return Ok(false);
        }
        fences::sqlite::install(&self.connection)?;
        Ok(true)
    }

    pub(super) fn set_balance(&self, balance: i64) -> Result<()> {
        self.run(&self.tables.made(balance))
    }

    pub(super) fn read(&mut self, fence: Fence<'_>) -> Result<i64> {
        let read = self.tables.read();
        let tx = self.begin(fence)?;
        let balance = tx.query_row(&read, [], |row| row.get(0)).map_err(failed)?;
        tx.commit().map_err(failed)?;
        Ok(balance)
    }

    pub(super) fn write(&mut self, balance: i64, fence: Fence<'_>) -> Result<()> {
        let write = self.tables.write();
        let tx = self.begin(fence)?;
        tx.execute(&write, [balance]).map_err(failed)?;
        Ok(tx.commit().map_err(failed)?)
    }

    pub(super) fn make_ledger(&self, unique: bool) -> Result<()> {
        if self.own {
            // Readers and the one writer do not wait for each other: what a database server does anyhow. It stays
            // with the file, so it is not ours to set on a file of the user's.
            self.connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        }
        self.run(&self.tables.ledger(unique))
    }

    pub(super) fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        let (claim, act) = (self.tables.claim(), self.tables.act());
        let tx = self.begin(None)?;
        let ours = tx.execute(&claim, [tick]).map_err(failed)? == 1;
        if ours {
            tx.execute(&act, [tick]).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(ours)
    }

    pub(super) fn act(&mut self, tick: &str) -> Result<()> {
        let act = self.tables.act();
        let tx = self.begin(None)?;
        tx.execute(&act, [tick]).map_err(failed)?;
        Ok(tx.commit().map_err(failed)?)
    }

    pub(super) fn runs(&self, tick: &str) -> Result<u64> {
        let count = self.tables.count();
        let runs = self.connection.query_row(&count, [tick], |row| row.get::<_, i64>(0));
        Ok(runs.map_err(failed)?.unsigned_abs())
    }

    pub(super) fn clear(&self) -> Result<()> {
        self.connection.busy_timeout(PATIENCE_AT_THE_END).map_err(failed)?;
        self.run(&self.tables.dropped())
    }

    pub(super) fn forget(&self, name: &LockName) -> Result<()> {
        self.connection.busy_timeout(PATIENCE_AT_THE_END).map_err(failed)?;
        let sql = "DELETE FROM main.fencepost_marks WHERE name = ?";
        self.connection.execute(sql, [name.as_str()]).map_err(failed)?;
        Ok(())
    }

    fn run(&self, sql: &str) -> Result<()> {
        Ok(self.connection.execute_batch(sql).map_err(failed)?)
    }

    fn begin(&mut self, fence: Fence<'_>) -> Result<Transaction<'_>> {
        if let Some((name, token)) = fence {
            return Ok(fences::sqlite::begin(&mut self.connection, name, token)?);
        }
        let behavior = TransactionBehavior::Immediate;
        Ok(self.connection.transaction_with_behavior(behavior).map_err(failed)?)
    }
}

fn failed(error: rusqlite::Error) -> Error {
    Error::unreachable("the lab's resource failed").because(error)
}
