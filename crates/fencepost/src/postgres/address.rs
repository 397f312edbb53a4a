//! Which server a URL means: `postgres://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE][?OPTION=VALUE&...]`, as libpq
//! and its tools write it, with `pool=` as an option of our own.
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::tls::{Tls, TlsStream, Verify};
use crate::error::{Error, Result};

/// How many connections a client opens for what it is asked, at most.
const POOL: usize = 16;
/// A connection on which nothing comes for this long is probed.
const PROBED: Duration = Duration::from_secs(15);
/// What of libpq's options is taken, beside those that are about TLS.
const OPTIONS: [&str; 3] = ["application_name", "host", "port"];

/// A `postgres:` URL, parsed.
#[derive(Clone)]
pub(crate) struct PostgresUrl {
    config: Config,
    tls: Tls,
    pub(super) pool: usize,
    /// A role that may own the schema, besides those who may anyway.
    owner: Option<String>,
    /// `host:port/database`: without secrets, for people.
    pub(super) shown: String,
}

/// A connection: what asks, and what has to be driven for it.
pub(crate) type Opened = (Client, Connection<Socket, TlsStream>);

impl PostgresUrl {
    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Error::invalid(format!(
                "the {scheme}: URL does not parse ({why}): write {scheme}://USER:PASSWORD@HOST:PORT/DATABASE; \
                 signs like @ / ? # in a password are written as %40 %2F %3F %23"
            ))
        };
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("// is missing"))?;
        if rest.contains('#') {
            return Err(invalid("there is a # in it"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(invalid("there is an @ behind the ?"));
        }
        let path = place.split_once('/').map_or("", |(_, path)| path);
        if path.contains('@') {
            return Err(invalid("there is an @ behind the first /"));
        }
        let mut options = Options::default();
        let mut plain = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !options.take(scheme, name, value)? {
                if !OPTIONS.contains(&name) {
                    return Err(Error::invalid(format!(
                        "\"{}\" is no option of a {scheme}: URL: there are {}, owner, pool, sslmode, sslrootcert, \
                         sslcert, sslkey",
                        name.escape_debug(),
                        OPTIONS.join(", ")
                    )));
                }
                plain.push(pair);
            }
        }
        let url = format!("postgres://{place}?{}", plain.join("&"));
        // What it says of a bad one may have a password in it.
        let mut config: Config = url.parse().map_err(|_| invalid("not a URL"))?;
        let [host] = config.get_hosts() else {
            return Err(Error::invalid(if config.get_hosts().is_empty() {
                format!("the {scheme}: URL names no host: write {scheme}://HOST/DATABASE")
            } else {
                format!(
                    "a {scheme}: URL names one server: a lock on a server that took over from another may \
                     be granted twice; name the primary"
                )
            }));
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let host = match host {
            Host::Tcp(host) if host.contains(':') => format!("[{host}]:{port}"),
            Host::Tcp(host) => format!("{host}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        };
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        let shown = format!("{host}/{database}");
        if config.get_application_name().is_none() {
            config.application_name("fencepost");
        }
        config.keepalives_idle(PROBED);
        let (mode, verify) = options.mode(scheme)?;
        config.ssl_mode(mode);
        let tls = Tls::new(mode, verify, &options.files)?;
        let (pool, owner) = (options.pool.unwrap_or(POOL), options.owner);
        Ok(Self { config, tls, pool, owner, shown })
    }

    /// `host:port/database`.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The role that is trusted with the schema besides those that are anyway.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Connects. On a tokio runtime, which then has to drive the connection.
    pub(crate) async fn open(&self) -> Result<Opened, tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }
}

/// The files of an encrypted connection, read.
#[derive(Default)]
pub(super) struct Files {
    /// Whom to trust, if not whom the system trusts.
    pub(super) roots: Option<Vec<u8>>,
    pub(super) cert: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
}

/// What the driver does not know, or not as we do.
#[derive(Default)]
struct Options {
    mode: Option<String>,
    files: Files,
    pool: Option<usize>,
    owner: Option<String>,
}

impl Options {
    /// Takes an option, if it is one of these.
    fn take(&mut self, scheme: &str, name: &str, value: &str) -> Result<bool> {
        let bad = |remedy: &str| {
            let value = value.escape_debug();
            Error::invalid(format!("\"{name}={value}\" in the {scheme}: URL: {remedy}"))
        };
        let read = || -> Result<Option<Vec<u8>>> {
            let path = crate::url::decoded(value).ok_or_else(|| bad("there is a bad % in it"))?;
            let read = std::fs::read(Path::new(&path));
            read.map(Some).map_err(|error| bad("can not read this file").because(error))
        };
        match name {
            "owner" => {
                let owner = crate::url::decoded(value).filter(|owner| !owner.is_empty());
                self.owner = Some(owner.ok_or_else(|| bad("name a role"))?);
            }
            "sslmode" => self.mode = Some(value.to_owned()),
            // As libpq has it: the system's list, which is ours without this option as well.
            "sslrootcert" if value == "system" => {}
            "sslrootcert" => self.files.roots = read()?,
            "sslcert" => self.files.cert = read()?,
            "sslkey" => self.files.key = read()?,
            "pool" => {
                let pool = value.parse().ok().filter(|pool| (1..=1000).contains(pool));
                self.pool = Some(pool.ok_or_else(|| bad("give 1 to 1000 connections"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What `sslmode` means, as libpq has it.
    fn mode(&self, scheme: &str) -> Result<(SslMode, Verify)> {
        Ok(match self.mode.as_deref() {
            None | Some("prefer") => (SslMode::Prefer, Verify::Nothing),
            Some("disable") => (SslMode::Disable, Verify::Nothing),
            // A list of roots that is given is used.
            Some("require") if self.files.roots.is_some() => (SslMode::Require, Verify::Signer),
            Some("require") => (SslMode::Require, Verify::Nothing),
            Some("verify-ca") => (SslMode::Require, Verify::Signer),
            Some("verify-full") => (SslMode::Require, Verify::SignerAndName),
            Some(other) => {
                return Err(Error::invalid(format!(
                    "\"sslmode={}\" in the {scheme}: URL: give disable, prefer, require, verify-ca or \
                     verify-full",
                    other.escape_debug()
                )));
            }
        })
    }
}

// A configuration has a password in it.
impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres:{}", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(url: &str) -> Result<PostgresUrl> {
        let (scheme, rest) = url.split_once(':').unwrap();
        PostgresUrl::parse(scheme, rest)
    }

    #[test]
    fn a_url_names_a_server_and_a_database() {
        let url =
            parse("postgres://ann:p%40ss@db.local:5433/shop?application_name=till&pool=4").unwrap();
        assert_eq!(url.shown, "db.local:5433/shop");
        assert_eq!(url.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(url.config.get_application_name(), Some("till"));
        assert_eq!(url.pool, 4);
        let url = parse("postgresql://ann@[::1]").unwrap();
        assert_eq!(url.shown, "[::1]:5432/ann");
        assert_eq!(url.config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(
            parse("postgres:///shop?host=/run/postgresql").unwrap().shown,
            "/run/postgresql/shop"
        );
        for (mode, wanted) in [("disable", SslMode::Disable), ("verify-full", SslMode::Require)] {
            let url = parse(&format!("postgres://h/d?sslmode={mode}")).unwrap();
            assert_eq!(url.config.get_ssl_mode(), wanted);
        }
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for bad in [
            "postgres:h",
            "postgres://",
            "postgres:///shop",
            "postgres://a:hunter2@h,i/shop",
            "postgres://a:hunter2@h:99999/shop",
            "postgres://a:hunter2@h/shop?frob=1",
            "postgres://a:hunter2@h/shop?sslmode=perhaps",
            "postgres://a:hunter2@h/shop?pool=0",
            "postgres://a:hunter2@h/shop?sslrootcert=/nowhere/ca.pem",
            "postgres://a:hunter2@h/shop?sslmode=verify-full&sslrootcert=/dev/null",
            "postgres://a:x?hunter2@h",
            "postgres://a:x/hunter2@h",
            "postgres://a:x#hunter2@h",
        ] {
            let error = parse(bad).expect_err(bad);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
