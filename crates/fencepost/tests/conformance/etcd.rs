//! `etcd:` for the suite, one member and three. Cases share the servers: each has a prefix of its own, and
//! proxies of its own that can be cut. A case that stops or restarts servers gets its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fencepost::backend::BoxFuture;
use fencepost::conformance::{Harness, Site, Unable};
use fencepost::{Fencepost, Result};
use fencepost_testbed::{Etcd, EtcdCluster, Mode, Proxy};

#[derive(Default)]
pub(crate) struct Alone(Mutex<Option<Arc<Servers>>>);

impl Harness for Alone {
    fn name(&self) -> &'static str {
        "etcd"
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
        "etcd-cluster"
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
    Alone(Box<Etcd>),
    Three(EtcdCluster),
}

impl Servers {
    fn alone() -> std::io::Result<Self> {
        Ok(Self::Alone(Box::new(Etcd::builder().start()?)))
    }

    fn three() -> std::io::Result<Self> {
        Ok(Self::Three(EtcdCluster::start()?))
    }

    fn each(&self) -> Vec<&Etcd> {
        match self {
            Self::Alone(etcd) => vec![&**etcd],
            Self::Three(cluster) => cluster.members().iter().map(|member| &**member).collect(),
        }
    }

    fn restart(&self) -> std::io::Result<()> {
        match self {
            Self::Alone(etcd) => etcd.restart(),
            Self::Three(cluster) => {
                for member in cluster.members() {
                    member.kill()?;
                }
                for member in cluster.members() {
                    member.launch()?;
                }
                cluster.wait_until_healthy()
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
            each.iter().map(|etcd| Proxy::to(etcd.address())).collect::<Result<_, _>>()?;
        let hosts: Vec<SocketAddr> = proxies.iter().map(Proxy::address).collect();
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("etcd://{}?prefix=case-{number}/", hosts.join(","));
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
        act: impl Fn(&Etcd) -> std::io::Result<()>,
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
        self.each(Etcd::stop)
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.each(Etcd::resume)
    }
}
