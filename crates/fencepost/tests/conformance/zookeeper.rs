//! `zookeeper:` for the suite.

use fencepost::backend::BoxFuture;
use fencepost::conformance::{Harness, Site, Unable};
use fencepost::{Fencepost, Result};
use fencepost_testbed::{Mode, Proxy};

pub(crate) struct OneServer;

impl Harness for OneServer {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async {
            let address = std::env::var("ZK_DEV")
                .map_err(|_| Unable::Unsupported("no server".into()))?
                .parse()
                .map_err(|_| Unable::Unsupported("no server".into()))?;
            let proxy = Proxy::to(address)?;
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let chroot = format!(
                "c{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let url = format!("zookeeper://{}/{chroot}", proxy.address());
            Ok(Box::new(Place { proxies: vec![proxy], url }) as Box<dyn Site>)
        })
    }
}

struct Place {
    proxies: Vec<Proxy>,
    url: String,
}

impl Site for Place {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        Box::pin(Fencepost::connect(&self.url))
    }

    fn url(&self) -> Result<String, Unable> {
        Ok(self.url.clone())
    }

    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.proxies.iter().for_each(|proxy| proxy.set_mode(Mode::Silent));
        Box::pin(async { Ok(()) })
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.proxies.iter().for_each(|proxy| proxy.set_mode(Mode::Pass));
        Box::pin(async { Ok(()) })
    }
}
