//! `memory:` for the suite. Other processes cannot reach it, and a decorator cuts its connection.

use std::sync::Arc;

use fencepost::backend::BoxFuture;
use fencepost::backends::memory::Memory;
use fencepost::clock::BootClock;
use fencepost::{Fencepost, Result};
use fencepost_conformance::{Harness, Line, Severable, Site, Unable, no};

pub(crate) struct InMemory;

impl Harness for InMemory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        let store = Severable::new(Memory::new(Arc::new(BootClock)).into());
        Box::pin(async move { Ok(Box::new(MemorySite(store)) as Box<dyn Site>) })
    }
}

struct MemorySite(Arc<Severable>);

impl Site for MemorySite {
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
        let store = self.0.store();
        Box::pin(Fencepost::with_backend(Arc::new(BootClock), move |_| async move { Ok(store) }))
    }

    fn url(&self) -> Result<String, Unable> {
        Err(Unable::Unsupported("memory: cannot be reached from another process".into()))
    }

    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.0.set(Line::Silent);
        Box::pin(async { Ok(()) })
    }

    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
        self.0.set(Line::Whole);
        Box::pin(async { Ok(()) })
    }

    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("memory: ends with its process")
    }
}
