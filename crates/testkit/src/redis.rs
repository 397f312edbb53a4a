//! A real `redis-server` with its own port and directory.
//!
//! What must hold: our process answers on the port, so a start is over only when the server has reported its pid. A port
//! belongs to a server until its handle is dropped: a restart after a crash keeps it, and the directory, so a client under
//! test finds its server again at the same address.

mod builder;
mod clock;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

pub use builder::{Builder, Persistence};

use crate::client::Client;
use crate::process::Process;
use crate::reply::Reply;
use crate::server::missing;
use crate::tls::Certificates;
use crate::url::percent_encoded;
use crate::wait::{SOON, until};
use clock::FakeClock;

const CONFIG: &str = "redis.conf";
const LOG: &str = "redis.log";

/// A running server, or a crashed one that can be started again. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Redis {
    // Before the directory: fields are dropped in this order.
    process: Mutex<Process>,
    directory: TempDir,
    port: u16,
    tls: Option<(u16, Certificates)>,
    socket: Option<PathBuf>,
    clock: Option<FakeClock>,
    password: Option<String>,
}

impl Redis {
    /// A server with nothing on disk by default.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts the server that the directory's configuration describes.
    fn launch(
        directory: TempDir,
        port: u16,
        tls: Option<(u16, Certificates)>,
        socket: Option<PathBuf>,
        clock: Option<FakeClock>,
        password: Option<String>,
    ) -> io::Result<Self> {
        let process = Mutex::new(spawn(directory.path(), clock.as_ref())?);
        let redis = Self { process, directory, port, tls, socket, clock, password };
        redis.wait_until_up(&redis.process())?;
        Ok(redis)
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("redis", self.port)
    }

    /// `rediss://127.0.0.1:PORT`, with the password if there is one.
    pub fn tls_url(&self) -> io::Result<String> {
        let (port, _) = self.tls.as_ref().ok_or_else(|| without("tls"))?;
        Ok(self.url_of("rediss", *port))
    }

    /// The certificate that a client must trust to use [`tls_url`](Self::tls_url).
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let (_, certificates) = self.tls.as_ref().ok_or_else(|| without("tls"))?;
        Ok(certificates.ca())
    }

    /// The server's Unix socket.
    pub fn socket_path(&self) -> io::Result<&Path> {
        self.socket.as_deref().ok_or_else(|| without("unix_socket"))
    }

    /// The directory of the server's files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The pid of the server, or of the last one if it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Freezes the server, and waits until it is frozen. The kernel still accepts connections for it.
    pub fn stop(&self) -> io::Result<()> {
        self.process().stop()
    }

    /// Continues a frozen server.
    pub fn resume(&self) -> io::Result<()> {
        self.process().resume()
    }

    /// Kills the server as a crash would, and waits until it is gone.
    pub fn kill(&self) -> io::Result<()> {
        self.process().kill()
    }

    /// Restarts a killed server: same port, same files. A replica may still be looking for its master.
    pub fn start_again(&self) -> io::Result<()> {
        let mut process = self.process();
        if process.is_running() {
            return Err(io::Error::other("wanted to start redis-server again: it still runs"));
        }
        *process = spawn(self.directory(), self.clock.as_ref())?;
        self.wait_until_up(&process)
    }

    /// A crash and a restart.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// Runs one command on its own connection.
    pub fn command(&self, words: &[&str]) -> io::Result<Reply> {
        self.client()?.command(words)
    }

    /// A connection, authenticated if there is a password.
    pub fn client(&self) -> io::Result<Client> {
        self.client_within(SOON)
    }

    /// Waits until a replica is connected to its master and has applied its data.
    pub fn wait_in_step(&self) -> io::Result<()> {
        until(SOON, "the replica is in step with its master", || {
            let info = self.command(&["INFO", "replication"])?.text()?;
            Ok(info.lines().any(|line| line == "master_link_status:up"))
        })
        .map_err(|error| self.process().failure("a replica", &error))
    }

    /// Moves the server's wall clock to this many seconds from the host's, and waits until the server shows that. A killed
    /// server has it after its restart; a frozen one cannot show it.
    pub fn set_clock_offset(&self, seconds: i64) -> io::Result<()> {
        let clock = self.clock.as_ref().ok_or_else(|| without("faketime"))?;
        clock.set(seconds)?;
        if !self.process().is_running() {
            return Ok(());
        }
        let mut client = self.client()?;
        until(SOON, &format!("the server's clock is {seconds} s from the host's"), || {
            clock::shows(seconds, &mut client)
        })
    }

    fn client_within(&self, limit: Duration) -> io::Result<Client> {
        let mut client = Client::connect(self.address())?;
        client.set_timeout(limit)?;
        if let Some(password) = &self.password {
            client.authenticate(password)?;
        }
        Ok(client)
    }

    fn wait_until_up(&self, process: &Process) -> io::Result<()> {
        let ours = format!("process_id:{}", process.pid());
        let up = until(SOON, "it answers and has loaded its data", || {
            if !process.is_running() {
                return Err(io::Error::other("it ended"));
            }
            let asked = self
                .client_within(Duration::from_secs(1))
                .and_then(|mut client| client.command(&["INFO"]));
            Ok(match asked {
                // A line of configuration has set a password, so only its log can say more.
                Ok(Reply::Error(refusal)) if refusal.starts_with("NOAUTH") => {
                    process.log().contains("Ready to accept connections")
                }
                Ok(Reply::Bulk(Some(info))) => {
                    let info = String::from_utf8_lossy(&info);
                    [ours.as_str(), "loading:0"].iter().all(|sign| info.lines().any(|l| l == *sign))
                }
                Ok(_) | Err(_) => false,
            })
        });
        if self.clock.is_some() {
            clock::forget_shared_memory(process.pid());
        }
        up.map_err(|error| {
            process.failure(&format!("a redis-server on port {}", self.port), &error)
        })
    }

    fn url_of(&self, scheme: &str, port: u16) -> String {
        let password = self.password.as_deref().map(|word| format!(":{}@", percent_encoded(word)));
        format!("{scheme}://{}127.0.0.1:{port}", password.unwrap_or_default())
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock()
    }
}

fn spawn(directory: &Path, clock: Option<&FakeClock>) -> io::Result<Process> {
    let mut command = Command::new("redis-server");
    command.arg(directory.join(CONFIG)).current_dir(directory);
    if let Some(clock) = clock {
        clock.preload(&mut command);
    }
    Process::spawn(&command, &directory.join(LOG)).map_err(|error| missing(error, "redis-server"))
}

fn without(option: &str) -> io::Error {
    io::Error::other(format!("this redis-server was started without .{option}()"))
}
