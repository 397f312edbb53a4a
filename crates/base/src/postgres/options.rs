//! What a user sets of a PostgreSQL server. address.rs makes the same of a URL, and checks it.

use std::path::Path;

use crate::tls::{PemFile, TlsOptions};
use crate::url::{Host, Secret};

/// A PostgreSQL server, and how to connect to it: the same as a `postgres:` URL. As in one, the environment and the
/// password file of libpq (`PGUSER`, `~/.pgpass`, ...) provide what is not set.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(super) host: Option<Host>,
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: Option<String>,
    pub(super) application_name: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) pool: usize,
    pub(super) channel_binding: Option<ChannelBinding>,
    pub(super) ssl_mode: Option<SslMode>,
    /// Whether to encrypt is for `ssl_mode` to say.
    pub(super) tls: TlsOptions,
}

/// How far the server's certificate is checked, as `sslmode` in libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SslMode {
    /// A plain connection.
    Disable,
    /// TLS if the server has it, unchecked. The default.
    Prefer,
    /// TLS. The certificate is checked only if CAs are given.
    Require,
    /// TLS, with a certificate that a trusted CA signed.
    VerifyCa,
    /// TLS, with a certificate that a trusted CA signed for this host.
    VerifyFull,
}

/// Whether a login is bound to the server's certificate, as `channel_binding` in libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelBinding {
    /// It is not.
    Disable,
    /// It is if the connection is encrypted. The default.
    Prefer,
    /// It must be.
    Require,
}

impl PostgresOptions {
    /// The server on `host`: `HOST`, `HOST:PORT`, `[IPV6]:PORT`, or the absolute path of a socket's directory.
    #[must_use]
    pub fn new(host: impl AsRef<str>) -> Self {
        Self { host: Some(Host::new(host.as_ref())), ..Self::unset() }
    }

    /// All is left to the environment.
    pub(super) fn unset() -> Self {
        Self {
            host: None,
            port: None,
            user: None,
            password: None,
            database: None,
            application_name: None,
            owner: None,
            pool: 16,
            channel_binding: None,
            ssl_mode: None,
            tls: TlsOptions::default(),
        }
    }

    /// The port of a host without one. The default is `PGPORT`, or 5432.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The role that logs in. The default is `PGUSER`, or the user of this process.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password, as it is: nothing in it is escaped. The default is `PGPASSWORD`, or that in the password file.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret(password.into()));
        self
    }

    /// The database. The default is `PGDATABASE`, or the one named like the role.
    #[must_use]
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// How the server names the connections. The default is `PGAPPNAME`, or `fencepost`.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = Some(name.into());
        self
    }

    /// A role that may own the schema `fencepost`, besides this role, superusers, and the owner of the database.
    #[must_use]
    pub fn owner(mut self, role: impl Into<String>) -> Self {
        self.owner = Some(role.into());
        self
    }

    /// How many connections there may be at a time, besides the few for renewals and releases: 1 to 1000. The default
    /// is 16.
    #[must_use]
    pub fn pool(mut self, connections: usize) -> Self {
        self.pool = connections;
        self
    }

    /// Whether a login is bound to the server's certificate.
    #[must_use]
    pub fn channel_binding(mut self, binding: ChannelBinding) -> Self {
        self.channel_binding = Some(binding);
        self
    }

    /// Whether to encrypt, and how far to check the server's certificate.
    #[must_use]
    pub fn ssl_mode(mut self, mode: SslMode) -> Self {
        self.ssl_mode = Some(mode);
        self
    }

    /// A PEM file with the CAs to trust instead of the system's. [`SslMode`] says whether they are used. The default is
    /// `PGSSLROOTCERT`.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.tls.ca = Some(PemFile::new("ca", file.as_ref()));
        self
    }

    /// PEM files with the client's certificate and its key. The default is `PGSSLCERT` and `PGSSLKEY`.
    #[must_use]
    pub fn client_certificate(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.tls.set_client_certificate(cert.as_ref(), key.as_ref());
        self
    }
}
