//! Real `etcd` servers: one alone, or a cluster of three.
//!
//! What must hold: our process answers on the port. Each server has its own name, and a start is over only when the server
//! that answers has reported that name. Ports and data belong to a server until its handle is dropped: a restart after a
//! crash keeps them, and etcd has every write on disk before it replies, so nothing is lost.
//!
//! Heartbeats and elections are quick, so that tests are. A lease lives at least one and a half election timeouts, rounded
//! up to a second: with these settings one second is granted as requested.

mod builder;
mod cluster;

use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

pub use builder::Builder;

use crate::cluster::Clustered as _;
use crate::server::{Server, missing};
use crate::tls::Certificates;
use crate::url::percent_encoded;

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
    certificates: Option<Certificates>,
    credentials: Option<Credentials>,
}

impl Etcd {
    /// A single server, without TLS and passwords by default.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `etcd://127.0.0.1:PORT`, with user and password if there are any. With TLS it is the same port: a server accepts either
    /// TLS or plain connections there.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.credentials.as_ref().map(|Credentials { user, password }| {
            format!("{}:{}@", percent_encoded(user), percent_encoded(password))
        });
        format!("etcd://{}127.0.0.1:{}", login.unwrap_or_default(), self.port())
    }

    /// The certificate that a client must trust.
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let without = || io::Error::other("this etcd was started without .tls()");
        self.certificates.as_ref().map(Certificates::ca).ok_or_else(without)
    }

    /// Restarts a killed server, with its port and its data, and waits until it serves linearizable reads. In a cluster that needs
    /// a majority: see [`launch`](Server::launch).
    pub fn start_again(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_until_up()
    }

    /// A crash and a restart.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// Runs `etcdctl` with these arguments and returns its output. The timeout is five seconds. An error has its message.
    pub fn etcdctl(&self, words: &[&str]) -> io::Result<String> {
        self.run(self.etcdctl_command().arg("--command-timeout=5s").args(words))
    }

    /// `etcdctl` with the server's address and login: with [`auth`](Builder::auth) it is root, who may do everything. For a test
    /// that runs a command which does not end by itself, such as `lock`.
    #[must_use]
    pub fn etcdctl_command(&self) -> Command {
        let mut command = Command::new("etcdctl");
        for (name, _) in std::env::vars_os() {
            // etcdctl refuses a setting that comes twice.
            if name.to_str().is_some_and(|name| name.starts_with("ETCDCTL_")) {
                command.env_remove(name);
            }
        }
        command.env("ETCDCTL_API", "3");
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        command.arg(format!("--endpoints={scheme}://{}", self.address()));
        if let Some(certificates) = &self.certificates {
            command.arg(format!("--cacert={}", certificates.ca().display()));
            command.arg(format!("--cert={}", certificates.certificate().display()));
            command.arg(format!("--key={}", certificates.key().display()));
        }
        if let Some(Credentials { password, .. }) = &self.credentials {
            command.arg("--user=root").arg(format!("--password={password}"));
        }
        command
    }

    /// Runs `etcdctl` for at most a second.
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
        Err(io::Error::other(format!("etcdctl {words} at port {}: {said}", self.port())))
    }
}

impl Deref for Etcd {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
