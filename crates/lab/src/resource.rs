//! What the lock protects: a balance that two workers add to, and the ledger of a job's runs.
//!
//! The tables are made for one lab and dropped with it, however it ends; the mark of its lock name is forgotten. In a
//! database of the user's the fence itself stays, if the lab had to install it, and the lab says so. Nothing else of
//! such a database is changed: not its journal mode either.

mod postgres;
mod sqlite;

use std::path::{Path, PathBuf};

use fencepost::{Error, LockName, Token};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Result};

/// Which resource: what a worker is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Resource {
    database: Database,
    /// The end of the names of its tables.
    tag: String,
}

#[derive(Clone, Serialize, Deserialize)]
enum Database {
    Sqlite {
        path: PathBuf,
        /// It is the lab's own file, and goes with it.
        own: bool,
    },
    /// Its URL, which may carry a password.
    Postgres(String),
}

/// The fence of a transaction: the lock's name and the holder's token. `None` is a program without one.
pub(crate) type Fence<'a> = Option<(&'a LockName, Token)>;

/// The names of the lab's tables.
struct Tables {
    account: String,
    run: String,
    effect: String,
}

impl Resource {
    /// The one that `url` names.
    pub(crate) fn named(url: &str, tag: &str) -> Result<Self> {
        let remedy = "give sqlite:PATH or postgres://HOST/DATABASE, or leave --resource out";
        let bad = |what: String| Err(Error::invalid(format!("{what}: {remedy}")).into());
        match url.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return bad("the resource sqlite: names no file".to_owned());
                }
                let path = std::path::absolute(path)
                    .map_err(|error| Fault::system("find the resource's file", &error))?;
                Ok(Self::at(Database::Sqlite { path, own: false }, tag))
            }
            Some(("postgres" | "postgresql", _)) => {
                Ok(Self::at(Database::Postgres(url.to_owned()), tag))
            }
            // The rest of a URL may carry a password; its scheme does not.
            Some((scheme, _)) if !scheme.is_empty() => {
                bad(format!("the resource \"{}:...\" is unknown here", scheme.escape_debug()))
            }
            _ if url.is_empty() => bad("the resource is empty".to_owned()),
            _ => bad("the resource has no scheme".to_owned()),
        }
    }

    /// A SQLite file of the lab's own.
    pub(crate) fn own(path: &Path, tag: &str) -> Self {
        Self::at(Database::Sqlite { path: path.to_owned(), own: true }, tag)
    }

    fn at(database: Database, tag: &str) -> Self {
        Self { database, tag: tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_") }
    }

    /// What kind of database it is.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.database {
            Database::Sqlite { .. } => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    /// Whether it is there for the lab alone.
    pub(crate) const fn is_own(&self) -> bool {
        matches!(self.database, Database::Sqlite { own: true, .. })
    }

    /// The names of the tables of `pause`, or those of `nolock`.
    pub(crate) fn tables(&self, ledger: bool) -> Vec<String> {
        let Tables { account, run, effect } = self.names();
        if ledger { vec![run, effect] } else { vec![account] }
    }

    fn names(&self) -> Tables {
        let table = |name: &str| format!("fencepost_lab_{name}_{}", self.tag);
        Tables { account: table("account"), run: table("run"), effect: table("effect") }
    }

    /// Connects to it.
    pub(crate) async fn open(&self) -> Result<Session> {
        let tables = self.names();
        match &self.database {
            Database::Sqlite { path, own } => {
                Ok(Session::Sqlite(sqlite::Session::open(path, *own, tables)?))
            }
            Database::Postgres(url) => {
                Ok(Session::Postgres(postgres::Session::open(url, tables).await?))
            }
        }
    }
}

/// A connection to the resource. Each call is a transaction of its own.
pub(crate) enum Session {
    Sqlite(sqlite::Session),
    Postgres(postgres::Session),
}

impl Session {
    /// Installs the fence unless it is there, whoever its owner is. Whether it was not.
    pub(crate) async fn install_fence(&mut self) -> Result<bool> {
        match self {
            Self::Sqlite(session) => session.install_fence(),
            Self::Postgres(session) => session.install_fence().await,
        }
    }

