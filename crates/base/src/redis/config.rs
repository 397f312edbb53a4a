//! Which server a URL means, and how we use it.
//!
//! `redis://[USER][:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS, `redis+unix:///PATH?db=N` for a socket,
//! each with our options behind a `?`.

use std::fmt;
use std::time::Duration;

use fencepost_core::Ttl;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, TlsCertificates,
};

use crate::error::{Error, Result};
use crate::tls::{TlsFiles, Verify};
use crate::url::{Form, Host, Url, span};

/// One server, and the way to it.
#[derive(Clone)]
pub struct Address {
    pub client: Client,
    /// `host:port` or the socket's path: without secrets, for people.
    pub shown: String,
}

/// What a URL asks for behind its `?`.
#[derive(Clone)]
pub struct Options {
    pub prefix: String,
    /// How long a token is remembered beyond its time; how long a fence keeps a mark that nobody renews.
    pub retention: Option<Duration>,
    /// The key in whose slot a fence keeps its mark.
    pub beside: Option<String>,
    /// The longest lease on several servers.
    pub max_ttl: Ttl,
    /// Whether a server of several votes at once after a restart.
    pub restarted_vote: bool,
}

/// A `redis:` URL, parsed.
#[derive(Clone)]
pub struct RedisUrl {
    pub address: Address,
    pub options: Options,
}

/// A `redlock:` URL, parsed.
#[derive(Clone)]
pub struct RedlockUrl {
    pub addresses: Vec<Address>,
    pub options: Options,
}

const PORT: u16 = 6379;
const NO_HOST: &str = "Missing hostname - InvalidClientConfig";
const MAX_TTL: Duration = Duration::from_mins(1);
const RETENTION: Duration = Duration::from_hours(1);

impl RedisUrl {
    /// `scheme` is what stands before the first colon, `rest` what follows it.
    pub fn parse(scheme: &str, rest: &str) -> Result<Self> {
        Self::parse_with(scheme, rest, &["prefix", "retention", "ca", "cert", "key"])
    }

    /// The server whose data a fence protects.
    pub fn parse_resource(scheme: &str, rest: &str) -> Result<Self> {
        Self::parse_with(scheme, rest, &["beside", "retention", "ca", "cert", "key"])
    }

    fn parse_with(scheme: &str, rest: &str, known: &[&str]) -> Result<Self> {
        let (mut addresses, options) = parse(scheme, rest, known)?;
        match (addresses.pop(), addresses.is_empty()) {
            (Some(address), true) => Ok(Self { address, options }),
            _ => Err(Error::invalid(format!(
                "a {scheme}: URL names one server: for several that know nothing of each other use \
                 redlock://HOST,HOST,HOST; a cluster is not supported"
            ))),
        }
    }
}

impl RedlockUrl {
    pub fn parse(rest: &str) -> Result<Self> {
        let known = ["prefix", "retention", "max_ttl", "restarted", "tls", "ca", "cert", "key"];
        let (addresses, options) = parse("redlock", rest, &known)?;
        match addresses.len() {
            0 | 1 => Err(Error::invalid(
                "a redlock: URL names several servers, redlock://HOST,HOST,HOST: for one use \
                 redis://HOST",
            )),
            2..=31 => Ok(Self { addresses, options }),
            _ => Err(Error::invalid("a redlock: URL names more than 31 servers: give 3 or 5")),
        }
    }
}

/// The servers that a URL names, and what it asks for.
fn parse(scheme: &str, rest: &str, known: &[&str]) -> Result<(Vec<Address>, Options)> {
    let socket = matches!(scheme, "unix" | "redis+unix" | "valkey+unix");
    let form = Form {
        scheme,
        remedy: "write redis://HOST:PORT/DB, with :PASSWORD@ before the host if it needs one; signs like # and / in a \
                 password are written as %23 and %2F",
        port: Some(PORT),
        options: known,
        socket: socket.then_some(&["db", "user", "pass"]),
        lenient: true,
    };
    // A secret that is kept in a file often has a newline at its end.
    let rest = rest.trim_end();
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        return Err(Error::invalid(format!(
            "there is an @ behind the ? of the {scheme}: URL: in a password a ? is written as %3F"
        )));
    }
    let place = match place.strip_prefix("//") {
        Some(place) => place,
        None if socket || scheme == "redlock" => place,
        None => return Err(form.invalid(NO_HOST)),
    };
    // Here a `+` is a space, as in a form of a web page.
    let rest = format!("//{place}?{}", query.replace('+', "%20"));
    let url = form.parse(&rest)?;
    let options = Options::read(&url)?;
    let tls = TlsFiles::of(&url)?;
    let settings = settings(&url)?;
    let encrypted = match scheme {
        "rediss" | "valkeys" => true,
        "redis" | "valkey" => false,
        "redlock" => tls.is_some(),
        _ if socket => false,
        _ => return Err(form.invalid("not a URL")),
    };
    let certificates = tls.map(certificates).transpose()?.flatten();
    let mut addresses = Vec::new();
    for (place, shown) in places(&url, encrypted)? {
        let invalid = |error: redis::RedisError| form.invalid(&error.to_string());
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = place.into_connection_info().map_err(invalid)?;
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings.clone());
        let client = match &certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        };
        addresses.push(Address { client: client.map_err(invalid)?, shown });
    }
    Ok((addresses, options))
}

