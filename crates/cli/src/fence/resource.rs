//! The way to a resource.

use std::path::Path;
use std::time::Duration;

use fencepost::fences::postgres;
use fencepost::rusqlite::{Connection, OpenFlags};
use fencepost::tokio_postgres::Client;
use fencepost::{Error, fences};

use crate::exit::Failure;

/// How long we wait while somebody else writes, or is inside.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is protected.
pub(crate) enum Resource {
    /// A SQLite database.
    Sqlite(Connection),
    /// A PostgreSQL database.
    Postgres(Client),
}

impl Resource {
    /// Opens a database that is there: a resource is never made by a typing mistake.
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
            // The rest is not repeated: it may have a password in it.
            _ => Err(Failure::usage(
                "this is no resource with a fence: write sqlite:PATH or postgres://USER@HOST/DATABASE",
            )),
        }
    }

    /// For what SQLite can not do.
    pub(crate) fn only_postgres(self) -> Result<Client, Failure> {
        match self {
            Self::Postgres(client) => Ok(client),
            Self::Sqlite(_) => Err(Error::refused(
                "SQLite can not tell who has entered: tables are protected on postgres:// only; here \
                 each program has to enter by itself",
            )
            .into()),
        }
    }
}

fn open_file(path: &Path) -> Result<Connection, Error> {
    if !path.is_file() {
        return Err(Error::unreachable(format!(
            "there is no database {}: name the file that is to be protected (sqlite:PATH)",
            path.display()
        )));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| fences::sqlite::explain(&error);
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(PATIENCE).map_err(failed)?;
    Ok(db)
}
