//! The URLs of a Redis server, and what its options mean.
//!
//! `redis://[USER][:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS, `redis+unix:///PATH?db=N` for a socket,
//! each with our options behind a `?`.

use std::time::Duration;

use fencepost_core::Ttl;
use redis::{ProtocolVersion, RedisConnectionInfo};

use super::address::Address;
use super::options::{Common, MAX_TTL, RedisOptions, RedlockOptions};
use crate::error::{Error, Result};
use crate::tls::TlsOptions;
use crate::url::{Form, Host, Secret, Url, checked_hosts, invalid_option, span, span_text};

const NO_HOST: &str = "Missing hostname - InvalidClientConfig";
const RETENTION: Duration = Duration::from_hours(1);
const RETENTION_REMEDY: &str = "give 1s to 365d, like retention=2h";
const MAX_TTL_REMEDY: &str = "give 100ms to 24h, like 60s";

impl RedisOptions {
    /// Parses a URL: `scheme` is before its first colon, `rest` after it.
    #[doc(hidden)]
    pub fn parse(scheme: &str, rest: &str) -> Result<Self> {
        let form = form(scheme, &["prefix", "retention", "ca", "cert", "key"]);
        Self::of(parse(&form, rest)?)
    }

    fn of(mut url: Url<'_>) -> Result<Self> {
        let (common, scheme) = (Common::of(&url)?, url.form.scheme);
        match (url.hosts.pop(), url.hosts.is_empty()) {
            (Some(host), true) => Ok(Self { host, common }),
            _ => Err(Error::invalid(format!(
                "a {scheme}: URL names one server: for several independent servers use \
                 redlock://HOST,HOST,HOST; a cluster is not supported"
            ))),
        }
    }
}

impl RedlockOptions {
    /// Parses what follows `redlock:` in a URL.
    #[doc(hidden)]
    pub fn parse(rest: &str) -> Result<Self> {
        let known = ["prefix", "retention", "max_ttl", "restarted", "tls", "ca", "cert", "key"];
        let form = form("redlock", &known);
        let url = parse(&form, rest)?;
        let vote = |text: &str| match text {
            "vote" => Some(true),
            "wait" => Some(false),
            _ => None,
        };
        let vote = url.get_as("restarted", vote, "give restarted=wait or restarted=vote")?;
        let max_ttl = url.get_as("max_ttl", span, MAX_TTL_REMEDY)?;
        Ok(Self {
            common: Common::of(&url)?,
            hosts: url.hosts,
            max_ttl: max_ttl.unwrap_or(MAX_TTL),
            restarted_vote: vote.unwrap_or(false),
        })
    }
}

/// The options of one server, checked.
pub struct RedisConfig {
    pub address: Address,
    pub prefix: String,
    /// How long a token is remembered after its lock.
    pub retention: Duration,
}

/// The options of several servers, checked.
pub struct RedlockConfig {
    pub addresses: Vec<Address>,
    pub prefix: String,
    /// How long a token is remembered after its lock.
    pub retention: Duration,
    /// The longest lease.
    pub max_ttl: Ttl,
    /// Whether a server votes right after its restart.
    pub restarted_vote: bool,
}

/// The server whose data a fence protects, and the options of its marks.
pub struct Resource {
    pub address: Address,
    /// The key whose hash slot holds a mark.
    pub beside: Option<String>,
    /// How long a mark is kept that is not renewed.
    pub retention: Option<Duration>,
}

impl RedisConfig {
    pub fn new(options: RedisOptions) -> Result<Self> {
        let address = options.common.address(&options.host)?;
        let Common { prefix, retention, .. } = options.common;
        let retention = checked_retention("redis", retention)?.unwrap_or(RETENTION);
        Ok(Self { address, prefix, retention })
    }
}

