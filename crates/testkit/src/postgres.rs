//! A real PostgreSQL server with its own port and directory.
//!
//! What must hold: our process answers on the port, so a start is over only when our server has written its pid beside its
//! data and reports that it is ready. A restart after a crash keeps port and data.
//!
//! A server is a family of processes: the postmaster and one child per connection. Freezing the postmaster alone would leave
//! every connection served, so [`stop`](Postgres::stop) and [`kill`](Postgres::kill) affect all of them. Each child is in its
//! own session, so they are found by their parent.
//!
//! PostgreSQL refuses to run as root. If the tests do, the server runs as the user `postgres` (or `nobody`) and owns its
//! directory.

mod bouncer;
mod builder;
mod database;
mod family;
mod install;

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

pub use bouncer::PgBouncer;
pub use builder::Builder;
pub use database::Database;

use crate::server::Server;
use crate::shared::{Slot, shared};
use crate::tls::Certificates;
use crate::wait::{SOON, until};
use builder::Template;
use family::Frozen;

/// The superuser, who needs no password.
const SUPERUSER: &str = "postgres";

/// A running server, or a crashed one that can be started again. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    frozen: Mutex<Option<Frozen>>,
    certificates: Option<Certificates>,
    /// Kept for the next server of this process, which then needs no `initdb`.
    _template: Option<Arc<Template>>,
}

impl Postgres {
    /// A server that syncs its commits by default.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The server that the tests of this process share, if they do not disturb it. See [`Database::fresh`].
    pub fn shared() -> io::Result<Arc<Self>> {
        static SHARED: Slot<Postgres> = Slot::new(Weak::new());
        shared(&SHARED, || Self::builder().start())
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The same for another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port())
    }

    /// The certificate that a client must trust. With [`tls`](Builder::tls) the server accepts TLS and plain connections on the
    /// same port.
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let without = || io::Error::other("this PostgreSQL was started without .tls()");
        self.certificates.as_ref().map(Certificates::ca).ok_or_else(without)
    }

    /// The directory of the server's data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory().join("data")
    }

    /// Freezes the server with all its connections, and waits until all are frozen. The kernel still accepts connections for it.
    pub fn stop(&self) -> io::Result<()> {
        let mut frozen = self.frozen();
        if frozen.is_none() {
            // The postmaster first: then no child is added, and no pid is reused.
            self.server.stop()?;
            *frozen = Some(Frozen::all(self.pid())?);
        }
        Ok(())
    }

    /// Continues a frozen server.
    pub fn resume(&self) -> io::Result<()> {
        if let Some(frozen) = self.frozen().take() {
            frozen.thaw()?;
            self.server.resume()?;
        }
        Ok(())
    }

    /// Kills the server as a crash of its machine would, with all its connections, and waits until they are gone: a remaining
    /// process would prevent a restart.
    pub fn kill(&self) -> io::Result<()> {
        self.stop()?;
        let Some(frozen) = self.frozen().take() else { return Ok(()) };
        frozen.kill()?;
        self.server.kill()?;
        frozen.wait_until_gone()
    }

    /// Shuts the server down in order (a "fast" shutdown): connections are closed, data is written, standbys get everything.
    pub fn shut_down(&self) -> io::Result<()> {
        self.resume()?;
        family::interrupt(self.pid())?;
        until(SOON, "PostgreSQL shuts down", || Ok(!self.can_answer()))?;
        self.server.kill()
    }

    /// Restarts a killed server: same port, same data.
    pub fn start_again(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_until_up()
    }

    /// A crash and a restart.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// Runs `psql` with this SQL as the superuser in the database `postgres`. Returns one line per row, with columns separated by
    /// `|`. An error has the server's message.
    pub fn psql(&self, sql: &str) -> io::Result<String> {
        self.psql_at(&self.url(), sql)
    }

    /// The same, with a URL for another database, user or server.
    pub fn psql_at(&self, url: &str, sql: &str) -> io::Result<String> {
        install::psql(url, sql)
    }

    /// A fresh database of this server.
    pub fn database(self: &Arc<Self>) -> io::Result<Database> {
        Database::create(self)
    }

    /// A standby that follows this server and serves reads. It is asynchronous, and its application name is `name`:
    /// `synchronous_standby_names` on the primary makes it synchronous.
    pub fn standby(&self, name: &str) -> io::Result<Self> {
        builder::standby_of(self, name)
    }

    /// Promotes a standby, and waits until it is the primary.
    pub fn promote(&self) -> io::Result<()> {
        let promoted = self.psql("select pg_promote(true, 10)")?;
        if promoted.trim() == "t" {
            return Ok(());
        }
        Err(io::Error::other(format!("wanted to promote a standby: it said {promoted:?}")))
    }

    /// Waits until the standbys have applied everything committed so far.
    pub fn wait_in_step(&self) -> io::Result<()> {
        let here = self.psql("select pg_current_wal_lsn()")?;
        let here = here.trim();
        let ask = format!(
            "select count(*) > 0 and coalesce(bool_and(replay_lsn >= '{here}'), false) \
             from pg_stat_replication"
        );
        until(SOON, "the standbys are in step", || Ok(self.psql(&ask)?.trim() == "t"))
    }

    fn wait_until_up(&self) -> io::Result<()> {
        let said = self.data().join("postmaster.pid");
        let ours = self.pid().to_string();
        self.server.wait_until(|| {
            // It is missing until the server reads its data, and may be from the one that crashed.
            let Ok(said) = fs::read_to_string(&said) else { return Ok(false) };
            let mut lines = said.lines().map(str::trim);
            Ok(lines.next() == Some(&ours) && lines.any(|line| line == "ready"))
        })
    }

    fn frozen(&self) -> MutexGuard<'_, Option<Frozen>> {
        self.frozen.lock()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A killed server leaves a segment of shared memory behind. Whatever goes wrong here, the kill of the process follows.
        let _ = self.resume();
        if self.can_answer() && family::quit(self.pid()).is_ok() {
            let _ = until(SOON, "PostgreSQL ends", || Ok(!self.can_answer()));
        }
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// A program of PostgreSQL, as the server's user.
fn program(name: &str) -> io::Result<Command> {
    install::Installed::find()?.command(name)
}
