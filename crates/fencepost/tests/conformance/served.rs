//! Stores on servers that cases share, since those start slowly. Each case has a part of the store of its own,
//! and proxies of its own that can be cut. A case that stops or restarts servers gets its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Site, Unable};
use fencepost_testkit::{Cluster, Clustered, Mode, Proxy, Server};
use parking_lot::Mutex;

/// A make of server that the suite runs on, alone and as three.
pub(crate) trait Make: Clustered + Send + Sync + 'static {
    /// The first part of each test's name.
    const ALONE: &'static str;
    const THREE: &'static str;

    fn start() -> io::Result<Self>;

    fn start_three() -> io::Result<Cluster<Self>>;

    /// The part of the store that the case of this number has.
    fn url(hosts: &str, case: usize) -> String;
}

/// The servers of one store.
enum Servers<S> {
    One(S),
    Three(Cluster<S>),
}

impl<S: Make> Servers<S> {
    fn each(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![&**server],
            Self::Three(cluster) => cluster.members().iter().map(|member| &***member).collect(),
        }
    }

    /// Ends all of them, and starts them on what they had kept.
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

impl<S: Make> Served<S> {
    pub(crate) fn alone() -> Box<dyn Harness> {
        Self::boxed(S::ALONE, || S::start().map(Servers::One))
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

impl<S: Make> Harness for Served<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(self.shared()?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(Arc::new((self.start)()?)) })
    }
}

struct Place<S> {
    servers: Arc<Servers<S>>,
    proxies: Vec<Proxy>,
    url: String,
}

impl<S: Make> Place<S> {
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

impl<S: Make> Site for Place<S> {
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
