//! The resources that have a fence, and what `fencepost fence` does there.

use std::path::Path;
use std::time::Duration;

use fencepost::fences::file::FileFence;
use fencepost::fences::postgres::Installed;
use fencepost::fences::postgres::tokio_postgres::Client;
#[cfg(feature = "redis")]
use fencepost::fences::redis::{self, Connected};
use fencepost::fences::sqlite::rusqlite::{Connection, OpenFlags};
use fencepost::fences::{Mark, Reset, postgres, sqlite};
use fencepost::{Error, FencingToken, LockName, Result, Token};

use crate::exit::Failure;

/// How long to wait for other transactions.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) const KINDS: &str =
    "sqlite:PATH, postgres://USER@HOST/DATABASE, redis://HOST or file:PATH";

pub(crate) enum Resource {
    Sqlite(Connection),
    Postgres(Client),
    #[cfg(feature = "redis")]
    Redis(Connected),
    File(FileFence),
}

impl Resource {
    /// Opens a resource. A database must exist, so that a typing mistake creates none. A file need not exist: a mistyped
    /// path is another file with marks of its own.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        match url.split_once(':') {
            Some(("sqlite", path)) => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                if path.as_os_str().is_empty() {
                    return Err(Failure::usage("\"sqlite:\" has no path: write sqlite:PATH"));
                }
                Ok(Self::Sqlite(open_file(path)?))
            }
            Some(("postgres" | "postgresql", _)) => {
                let client = postgres::connect(url).await?;
                let timeout = format!("SET lock_timeout = {}", LOCK_TIMEOUT.as_millis());
                client.batch_execute(&timeout).await.map_err(|error| postgres::explain(&error))?;
                Ok(Self::Postgres(client))
            }
            #[cfg(feature = "redis")]
            Some(("redis" | "rediss" | "redis+unix", _)) => {
                Ok(Self::Redis(redis::connect(url).await?))
            }
            #[cfg(not(feature = "redis"))]
            Some(("redis" | "rediss" | "redis+unix", _)) => Err(Failure::usage(
                "this fencepost was built without Redis: build it with --features redis",
            )),
            Some(("file", path)) => match path.strip_prefix("//") {
                None => Self::file(path.as_ref()),
                Some(path) if path.starts_with('/') => Self::file(path.as_ref()),
                // Otherwise the host in "file://localhost/x" would count as part of a path.
                Some(_) => Err(Failure::usage(
                    "file:// needs an absolute path: write file:///PATH or file:PATH",
                )),
            },
            // The message does not quote the URL: it may contain a password.
            _ => Err(Failure::usage(format!("unknown kind of resource: write {KINDS}"))),
        }
    }

    /// A file, which need not exist yet.
    pub(crate) fn file(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("the path of the file is empty: write file:PATH"));
        }
        Ok(Self::File(FileFence::at(path)?))
    }

    /// Installs the fence; `None` if there is nothing to install.
    pub(crate) async fn install(&mut self) -> Result<Option<Installed>> {
        match self {
            Self::Sqlite(db) => {
                let before = sqlite::is_installed(db)?;
                sqlite::install(db)?;
                Ok(Some(if before { Installed::Already } else { Installed::Now }))
            }
            Self::Postgres(client) => postgres::install(client).await.map(Some),
            #[cfg(feature = "redis")]
            Self::Redis(_) => Ok(None),
            Self::File(_) => Ok(None),
        }
    }

    /// Enters in a transaction of its own.
    pub(crate) async fn enter(&mut self, fencing: &FencingToken) -> Result<()> {
        match self {
            Self::Sqlite(db) => {
                sqlite::begin(db, fencing)?.commit().map_err(|error| sqlite::explain(&error))
            }
            Self::Postgres(client) => {
                let tx = postgres::begin(client, fencing).await?;
                tx.commit().await.map_err(|error| postgres::explain(&error))
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.fence()?.enter(&mut redis.connection, fencing).await,
            Self::File(file) => file.enter(fencing),
        }
    }

    pub(crate) async fn show(&mut self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        match self {
            Self::Sqlite(db) => sqlite::show(db, name),
            Self::Postgres(client) => postgres::show(client, name).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis::show(&mut redis.connection, name).await,
            Self::File(file) => file.show(name),
        }
    }

    /// The logged resets.
    pub(crate) async fn audit(&mut self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        match self {
            Self::Sqlite(db) => sqlite::audit(db, name),
            Self::Postgres(client) => postgres::audit(client, name).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis::audit(&mut redis.connection, name).await,
            Self::File(file) => file.audit(name),
        }
    }

    /// Sets a mark, or forgets it.
    pub(crate) async fn reset(
        &mut self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        match self {
            Self::Sqlite(db) => sqlite::reset(db, name, to, by, why),
            Self::Postgres(client) => postgres::reset(client, name, to, by, why).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                redis.fence()?.reset(&mut redis.connection, name, to, by, why).await
            }
            Self::File(file) => file.reset(name, to, by, why),
        }
    }

    /// The client, if this is PostgreSQL: no other resource can protect tables.
    pub(crate) fn only_postgres(self) -> Result<Client, Failure> {
        let which = match self {
            Self::Postgres(client) => return Ok(client),
            Self::Sqlite(_) => "SQLite",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "Redis",
            Self::File(_) => "a file",
        };
        Err(Error::refused(format!(
            "{which} cannot protect tables, because it does not know which transactions have entered: use \
             postgres://, or let each program enter by itself"
        ))
        .into())
    }
}

fn open_file(path: &Path) -> Result<Connection> {
    if !path.is_file() {
        return Err(Error::unreachable(format!(
            "there is no database {}: name the file to protect (sqlite:PATH)",
            path.display()
        )));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| sqlite::explain(&error);
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(LOCK_TIMEOUT).map_err(failed)?;
    Ok(db)
}
