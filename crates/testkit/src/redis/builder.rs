//! A server's options and its configuration file.
//!
//! The file is written once, before the first start. A restart reads it as it is then, including changes by
//! `CONFIG REWRITE`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::clock::FakeClock;
use super::{CONFIG, Redis};
use crate::ports::{free_port, on_free_port};
use crate::tls::Certificates;

/// What is on disk when the server crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: a restart loses everything.
    #[default]
    None,
    /// Every write before its reply (`appendfsync always`).
    Always,
    /// Every write goes to the kernel before its reply, and to the disk each second.
    ///
    /// A crash of the *server* loses nothing then; only a crash of the machine would.
    EverySec,
}

/// Collects options; [`start`](Self::start) starts the server.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    persistence: Persistence,
    password: Option<String>,
    master: Option<(u16, Option<String>)>,
    unix_socket: bool,
    faketime: bool,
    tls: bool,
    lines: Vec<(String, String)>,
}

impl Builder {
    /// Sets the persistence; the default is [`Persistence::None`].
    #[must_use]
    pub fn persist(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Adds a line of configuration. The value is written as given: quote it if needed.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Clients must log in with this password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// The server also listens on [`Redis::socket_path`].
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// The server is a replica of `master`, directly and not through a proxy.
    #[must_use]
    pub fn replica_of(mut self, master: &Redis) -> Self {
        self.master = Some((master.port(), master.password.clone()));
        self
    }

    /// The server's wall clock can be moved with [`Redis::set_clock_offset`].
    #[must_use]
    pub fn faketime(mut self) -> Self {
        self.faketime = true;
        self
    }

    /// The server also listens at [`Redis::tls_url`], with a certificate signed by [`Redis::ca_path`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server and waits until it replies; a replica also until it is in sync with its master.
    pub fn start(self) -> io::Result<Redis> {
        let redis = on_free_port(|port| {
            let directory = tempfile::Builder::new().prefix("fencepost-redis-").tempdir()?;
            let place = directory.path();
            let clock = self.faketime.then(|| FakeClock::new(place)).transpose()?;
            let certificates = self.tls.then(|| Certificates::make(place)).transpose()?;
            let tls = match certificates {
                Some(certificates) => Some((free_port()?, certificates)),
                None => None,
            };
            let socket = self.unix_socket.then(|| place.join("redis.sock"));
            let config = self.configuration(place, port, tls.as_ref(), socket.as_deref());
            fs::write(place.join(CONFIG), config)?;
            Redis::launch(directory, port, tls, socket, clock, self.password.clone())
        })?;
        if self.master.is_some() {
            redis.wait_in_step()?;
        }
        Ok(redis)
    }

    fn configuration(
        &self,
        directory: &Path,
        port: u16,
        tls: Option<&(u16, Certificates)>,
        socket: Option<&Path>,
    ) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {}", if value.is_empty() { "\"\"" } else { value });
        };
        line("bind", "127.0.0.1");
        line("port", &port.to_string());
        line("protected-mode", "no");
        line("daemonize", "no");
        line("dir", &quoted_path(directory));
        // Its output is the log, so that messages from before it has read this file are there too.
        line("logfile", "");
        line("enable-debug-command", "local");
        // Start the sync at once: the test waits for it.
        line("repl-diskless-sync-delay", "0");
        line("shutdown-timeout", "0");
        line("save", "");
        match self.persistence {
            Persistence::None => line("appendonly", "no"),
            Persistence::Always => {
                line("appendonly", "yes");
                line("appendfsync", "always");
            }
            Persistence::EverySec => {
                line("appendonly", "yes");
                line("appendfsync", "everysec");
            }
        }
        if let Some(password) = &self.password {
            line("requirepass", &quoted(password));
        }
        if let Some(socket) = socket {
            line("unixsocket", &quoted_path(socket));
        }
        if let Some((master, password)) = &self.master {
            line("replicaof", &format!("127.0.0.1 {master}"));
            if let Some(password) = password {
                line("masterauth", &quoted(password));
            }
        }
        if let Some((tls_port, certificates)) = tls {
            line("tls-port", &tls_port.to_string());
            line("tls-cert-file", &quoted_path(&certificates.certificate()));
            line("tls-key-file", &quoted_path(&certificates.key()));
            line("tls-ca-cert-file", &quoted_path(&certificates.ca()));
            line("tls-auth-clients", "no");
        }
        for (name, value) in &self.lines {
            line(name, value);
        }
        text
    }
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// A word as the configuration file has it: control characters, quotes and backslashes escaped.
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for byte in word.bytes() {
        let _ = match byte {
            b'"' | b'\\' => write!(text, "\\{}", char::from(byte)),
            b' '..=b'~' => write!(text, "{}", char::from(byte)),
            _ => write!(text, "\\x{byte:02x}"),
        };
    }
    text + "\""
}
