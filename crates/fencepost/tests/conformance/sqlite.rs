//! `sqlite:` for the suite: a file of its own for each case.

use std::time::Duration;

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Site, Unable};
use parking_lot::Mutex;
use rusqlite::Connection;

pub(crate) struct InFile;

impl Harness for InFile {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async {
            let directory = fencepost_testkit::directory_on_disk()?;
            Ok(Box::new(StoreSite { cut: Mutex::default(), directory }) as Box<dyn Site>)
        })
    }
}

struct StoreSite {
    /// The connection that blocks all others, while `cut` is in effect.
    cut: Mutex<Option<Connection>>,
    directory: tempfile::TempDir,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: rusqlite::Error) -> Unable {
    Unable::Failed(error.to_string())
}

impl StoreSite {
    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("locks.db")
    }

    fn open(&self) -> Result<Connection, Unable> {
        let connection = Connection::open(self.path()).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
        Ok(connection)
    }
}

impl Site for StoreSite {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        Box::pin(
            async move { Fencepost::connect(&format!("sqlite:{}", self.path().display())).await },
        )
    }

    fn url(&self) -> Result<String, Unable> {
        Ok(format!("sqlite:{}", self.path().display()))
    }

    /// Another connection has the file's write lock and keeps it.
    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async {
            let connection = self.open()?;
            connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
            *self.cut.lock() = Some(connection);
            Ok(())
        })
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async {
            let connection = self.cut.lock().take();
            match connection {
                Some(connection) => connection.execute_batch("ROLLBACK").map_err(failed),
                None => Ok(()),
            }
        })
    }

    /// There is no server. After a restart the file has no log.
    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async {
            let connection = self.open()?;
            let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
            connection.query_row(checkpoint, [], |_| Ok(())).map_err(failed)?;
            Ok(())
        })
    }
}
