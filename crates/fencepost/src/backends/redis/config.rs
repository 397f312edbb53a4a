//! Which server a URL means, and how we use it.
//!
//! `redis://[USER][:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS, `redis+unix:///PATH?db=N` for a socket,
//! each with our options behind a `?`.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use fencepost_core::Ttl;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    ProtocolVersion, TlsCertificates,
};

use super::layout::Prefix;
use crate::error::{Error, Result};
use crate::url::span;

/// One server, and the way to it.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) client: Client,
    /// `host:port` or the socket's path: without secrets, for people.
    pub(crate) shown: String,
}

/// What a URL asks for behind its `?`.
#[derive(Clone)]
pub(crate) struct Options {
    pub(in crate::backends) prefix: Prefix,
    /// How long a token is remembered beyond its time; how long a fence keeps a mark that nobody renews.
    pub(crate) retention: Option<Duration>,
    /// The key in whose slot a fence keeps its mark.
    pub(crate) beside: Option<String>,
    /// The longest lease on several servers.
    pub(in crate::backends) max_ttl: Ttl,
    /// Whether a server of several votes at once after a restart.
    pub(in crate::backends) restarted_vote: bool,
    tls: bool,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    /// What belongs to the address of a socket.
    socket: Vec<(String, String)>,
}

/// A `redis:` URL, parsed.
#[derive(Clone)]
pub(crate) struct RedisUrl {
    pub(crate) address: Address,
    pub(crate) options: Options,
}

/// A `redlock:` URL, parsed.
#[derive(Clone)]
pub(crate) struct RedlockUrl {
    pub(in crate::backends) addresses: Vec<Address>,
    pub(in crate::backends) options: Options,
}

const MAX_TTL: Duration = Duration::from_mins(1);
const RETENTION: Duration = Duration::from_hours(1);

impl RedisUrl {
    /// `scheme` is what stands before the first colon, `rest` what follows it.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self> {
        Self::parse_with(scheme, rest, &["prefix", "retention", "ca", "cert", "key"])
    }

    /// The server whose data a fence protects.
    pub(crate) fn parse_resource(scheme: &str, rest: &str) -> Result<Self> {
        Self::parse_with(scheme, rest, &["beside", "retention", "ca", "cert", "key"])
    }

    fn parse_with(scheme: &str, rest: &str, known: &[&str]) -> Result<Self> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = Options::parse(query, known, scheme)?;
        if place.contains(',') {
            return Err(Error::invalid(format!(
                "a {scheme}: URL names one server: for several that know nothing of each other use \
                 redlock://HOST,HOST,HOST; a cluster is not supported"
            )));
        }
        let address = Address::parse(scheme, place, &options)?;
        Ok(Self { address, options })
    }
}

impl RedlockUrl {
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let known =
            ["prefix", "retention", "max_ttl", "restarted", "tls", "ca", "cert", "key"].as_slice();
        let options = Options::parse(query, known, "redlock")?;
        let place = place.strip_prefix("//").unwrap_or(place);
        let (authority, db) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let scheme = if options.tls { "rediss" } else { "redis" };
        let mut addresses: Vec<Address> = Vec::new();
        for host in hosts.split(',') {
            let address = Address::parse(scheme, &format!("//{user}{host}/{db}"), &options)?;
            if addresses.iter().any(|other| other.shown == address.shown) {
                return Err(Error::invalid(format!(
                    "the redlock: URL names {} twice: its vote would count twice",
                    address.shown
                )));
            }
            addresses.push(address);
        }
        if addresses.len() < 2 {
            return Err(Error::invalid(
                "a redlock: URL names several servers, redlock://HOST,HOST,HOST: for one use \
                 redis://HOST",
            ));
        }
        if addresses.len() > 31 {
            return Err(Error::invalid("a redlock: URL names more than 31 servers: give 3 or 5"));
        }
        Ok(Self { addresses, options })
    }
}

impl Options {
    /// How long a lock's token is remembered beyond its time.
    pub(in crate::backends) fn token_retention(&self) -> Duration {
        self.retention.unwrap_or(RETENTION)
    }

