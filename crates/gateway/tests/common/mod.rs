//! What the gateway's tests share: a service behind it, and a client.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod intermediary;
pub(crate) mod service;

use std::path::Path;
use std::time::Duration;

use fencepost_gateway::{Config, Gateway, Stopped};

pub(crate) use client::{Reply, call};
pub(crate) use service::Service;

/// A configuration for tests: any port, names are paths.
pub(crate) fn config(service: &Service, directory: &Path) -> Config {
    let upstream = format!("http://{}", service.address()).parse().unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), upstream, directory.to_owned());
    config.patterns = vec!["/{name*}".parse().unwrap()];
    config.threads = 2;
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    config
}

/// A gateway in front of its own service.
pub(crate) struct Fixture {
    // Before the directory: fields are dropped in this order.
    pub(crate) gateway: Gateway,
    pub(crate) service: Service,
    pub(crate) directory: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Changes the default configuration.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (service, directory) = (Service::start(), tempfile::tempdir().unwrap());
        let mut config = config(&service, directory.path());
        change(&mut config);
        Self { gateway: Gateway::start(&config).unwrap(), service, directory }
    }

    /// Through the gateway, with a token.
    pub(crate) fn call(&self, method: &str, path: &str, token: u64, body: &[u8]) -> Reply {
        let token = token.to_string();
        call(self.gateway.address(), method, path, &[("Fencing-Token", &token)], body)
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let admin = self.gateway.metrics_address().unwrap();
        let text = call(admin, "GET", "/metrics", &[], b"").text();
        let start = format!("fencepost_gateway_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.expect(name).parse().unwrap()
    }

    /// Through the gateway, without a token.
    pub(crate) fn bare(&self, method: &str, path: &str) -> Reply {
        call(self.gateway.address(), method, path, &[], b"")
    }
}

/// Stops a gateway.
pub(crate) fn stop(gateway: &Gateway, drain: Duration) -> Stopped {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(gateway.stop(drain)).unwrap()
}

/// The kernel's states of the connections from `local` to `remote`: 1 is established, 8 is closed by the other side. `None`
/// is any port.
pub(crate) fn tcp_states(local: Option<u16>, remote: Option<u16>) -> Vec<u8> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |text: &str| u16::from_str_radix(text.split_once(':').unwrap().1, 16).unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fits = |wanted: Option<u16>, text: &str| wanted.is_none_or(|wanted| wanted == port(text));
    lines
        .filter(|words| fits(local, words[1]) && fits(remote, words[2]))
        .map(|words| u8::from_str_radix(words[3], 16).unwrap())
        .collect()
}
