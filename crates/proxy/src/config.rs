//! What the proxy can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fencepost_base::{Error, Result};

use crate::pattern::Pattern;
use crate::status::StatusList;

/// How a proxy is to run. Begin with [`Config::new`] and change what differs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The service behind it.
    pub upstream: Address,
    /// The directory of the marks.
    pub marks: PathBuf,
    /// Which lock guards which path; the first that fits.
    pub patterns: Vec<Pattern>,
    /// The header that names the lock where no pattern fits.
    pub name_header: Option<String>,
    /// Methods that do not write, besides GET, HEAD and OPTIONS.
    pub safe_methods: Vec<String>,
    /// The `Host` that the upstream sees; else what the client sent.
    pub upstream_host: Option<String>,
    /// The largest body of a request.
    pub max_body: u64,
    /// The largest answer to a request that carries a token: it is kept whole before it is passed on.
    pub max_answer: u64,
    /// How many bytes of bodies, of requests and of answers, may lie on disk at one time. They lie beside the marks.
    pub max_spool: u64,
    /// The largest head of a request.
    pub max_head: usize,
    /// The most connections of clients.
    pub max_connections: usize,
    /// How long a head may take.
    pub head_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long a connection may be idle, and a reader may read nothing.
    pub idle_timeout: Duration,
    /// How long a request may wait for its lock's turn.
    pub queue_timeout: Duration,
    /// How long the upstream may take, from the request's first byte to the answer's last.
    pub upstream_timeout: Duration,
    /// How long an idle connection to the upstream is kept. Shorter than the upstream's own limit: a request that
    /// meets the closing of its connection is in doubt, and holds its name back.
    pub upstream_idle: Duration,
    /// How long a name is held back after a request whose end is not known.
    pub settle: Duration,
    /// Responses that do not say what became of a write: its name is held back, as after a time-out. While this is not
    /// `none`, that is also true of a refusal (400 and above) that came before the whole request was sent.
    pub unknown_status: StatusList,
    /// How many threads serve.
    pub threads: usize,
    /// Certificate chain and key, in PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where metrics and health are shown.
    pub metrics: Option<SocketAddr>,
    /// Where each request leaves a line.
    pub access_log: AccessLog,
    /// Only for the control of a test: forward before the mark is on disk.
    #[doc(hidden)]
    pub hasty: bool,
}

/// Where each request leaves a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// On stderr.
    Stderr,
    /// At the end of a file.
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
            max_answer: 1 << 30,
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
            hasty: false,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.patterns.is_empty() && self.name_header.is_none() {
            return Err(Error::invalid(
                "which lock guards which path? give --name-pattern '/invoices/{id}', or \
                 --name-header Lock-Name",
            ));
        }
        let token =
            |word: &str| !word.is_empty() && word.bytes().all(crate::message::head::is_token);
        if let Some(bad) = self.name_header.as_ref().filter(|name| !token(name)) {
            return Err(Error::invalid(format!(
                "\"{}\" is no name of a header: give one such as Lock-Name",
                bad.escape_debug()
            )));
        }
        let method = |word: &str| token(word) && !word.bytes().any(|b| b.is_ascii_lowercase());
        if let Some(bad) = self.safe_methods.iter().find(|word| !method(word)) {
            return Err(Error::invalid(format!(
                "\"{}\" is no method: give one such as PROPFIND",
                bad.escape_debug()
            )));
        }
        if let Some(bad) = self
            .upstream_host
            .as_ref()
            .filter(|host| !host.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::invalid(format!("\"{}\" is no host", bad.escape_debug())));
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
                "\"{}\" is no upstream: {why}; write http://127.0.0.1:8081",
                text.escape_debug()
            ))
        };
        if text.starts_with("https://") {
            return Err(Error::invalid(format!(
                "\"{}\": TLS towards the upstream is not supported; put the proxy on the \
                 upstream's host, and write http://127.0.0.1:8081",
                text.escape_debug()
            )));
        }
        let rest = text.strip_prefix("http://").ok_or_else(|| bad("it is no http:// URL"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(bad("it has more than a host and a port"));
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| bad("its port is no number"))?)
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
    fn upstreams() {
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
            ("app:80", "no http://"),
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
