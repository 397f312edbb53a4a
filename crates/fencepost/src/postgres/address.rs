//! Which server a URL means: `postgres://[USER[:PASSWORD]@][HOST[:PORT]][/DATABASE][?OPTION=VALUE&...]`, as libpq
//! and its tools write it, with `owner=` and `pool=` as options of our own. What it leaves out comes from the
//! environment, as with them (environment.rs).
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::environment::{Environment, Login};
use super::tls::{Tls, TlsStream, Verify};
use crate::error::{Error, Result};

/// How many connections a client opens for what it is asked, at most.
const POOL: usize = 16;
/// A connection on which nothing comes for this long is probed.
const PROBED: Duration = Duration::from_secs(15);
/// What of libpq's options is taken, beside those that are about TLS.
const OPTIONS: [&str; 3] = ["application_name", "host", "port"];

/// Variables of libpq's that mean the same as an option.
const VARIABLES: [(&str, &str); 5] = [
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGCHANNELBINDING", "channel_binding"),
];

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
        Self::parse_in(scheme, rest, &Environment::of_this_process())
    }

    fn parse_in(scheme: &str, rest: &str, environment: &Environment<'_>) -> Result<Self> {
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
            let value =
                crate::url::decoded(value).ok_or_else(|| invalid("there is a bad % in it"))?;
            let origin = format!("\"{name}={}\" in the {scheme}: URL", value.escape_debug());
            if !options.take(name, &value, &origin)? {
                if !OPTIONS.contains(&name) {
                    return Err(Error::invalid(format!(
                        "\"{}\" is no option of a {scheme}: URL: there are {}, channel_binding, owner, pool, \
                         sslmode, sslrootcert, sslcert, sslkey",
                        name.escape_debug(),
                        OPTIONS.join(", ")
                    )));
                }
                plain.push(pair);
            }
        }
        let port = if names_host_without_port(place) { environment.port()? } else { None };
        let (server, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let url = format!("postgres://{server}{port}{path}?{}", plain.join("&"));
        // What it says of a bad one may have a password in it.
        let mut config: Config = url.parse().map_err(|_| invalid("not a URL"))?;
        for (variable, name) in VARIABLES {
            if let Some(value) = environment.var(variable)
                && !options.has(name)
            {
                // The value is not repeated: it is not known what somebody put there.
                options.take(name, &value, &format!("the variable {variable}"))?;
            }
        }
        let shown = fill_in(scheme, &mut config, environment)?;
        config.keepalives_idle(PROBED);
        let (mode, verify) = options.mode();
        config
            .ssl_mode(mode)
            .channel_binding(options.channel_binding.unwrap_or(ChannelBinding::Prefer));
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

/// Whether a URL's place names a server and leaves its port out. The parser would put the usual one there.
fn names_host_without_port(place: &str) -> bool {
    let server = place.split('/').next().unwrap_or_default();
    let server = server.rsplit_once('@').map_or(server, |(_, server)| server);
    let behind_brackets = server.rsplit_once(']').map_or(server, |(_, behind)| behind);
    !server.is_empty() && !behind_brackets.contains(':')
}

/// Takes what the URL left out from the environment. Gives `host:port/database`.
fn fill_in(scheme: &str, config: &mut Config, environment: &Environment<'_>) -> Result<String> {
    let port = match config.get_ports() {
        [port, ..] => *port,
        [] => environment.port()?.unwrap_or(5432),
    };
    if config.get_hosts().is_empty() {
        config.host(environment.host(port));
    }
    if config.get_ports().is_empty() {
        config.port(port);
    }
    let [host] = config.get_hosts() else { return Err(several(scheme)) };
    let (host, plain) = match host {
        Host::Tcp(host) if host.contains(',') => return Err(several(scheme)),
        Host::Tcp(host) if host.contains(':') => (format!("[{host}]:{port}"), host.clone()),
        Host::Tcp(host) => (format!("{host}:{port}"), host.clone()),
        #[cfg(unix)]
        Host::Unix(path) => (path.display().to_string(), path.display().to_string()),
    };
    let user = match config.get_user() {
        Some(user) => user.to_owned(),
        None => environment.user().ok_or_else(|| {
            Error::invalid(format!(
                "nobody says who connects: write {scheme}://USER@..., or set PGUSER"
            ))
        })?,
    };
    let database = config.get_dbname().map(str::to_owned);
    let database =
        database.or_else(|| environment.var("PGDATABASE")).unwrap_or_else(|| user.clone());
    if config.get_password().is_none() {
        let login = Login { host: &plain, port, database: &database, user: &user };
        if let Some(password) = environment.password(&login) {
            config.password(password);
        }
    }
    if config.get_application_name().is_none() {
        let name = environment.var("PGAPPNAME");
        config.application_name(name.unwrap_or_else(|| "fencepost".into()));
    }
    config.user(user).dbname(&database);
    Ok(format!("{host}/{database}"))
}

fn several(scheme: &str) -> Error {
    Error::invalid(format!(
        "a {scheme}: URL names one server: a lock on a server that took over from another may be granted twice; \
         name the primary"
    ))
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
    mode: Option<Mode>,
    channel_binding: Option<ChannelBinding>,
    files: Files,
    pool: Option<usize>,
    owner: Option<String>,
}

impl Options {
    /// Takes an option, if it is one of these. `origin` says where it comes from.
    fn take(&mut self, name: &str, value: &str, origin: &str) -> Result<bool> {
        let bad = |remedy: &str| Error::invalid(format!("{origin}: {remedy}"));
        let read = || -> Result<Option<Vec<u8>>> {
            let read = std::fs::read(Path::new(value));
            read.map(Some).map_err(|error| bad("cannot read this file").because(error))
        };
        match name {
            "sslmode" => {
                let mode = Mode::named(value);
                let remedy = "give disable, prefer, require, verify-ca or verify-full";
                self.mode = Some(mode.ok_or_else(|| bad(remedy))?);
            }
            "channel_binding" => {
                self.channel_binding = Some(match value {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return Err(bad("give disable, prefer or require")),
                });
            }
            // As libpq has it: the system's list, which is ours without this option as well.
            "sslrootcert" if value == "system" => {}
            "sslrootcert" => self.files.roots = read()?,
            "sslcert" => self.files.cert = read()?,
            "sslkey" => self.files.key = read()?,
            "owner" => {
                let owner = (!value.is_empty()).then(|| value.to_owned());
                self.owner = Some(owner.ok_or_else(|| bad("name a role"))?);
            }
            "pool" => {
                let pool = value.parse().ok().filter(|pool| (1..=1000).contains(pool));
                self.pool = Some(pool.ok_or_else(|| bad("give 1 to 1000 connections"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the URL has this option.
    fn has(&self, name: &str) -> bool {
        match name {
            "sslmode" => self.mode.is_some(),
            "channel_binding" => self.channel_binding.is_some(),
            "sslrootcert" => self.files.roots.is_some(),
            // They belong together.
            _ => self.files.cert.is_some() || self.files.key.is_some(),
        }
    }

    /// What `sslmode` means, as libpq has it.
    fn mode(&self) -> (SslMode, Verify) {
        match self.mode.unwrap_or(Mode::Prefer) {
            Mode::Disable => (SslMode::Disable, Verify::Nothing),
            Mode::Prefer => (SslMode::Prefer, Verify::Nothing),
            // A list of roots that is given is used.
            Mode::Require if self.files.roots.is_some() => (SslMode::Require, Verify::Signer),
            Mode::Require => (SslMode::Require, Verify::Nothing),
            Mode::VerifyCa => (SslMode::Require, Verify::Signer),
            Mode::VerifyFull => (SslMode::Require, Verify::SignerAndName),
        }
    }
}

/// The values of `sslmode`.
#[derive(Clone, Copy)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "disable" => Self::Disable,
            // The first of them tries without TLS first: there is no use in that.
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
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
        parse_with(url, &[])
    }

    /// As if these variables were set, and no others.
    fn parse_with(url: &str, variables: &[(&str, &str)]) -> Result<PostgresUrl> {
        let (scheme, rest) = url.split_once(':').unwrap();
        let lookup = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment {
            lookup: &lookup,
            exists: &|path| path == Path::new("/tmp/.s.PGSQL.7777"),
            account: &|| Some(("root".into(), "/nowhere".into())),
        };
        PostgresUrl::parse_in(scheme, rest, &environment)
    }

    #[test]
    fn what_the_url_leaves_out_comes_from_the_environment() {
        let bare = parse("postgres://").unwrap();
        assert_eq!(bare.shown, "/var/run/postgresql/root");
        assert_eq!(bare.config.get_user(), Some("root"));
        assert_eq!(parse_with("postgres://", &[("PGPORT", "7777")]).unwrap().shown, "/tmp/root");
        for (url, shown) in [
            ("postgres://me@db/x", "db:7777/x"),
            ("postgres://me:p:w@db", "db:7777/me"),
            ("postgres://me@[::1]/x", "[::1]:7777/x"),
            ("postgres://me@db:5433/x", "db:5433/x"),
            ("postgres://me@[::1]:5433/x", "[::1]:5433/x"),
        ] {
            assert_eq!(parse_with(url, &[("PGPORT", "7777")]).unwrap().shown, shown, "{url}");
        }
        assert_eq!(parse("postgres:///shop").unwrap().shown, "/var/run/postgresql/shop");
        let all = [
            ("PGHOST", "db.local"),
            ("PGPORT", "5433"),
            ("PGUSER", "ann"),
            ("PGDATABASE", "shop"),
            ("PGPASSWORD", "secret"),
            ("PGSSLMODE", "require"),
            ("PGCHANNELBINDING", "require"),
            ("PGAPPNAME", "till"),
        ];
        let url = parse_with("postgres://", &all).unwrap();
        assert_eq!(url.shown, "db.local:5433/shop");
        assert_eq!(url.config.get_user(), Some("ann"));
        assert_eq!(url.config.get_password(), Some(&b"secret"[..]));
        assert_eq!(url.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(url.config.get_channel_binding(), ChannelBinding::Require);
        assert_eq!(url.config.get_application_name(), Some("till"));
        // The URL counts more.
        let full =
            "postgres://bob:own@h:1/d?sslmode=disable&channel_binding=disable&application_name=a";
        let url = parse_with(full, &all).unwrap();
        assert_eq!(url.shown, "h:1/d");
        assert_eq!(url.config.get_user(), Some("bob"));
        assert_eq!(url.config.get_password(), Some(&b"own"[..]));
        assert_eq!(url.config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(url.config.get_channel_binding(), ChannelBinding::Disable);
        assert_eq!(url.config.get_application_name(), Some("a"));
        // An empty variable is as good as none.
        assert_eq!(parse_with("postgres://h", &[("PGUSER", "")]).unwrap().shown, "h:5432/root");
        for bad in [("PGHOST", "a,b"), ("PGPORT", "x"), ("PGSSLMODE", "perhaps")] {
            let error = parse_with("postgres://", &[bad]).expect_err(bad.0);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        }
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
            "postgres://a:hunter2@h,i/shop",
            "postgres://a:hunter2@h/shop?channel_binding=perhaps",
            "postgres://a:hunter2@h/shop?owner=",
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
