//! What the lock protects: a balance that two workers add to, and the ledger of a job's runs.
//!
//! The tables are created for one lab and dropped when it ends, in whatever way; the mark of its lock name is forgotten.
//! In a user's database the fence stays if the lab had to install it, and the lab reports that. Nothing else in such a
//! database is changed, not even its journal mode.

mod postgres;
mod sqlite;

use std::path::{Path, PathBuf};

use fencepost::{Error, FencingToken, LockName};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};

/// Names a resource, for the workers.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Resource {
    database: Database,
    /// The suffix of the table names.
    tag: String,
}

#[derive(Clone, Serialize, Deserialize)]
enum Database {
    Sqlite {
        path: PathBuf,
        /// It is the lab's own file, and is removed with it.
        own: bool,
    },
    /// The URL, which can contain a password.
    Postgres(String),
}

/// What a transaction enters its fence with. `None` is a transaction without a fence.
pub(crate) type Fence<'a> = Option<&'a FencingToken>;

/// The names of the lab's tables.
struct Tables {
    account: String,
    run: String,
    effect: String,
}

impl Resource {
    pub(crate) fn from_url(url: &str, tag: &str) -> Result<Self> {
        let remedy = "give sqlite:PATH or postgres://HOST/DATABASE, or leave --resource out";
        let bad = |what: String| Err(Error::invalid(format!("{what}: {remedy}")).into());
        match url.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return bad("the resource sqlite: has no path".to_owned());
                }
                let path = std::path::absolute(path)
                    .map_err(|error| LabError::system("find the resource's file", &error))?;
                Ok(Self::new(Database::Sqlite { path, own: false }, tag))
            }
            Some(("postgres" | "postgresql", _)) => {
                Ok(Self::new(Database::Postgres(url.to_owned()), tag))
            }
            // Show only the scheme: the rest of a URL can contain a password.
            Some((scheme, _)) if !scheme.is_empty() => {
                bad(format!("the resource \"{}:...\" is not supported", scheme.escape_debug()))
            }
            _ if url.is_empty() => bad("the resource is empty".to_owned()),
            _ => bad("the resource has no scheme".to_owned()),
        }
    }

    /// A SQLite file of the lab's own.
    pub(crate) fn own_file(path: &Path, tag: &str) -> Self {
        Self::new(Database::Sqlite { path: path.to_owned(), own: true }, tag)
    }

    fn new(database: Database, tag: &str) -> Self {
        Self { database, tag: tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_") }
    }

    /// The name of the kind of database.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.database {
            Database::Sqlite { .. } => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    /// Whether it belongs to the lab.
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

    /// Connects to the database.
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

/// A connection to the resource. Each call is one transaction.
pub(crate) enum Session {
    Sqlite(sqlite::Session),
    Postgres(postgres::Session),
}

/// Forwards a call to the session of the database. SQLite answers at once.
macro_rules! forward {
    ($session:ident.$call:ident($($argument:ident),*)) => {
        match $session {
            Session::Sqlite(session) => session.$call($($argument),*),
            Session::Postgres(session) => session.$call($($argument),*).await,
        }
    };
}

impl Session {
    /// Installs the fence if it is missing. Returns whether it was missing.
    pub(crate) async fn install_fence(&mut self) -> Result<bool> {
        forward!(self.install_fence())
    }

    /// Creates the account, or resets its balance.
    pub(crate) async fn set_balance(&mut self, balance: i64) -> Result<()> {
        forward!(self.set_balance(balance))
    }

    /// Reads the balance. With a fence it first enters, which raises the mark before the read: without that, an update
    /// can still be lost (P8).
    pub(crate) async fn read(&mut self, fence: Fence<'_>) -> Result<i64> {
        forward!(self.read(fence))
    }

    pub(crate) async fn write(&mut self, balance: i64, fence: Fence<'_>) -> Result<()> {
        forward!(self.write(balance, fence))
    }

    /// Creates the ledger of a job's runs, and the table of its effects. Without `unique` the ledger excludes nothing:
    /// the control.
    pub(crate) async fn create_ledger(&mut self, unique: bool) -> Result<()> {
        forward!(self.create_ledger(unique))
    }

    /// Runs the job of `tick` unless it has run: inserts the key if it is absent, and the effect in the same transaction.
    /// Returns whether it ran.
    pub(crate) async fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        forward!(self.run_if_absent(tick))
    }

    /// Runs the job of `tick`, even if it has run. The holder of the lock has called [`Self::runs`] before, in another
    /// transaction, so that the lock and not the database excludes others between the two.
    pub(crate) async fn run(&mut self, tick: &str) -> Result<()> {
        forward!(self.run(tick))
    }

    /// How often the job of `tick` ran.
    pub(crate) async fn runs(&mut self, tick: &str) -> Result<u64> {
        forward!(self.runs(tick))
    }

    /// Drops the tables of this lab.
    pub(crate) async fn drop_tables(&mut self) -> Result<()> {
        forward!(self.drop_tables())
    }

    /// Forgets the mark of a lock that is not used again. Where possible this leaves no record of a reset, which would
    /// also be a leftover.
    pub(crate) async fn forget(&mut self, name: &LockName) -> Result<()> {
        forward!(self.forget(name))
    }
}

impl Tables {
    fn create_account(&self, balance: i64) -> String {
        let account = &self.account;
        format!(
            "CREATE TABLE IF NOT EXISTS {account} (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL);
             INSERT INTO {account} VALUES (1, {balance})
             ON CONFLICT (id) DO UPDATE SET balance = excluded.balance;"
        )
    }

    fn create_ledger(&self, unique: bool) -> String {
        let Self { run, effect, .. } = self;
        let unique = if unique { "PRIMARY KEY" } else { "" };
        format!(
            "CREATE TABLE {run} (tick TEXT NOT NULL {unique});
             CREATE TABLE {effect} (tick TEXT NOT NULL);"
        )
    }

    fn drop_all(&self) -> String {
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

    fn insert_run(&self) -> String {
        format!("INSERT INTO {} VALUES ($1) ON CONFLICT DO NOTHING", self.run)
    }

    fn insert_effect(&self) -> String {
        format!("INSERT INTO {} VALUES ($1)", self.effect)
    }

    fn count_effects(&self) -> String {
        format!("SELECT count(*) FROM {} WHERE tick = $1", self.effect)
    }
}
