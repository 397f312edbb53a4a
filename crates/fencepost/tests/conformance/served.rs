//! Stores on servers that cases share, because the servers start slowly. Each case has its own part of the store and
//! its own fault proxies. A case that stops or restarts servers gets its own servers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Site, Unable};
use fencepost_testkit::{Cluster, Clustered, Mode, Proxy, Server};
use parking_lot::Mutex;

/// A kind of server on which the suite runs, alone and as three.
pub(crate) trait ServerKind: Clustered + Send + Sync + 'static {
    /// The first part of each test's name.
    const SINGLE: &'static str;
    const THREE: &'static str;

    fn start() -> io::Result<Self>;

    fn start_three() -> io::Result<Cluster<Self>>;

    /// The part of the store that belongs to this case.
    fn url(hosts: &str, case: usize) -> String;
}

/// The servers of one store.
enum Servers<S> {
    One(S),
    Three(Cluster<S>),
}

impl<S: ServerKind> Servers<S> {
    fn each(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![&**server],
            Self::Three(cluster) => cluster.members().iter().map(|member| &***member).collect(),
        }
    }

    /// Kills all of them, and starts them with their data.
    fn restart(&self) -> io::Result<()> {
        self.each().into_iter().try_for_each(Server::kill)?;
        self.each().into_iter().try_for_each(Server::launch)?;
        match self {
            Self::One(server) => server.wait_until_up(),
            Self::Three(cluster) => cluster.wait_until_healthy(),
        }
    }
}

type Start<S> = fn() -> io::Result<Servers<S>>;

pub(crate) struct Served<S> {
    name: &'static str,
    start: Start<S>,
    shared: Mutex<Option<Arc<Servers<S>>>>,
}

impl<S: ServerKind> Served<S> {
    pub(crate) fn single() -> Box<dyn Harness> {
        Self::boxed(S::SINGLE, || S::start().map(Servers::One))
    }

    pub(crate) fn three() -> Box<dyn Harness> {
        Self::boxed(S::THREE, || S::start_three().map(Servers::Three))
    }

    fn boxed(name: &'static str, start: Start<S>) -> Box<dyn Harness> {
        Box::new(Self { name, start, shared: Mutex::default() })
    }

    fn shared(&self) -> io::Result<Arc<Servers<S>>> {
        let mut slot = self.shared.lock();
        if let Some(servers) = &*slot {
            return Ok(Arc::clone(servers));
        }
        Ok(Arc::clone(slot.insert(Arc::new((self.start)()?))))
    }
}

impl<S: ServerKind> Harness for Served<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { StoreSite::at(self.shared()?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { StoreSite::at(Arc::new((self.start)()?)) })
    }
}

struct StoreSite<S> {
    servers: Arc<Servers<S>>,
    proxies: Vec<Proxy>,
    url: String,
}

impl<S: ServerKind> StoreSite<S> {
    fn at(servers: Arc<Servers<S>>) -> Result<Box<dyn Site>, Unable> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let proxies = servers.each().into_iter().map(|server| Proxy::to(server.address()));
        let proxies = proxies.collect::<io::Result<Vec<_>>>()?;
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let url = S::url(&hosts.join(","), NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Box::new(Self { servers, proxies, url }))
    }

    fn set(&self, mode: Mode) -> BoxFuture<'_, Result<(), Unable>> {
        for proxy in &self.proxies {
            proxy.set_mode(mode);
        }
        done(Ok(()))
    }
}

fn done<'a>(outcome: io::Result<()>) -> BoxFuture<'a, Result<(), Unable>> {
    Box::pin(async { Ok(outcome?) })
}

impl<S: ServerKind> Site for StoreSite<S> {
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
        done(self.servers.restart())
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.each().into_iter().try_for_each(Server::stop))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.each().into_iter().try_for_each(Server::resume))
    }
}