impl RedlockConfig {
    pub fn new(options: RedlockOptions) -> Result<Self> {
        let RedlockOptions { hosts, common, max_ttl, restarted_vote } = options;
        match hosts.len() {
            0 | 1 => {
                return Err(Error::invalid(
                    "a redlock: store has several servers, redlock://HOST,HOST,HOST: for one use \
                     redis://HOST",
                ));
            }
            2..=31 => {}
            _ => {
                return Err(Error::invalid("a redlock: store has at most 31 servers: give 3 or 5"));
            }
        }
        let remark = ": its vote would count twice";
        let hosts = checked_hosts("redlock", &hosts, common.port, true, remark)?;
        let addresses = Address::all(&hosts, &common.tls, &common.settings())?;
        let shown = span_text(max_ttl);
        let max_ttl = Ttl::new(max_ttl)
            .map_err(|_| invalid_option("redlock", "max_ttl", shown, MAX_TTL_REMEDY))?;
        let retention = checked_retention("redlock", common.retention)?.unwrap_or(RETENTION);
        Ok(Self { addresses, prefix: common.prefix, retention, max_ttl, restarted_vote })
    }
}

impl Resource {
    /// Parses a URL: `scheme` is before its first colon, `rest` after it.
    pub fn parse(scheme: &str, rest: &str) -> Result<Self> {
        let form = form(scheme, &["beside", "retention", "ca", "cert", "key"]);
        let url = parse(&form, rest)?;
        let beside = url.text("beside");
        let RedisOptions { host, common } = RedisOptions::of(url)?;
        let retention = checked_retention("redis", common.retention)?;
        Ok(Self { address: common.address(&host)?, beside, retention })
    }
}

impl Common {
    fn of(url: &Url<'_>) -> Result<Self> {
        let form = url.form;
        let (user, password, db) = match form.socket {
            Some(_) => (url.text("user"), url.text("pass").map(Secret), url.text("db")),
            None => (url.user.clone(), url.password.clone(), Some(url.path.clone())),
        };
        let no_number = |_| form.invalid("Invalid database number - InvalidClientConfig");
        let database = match db.unwrap_or_default().trim_matches('/') {
            "" => 0,
            number => number.parse().map_err(no_number)?,
        };
        let mut tls = TlsOptions::of(url)?;
        match form.scheme {
            "rediss" | "valkeys" => tls.enabled = Some(true),
            "redis" | "valkey" => tls.enabled = Some(false),
            "redlock" => {}
            _ if form.socket.is_some() => {}
            _ => return Err(form.invalid("not a URL")),
        }
        let prefix = url.text("prefix").unwrap_or_default();
        let retention = url.get_as("retention", span, RETENTION_REMEDY)?;
        Ok(Self { user, password, database, prefix, retention, tls, ..Self::default() })
    }

    /// The login and the database.
    fn settings(&self) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(self.database))
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("fencepost", env!("CARGO_PKG_VERSION"));
        if let Some(user) = self.user.as_ref().filter(|user| !user.is_empty()) {
            settings = settings.set_username(user);
        }
        if let Some(Secret(password)) = self.password.as_ref().filter(|secret| !secret.0.is_empty())
        {
            settings = settings.set_password(password);
        }
        settings
    }

    /// The address of the only server.
    fn address(&self, host: &Host) -> Result<Address> {
        let hosts = checked_hosts("redis", std::slice::from_ref(host), self.port, true, "")?;
        let mut addresses = Address::all(&hosts, &self.tls, &self.settings())?;
        addresses.pop().ok_or_else(|| Error::invalid("the redis: store has no server"))
    }
}

fn checked_retention(store: &str, retention: Option<Duration>) -> Result<Option<Duration>> {
    let range = Duration::from_secs(1)..=Duration::from_hours(365 * 24);
    match retention.filter(|retention| !range.contains(retention)) {
        Some(bad) => Err(invalid_option(store, "retention", span_text(bad), RETENTION_REMEDY)),
        None => Ok(retention),
    }
}

fn form<'a>(scheme: &'a str, known: &'a [&'a str]) -> Form<'a> {
    let socket = matches!(scheme, "unix" | "redis+unix" | "valkey+unix");
    Form {
        scheme,
        remedy: "write redis://HOST:PORT/DB, with :PASSWORD@ before the host if it needs one; signs like # and / in a \
                 password are written as %23 and %2F",
        options: known,
        socket: socket.then_some(&["db", "user", "pass"]),
        lenient: true,
    }
}

