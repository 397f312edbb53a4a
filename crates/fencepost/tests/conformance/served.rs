//! Stores on servers that cases share, since those start slowly. Each case has a part of the store of its own,
//! and proxies of its own that can be cut. A case that stops or restarts servers gets its own.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fencepost::backend::BoxFuture;
use fencepost::conformance::{Harness, Site, Unable};
use fencepost::{Fencepost, Result};
use fencepost_testbed::{Mode, Proxy};

/// The servers of one store.
pub(crate) trait Servers: Sized + Send + Sync + 'static {
    /// The first part of each test's name.
    const NAME: &'static str;

    fn start() -> io::Result<Self>;

    fn addresses(&self) -> Vec<SocketAddr>;

    /// The part of the store that the case of this number has.
    fn url(hosts: &str, case: usize) -> String;

    /// Ends all of them, and starts them on what they had kept.
    fn restart(&self) -> io::Result<()>;

    fn stop(&self) -> io::Result<()>;

    fn resume(&self) -> io::Result<()>;
}

pub(crate) struct Served<S>(Mutex<Option<Arc<S>>>);

impl<S: Servers> Served<S> {
    pub(crate) fn boxed() -> Box<dyn Harness> {
        Box::new(Self(Mutex::default()))
    }

    fn shared(&self) -> io::Result<Arc<S>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(servers) = &*slot {
            return Ok(Arc::clone(servers));
        }
        Ok(Arc::clone(slot.insert(Arc::new(S::start()?))))
    }
}

impl<S: Servers> Harness for Served<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(self.shared()?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { Place::at(Arc::new(S::start()?)) })
    }
}

struct Place<S> {
    servers: Arc<S>,
    proxies: Vec<Proxy>,
    url: String,
}

impl<S: Servers> Place<S> {
    fn at(servers: Arc<S>) -> Result<Box<dyn Site>, Unable> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let proxies: Vec<_> =
            servers.addresses().into_iter().map(Proxy::to).collect::<io::Result<_>>()?;
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

impl<S: Servers> Site for Place<S> {
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
        done(self.servers.stop())
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.resume())
    }
}

/// The verbs of one server, and of several that are restarted together.
macro_rules! verbs {
    (one) => {
        fn addresses(&self) -> Vec<std::net::SocketAddr> {
            vec![self.address()]
        }

        fn restart(&self) -> std::io::Result<()> {
            self.restart()
        }

        fn stop(&self) -> std::io::Result<()> {
            self.stop()
        }

        fn resume(&self) -> std::io::Result<()> {
            self.resume()
        }
    };
    (several) => {
        fn addresses(&self) -> Vec<std::net::SocketAddr> {
            self.members().iter().map(|member| member.address()).collect()
        }

        fn restart(&self) -> std::io::Result<()> {
            self.members().iter().try_for_each(|member| member.kill())?;
            self.members().iter().try_for_each(|member| member.launch())?;
            self.wait_until_healthy()
        }

        fn stop(&self) -> std::io::Result<()> {
            self.members().iter().try_for_each(|member| member.stop())
        }

        fn resume(&self) -> std::io::Result<()> {
            self.members().iter().try_for_each(|member| member.resume())
        }
    };
}
pub(crate) use verbs;
