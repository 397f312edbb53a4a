//! What all servers of clusters share: a process that can crash and restart, with a fixed port and directory.
//!
//! What must hold: a restarted server gets the command and the directory of its first start. Whether it is frozen is known
//! here, because a frozen process runs and yet does not reply: a wait for all servers that can reply must leave it out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

use crate::process::Process;
use crate::wait::until;

/// How long a server may take to start. Java on a loaded host is slow.
const STARTED: Duration = Duration::from_secs(30);

/// A running server, or a crashed one that can be started again.
#[derive(Debug)]
pub struct Server {
    // Before the directory: fields are dropped in this order.
    state: Mutex<State>,
    directory: TempDir,
    port: u16,
    command: Command,
    /// The name of the server, which errors use for its program too.
    name: &'static str,
    /// What to install if the program is missing.
    packages: &'static str,
}

#[derive(Debug)]
struct State {
    process: Process,
    frozen: bool,
}

impl Server {
    /// Starts it without waiting.
    pub(crate) fn spawn(
        name: &'static str,
        packages: &'static str,
        command: Command,
        directory: TempDir,
        port: u16,
    ) -> io::Result<Self> {
        let process = spawn(name, packages, &command, directory.path())?;
        let state = Mutex::new(State { process, frozen: false });
        Ok(Self { state, directory, port, command, name, packages })
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the server's files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The pid of the server, or of the last one if it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.state().process.pid()
    }

    /// Freezes the server, and waits until it is frozen. The kernel still accepts connections for it.
    pub fn stop(&self) -> io::Result<()> {
        let mut state = self.state();
        state.process.stop()?;
        state.frozen = true;
        Ok(())
    }

    /// Continues a frozen server.
    pub fn resume(&self) -> io::Result<()> {
        let mut state = self.state();
        state.process.resume()?;
        state.frozen = false;
        Ok(())
    }

    /// Kills the server as a crash would, and waits until it is gone.
    pub fn kill(&self) -> io::Result<()> {
        let mut state = self.state();
        state.process.kill()?;
        state.frozen = false;
        Ok(())
    }

    /// Restarts a killed server without waiting: for a cluster of which no majority runs.
    pub fn launch(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.process.is_running() {
            let message = format!("wanted to start {} again: it still runs", self.name);
            return Err(io::Error::other(message));
        }
        state.process = spawn(self.name, self.packages, &self.command, self.directory())?;
        Ok(())
    }

    /// Whether it runs and is not frozen.
    pub(crate) fn can_answer(&self) -> bool {
        let state = self.state();
        !state.frozen && state.process.is_running()
    }

    /// Waits until a launched server is as `is_up` requires. If it does not start, the error shows the end of its log.
    pub(crate) fn wait_until(&self, is_up: impl Fn() -> io::Result<bool>) -> io::Result<()> {
        until(STARTED, "it serves", || {
            if !self.state().process.is_running() {
                return Err(io::Error::other("it ended"));
            }
            is_up()
        })
        .map_err(|error| self.failure(&error))
    }

    /// Adds the end of the server's log to the error.
    pub(crate) fn failure(&self, error: &io::Error) -> io::Error {
        self.state().process.failure(&format!("{} that serves", self.name), error)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn spawn(name: &str, packages: &str, command: &Command, directory: &Path) -> io::Result<Process> {
    let log = directory.join(format!("{name}.log"));
    Process::spawn(command, &log).map_err(|error| missing(error, packages))
}

/// If the program is missing, the error says what to install.
pub(crate) fn missing(error: io::Error, packages: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let message = format!("{error}: install {packages} (scripts/test does)");
            io::Error::new(io::ErrorKind::NotFound, message)
        }
        _ => error,
    }
}
