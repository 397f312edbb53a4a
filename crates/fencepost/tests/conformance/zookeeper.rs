//! `zookeeper:` for the suite, one server and three. Java starts slowly, so cases share the servers: each has
//! a chroot of its own, and proxies of its own that can be cut. A case that stops or restarts servers gets
//! its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fencepost::backend::BoxFuture;
use fencepost::conformance::{Harness, Site, Unable};
use fencepost::{Fencepost, Result};
use fencepost_testbed::{Mode, Proxy, ZooKeeper, ZooKeeperBuilder, ZooKeeperEnsemble};

#[derive(Default)]
pub(crate) struct Alone(Mutex<Option<Arc<Servers>>>);

impl Harness for Alone {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(shared(&self.0, Servers::alone)?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(Arc::new(Servers::alone()?)) })
    }
}

#[derive(Default)]
pub(crate) struct Three(Mutex<Option<Arc<Servers>>>);

impl Harness for Three {
    fn name(&self) -> &'static str {
        "zookeeper-ensemble"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(shared(&self.0, Servers::three)?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(Arc::new(Servers::three()?)) })
    }
}

fn shared(
    slot: &Mutex<Option<Arc<Servers>>>,
    start: fn() -> std::io::Result<Servers>,
) -> Result<Arc<Servers>, Unable> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.is_none() {
        *slot = Some(Arc::new(start()?));
    }
    slot.clone().ok_or_else(|| Unable::Failed("no servers".into()))
}

enum Servers {
    Alone(Box<ZooKeeper>),
    Three(ZooKeeperEnsemble),
}

impl Servers {
    /// Short ticks for short leases, and sessions as long as the longest.
    fn builder() -> ZooKeeperBuilder {
        ZooKeeper::builder().tick_time(200).max_session_timeout(36 * 60 * 60 * 1000)
    }

    fn alone() -> std::io::Result<Self> {
        Ok(Self::Alone(Box::new(Self::builder().start()?)))
    }

    fn three() -> std::io::Result<Self> {
        Ok(Self::Three(ZooKeeperEnsemble::with(&Self::builder())?))
    }

    fn each(&self) -> Vec<&ZooKeeper> {
        match self {
            Self::Alone(server) => vec![&**server],
            Self::Three(ensemble) => ensemble.members().iter().map(|member| &**member).collect(),
        }
    }

    fn restart(&self) -> std::io::Result<()> {
        match self {
            Self::Alone(server) => server.restart(),
            Self::Three(ensemble) => {
                for member in ensemble.members() {
                    member.kill()?;
                }
                for member in ensemble.members() {
                    member.launch()?;
                }
                ensemble.wait_until_healthy()
            }
        }
    }
}

struct Place {
    servers: Arc<Servers>,
    proxies: Vec<Proxy>,
    url: String,
}

impl Place {
    fn at(servers: Arc<Servers>) -> Result<Box<dyn Site>, Unable> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let each = servers.each();
        let proxies: Vec<_> =
            each.iter().map(|server| Proxy::to(server.address())).collect::<Result<_, _>>()?;
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("zookeeper://{}/case/{number}", hosts.join(","));
        Ok(Box::new(Self { servers, proxies, url }))
    }

    fn set(&self, mode: Mode) -> BoxFuture<'_, Result<(), Unable>> {
        for proxy in &self.proxies {
            proxy.set_mode(mode);
        }
        Box::pin(async { Ok(()) })
    }

    fn each(
        &self,
        act: impl Fn(&ZooKeeper) -> std::io::Result<()>,
    ) -> BoxFuture<'_, Result<(), Unable>> {
        let done = self.servers.each().into_iter().try_for_each(act);
        Box::pin(async { Ok(done?) })
    }
}

impl Site for Place {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        Box::pin(Fencepost::connect(&self.url))
    }

    fn url(&self) -> Result<String, Unable> {
        Ok(self.url.clone())
    }

    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.set(Mode::Silent)
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.set(Mode::Pass)
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        let done = self.servers.restart();
        Box::pin(async { Ok(done?) })
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(ZooKeeper::stop)
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(ZooKeeper::resume)
    }
}
