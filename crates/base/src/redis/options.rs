//! What a user sets of a Redis server. config.rs makes the same of a URL, and checks it.

use std::path::Path;
use std::time::Duration;

use crate::tls::TlsOptions;
use crate::url::{Host, Secret};

const PORT: u16 = 6379;
/// The default of the longest TTL on several servers.
pub(super) const MAX_TTL: Duration = Duration::from_mins(1);

/// One Redis server, and how to connect to it: the same as a `redis:` URL.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub(super) host: Host,
    pub(super) common: Common,
}

/// Several independent Redis servers, and how to connect to them: the same as a `redlock:` URL.
#[derive(Clone, Debug)]
pub struct RedlockOptions {
    pub(super) hosts: Vec<Host>,
    pub(super) common: Common,
    pub(super) max_ttl: Duration,
    pub(super) restarted_vote: bool,
}

/// The options of both.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) port: u16,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
    pub(super) prefix: String,
    pub(super) retention: Option<Duration>,
    pub(super) tls: TlsOptions,
}

impl RedisOptions {
    /// The server on `host`: `HOST`, `HOST:PORT`, `[IPV6]:PORT`, or the absolute path of a Unix socket.
    #[must_use]
    pub fn new(host: impl AsRef<str>) -> Self {
        Self { host: Host::new(host.as_ref()), common: Common::default() }
    }

    /// The port of a host without one. The default is 6379.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.common.port = port;
        self
    }

    /// The user that logs in. The default is the server's default user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.common.user = Some(user.into());
        self
    }

    /// The password, as it is: nothing in it is escaped.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.common.password = Some(Secret(password.into()));
        self
    }

    /// The number of the database. The default is 0.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.common.database = database;
        self
    }

    /// Put before every name on the server.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.common.prefix = prefix.into();
        self
    }

    /// How long a token is remembered beyond its time: 1 s to 365 days. The default is an hour.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.common.retention = Some(retention);
        self
    }

    /// Whether to encrypt. The default is a plain connection, unless there are certificates.
    #[must_use]
    pub fn tls(mut self, tls: bool) -> Self {
        self.common.tls.enabled = Some(tls);
        self
    }

    /// A PEM file with the CAs to trust instead of the system's. It turns TLS on.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.common.tls.set_ca(file.as_ref());
        self
    }

    /// PEM files with the client's certificate and its key. They turn TLS on.
    #[must_use]
    pub fn client_certificate(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.common.tls.set_client_certificate(cert.as_ref(), key.as_ref());
        self
    }
}

impl RedlockOptions {
    /// The servers on `hosts`, 3 or 5: each is `HOST`, `HOST:PORT`, `[IPV6]:PORT`, or the absolute path of a Unix socket.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let hosts = hosts.into_iter().map(|host| Host::new(host.as_ref())).collect();
        Self { hosts, common: Common::default(), max_ttl: MAX_TTL, restarted_vote: false }
    }

    /// The port of hosts without one. The default is 6379.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.common.port = port;
        self
    }

    /// The user that logs in. The default is the server's default user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.common.user = Some(user.into());
        self
    }

    /// The password, as it is: nothing in it is escaped.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.common.password = Some(Secret(password.into()));
        self
    }

    /// The number of the database. The default is 0.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.common.database = database;
        self
    }

    /// Put before every name on the server.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.common.prefix = prefix.into();
        self
    }

    /// How long a token is remembered beyond its time: 1 s to 365 days. The default is an hour.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.common.retention = Some(retention);
        self
    }

    /// Whether to encrypt. The default is a plain connection, unless there are certificates.
    #[must_use]
    pub fn tls(mut self, tls: bool) -> Self {
        self.common.tls.enabled = Some(tls);
        self
    }

    /// A PEM file with the CAs to trust instead of the system's. It turns TLS on.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.common.tls.set_ca(file.as_ref());
        self
    }

    /// PEM files with the client's certificate and its key. They turn TLS on.
    #[must_use]
    pub fn client_certificate(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.common.tls.set_client_certificate(cert.as_ref(), key.as_ref());
        self
    }

    /// The longest TTL, and how long a server that was restarted does not vote. The default is a minute.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// Whether a server votes right after its restart (`restarted=vote`): only if it forgets nothing then.
    #[must_use]
    pub fn restarted_vote(mut self, restarted_vote: bool) -> Self {
        self.restarted_vote = restarted_vote;
        self
    }
}

impl Default for Common {
    fn default() -> Self {
        Self {
            port: PORT,
            user: None,
            password: None,
            database: 0,
            prefix: String::new(),
            retention: None,
            tls: TlsOptions::default(),
        }
    }
}