/// Who logs in, and to which database.
fn settings(url: &Url<'_>) -> Result<RedisConnectionInfo> {
    let (user, password, db) = match url.form.socket {
        Some(_) => (url.text("user"), url.text("pass"), url.text("db").unwrap_or_default()),
        None => (url.user.clone(), url.password.clone(), url.path.clone()),
    };
    let no_number = |_| url.form.invalid("Invalid database number - InvalidClientConfig");
    let db = match db.trim_matches('/') {
        "" => 0,
        number => number.parse().map_err(no_number)?,
    };
    let mut settings = RedisConnectionInfo::default()
        .set_db(db)
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("fencepost", env!("CARGO_PKG_VERSION"));
    if let Some(user) = user.filter(|user| !user.is_empty()) {
        settings = settings.set_username(user);
    }
    if let Some(password) = password.filter(|password| !password.is_empty()) {
        settings = settings.set_password(password);
    }
    Ok(settings)
}

/// Where the servers are, each as the driver wants it and as people read it.
fn places(url: &Url<'_>, encrypted: bool) -> Result<Vec<(ConnectionAddr, String)>> {
    let form = url.form;
    if form.socket.is_some() {
        if !url.path.starts_with('/') {
            return Err(form.invalid("Missing path - InvalidClientConfig"));
        }
        return Ok(vec![(ConnectionAddr::Unix(url.path.clone().into()), url.path.clone())]);
    }
    if url.hosts.is_empty() {
        let why = if url.user.is_none() { NO_HOST } else { "not a URL" };
        let scheme = if form.scheme == "redlock" { "redis" } else { form.scheme };
        return Err(Form { scheme, ..*form }.invalid(why));
    }
    if form.scheme == "redlock" {
        url.distinct_hosts(": its vote would count twice")?;
    }
    let place = |host: &Host| {
        let (name, port) = (host.name.clone(), host.port.unwrap_or(PORT));
        if name == "0.0.0.0" || name == "::" {
            return Err(form.invalid("Cannot connect to a wildcard address (0.0.0.0 or ::)"));
        }
        let place = if encrypted {
            ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(name, port)
        };
        Ok((place, host.to_string()))
    };
    url.hosts.iter().map(place).collect()
}

/// What the files say, as the driver wants it; nothing, if there are none.
fn certificates(files: TlsFiles) -> Result<Option<TlsCertificates>> {
    if files.ca.is_none() && files.cert.is_none() {
        return Ok(None);
    }
    // The driver looks at some of it only when it connects.
    files.client_config(Verify::SignerAndName)?;
    let client_tls = match (files.cert, files.key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        _ => None,
    };
    Ok(Some(TlsCertificates { client_tls, root_cert: files.ca }))
}

impl Options {
    /// How long a lock's token is remembered beyond its time.
    pub fn token_retention(&self) -> Duration {
        self.retention.unwrap_or(RETENTION)
    }

    fn read(url: &Url<'_>) -> Result<Self> {
        let range = Duration::from_secs(1)..=Duration::from_hours(365 * 24);
        let retention = |text: &str| span(text).filter(|span| range.contains(span));
        let max_ttl = |text: &str| Ttl::new(span(text)?).ok();
        let restarted_vote = |text: &str| match text {
            "vote" => Some(true),
            "wait" => Some(false),
            _ => None,
        };
        let remedy = "give restarted=wait or restarted=vote";
        let restarted_vote = url.get_as("restarted", restarted_vote, remedy)?.unwrap_or(false);
        let max_ttl = match url.get_as("max_ttl", max_ttl, "give 100ms to 24h, like 60s")? {
            Some(ttl) => ttl,
            None => Ttl::new(MAX_TTL)?,
        };
        Ok(Self {
            prefix: url.text("prefix").unwrap_or_default(),
            retention: url.get_as("retention", retention, "give 1s to 365d, like retention=2h")?,
            beside: url.text("beside"),
            max_ttl,
            restarted_vote,
        })
    }
}

