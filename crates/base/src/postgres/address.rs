//! Parses the URL of a server: `postgres://[USER[:PASSWORD]@][HOST[:PORT]][/DATABASE][?OPTION=VALUE&...]`, as libpq and its
//! tools write it, with `owner=` and `pool=` as our own options; and says what options mean. What they leave out comes from
//! the environment, as in libpq (environment.rs).
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding as DriverBinding, SslMode as DriverMode};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::environment::{Environment, Login};
use super::options::{ChannelBinding, PostgresOptions, SslMode};
use super::tls::{MakeTls, TlsStream};
use crate::error::{Error, Result};
use crate::tls::{PemFile, Tls, TlsOptions, Verify};
use crate::url::{Form, Host, Secret, Setting, checked_hosts, invalid_option};

/// A connection that is silent for this long is probed.
const PROBED: Duration = Duration::from_secs(15);
const POOL_REMEDY: &str = "give 1 to 1000 connections";
/// The options of libpq that we support, and our own.
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

impl PostgresOptions {
    /// Parses a URL: `scheme` is before its first colon, `rest` after it.
    #[doc(hidden)]
    pub fn parse(scheme: &str, rest: &str) -> Result<Self> {
        let form = Form {
            scheme,
            remedy: "write SCHEME://USER:PASSWORD@HOST:PORT/DATABASE; signs like @ / ? # in a password are written as \
                     %40 %2F %3F %23",
            options: &OPTIONS,
            socket: None,
            lenient: true,
        };
        // libpq ends the login at the first, and would look up the rest of a password as a host.
        if rest.matches('@').count() > 1 {
            return Err(form.invalid("it contains more than one @"));
        }
        let url = form.parse(rest)?;
        let given = |option| url.text(option).filter(|text| !text.is_empty());
        let (mut host, port) = match (&*url.hosts, given("host")) {
            ([], name) => (name.map(|name| Host { name, port: None }), None),
            ([host], None) => (Some(host.clone()), host.port),
            _ => return Err(several()),
        };
        let option = given("port").map(|port| port.parse()).transpose();
        let port = option.map_err(|_| form.invalid("not a URL"))?.or(port);
        if let Some(host) = &mut host {
            host.port = port;
        }
        let file = |option| url.text(option).map(|path| PemFile::new(option, path));
        Ok(Self {
            host,
            port,
            user: url.user.clone(),
            password: url.password.clone(),
            database: Some(url.path.clone()),
            application_name: given("application_name"),
            owner: url.text("owner"),
            pool: url
                .get_as("pool", |text| text.parse().ok(), POOL_REMEDY)?
                .unwrap_or(Self::unset().pool),
            channel_binding: url.get("channel_binding").map(channel_binding).transpose()?,
            ssl_mode: url.get("sslmode").map(ssl_mode).transpose()?,
            tls: TlsOptions {
                enabled: None,
                ca: file("sslrootcert"),
                cert: file("sslcert"),
                key: file("sslkey"),
            },
        })
    }
}

fn ssl_mode(setting: &Setting) -> Result<SslMode> {
    let read = |name: &str| match name {
        "disable" => Some(SslMode::Disable),
        // `allow` would try without TLS first, which has no advantage.
        "allow" | "prefer" => Some(SslMode::Prefer),
        "require" => Some(SslMode::Require),
        "verify-ca" => Some(SslMode::VerifyCa),
        "verify-full" => Some(SslMode::VerifyFull),
        _ => None,
    };
    setting.parsed(read, "give disable, prefer, require, verify-ca or verify-full")
}

fn channel_binding(setting: &Setting) -> Result<ChannelBinding> {
    let read = |name: &str| match name {
        "disable" => Some(ChannelBinding::Disable),
        "prefer" => Some(ChannelBinding::Prefer),
        "require" => Some(ChannelBinding::Require),
        _ => None,
    };
    setting.parsed(read, "give disable, prefer or require")
}

