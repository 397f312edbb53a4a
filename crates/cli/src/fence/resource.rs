//! The resources that have a fence: the way to each, and what `fencepost fence` does there.

use std::path::Path;
use std::time::Duration;

use fencepost::fences::file::FileFence;
use fencepost::fences::postgres::Installed;
use fencepost::fences::redis::Connected;
use fencepost::fences::{Mark, Reset, postgres, redis, sqlite};
use fencepost::rusqlite::{Connection, OpenFlags};
use fencepost::tokio_postgres::Client;
use fencepost::{Error, LockName, Result, Token};

use crate::exit::Failure;

/// How long we wait while somebody else writes, or is inside.
const PATIENCE: Duration = Duration::from_secs(10);

/// What there is.
pub(crate) const KINDS: &str =
    "sqlite:PATH, postgres://USER@HOST/DATABASE, redis://HOST or file:PATH";

/// What is protected.
pub(crate) enum Resource {
    /// A SQLite database.
    Sqlite(Connection),
    /// A PostgreSQL database.
    Postgres(Client),
    /// The data on a Redis server.
    Redis(Connected),
    /// A file on this host.
    File(FileFence),
}

impl Resource {
    /// Opens what is there. A database is never made by a typing mistake; a file need not be there yet, so a path with
    /// one in it is another file, with marks of its own.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        match url.split_once(':') {
            Some(("sqlite", path)) => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                if path.as_os_str().is_empty() {
                    return Err(Failure::usage("\"sqlite:\" names no file: write sqlite:PATH"));
                }
                Ok(Self::Sqlite(open_file(path)?))
            }
            Some(("postgres" | "postgresql", _)) => {
                let client = postgres::connect(url).await?;
                let patience = format!("SET lock_timeout = {}", PATIENCE.as_millis());
                client.batch_execute(&patience).await.map_err(|error| postgres::explain(&error))?;
                Ok(Self::Postgres(client))
            }
            Some(("redis" | "rediss" | "redis+unix", _)) => {
                Ok(Self::Redis(redis::connect(url).await?))
            }
            Some(("file", path)) => match path.strip_prefix("//") {
                None => Self::file(path.as_ref()),
                Some(path) if path.starts_with('/') => Self::file(path.as_ref()),
                // Else "localhost/x", which is a host in a URL, would be a path.
                Some(_) => Err(Failure::usage(
                    "behind file:// stands a path from the root: write file:///PATH or file:PATH",
                )),
            },
            // The rest is not repeated: it may have a password in it.
            _ => Err(Failure::usage(format!("this is no resource with a fence: write {KINDS}"))),
        }
    }

    /// A file, which need not be there yet.
    pub(crate) fn file(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("the path of the file is empty: write file:PATH"));
        }
        Ok(Self::File(FileFence::at(path)?))
    }

    /// Puts what the fence needs there; none where it needs nothing.
    pub(crate) async fn install(&mut self) -> Result<Option<Installed>> {
        match self {
            Self::Sqlite(db) => {
                let before = sqlite::is_installed(db)?;
                sqlite::install(db)?;
                Ok(Some(if before { Installed::Already } else { Installed::Now }))
            }
            Self::Postgres(client) => postgres::install(client).await.map(Some),
            Self::Redis(_) | Self::File(_) => Ok(None),
        }
    }

    /// Enters, in a step of its own.
    pub(crate) async fn enter(&mut self, name: &LockName, token: Token) -> Result<()> {
        match self {
            Self::Sqlite(db) => {
                sqlite::begin(db, name, token)?.commit().map_err(|error| sqlite::explain(&error))
            }
            Self::Postgres(client) => {
                let tx = postgres::begin(client, name, token).await?;
                tx.commit().await.map_err(|error| postgres::explain(&error))
            }
            Self::Redis(redis) => redis.fence()?.enter(&mut redis.connection, name, token).await,
            Self::File(file) => file.enter(name, token),
        }
    }

    /// The marks.
    pub(crate) async fn show(&mut self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        match self {
            Self::Sqlite(db) => sqlite::show(db, name),
            Self::Postgres(client) => postgres::show(client, name).await,
            Self::Redis(redis) => redis::show(&mut redis.connection, name).await,
            Self::File(file) => file.show(name),
        }
    }

    /// The records of resets.
    pub(crate) async fn audit(&mut self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        match self {
            Self::Sqlite(db) => sqlite::audit(db, name),
            Self::Postgres(client) => postgres::audit(client, name).await,
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
            Self::Redis(redis) => {
                redis.fence()?.reset(&mut redis.connection, name, to, by, why).await
            }
            Self::File(file) => file.reset(name, to, by, why),
        }
    }

    /// For what the others can not do.
    pub(crate) fn only_postgres(self) -> Result<Client, Failure> {
        let which = match self {
            Self::Postgres(client) => return Ok(client),
            Self::Sqlite(_) => "SQLite",
            Self::Redis(_) => "Redis",
            Self::File(_) => "a file",
        };
        Err(Error::refused(format!(
            "{which} can not tell who has entered: tables are protected on postgres:// only; here \
             each program has to enter by itself"
        ))
        .into())
    }
}

fn open_file(path: &Path) -> Result<Connection> {
    if !path.is_file() {
        return Err(Error::unreachable(format!(
            "there is no database {}: name the file that is to be protected (sqlite:PATH)",
            path.display()
        )));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| sqlite::explain(&error);
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(PATIENCE).map_err(failed)?;
    Ok(db)
}
