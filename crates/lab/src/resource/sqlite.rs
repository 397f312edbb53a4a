//! The resource in a SQLite file.

use std::path::Path;
use std::time::Duration;

use fencepost::fences::sqlite::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use fencepost::{Error, LockName, fences};

use super::{Fence, Tables};
use crate::error::Result;

/// How long a transaction waits for another one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The same when the lab ends: a user waits for it.
const CLEANUP_BUSY_TIMEOUT: Duration = Duration::from_secs(3);

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
                "the resource {} cannot be opened: check that its directory exists and can be written",
                path.display()
            ))
            .with_source(error)
        })?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
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
        self.execute_batch(&self.tables.create_account(balance))
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

    pub(super) fn create_ledger(&self, unique: bool) -> Result<()> {
        if self.own {
            // Readers and the writer do not wait for each other, as in a database server. The mode stays in the file,
            // so it is not set in a file of the user.
            self.connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        }
        self.execute_batch(&self.tables.create_ledger(unique))
    }

    pub(super) fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        let (run, effect) = (self.tables.insert_run(), self.tables.insert_effect());
        let tx = self.begin(None)?;
        let inserted = tx.execute(&run, [tick]).map_err(failed)? == 1;
        if inserted {
            tx.execute(&effect, [tick]).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(inserted)
    }

    pub(super) fn run(&self, tick: &str) -> Result<()> {
        self.connection.execute(&self.tables.insert_effect(), [tick]).map_err(failed)?;
        Ok(())
    }

    pub(super) fn runs(&self, tick: &str) -> Result<u64> {
        let count = self.tables.count_effects();
        let runs = self.connection.query_row(&count, [tick], |row| row.get::<_, i64>(0));
        Ok(runs.map_err(failed)?.unsigned_abs())
    }

    pub(super) fn drop_tables(&self) -> Result<()> {
        self.connection.busy_timeout(CLEANUP_BUSY_TIMEOUT).map_err(failed)?;
        self.execute_batch(&self.tables.drop_all())
    }

    pub(super) fn forget(&self, name: &LockName) -> Result<()> {
        self.connection.busy_timeout(CLEANUP_BUSY_TIMEOUT).map_err(failed)?;
        let sql = "DELETE FROM main.fencepost_marks WHERE name = ?";
        self.connection.execute(sql, [name.as_str()]).map_err(failed)?;
        Ok(())
    }

    fn execute_batch(&self, sql: &str) -> Result<()> {
        Ok(self.connection.execute_batch(sql).map_err(failed)?)
    }

    fn begin(&mut self, fence: Fence<'_>) -> Result<Transaction<'_>> {
        if let Some(fencing) = fence {
            return Ok(fences::sqlite::begin(&mut self.connection, fencing)?);
        }
        let behavior = TransactionBehavior::Immediate;
        Ok(self.connection.transaction_with_behavior(behavior).map_err(failed)?)
    }
}

fn failed(error: rusqlite::Error) -> Error {
    Error::unreachable("the lab's resource failed").with_source(error)
}