/// A server: its options, checked, and with what the environment says.
#[derive(Clone)]
pub struct Server {
    config: Config,
    tls: MakeTls,
    pub(super) pool: usize,
    /// A role that may own the schema, besides the ones that always may.
    owner: Option<String>,
    /// `host:port/database`: without secrets, for people.
    pub(super) shown: String,
}

/// A client, and the connection that must be driven for it.
pub(super) type Opened = (Client, Connection<Socket, TlsStream>);

impl Server {
    pub fn new(options: PostgresOptions) -> Result<Self> {
        Self::new_in(options, &Environment::of_this_process())
    }

    fn new_in(options: PostgresOptions, environment: &Environment<'_>) -> Result<Self> {
        let (pool, owner) = (options.pool, options.owner.clone());
        if !(1..=1000).contains(&pool) {
            return Err(invalid_option("postgres", "pool", pool, POOL_REMEDY));
        }
        if owner.as_deref() == Some("") {
            return Err(invalid_option("postgres", "owner", "", "name a role"));
        }
        let variable = |name| {
            let value = environment.var(name)?;
            Some(Setting::of_variable(name, value))
        };
        let binding = match options.channel_binding {
            Some(binding) => Some(binding),
            None => variable("PGCHANNELBINDING").as_ref().map(channel_binding).transpose()?,
        };
        let mode = match options.ssl_mode {
            Some(mode) => Some(mode),
            None => variable("PGSSLMODE").as_ref().map(ssl_mode).transpose()?,
        };
        let files = files(&options.tls, environment).read_files()?;
        let (mode, verify) = match mode.unwrap_or(SslMode::Prefer) {
            SslMode::Disable => (DriverMode::Disable, Verify::Nothing),
            SslMode::Prefer => (DriverMode::Prefer, Verify::Nothing),
            // If there are roots, they are used, as in libpq.
            SslMode::Require if files.ca.is_some() => (DriverMode::Require, Verify::Signer),
            SslMode::Require => (DriverMode::Require, Verify::Nothing),
            SslMode::VerifyCa => (DriverMode::Require, Verify::Signer),
            SslMode::VerifyFull => (DriverMode::Require, Verify::SignerAndName),
        };
        let (mut config, shown) = config(options, environment)?;
        config.keepalives_idle(PROBED).ssl_mode(mode).channel_binding(match binding {
            Some(ChannelBinding::Disable) => DriverBinding::Disable,
            Some(ChannelBinding::Prefer) | None => DriverBinding::Prefer,
            Some(ChannelBinding::Require) => DriverBinding::Require,
        });
        let mut tls = MakeTls(None);
        if mode != DriverMode::Disable {
            let mut config = files.client_config(verify)?;
            // PostgreSQL 17 requires it if TLS starts at once; others do not mind.
            config.alpn_protocols = vec![b"postgresql".to_vec()];
            tls = MakeTls(Some(Tls::new(config)));
        }
        Ok(Self { config, tls, pool, owner, shown })
    }

    /// `host:port/database`.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The role that is trusted with the schema, besides the ones that always are.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Connects, on the tokio runtime that will drive the connection.
    pub async fn open(&self) -> Result<Opened, tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }
}

/// The server, the login, and `host:port/database`. The environment provides what the options leave out.
fn config(options: PostgresOptions, environment: &Environment<'_>) -> Result<(Config, String)> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let port = match options.host.as_ref().and_then(|host| host.port).or(options.port) {
        Some(port) => port,
        None => environment.port()?.unwrap_or(5432),
    };
    let host = options.host;
    let host = host.unwrap_or_else(|| Host { name: environment.host(port), port: None });
    if host.name.contains(',') {
        return Err(several());
    }
    let host = checked_hosts("postgres", &[host], port, true, "")?.remove(0);
    let user = given(options.user).or_else(|| environment.user()).ok_or_else(|| {
        Error::invalid(
            "no user is given for the postgres: store: name one (USER@ in a URL), or set PGUSER",
        )
    })?;
    let database = given(options.database)
        .or_else(|| environment.var("PGDATABASE"))
        .unwrap_or_else(|| user.clone());
    let login = Login { host: &host.name, port, database: &database, user: &user };
    let password = given(options.password.map(|Secret(password)| password));
    let password = password.or_else(|| environment.password(&login));
    let name = given(options.application_name).or_else(|| environment.var("PGAPPNAME"));
    let mut config = Config::new();
    config.host(&host.name).port(port).dbname(&database);
    config.application_name(name.unwrap_or_else(|| "fencepost".into()));
    if let Some(password) = password {
        config.password(password);
    }
    config.user(user);
    Ok((config, format!("{host}/{database}")))
}

