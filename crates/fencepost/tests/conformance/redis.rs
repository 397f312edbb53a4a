//! `redis:` for the suite: a server of its own for each case, synced, behind a proxy that can be cut.

use fencepost::backend::BoxFuture;
use fencepost::conformance::{Harness, Site, Unable};
use fencepost::{Fencepost, Result};
use fencepost_testbed::{Mode, Persistence, Proxy, Redis};

pub(crate) struct OneServer;

impl Harness for OneServer {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async {
            let server = Redis::builder().persist(Persistence::Always).start()?;
            let proxy = Proxy::to(server.address())?;
            Ok(Box::new(Place { proxy, server }) as Box<dyn Site>)
        })
    }
}

struct Place {
    proxy: Proxy,
    server: Redis,
}

impl Site for Place {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        Box::pin(
            async move { Fencepost::connect(&format!("redis://{}", self.proxy.address())).await },
        )
    }

    fn url(&self) -> Result<String, Unable> {
        Ok(format!("redis://{}", self.proxy.address()))
    }

    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.proxy.set_mode(Mode::Silent);
        Box::pin(async { Ok(()) })
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.proxy.set_mode(Mode::Pass);
        Box::pin(async { Ok(()) })
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async { Ok(self.server.restart()?) })
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async { Ok(self.server.stop()?) })
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        Box::pin(async { Ok(self.server.resume()?) })
    }
}