/// The parts of a URL. A socket is the only host of its own.
fn parse<'a>(form: &'a Form<'a>, rest: &str) -> Result<Url<'a>> {
    let scheme = form.scheme;
    // A secret in a file often ends with a newline.
    let rest = rest.trim_end();
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        return Err(Error::invalid(format!(
            "there is an @ after the ? of the {scheme}: URL: in a password write a ? as %3F"
        )));
    }
    let location = match location.strip_prefix("//") {
        Some(location) => location,
        None if form.socket.is_some() || scheme == "redlock" => location,
        None => return Err(form.invalid(NO_HOST)),
    };
    // Here a `+` is a space, as in a web form.
    let rest = format!("//{location}?{}", query.replace('+', "%20"));
    let mut url = form.parse(&rest)?;
    if form.socket.is_some() {
        if !url.path.starts_with('/') {
            return Err(form.invalid("Missing path - InvalidClientConfig"));
        }
        url.hosts.push(Host::new(&url.path));
    } else if url.hosts.is_empty() {
        let why = if url.user.is_none() { NO_HOST } else { "not a URL" };
        let scheme = if scheme == "redlock" { "redis" } else { scheme };
        return Err(Form { scheme, ..*form }.invalid(why));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn redis(url: &str) -> Result<RedisConfig> {
        let (scheme, rest) = url.split_once(':').unwrap();
        RedisConfig::new(RedisOptions::parse(scheme, rest)?)
    }

    fn redlock(rest: &str) -> Result<RedlockConfig> {
        RedlockConfig::new(RedlockOptions::parse(rest)?)
    }

    fn settings(address: &Address) -> &RedisConnectionInfo {
        address.client.get_connection_info().redis_settings()
    }

    #[test]
    fn url_names_one_server() {
        let parsed =
            redis("redis://user:p%40ss@db.local:6380/3?prefix=app%3A&retention=2h").unwrap();
        assert_eq!(parsed.address.shown, "db.local:6380");
        assert_eq!(parsed.address.db(), 3);
        assert_eq!(settings(&parsed.address).password(), Some("p@ss"));
        assert_eq!(parsed.retention, Duration::from_hours(2));
        assert_eq!(redis("redis://[::1]").unwrap().address.shown, "[::1]:6379");
        assert_eq!(redis("redis://h?prefix=a+b%2B\n").unwrap().prefix, "a b+");
        let socket = redis("redis+unix:///run/redis.sock?db=2&pass=a%26b&prefix=x").unwrap();
        assert_eq!(socket.address.shown, "/run/redis.sock");
        assert_eq!(settings(&socket.address).password(), Some("a&b"));
        assert_eq!(socket.address.db(), 2);
    }

    #[test]
    fn options_say_the_same_as_a_url() {
        let options = RedisOptions::new("db.local")
            .port(6380)
            .user("user")
            .password("p@ss:/?#%")
            .database(3)
            .prefix("app:")
            .retention(Duration::from_hours(2));
        assert!(!format!("{options:?}").contains("p@ss"), "{options:?}");
        let typed = RedisConfig::new(options).unwrap();
        let url = "redis://user:p%40ss%3A%2F%3F%23%25@db.local:6380/3?prefix=app%3A&retention=2h";
        let parsed = redis(url).unwrap();
        assert_eq!(typed.address.shown, parsed.address.shown);
        assert_eq!((&typed.prefix, typed.retention), (&parsed.prefix, parsed.retention));
        let (one, other) = (settings(&typed.address), settings(&parsed.address));
        assert_eq!((one.db(), one.username()), (other.db(), other.username()));
        assert_eq!((one.password(), other.password()), (Some("p@ss:/?#%"), Some("p@ss:/?#%")));
        let socket = RedisConfig::new(RedisOptions::new("/run/redis.sock").password("a&b"));
        assert_eq!(socket.unwrap().address.shown, "/run/redis.sock");
        let encrypted = RedisConfig::new(RedisOptions::new("h").tls(true)).unwrap();
        let (typed, parsed) = (encrypted.address, redis("rediss://h").unwrap().address);
        let location = |address: &Address| address.client.get_connection_info().addr().clone();
        assert_eq!(location(&typed), location(&parsed));
    }

    #[test]
    fn bad_option_is_named_with_its_value_and_a_remedy() {
        let new = || RedisOptions::new("h").password("hunter2");
        let year = Duration::from_hours(366 * 24);
        for (options, said) in [
            (new().port(0), &["\"port=0\"", "1 to 65535"][..]),
            (RedisOptions::new(""), &["\"\" is not a server", "HOST:PORT"]),
            (RedisOptions::new("a,b"), &["\"a,b\" is not a server", "HOST:PORT"]),
            (RedisOptions::new("redis://h"), &["\"redis://h\" is not a server", "HOST:PORT"]),
            (RedisOptions::new("0.0.0.0"), &["0.0.0.0", "name the server"]),
            (new().retention(Duration::ZERO), &["\"retention=0ns\"", "1s to 365d"]),
            (new().retention(year), &["retention", "1s to 365d"]),
            (new().ca("/nowhere/ca.pem"), &["\"ca=/nowhere/ca.pem\""]),
            (new().tls(false).ca("/dev/null"), &["TLS is off", "ca"]),
            (RedisOptions::new("/run/redis.sock").tls(true), &["/run/redis.sock", "leave out"]),
        ] {
            let shown = format!("{options:?}");
            let error = RedisConfig::new(options).err().expect(&shown);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
            let line = error.one_line();
            assert!(said.iter().all(|said| line.contains(said)), "{shown}: {line}");
            assert!(!line.contains("hunter2") && !shown.contains("hunter2"), "{line}");
        }
        let three = || RedlockOptions::new(["a", "b", "c"]);
        for (options, said) in [
            (three().max_ttl(Duration::ZERO), "\"max_ttl=0ns\""),
            (RedlockOptions::new(["a"]), "several"),
            (RedlockOptions::new(["a", "b", "a:6379"]), "a:6379 twice"),
        ] {
            let error = RedlockConfig::new(options).err().expect(said);
            assert!(error.one_line().contains(said), "{error}");
        }
    }

    #[test]
    fn redlock_url_names_several_servers() {
        let parsed = redlock("//:secret@a,b:7000,c/1?max_ttl=10s").unwrap();
        let shown: Vec<_> = parsed.addresses.iter().map(|address| &*address.shown).collect();
        assert_eq!(shown, ["a:6379", "b:7000", "c:6379"]);
        for address in &parsed.addresses {
            let settings = settings(address);
            assert_eq!((settings.db(), settings.password()), (1, Some("secret")));
        }
        for bad in ["//a", "//a,a", "//a,a:6379,b", "", "//a,b?max_ttl=1", "//a,b?tls=yes"] {
            assert!(redlock(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_url_is_reported_without_its_password() {
        for bad in [
            "redis://:hunter2@h/x",
            "redis://:hunter2@h:99999",
            "redis://:hunter2@h,i",
            "redis://:hunter2@h?frob=1",
            "redis://:a?hunter2@h",
            "redis://:a?hunter2=x@h",
            "redis://:a?retention=hunter2@h",
            "redis://:a?prefix=fencepost:hunter2@h",
            "redis+unix:///x?pass=a&hunter2=2",
            "redis://:hunter2@h?retention=5",
            "redis://:hunter2@h?retention=500ms",
            "redis://:hunter2@h#insecure",
            "redis://:hunter2@",
            "redis+unix://?db=1",
            "redis+unix:///x?ca=/dev/null",
            "redis://h?ca=/dev/null",
            "rediss://h?ca=/nowhere/ca.pem",
            "rediss://h?ca=/dev/null",
            "rediss://h?cert=/nowhere/c.pem",
        ] {
            let error = redis(bad).err().expect(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.one_line().contains("hunter2"), "{error}");
        }
    }
}