fn several() -> Error {
    Error::invalid(
        "a postgres: store has one server: after a failover a lock may be granted twice; name the primary",
    )
}

/// The files that the options or the environment name.
fn files(given: &TlsOptions, environment: &Environment<'_>) -> TlsOptions {
    let variable = |name| environment.var(name).map(|path| PemFile::new(name, path));
    let mut files = given.clone();
    // A certificate and its key belong together.
    if files.cert.is_none() && files.key.is_none() {
        (files.cert, files.key) = (variable("PGSSLCERT"), variable("PGSSLKEY"));
    }
    let ca = files.ca.or_else(|| variable("PGSSLROOTCERT"));
    // As in libpq, `system` means the system's roots, which are our default.
    files.ca = ca.filter(|file| file.path != Path::new("system"));
    files
}

// A configuration contains a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres:{}", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(url: &str) -> Result<Server> {
        parse_with(url, &[])
    }

    /// With these variables set, and no others.
    fn parse_with(url: &str, variables: &[(&str, &str)]) -> Result<Server> {
        let (scheme, rest) = url.split_once(':').unwrap();
        with(PostgresOptions::parse(scheme, rest)?, variables)
    }

    fn with(options: PostgresOptions, variables: &[(&str, &str)]) -> Result<Server> {
        let lookup = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment {
            lookup: &lookup,
            exists: &|path| path == Path::new("/tmp/.s.PGSQL.7777"),
            account: &|| Some(("root".into(), "/nowhere".into())),
        };
        Server::new_in(options, &environment)
    }

    #[test]
    fn environment_provides_what_the_url_leaves_out() {
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
        assert_eq!(url.config.get_ssl_mode(), DriverMode::Require);
        assert_eq!(url.config.get_channel_binding(), DriverBinding::Require);
        assert_eq!(url.config.get_application_name(), Some("till"));
        // The URL has priority.
        let full =
            "postgres://bob:own@h:1/d?sslmode=disable&channel_binding=disable&application_name=a";
        let url = parse_with(full, &all).unwrap();
        assert_eq!(url.shown, "h:1/d");
        assert_eq!(url.config.get_user(), Some("bob"));
        assert_eq!(url.config.get_password(), Some(&b"own"[..]));
        assert_eq!(url.config.get_ssl_mode(), DriverMode::Disable);
        assert_eq!(url.config.get_channel_binding(), DriverBinding::Disable);
        assert_eq!(url.config.get_application_name(), Some("a"));
        // A certificate and its key come from one source; `system` overrides a file.
        let files = [("PGSSLCERT", "/dev/null"), ("PGSSLKEY", "/dev/null")];
        let error = parse_with("postgres://h", &files).unwrap_err().one_line();
        assert!(error.contains("PGSSLKEY=/dev/null"), "{error}");
        let error = parse_with("postgres://h?sslcert=/dev/null", &files).unwrap_err().one_line();
        assert!(error.contains("belong together"), "{error}");
        let file = [("PGSSLROOTCERT", "/nowhere")];
        assert!(parse_with("postgres://h?sslrootcert=system", &file).is_ok());
        assert!(parse_with("postgres://h", &file).is_err());
        // An empty variable counts as unset.
        assert_eq!(parse_with("postgres://h", &[("PGUSER", "")]).unwrap().shown, "h:5432/root");
        for bad in [("PGHOST", "a,b"), ("PGPORT", "x"), ("PGSSLMODE", "perhaps")] {
            let error = parse_with("postgres://", &[bad]).expect_err(bad.0);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }

    #[test]
    fn url_names_a_server_and_a_database() {
        let url =
            parse("postgres://ann:p%40ss@db.local:5433/shop?application_name=till&pool=4").unwrap();
        assert_eq!(url.shown, "db.local:5433/shop");
        assert_eq!(url.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(url.config.get_application_name(), Some("till"));
        assert_eq!(url.pool, 4);
        let url = parse("postgresql://ann@[::1]").unwrap();
        assert_eq!(url.shown, "[::1]:5432/ann");
        assert_eq!(url.config.get_ssl_mode(), DriverMode::Prefer);
        assert_eq!(
            parse("postgres:///shop?host=/run/postgresql").unwrap().shown,
            "/run/postgresql/shop"
        );
        for (mode, wanted) in
            [("disable", DriverMode::Disable), ("verify-full", DriverMode::Require)]
        {
            let url = parse(&format!("postgres://h/d?sslmode={mode}")).unwrap();
            assert_eq!(url.config.get_ssl_mode(), wanted);
        }
    }

    #[test]
    fn options_say_the_same_as_a_url() {
        let options = PostgresOptions::new("db.local:5433")
            .user("ann")
            .password("p@ss:/?#%")
            .database("shop")
            .application_name("till")
            .owner("admin")
            .pool(4)
            .channel_binding(ChannelBinding::Require)
            .ssl_mode(SslMode::Require);
        assert!(!format!("{options:?}").contains("p@ss"), "{options:?}");
        let typed = with(options, &[]).unwrap();
        let url = "postgres://ann:p%40ss%3A%2F%3F%23%25@db.local:5433/shop?application_name=till&owner=admin&pool=4\
                   &channel_binding=require&sslmode=require";
        let parsed = parse(url).unwrap();
        assert_eq!(typed.config, parsed.config);
        assert_eq!(typed.config.get_password(), Some(&b"p@ss:/?#%"[..]));
        assert_eq!((typed.pool, &typed.shown), (parsed.pool, &parsed.shown));
        assert_eq!((typed.owner(), parsed.owner()), (Some("admin"), Some("admin")));
        // The environment provides what is not set.
        let variables = [("PGUSER", "bob"), ("PGPORT", "7777"), ("PGPASSWORD", "secret")];
        let typed = with(PostgresOptions::new("db"), &variables).unwrap();
        assert_eq!(typed.config, parse_with("postgres://db", &variables).unwrap().config);
        assert_eq!((&*typed.shown, typed.config.get_user()), ("db:7777/bob", Some("bob")));
        let typed = with(PostgresOptions::new("db").port(1), &variables).unwrap();
        assert_eq!(typed.shown, "db:1/bob");
        assert_eq!(with(PostgresOptions::new("/run/pg"), &[]).unwrap().shown, "/run/pg/root");
    }

    #[test]
    fn bad_option_is_named_with_its_value_and_a_remedy() {
        let new = || PostgresOptions::new("h").password("hunter2");
        for (options, said) in [
            (new().port(0), &["\"port=0\"", "1 to 65535"][..]),
            (new().pool(0), &["\"pool=0\"", "1 to 1000"]),
            (new().owner(""), &["\"owner=\"", "name a role"]),
            (PostgresOptions::new(""), &["\"\" is not a server", "HOST:PORT"]),
            (PostgresOptions::new("me@h"), &["\"me@h\" is not a server", "HOST:PORT"]),
            (PostgresOptions::new("a,b"), &["one server", "primary"]),
            (new().ca("/nowhere/ca.pem"), &["\"ca=/nowhere/ca.pem\""]),
            (new().client_certificate("/dev/null", "/nowhere/key.pem"), &["key=/nowhere/key.pem"]),
        ] {
            let shown = format!("{options:?}");
            let error = with(options, &[]).expect_err(&shown);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
            let line = error.one_line();
            assert!(said.iter().all(|said| line.contains(said)), "{shown}: {line}");
            assert!(!line.contains("hunter2") && !shown.contains("hunter2"), "{line}");
        }
    }

    #[test]
    fn bad_url_is_reported_without_its_password() {
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
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.one_line().contains("hunter2"), "{error}");
        }
    }
}