    fn parse(query: &str, known: &[&str], scheme: &str) -> Result<Self> {
        let mut options = Self {
            prefix: Prefix::new(String::new())?,
            retention: None,
            beside: None,
            max_ttl: Ttl::new(MAX_TTL)?,
            restarted_vote: false,
            tls: false,
            ca: None,
            cert: None,
            key: None,
            socket: Vec::new(),
        };
        // A `?` in a password makes its rest look like options. Then nothing of it is repeated.
        let secret = query.contains('@') || query.contains("pass=");
        if query.contains('@') {
            return Err(Error::invalid(format!(
                "there is an @ behind the ? of the {scheme}: URL: in a password a ? is written as %3F"
            )));
        }
        // Any URL will do to have its query taken apart and decoded.
        let Some(url) = redis::parse_redis_url(&format!("redis://h?{query}")) else {
            return Err(Error::invalid(format!("the options of the {scheme}: URL do not parse")));
        };
        let socket = scheme.ends_with("unix");
        for (name, value) in url.query_pairs() {
            let (name, value) = (name.into_owned(), value.into_owned());
            if socket && ["db", "user", "pass"].contains(&name.as_str()) {
                options.socket.push((name, value));
                continue;
            }
            let bad = |remedy: &str| {
                let value = value.escape_debug();
                Error::invalid(format!("\"{name}={value}\" in the {scheme}: URL: {remedy}"))
            };
            match name.as_str() {
                _ if !known.contains(&name.as_str()) => {
                    let name = if secret { "one of them" } else { &*name };
                    return Err(Error::invalid(format!(
                        "\"{}\" is no option of a {scheme}: URL: there are {}",
                        name.escape_debug(),
                        known.join(", ")
                    )));
                }
                "prefix" => options.prefix = Prefix::new(value)?,
                "beside" => options.beside = Some(value),
                "retention" => {
                    let day = Duration::from_hours(24);
                    let span = span(&value)
                        .filter(|span| *span >= Duration::from_secs(1) && *span <= day * 365);
                    options.retention =
                        Some(span.ok_or_else(|| bad("give 1s to 365d, like retention=2h"))?);
                }
                "max_ttl" => {
                    let ttl = span(&value).and_then(|span| Ttl::new(span).ok());
                    options.max_ttl = ttl.ok_or_else(|| bad("give 100ms to 24h, like 60s"))?;
                }
                "restarted" => {
                    options.restarted_vote = match value.as_str() {
                        "vote" => true,
                        "wait" => false,
                        _ => return Err(bad("give restarted=wait or restarted=vote")),
                    };
                }
                "tls" => {
                    options.tls = match value.as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return Err(bad("give tls=true or tls=false")),
                    };
                }
                "ca" => options.ca = Some(value),
                "cert" => options.cert = Some(value),
                _ => options.key = Some(value),
            }
        }
        Ok(options)
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>> {
        let read = |option: &str, path: &String| {
            std::fs::read(Path::new(path)).map_err(|error| {
                Error::invalid(format!("can not read \"{path}\" ({option}= in the URL)"))
                    .because(error)
            })
        };
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read("cert", cert)?,
                client_key: read("key", key)?,
            }),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "cert= and key= in the URL belong together: give both or neither",
                ));
            }
        };
        let root_cert = self.ca.as_ref().map(|path| read("ca", path)).transpose()?;
        let any = client_tls.is_some() || root_cert.is_some();
        Ok(any.then_some(TlsCertificates { client_tls, root_cert }))
    }
}

impl Address {
    /// The database.
    pub(in crate::backends) fn db(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }

    fn parse(scheme: &str, place: &str, options: &Options) -> Result<Self> {
        let invalid = |why: &str| {
            Error::invalid(format!(
                "the {scheme}: URL does not parse ({why}): write redis://HOST:PORT/DB, with \
                 :PASSWORD@ before the host if it needs one; signs like # and / in a password are \
                 written as %23 and %2F"
            ))
        };
        let mut url = format!("{scheme}:{place}");
        for (number, (name, value)) in options.socket.iter().enumerate() {
            let sign = if number == 0 { '?' } else { '&' };
            url = format!("{url}{sign}{name}={}", encoded(value));
        }
        let parsed = redis::parse_redis_url(&url).ok_or_else(|| invalid("not a URL"))?;
        if parsed.fragment().is_some() {
            return Err(invalid("there is a # in it"));
        }
        let info = parsed.into_connection_info().map_err(|error| {
            // The detail may quote what was given; the category does not.
            invalid(&error.to_string().replace('\n', " "))
        })?;
        let tcp = TcpSettings::default().set_nodelay(true);
        let settings = info.redis_settings().clone();
        let settings = settings
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("fencepost", env!("CARGO_PKG_VERSION"));
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let shown = shown(&info);
        let client = match options.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let client = client.map_err(|error| invalid(&error.to_string()))?;
        Ok(Self { client, shown })
    }
}

/// What answers at an address where no Redis was found, if it is something that people name by mistake.
pub(super) async fn answers_like(address: &Address) -> Option<String> {
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

fn shown(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Unix(path) => path.display().to_string(),
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        }
        _ => "the server".into(),
    }
}

/// Percent-encodes what a query value can not hold as it is.
fn encoded(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let encode = |byte: u8| {
        if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    value.bytes().map(encode).collect()
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
            "redis://:hunter2@h?prefix=fencepost:",
            "redis://:hunter2@h#insecure",
            "redis://:hunter2@",
            "redis+unix://?db=1",
            "rediss://h?ca=/nowhere/ca.pem",
            "rediss://h?cert=/nowhere/c.pem",
        ] {
            let error = redis(bad).expect_err(bad);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