impl Address {
    /// The database.
    pub fn db(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }
}

/// What answers at an address where no Redis was found, if it is something that people name by mistake.
pub async fn answers_like(address: &Address) -> Option<String> {
    let ConnectionAddr::Tcp(host, port) = address.client.get_connection_info().addr() else {
        return None;
    };
    let shown = &address.shown;
    let answer = first_bytes(host, *port, b"GET / HTTP/1.0\r\n\r\n").await;
    if answer.is_ok_and(|answer| answer.starts_with(b"HTTP/")) {
        return Some(format!(
            "{shown} answered like an HTTP server: the URL must name a Redis server"
        ));
    }
    let answer = first_bytes(host, *port, &client_hello()).await.ok()?;
    // An alert or a handshake, of any version.
    let tls = matches!(*answer, [0x15 | 0x16, 0x03, ..]);
    tls.then(|| format!("{shown} answered with TLS: write rediss:// (redlock: add tls=true)"))
}

/// The shortest TLS 1.2 greeting: every TLS server answers it, if only to say that it wants another.
fn client_hello() -> Vec<u8> {
    // A handshake record of 45 bytes, and in it a ClientHello of 41: the version; 32 bytes that need not be random for
    // this; no session, one cipher suite, no compression.
    let (start, end) = ([0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3], [0, 0, 2, 0xc0, 0x2f, 1, 0]);
    [&start[..], &[0; 32], &end[..]].concat()
}

async fn first_bytes(host: &str, port: u16, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let stream = tokio::net::TcpStream::connect((host, port)).await?;
    stream.writable().await?;
    // It is short, and the connection is new: all of it fits.
    stream.try_write(question)?;
    let mut answer = vec![0; 8];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            length => {
                answer.truncate(length?);
                return Ok(answer);
            }
        }
    }
}

// None of these show options: a socket's has its password among them.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis:{:?}", self.address)
    }
}

impl fmt::Debug for RedlockUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redlock:{:?}", self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn redis(url: &str) -> Result<RedisUrl> {
        let (scheme, rest) = url.split_once(':').unwrap();
        RedisUrl::parse(scheme, rest)
    }

    #[test]
    fn a_url_names_a_server() {
        let parsed =
            redis("redis://user:p%40ss@db.local:6380/3?prefix=app%3A&retention=2h").unwrap();
        assert_eq!(parsed.address.shown, "db.local:6380");
        let info = parsed.address.client.get_connection_info();
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(info.redis_settings().password(), Some("p@ss"));
        assert_eq!(parsed.options.retention, Some(Duration::from_hours(2)));
        assert_eq!(redis("redis://[::1]").unwrap().address.shown, "[::1]:6379");
        assert_eq!(redis("redis://h?prefix=a+b%2B\n").unwrap().options.prefix, "a b+");
        let socket = redis("redis+unix:///run/redis.sock?db=2&pass=a%26b&prefix=x").unwrap();
        assert_eq!(socket.address.shown, "/run/redis.sock");
        let info = socket.address.client.get_connection_info();
        assert_eq!(info.redis_settings().password(), Some("a&b"));
        assert_eq!(info.redis_settings().db(), 2);
    }

    #[test]
    fn several_servers_share_one_url() {
        let parsed = RedlockUrl::parse("//:secret@a,b:7000,c/1?max_ttl=10s").unwrap();
        let shown: Vec<_> = parsed.addresses.iter().map(|address| &*address.shown).collect();
        assert_eq!(shown, ["a:6379", "b:7000", "c:6379"]);
        for address in &parsed.addresses {
            let settings = address.client.get_connection_info().redis_settings();
            assert_eq!((settings.db(), settings.password()), (1, Some("secret")));
        }
        for bad in ["//a", "//a,a", "//a,a:6379,b", "", "//a,b?max_ttl=1", "//a,b?tls=yes"] {
            assert!(RedlockUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
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
            "redis://:hunter2@h#insecure",
            "redis://:hunter2@",
            "redis+unix://?db=1",
            "rediss://h?ca=/nowhere/ca.pem",
            "rediss://h?ca=/dev/null",
            "rediss://h?cert=/nowhere/c.pem",
        ] {
            let error = redis(bad).expect_err(bad);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
