//! What only several servers can do to us: die, hang and forget one by one, and disagree. Against real ones.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod breaks;
mod contention;
mod elections;
mod errors;
mod mended;
mod outages;
mod reordered;
mod restarts;
mod strangers;
mod undo;

use fencepost_testkit::{Proxy, Redis, RedisBuilder, has};

/// One server, with nothing on disk, behind a line that can be cut.
struct Node {
    server: Redis,
    proxy: Proxy,
    /// As errors name it.
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

    /// All of them, each through its line. They are fresh, so they vote only with `restarted=vote`.
    fn url(&self, options: &str) -> String {
        format!("redlock://{}?{options}", self.hosts())
    }

    fn hosts(&self) -> String {
        self.0.iter().map(|node| node.shown.as_str()).collect::<Vec<_>>().join(",")
    }

    /// On how many nodes the key is.
    fn with(&self, key: &str) -> usize {
        self.0.iter().filter(|node| has(&node.server, key)).count()
    }
}
