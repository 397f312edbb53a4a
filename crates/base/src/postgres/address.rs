//! Which server a URL means: `postgres://[USER[:PASSWORD]@][HOST[:PORT]][/DATABASE][?OPTION=VALUE&...]`, as libpq
//! and its tools write it, with `owner=` and `pool=` as options of our own. What it leaves out comes from the
//! environment, as with them (environment.rs).
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::environment::{Environment, Login};
use super::tls::{MakeTls, TlsStream};
use crate::error::{Error, Result};
use crate::tls::{Tls, TlsFiles, Verify};
use crate::url::{Form, Host, Url};

/// How many connections a client opens for what it is asked, at most.
const POOL: usize = 16;
/// A connection on which nothing comes for this long is probed.
const PROBED: Duration = Duration::from_secs(15);
/// Those of libpq's that we take, and our own.
const OPTIONS: [&str; 10] = [
    "application_name",
    "host",
    "port",
    "channel_binding",
    "owner",
    "pool",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
];

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
pub struct PostgresUrl {
    config: Config,
    tls: MakeTls,
    pub(super) pool: usize,
    /// A role that may own the schema, besides those who may anyway.
    owner: Option<String>,
    /// `host:port/database`: without secrets, for people.
    pub(super) shown: String,
}

/// A connection: what asks, and what has to be driven for it.
pub(super) type Opened = (Client, Connection<Socket, TlsStream>);

impl PostgresUrl {
    /// `rest` is what follows the scheme and its colon.
    pub fn parse(scheme: &str, rest: &str) -> Result<Self> {
        Self::parse_in(scheme, rest, &Environment::of_this_process())
    }

    fn parse_in(scheme: &str, rest: &str, environment: &Environment<'_>) -> Result<Self> {
        let form = Form {
            scheme,
            remedy: "write SCHEME://USER:PASSWORD@HOST:PORT/DATABASE; signs like @ / ? # in a password are written as \
                     %40 %2F %3F %23",
            port: None,
            options: &OPTIONS,
            socket: None,
            lenient: true,
        };
        // libpq ends the login at the first, and would look up the rest of a password as a host.
        if rest.matches('@').count() > 1 {
            return Err(form.invalid("there is more than one @ in it"));
        }
        let mut url = form.parse(rest)?;
        let identity = url.get("sslcert").or_else(|| url.get("sslkey")).is_some();
        for (variable, option) in VARIABLES {
            // A certificate and its key belong together.
            let taken = identity && ["sslcert", "sslkey"].contains(&option);
            if let Some(value) = environment.var(variable).filter(|_| !taken) {
                // The value is not repeated: it is not known what somebody put there.
                url.default_to(option, value, format!("the variable {variable}"));
            }
        }
        let role = |role: &str| (!role.is_empty()).then(|| role.to_owned());
        let owner = url.get_as("owner", role, "name a role")?;
        let size = |text: &str| text.parse().ok().filter(|size| (1..=1000).contains(size));
        let pool = url.get_as("pool", size, "give 1 to 1000 connections")?.unwrap_or(POOL);
        let (mut config, shown) = config(&url, environment)?;
        let binding = |name: &str| match name {
            "disable" => Some(ChannelBinding::Disable),
            "prefer" => Some(ChannelBinding::Prefer),
            "require" => Some(ChannelBinding::Require),
            _ => None,
        };
        let binding = url.get_as("channel_binding", binding, "give disable, prefer or require")?;
        let files = files(&url)?;
        let mode = |name: &str| mode(name, files.ca.is_some());
        let remedy = "give disable, prefer, require, verify-ca or verify-full";
        let mode = url.get_as("sslmode", mode, remedy)?;
        let (mode, verify) = mode.unwrap_or((SslMode::Prefer, Verify::Nothing));
        config
            .keepalives_idle(PROBED)
            .ssl_mode(mode)
            .channel_binding(binding.unwrap_or(ChannelBinding::Prefer));
        let mut tls = MakeTls(None);
        if mode != SslMode::Disable {
            let mut config = files.client_config(verify)?;
            // PostgreSQL 17 insists on it where TLS begins at once, and others do not mind.
            config.alpn_protocols = vec![b"postgresql".to_vec()];
            tls = MakeTls(Some(Tls::new(config)));
        }
        Ok(Self { config, tls, pool, owner, shown })
    }

    /// `host:port/database`.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The role that is trusted with the schema besides those that are anyway.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Connects. On a tokio runtime, which then has to drive the connection.
    pub async fn open(&self) -> Result<Opened, tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }
}

