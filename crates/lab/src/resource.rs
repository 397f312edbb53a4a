//! What the lock protects: a balance that two workers add to, and the ledger of a job's runs.
//!
//! The tables are made for one lab and dropped with it. In a database of the user's the mark of the lab's lock
//! name stays behind: that is what a mark is for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use fencepost::{Error, LockName, Token, fences};
use serde::{Deserialize, Serialize};

use crate::scene::{Fault, Result};

/// How long a transaction waits for another one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which resource: what a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Resource {
    database: Database,
    /// The end of the names of its tables.
    tag: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Database {
    Sqlite(PathBuf),
}

/// The fence of a transaction: the lock's name and the holder's token. `None` is a program without one.
pub(crate) type Fence<'a> = Option<(&'a LockName, Token)>;

impl Resource {
    /// The one that `url` names.
    pub(crate) fn named(url: &str, tag: &str) -> Result<Self> {
        match url.strip_prefix("sqlite:") {
            Some(path) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(Error::invalid("the resource sqlite: names no file").into());
                }
                let path = std::path::absolute(path)
                    .map_err(|error| Fault::system("find the resource's file", &error))?;
                Ok(Self::file(&path, tag))
            }
            None => Err(Error::invalid(format!(
                "the resource \"{}\" is unknown here: give sqlite:PATH, or leave --resource out",
                scheme(url)
            ))
            .into()),
        }
    }

    /// A SQLite file.
    pub(crate) fn file(path: &Path, tag: &str) -> Self {
        let tag = tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        Self { database: Database::Sqlite(path.to_owned()), tag }
    }

    /// What kind of database it is.
    pub(crate) fn kind(&self) -> &'static str {
        match self.database {
            Database::Sqlite(_) => "sqlite",
        }
    }

    /// Connects to it.
    pub(crate) fn open(&self) -> Result<Session> {
        match &self.database {
            Database::Sqlite(path) => {
                let connection = Connection::open(path).map_err(failed)?;
                connection.busy_timeout(PATIENCE).map_err(failed)?;
                Ok(Session { connection, tag: self.tag.clone() })
            }
        }
    }

    /// Drops the tables of this lab.
    pub(crate) fn clear(&self) -> Result<()> {
        let Session { connection, tag } = self.open()?;
        let drop = |table| format!("DROP TABLE IF EXISTS fencepost_lab_{table}_{tag};");
        let sql: String = ["account", "run", "effect"].map(drop).concat();
        Ok(connection.execute_batch(&sql).map_err(failed)?)
    }
}

/// A URL may carry a password; its scheme does not.
fn scheme(url: &str) -> String {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    format!("{}:...", scheme.escape_debug())
}

/// A connection to the resource.
pub(crate) struct Session {
    connection: Connection,
    tag: String,
}

impl Session {
    /// Makes the account, or sets it back.
    pub(crate) fn set_balance(&mut self, balance: i64) -> Result<()> {
        let table = self.table("account");
        fences::sqlite::install(&self.connection)?;
        let made = format!(
            "CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
             INSERT INTO {table} VALUES (1, {balance})
             ON CONFLICT (id) DO UPDATE SET balance = excluded.balance"
        );
        Ok(self.connection.execute_batch(&made).map_err(failed)?)
    }

    /// Reads the balance in a transaction of its own. With a fence it enters first, which raises the mark before
    /// anything is read: without that a read-modify-write is still lost (P8).
    pub(crate) fn read(&mut self, fence: Fence<'_>) -> Result<i64> {
        let sql = format!("SELECT balance FROM {} WHERE id = 1", self.table("account"));
        let tx = self.begin(fence)?;
        let balance = tx.query_row(&sql, [], |row| row.get(0)).map_err(failed)?;
        tx.commit().map_err(failed)?;
        Ok(balance)
    }

    /// Writes the balance in a transaction of its own.
    pub(crate) fn write(&mut self, balance: i64, fence: Fence<'_>) -> Result<()> {
        let sql = format!("UPDATE {} SET balance = ? WHERE id = 1", self.table("account"));
        let tx = self.begin(fence)?;
        tx.execute(&sql, [balance]).map_err(failed)?;
        Ok(tx.commit().map_err(failed)?)
    }

    fn begin(&mut self, fence: Fence<'_>) -> Result<Transaction<'_>> {
        if let Some((name, token)) = fence {
            return Ok(fences::sqlite::begin(&mut self.connection, name, token)?);
        }
        let behavior = TransactionBehavior::Immediate;
        Ok(self.connection.transaction_with_behavior(behavior).map_err(failed)?)
    }

    /// Makes the ledger of a job's runs and the place where its effects show. Without `unique` the ledger is
    /// no ledger: the control.
    pub(crate) fn make_ledger(&mut self, unique: bool) -> Result<()> {
        let (run, effect) = (self.table("run"), self.table("effect"));
        let unique = if unique { "PRIMARY KEY" } else { "" };
        let sql = format!(
            "CREATE TABLE {run} (tick TEXT NOT NULL {unique});
             CREATE TABLE {effect} (tick TEXT NOT NULL)"
        );
        // Readers and the one writer do not wait for each other: what a database server does anyhow.
        self.connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        Ok(self.connection.execute_batch(&sql).map_err(failed)?)
    }

    /// Runs the job of `tick` unless somebody has: the key is inserted if it is absent, and the effect lies in
    /// the same transaction. Whether it was us.
    pub(crate) fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        let claim = format!("INSERT OR IGNORE INTO {} VALUES (?)", self.table("run"));
        let act = format!("INSERT INTO {} VALUES (?)", self.table("effect"));
        let tx = self.begin(None)?;
        let ours = tx.execute(&claim, [tick]).map_err(failed)? == 1;
        if ours {
            tx.execute(&act, [tick]).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(ours)
    }

    /// Runs the job of `tick` unless it has been: for one who holds the lock, so a look before is enough.
    pub(crate) fn run_if_not_done(&mut self, tick: &str) -> Result<bool> {
        let look = format!("SELECT count(*) FROM {} WHERE tick = ?", self.table("effect"));
        let act = format!("INSERT INTO {} VALUES (?)", self.table("effect"));
        let tx = self.begin(None)?;
        let done: i64 = tx.query_row(&look, [tick], |row| row.get(0)).map_err(failed)?;
        if done == 0 {
            tx.execute(&act, [tick]).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(done == 0)
    }

    /// How often the job of `tick` ran.
    pub(crate) fn runs(&self, tick: &str) -> Result<u64> {
        let sql = format!("SELECT count(*) FROM {} WHERE tick = ?", self.table("effect"));
        let runs = self.connection.query_row(&sql, [tick], |row| row.get::<_, i64>(0));
        Ok(runs.map_err(failed)?.unsigned_abs())
    }

    fn table(&self, which: &str) -> String {
        format!("fencepost_lab_{which}_{}", self.tag)
    }
}

fn failed(error: rusqlite::Error) -> Error {
    Error::unreachable("the lab's resource failed").because(error)
}
