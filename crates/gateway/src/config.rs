//! The configuration of a gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fencepost_base::{Error, Result};

use crate::pattern::Pattern;
use crate::status::StatusList;

/// The configuration. Start with [`Config::new`] and change what differs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address that clients connect to.
    pub listen: SocketAddr,
    /// The service behind the gateway.
    pub upstream: Address,
    /// The directory of the marks.
    pub marks: PathBuf,
    /// Which lock guards which path. The first match wins.
    pub patterns: Vec<Pattern>,
    /// The header that names the lock where no pattern matches.
    pub name_header: Option<String>,
    /// Methods that do not write, besides GET, HEAD and OPTIONS.
    pub safe_methods: Vec<String>,
    /// The `Host` that the upstream sees; by default the client's.
    pub upstream_host: Option<String>,
    /// The largest request body, in bytes.
    pub max_body: u64,
    /// The largest response to a request with a token, in bytes: it is read completely before it is passed on.
    pub max_response: u64,
    /// The most bytes of request and response bodies on disk at one time. They are beside the marks.
    pub max_spool: u64,
    /// The largest head of a request, in bytes.
    pub max_head: usize,
    /// The most client connections.
    pub max_connections: usize,
    /// The timeout for reading a head.
    pub head_timeout: Duration,
    /// The timeout for reading a body.
    pub body_timeout: Duration,
    /// How long a connection may be idle, and a client may leave a response unread.
    pub idle_timeout: Duration,
    /// How long a request may wait for its lock name.
    pub queue_timeout: Duration,
    /// The timeout of the upstream, from the first byte of the request to the last byte of the response.
    pub upstream_timeout: Duration,
    /// How long an idle upstream connection is kept. Shorter than the upstream's own limit: if the upstream closes the
    /// connection as a request is sent, the outcome is unknown and the name is blocked.
    pub upstream_idle: Duration,
    /// How long a name is blocked after a write whose outcome is unknown.
    pub settle: Duration,
    /// Responses that leave the outcome of a write unknown: its name is blocked, as after a timeout. Unless this is `none`,
    /// so does a refusal (400 and above) that came before the whole request was sent.
    pub unknown_status: StatusList,
    /// How many threads serve.
    pub threads: usize,
    /// Certificate chain and key, in PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The address that serves metrics and health.
    pub metrics: Option<SocketAddr>,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// Only for the control of a test: forward a request before its mark is on disk.
    #[doc(hidden)]
    pub forward_before_mark: bool,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// To stderr.
    Stderr,
    /// Appended to a file.
    File(PathBuf),
}

/// The host and port of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new(listen: SocketAddr, upstream: Address, marks: PathBuf) -> Self {
        Self {
            listen,
            upstream,
            marks,
            patterns: Vec::new(),
            name_header: None,
            safe_methods: Vec::new(),
            upstream_host: None,
            max_body: 64 << 20,
            max_response: 1 << 30,
            max_spool: 1 << 30,
            max_head: 32 << 10,
            max_connections: 4096,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_mins(1),
            idle_timeout: Duration::from_mins(1),
            queue_timeout: Duration::from_secs(30),
            upstream_timeout: Duration::from_secs(30),
            upstream_idle: Duration::from_secs(4),
            settle: Duration::from_secs(30),
            unknown_status: StatusList::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            tls: None,
            metrics: None,
            access_log: AccessLog::Off,
            forward_before_mark: false,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.patterns.is_empty() && self.name_header.is_none() {
            return Err(Error::invalid(
                "nothing says which lock guards which path: give --name-pattern '/invoices/{id}', or \
                 --name-header Lock-Name",
            ));
        }
        let no = |bad: &str, what: &str| {
            Err(Error::invalid(format!("\"{}\" is not a {what}", bad.escape_debug())))
        };
        let token =
            |word: &str| !word.is_empty() && word.bytes().all(crate::message::head::is_token);
        if let Some(bad) = self.name_header.as_ref().filter(|name| !token(name)) {
            return no(bad, "header name: give one such as Lock-Name");
        }
        let method = |word: &str| token(word) && !word.bytes().any(|b| b.is_ascii_lowercase());
        if let Some(bad) = self.safe_methods.iter().find(|word| !method(word)) {
            return no(bad, "method: give one such as PROPFIND");
        }
        let graphic = |host: &str| host.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(bad) = self.upstream_host.as_ref().filter(|host| !graphic(host)) {
            return no(bad, "host: give a name or an address");
        }
        for (what, value, least, most) in [
            ("threads", self.threads, 1, 1024),
            ("connections", self.max_connections, 1, 1_000_000),
            ("bytes for a head", self.max_head, 1024, 1 << 20),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::invalid(format!("{value} {what}: give {least} to {most}")));
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "\"{}\" is not an upstream: {why}; write http://127.0.0.1:8081",
                text.escape_debug()
            ))
        };
        if text.starts_with("https://") {
            return Err(Error::invalid(format!(
                "\"{}\": TLS to the upstream is not supported; run the gateway on the \
                 upstream's host, and write http://127.0.0.1:8081",
                text.escape_debug()
            )));
        }
        let rest = text.strip_prefix("http://").ok_or_else(|| bad("it is not an http:// URL"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(bad("it has more than a host and a port"));
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| bad("its port is not a number"))?)
            }
            _ => (rest, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) || port == 0 {
            return Err(bad("it has no host"));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "http://[{host}]:{port}")
        } else {
            write!(f, "http://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_urls_are_parsed() {
        for (text, expected) in [
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("http://app/", "http://app:80"),
            ("http://[::1]:9", "http://[::1]:9"),
            ("http://[::1]", "http://[::1]:80"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), expected);
        }
        for (text, why) in [
            ("https://app", "TLS"),
            ("app:80", "not an http://"),
            ("http://", "no host"),
            ("http://app:x", "port"),
            ("http://app:0", "no host"),
            ("http://app/path", "more than"),
            ("http://user@app", "more than"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
