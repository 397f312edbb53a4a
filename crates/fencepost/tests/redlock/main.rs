//! Faults of several servers: they die, hang and lose data one by one, and disagree. Against real ones.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod breaks;
mod contention;
mod elections;
mod errors;
mod layout;
mod outages;
mod regressions;
mod reordered_requests;
mod restarts;
mod third_party_clients;
mod undo;

use fencepost_testkit::{Proxy, Redis, RedisBuilder, has};

/// One server without persistence, behind a fault proxy.
struct Node {
    server: Redis,
    proxy: Proxy,
    /// Its address in errors.
    shown: String,
}

impl Node {
    fn start(server: &RedisBuilder) -> Self {
        let server = server.clone().start().unwrap();
        let proxy = Proxy::to(server.address()).unwrap();
        Self { shown: proxy.address().to_string(), proxy, server }
    }
}

struct Nodes(Vec<Node>);

impl Nodes {
    fn start(count: usize) -> Self {
        Self((0..count).map(|_| Node::start(&Redis::builder())).collect())
    }

    /// All nodes, each through its proxy. They are new, so they vote only with `restarted=vote`.
    fn url(&self, options: &str) -> String {
        format!("redlock://{}?{options}", self.hosts())
    }

    fn hosts(&self) -> String {
        self.0.iter().map(|node| node.shown.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The number of nodes that have the key.
    fn with(&self, key: &str) -> usize {
        self.0.iter().filter(|node| has(&node.server, key)).count()
    }
}