    /// Makes the account, or sets it back.
    pub(crate) async fn set_balance(&mut self, balance: i64) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.set_balance(balance),
            Self::Postgres(session) => session.set_balance(balance).await,
        }
    }

    /// Reads the balance. With a fence it enters first, which raises the mark before anything is read: without that
    /// a read-modify-write is still lost (P8).
    pub(crate) async fn read(&mut self, fence: Fence<'_>) -> Result<i64> {
        match self {
            Self::Sqlite(session) => session.read(fence),
            Self::Postgres(session) => session.read(fence).await,
        }
    }

    /// Writes the balance.
    pub(crate) async fn write(&mut self, balance: i64, fence: Fence<'_>) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.write(balance, fence),
            Self::Postgres(session) => session.write(balance, fence).await,
        }
    }

    /// Makes the ledger of a job's runs and the place where its effects show. Without `unique` the ledger is
    /// no ledger: the control.
    pub(crate) async fn make_ledger(&mut self, unique: bool) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.make_ledger(unique),
            Self::Postgres(session) => session.make_ledger(unique).await,
        }
    }

    /// Runs the job of `tick` unless somebody has: the key is inserted if it is absent, and the effect lies in
    /// the same transaction. Whether it was us.
    pub(crate) async fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        match self {
            Self::Sqlite(session) => session.run_if_absent(tick),
            Self::Postgres(session) => session.run_if_absent(tick).await,
        }
    }

    /// Runs the job of `tick`, whoever else has. Who holds the lock has looked before, with [`Self::runs`]: in a
    /// transaction of its own, so that it is the lock and not the database that keeps others out between the two.
    pub(crate) async fn act(&mut self, tick: &str) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.act(tick),
            Self::Postgres(session) => session.act(tick).await,
        }
    }

    /// How often the job of `tick` ran.
    pub(crate) async fn runs(&mut self, tick: &str) -> Result<u64> {
        match self {
            Self::Sqlite(session) => session.runs(tick),
            Self::Postgres(session) => session.runs(tick).await,
        }
    }

    /// Drops the tables of this lab.
    pub(crate) async fn clear(&mut self) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.clear(),
            Self::Postgres(session) => session.clear().await,
        }
    }

    /// Forgets the mark of a lock that nobody will take again. Without the record of a reset where that can be: it
    /// would be as much of a leftover as the mark.
    pub(crate) async fn forget(&mut self, name: &LockName) -> Result<()> {
        match self {
            Self::Sqlite(session) => session.forget(name),
            Self::Postgres(session) => session.forget(name).await,
        }
    }
}

impl Tables {
    fn made(&self, balance: i64) -> String {
        let account = &self.account;
        format!(
            "CREATE TABLE IF NOT EXISTS {account} (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL);
             INSERT INTO {account} VALUES (1, {balance})
             ON CONFLICT (id) DO UPDATE SET balance = excluded.balance;"
        )
    }

    fn ledger(&self, unique: bool) -> String {
        let Self { run, effect, .. } = self;
        let unique = if unique { "PRIMARY KEY" } else { "" };
        format!(
            "CREATE TABLE {run} (tick TEXT NOT NULL {unique});
             CREATE TABLE {effect} (tick TEXT NOT NULL);"
        )
    }

    fn dropped(&self) -> String {
        [&self.account, &self.run, &self.effect]
            .map(|table| format!("DROP TABLE IF EXISTS {table};"))
            .concat()
    }

    fn read(&self) -> String {
        format!("SELECT balance FROM {} WHERE id = 1", self.account)
    }

    fn write(&self) -> String {
        format!("UPDATE {} SET balance = $1 WHERE id = 1", self.account)
    }

    fn claim(&self) -> String {
        format!("INSERT INTO {} VALUES ($1) ON CONFLICT DO NOTHING", self.run)
    }

    fn act(&self) -> String {
        format!("INSERT INTO {} VALUES ($1)", self.effect)
    }

    fn count(&self) -> String {
        format!("SELECT count(*) FROM {} WHERE tick = $1", self.effect)
    }
}
