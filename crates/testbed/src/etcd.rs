//! Real `etcd` servers: one alone, or a cluster of three.
//!
//! What must hold: whoever answers on the port is the process that we started. Each server has a name of its
//! own, and a start is over only when the server that answers has said that name. Ports and data belong to a
//! server until its handle is dropped: a crash and a new start keep them, and etcd has every write on disk
//! before it answers, so nothing is lost.
//!
//! Heartbeats and elections are quick, so that tests are. A lease lives at least one and a half election
//! timeouts, rounded up to a second: with these settings one second is granted as it is asked for.

mod builder;
mod cluster;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use builder::Builder;
pub use cluster::{Cluster, Member};

use crate::server::{Server, missing};
use crate::tls::Certificates;
use crate::url::percent_encoded;

/// A key that nobody writes. To read it takes what any read takes.
const PROBE: &str = "fencepost-testbed-probe";

/// Who clients are.
#[derive(Clone, Debug)]
struct Credentials {
    user: String,
    password: String,
}

/// A running server, or a crashed one that can be started again. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    name: String,
    port: u16,
    certificates: Option<Certificates>,
    credentials: Option<Credentials>,
}

impl Etcd {
    /// A server alone, without TLS and passwords unless told otherwise.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port it listens on for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `etcd://127.0.0.1:PORT`, with user and password if there are any. With TLS it is the same port: a
    /// server speaks TLS there or it does not.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.credentials.as_ref().map(|Credentials { user, password }| {
            format!("{}:{}@", percent_encoded(user), percent_encoded(password))
        });
        format!("etcd://{}127.0.0.1:{}", login.unwrap_or_default(), self.port)
    }

    /// The certificate that a client has to trust.
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let without = || io::Error::other("this etcd was started without .tls()");
        self.certificates.as_ref().map(Certificates::ca).ok_or_else(without)
    }

    /// Where the server keeps its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// The pid of the server, or of the last one if it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Freezes the server, and waits until it stands. The kernel still accepts connections for it.
    pub fn stop(&self) -> io::Result<()> {
        self.server.stop()
    }

    /// Lets a frozen server go on.
    pub fn resume(&self) -> io::Result<()> {
        self.server.resume()
    }

    /// Ends the server as a crash would, and waits until it is gone.
    pub fn kill(&self) -> io::Result<()> {
        self.server.kill()
    }

    /// Starts a server that was killed, with its port and its data, and waits until it serves linearizable
    /// reads. In a cluster that takes a majority: see [`launch`](Self::launch).
    pub fn start_again(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_until_up()
    }

    /// Starts a server that was killed and waits for nothing: for a cluster of which no majority runs.
    pub fn launch(&self) -> io::Result<()> {
        self.server.launch_again()
    }

    /// A crash and a new start.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// Runs `etcdctl` with these words and gives what it said. It has five seconds. An error says what it
    /// complained of.
    pub fn etcdctl(&self, words: &[&str]) -> io::Result<String> {
        self.run(self.etcdctl_command().arg("--command-timeout=5s").args(words))
    }

    /// `etcdctl` with the server's address, and with what it takes to be let in: with
    /// [`auth`](Builder::auth) it is root, who may do everything. For a test that runs one which does not
    /// end by itself, such as `lock`.
    #[must_use]
    pub fn etcdctl_command(&self) -> Command {
        let mut command = Command::new("etcdctl");
        for (name, _) in std::env::vars_os() {
            // A setting that is given both here and there is an error to etcdctl.
            if name.to_str().is_some_and(|name| name.starts_with("ETCDCTL_")) {
                command.env_remove(name);
            }
        }
        command.env("ETCDCTL_API", "3");
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        command.arg(format!("--endpoints={scheme}://127.0.0.1:{}", self.port));
        if let Some(certificates) = &self.certificates {
            command.arg(format!("--cacert={}", certificates.ca().display()));
        }
        if let Some(Credentials { password, .. }) = &self.credentials {
            command.arg("--user=root").arg(format!("--password={password}"));
        }
        command
    }

    /// Whether it serves linearizable reads, asked once and for a short time. Fails if nobody can ask.
    fn serves(&self) -> io::Result<bool> {
        // Where nobody listens etcdctl would try again only a second later.
        if TcpStream::connect(self.address()).is_err() {
            return Ok(false);
        }
        match self.ask(&["get", PROBE]).and_then(|_| self.ask(&["member", "list"])) {
            Ok(members) => Ok(members.contains(&self.name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Runs `etcdctl` for a second at most.
    fn ask(&self, words: &[&str]) -> io::Result<String> {
        let mut command = self.etcdctl_command();
        self.run(command.args(["--command-timeout=1s", "--dial-timeout=1s"]).args(words))
    }

    fn run(&self, command: &mut Command) -> io::Result<String> {
        let output = command.output().map_err(|error| missing(error, "etcd-client"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let words = command.get_args().skip(1).map(|word| word.to_string_lossy());
        let words = words.collect::<Vec<_>>().join(" ");
        Err(io::Error::other(format!("etcdctl {words} at port {}: {said}", self.port)))
    }

    fn wait_until_up(&self) -> io::Result<()> {
        self.server.wait_until_up(|| self.serves())
    }
}