/// Where to connect, and as whom, with what the URL leaves out from the environment; and `host:port/database`.
fn config(url: &Url<'_>, environment: &Environment<'_>) -> Result<(Config, String)> {
    let scheme = url.form.scheme;
    let given = |option| url.text(option).filter(|text| !text.is_empty());
    let several = || {
        Error::invalid(format!(
            "a {scheme}: URL names one server: a lock on a server that took over from another may be granted twice; \
             name the primary"
        ))
    };
    let host = match (&*url.hosts, given("host")) {
        ([], name) => name.map(|name| Host { name, port: None }),
        ([host], None) => Some(host.clone()),
        _ => return Err(several()),
    };
    let port = given("port").map(|port| port.parse()).transpose();
    let port = port.map_err(|_| url.form.invalid("not a URL"))?;
    let port = match port.or(host.as_ref().and_then(|host| host.port)) {
        Some(port) => port,
        None => environment.port()?.unwrap_or(5432),
    };
    let host = host.map_or_else(|| environment.host(port), |host| host.name);
    if host.contains(',') {
        return Err(several());
    }
    let user = url.user.clone().filter(|user| !user.is_empty());
    let user = user.or_else(|| environment.user()).ok_or_else(|| {
        Error::invalid(format!(
            "nobody says who connects: write {scheme}://USER@..., or set PGUSER"
        ))
    })?;
    let database = Some(url.path.clone()).filter(|path| !path.is_empty());
    let database =
        database.or_else(|| environment.var("PGDATABASE")).unwrap_or_else(|| user.clone());
    let password = url.password.clone().filter(|password| !password.is_empty());
    let login = Login { host: &host, port, database: &database, user: &user };
    let password = password.or_else(|| environment.password(&login));
    let name = given("application_name").or_else(|| environment.var("PGAPPNAME"));
    let mut config = Config::new();
    config.host(&host).port(port).dbname(&database);
    config.application_name(name.unwrap_or_else(|| "fencepost".into()));
    if let Some(password) = password {
        config.password(password);
    }
    config.user(user);
    let host = Host { name: host, port: Some(port) };
    Ok((config, format!("{host}/{database}")))
}

/// The files of an encrypted connection, read.
fn files(url: &Url<'_>) -> Result<TlsFiles> {
    let options = ["sslrootcert", "sslcert", "sslkey"];
    let read = |option| match url.get(option) {
        None => Ok(None),
        // As libpq has it: the system's list, which is ours without this option as well.
        Some(given) if option == "sslrootcert" && given.value == "system" => Ok(None),
        Some(given) => std::fs::read(&given.value)
            .map(Some)
            .map_err(|error| given.bad("cannot read this file").because(error)),
    };
    let [ca, cert, key] = options.map(read);
    Ok(TlsFiles { options, ca: ca?, cert: cert?, key: key? })
}

/// What `sslmode` means, as libpq has it.
fn mode(name: &str, roots: bool) -> Option<(SslMode, Verify)> {
    Some(match name {
        "disable" => (SslMode::Disable, Verify::Nothing),
        // The first of them tries without TLS first: there is no use in that.
        "allow" | "prefer" => (SslMode::Prefer, Verify::Nothing),
        // A list of roots that is given is used.
        "require" if roots => (SslMode::Require, Verify::Signer),
        "require" => (SslMode::Require, Verify::Nothing),
        "verify-ca" => (SslMode::Require, Verify::Signer),
        "verify-full" => (SslMode::Require, Verify::SignerAndName),
        _ => return None,
    })
}

// A configuration has a password in it.
impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres:{}", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        // A certificate and its key come from one place; the system's list is a choice like any other.
        let files = [("PGSSLCERT", "/dev/null"), ("PGSSLKEY", "/dev/null")];
        let error = parse_with("postgres://h", &files).unwrap_err().to_string();
        assert!(error.contains("file of sslkey="), "{error}");
        let error = parse_with("postgres://h?sslcert=/dev/null", &files).unwrap_err().to_string();
        assert!(error.contains("belong together"), "{error}");
        let file = [("PGSSLROOTCERT", "/nowhere")];
        assert!(parse_with("postgres://h?sslrootcert=system", &file).is_ok());
        assert!(parse_with("postgres://h", &file).is_err());
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
            "postgres://a:x@hunter2@h",
        ] {
            let error = parse(bad).expect_err(bad);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
