//! `redis:` and `redlock:` for the suite: each case has its own synced servers behind fault proxies.

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Site, Unable};
use fencepost_testkit::{Mode, Persistence, Proxy, Redis};

pub(crate) struct OneServer;

impl Harness for OneServer {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async {
            let nodes = vec![Node::start()?];
            let url = format!("redis://{}", nodes[0].proxy.address());
            Ok(Box::new(StoreSite { nodes, url }) as Box<dyn Site>)
        })
    }
}

pub(crate) struct FiveServers;

impl Harness for FiveServers {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async {
            let nodes: Vec<_> = (0..5).map(|_| Node::start()).collect::<Result<_, _>>()?;
            let hosts: Vec<_> = nodes.iter().map(|node| node.proxy.address().to_string()).collect();
            // They are new and synced, so they may vote at once and after a restart.
            let url = format!("redlock://{}?restarted=vote", hosts.join(","));
            Ok(Box::new(StoreSite { nodes, url }) as Box<dyn Site>)
        })
    }
}

struct Node {
    proxy: Proxy,
    server: Redis,
}

impl Node {
    fn start() -> Result<Self, Unable> {
        let server = Redis::builder().persist(Persistence::Always).start()?;
        Ok(Self { proxy: Proxy::to(server.address())?, server })
    }
}

struct StoreSite {
    nodes: Vec<Node>,
    url: String,
}

impl StoreSite {
    fn each(
        &self,
        act: impl Fn(&Node) -> std::io::Result<()>,
    ) -> BoxFuture<'_, Result<(), Unable>> {
        let done: std::io::Result<()> = self.nodes.iter().try_for_each(act);
        Box::pin(async { Ok(done?) })
    }
}

impl Site for StoreSite {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        Box::pin(Fencepost::connect(&self.url))
    }

    fn url(&self) -> Result<String, Unable> {
        Ok(self.url.clone())
    }

    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(|node| {
            node.proxy.set_mode(Mode::Silent);
            Ok(())
        })
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(|node| {
            node.proxy.set_mode(Mode::Pass);
            Ok(())
        })
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(|node| node.server.restart())
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(|node| node.server.stop())
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(|node| node.server.resume())
    }
}
