//! `postgres:` for the suite: each case has its own database behind a fault proxy; once directly, and once through a
//! PgBouncer in transaction mode.

use std::io;
use std::sync::Arc;

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Site, Unable};
use fencepost_testkit::{Mode, PgBouncer, Postgres, Proxy};
use parking_lot::Mutex;

/// A server, and the pooler in front of it.
struct Servers {
    bouncer: Option<PgBouncer>,
    server: Arc<Postgres>,
}

impl Servers {
    fn start(through: bool) -> io::Result<Arc<Self>> {
        let server = Arc::new(Postgres::builder().start()?);
        let bouncer = through.then(|| PgBouncer::start(&server, &[], 20)).transpose()?;
        Ok(Arc::new(Self { bouncer, server }))
    }
}

pub(crate) struct OneServer {
    pooled: bool,
    shared: Mutex<Option<Arc<Servers>>>,
}

impl OneServer {
    pub(crate) fn direct() -> Box<dyn Harness> {
        Box::new(Self { pooled: false, shared: Mutex::default() })
    }

    pub(crate) fn pooled() -> Box<dyn Harness> {
        Box::new(Self { pooled: true, shared: Mutex::default() })
    }

    fn shared(&self) -> io::Result<Arc<Servers>> {
        let mut slot = self.shared.lock();
        if let Some(servers) = &*slot {
            return Ok(Arc::clone(servers));
        }
        Ok(Arc::clone(slot.insert(Servers::start(self.pooled)?)))
    }
}

impl Harness for OneServer {
    fn name(&self) -> &'static str {
        if self.pooled { "postgres-pgbouncer" } else { "postgres" }
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { StoreSite::at(self.shared()?) })
    }

    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        Box::pin(async { StoreSite::at(Servers::start(self.pooled)?) })
    }
}

struct StoreSite {
    servers: Arc<Servers>,
    proxy: Proxy,
    url: String,
}

impl StoreSite {
    fn at(servers: Arc<Servers>) -> Result<Box<dyn Site>, Unable> {
        let database = servers.server.database()?;
        let to =
            servers.bouncer.as_ref().map_or(servers.server.address(), |bouncer| bouncer.address());
        let proxy = Proxy::to(to)?;
        let url = format!("postgres://postgres@{}/{}", proxy.address(), database.name());
        Ok(Box::new(Self { servers, proxy, url }))
    }

    fn set(&self, mode: Mode) -> BoxFuture<'_, Result<(), Unable>> {
        self.proxy.set_mode(mode);
        Box::pin(async { Ok(()) })
    }
}

fn done<'a>(outcome: io::Result<()>) -> BoxFuture<'a, Result<(), Unable>> {
    Box::pin(async { Ok(outcome?) })
}

impl Site for StoreSite {
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

    fn notifies(&self) -> Result<(), Unable> {
        match self.servers.bouncer {
            Some(_) => Err(Unable::Unsupported(
                "a pooler in transaction mode passes on no notifications".into(),
            )),
            None => Ok(()),
        }
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.server.restart())
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.server.stop())
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        done(self.servers.server.resume())
    }
}
