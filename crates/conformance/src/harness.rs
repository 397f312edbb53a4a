//! What the suite must be able to do to a store. Everything else it does through the public library.

use std::fmt;
use std::path::PathBuf;

use fencepost::backend::BoxFuture;
use fencepost::{Fencepost, Result};

/// A kind of store that the suite can run on. Write one per backend.
pub trait Harness: Send + Sync + 'static {
    /// The first part of each test's name: `sqlite` gives `sqlite::drop_releases`.
    fn name(&self) -> &str;

    /// A fresh, empty store. [`Unable::Unsupported`] skips the case, visibly: say what is missing.
    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>>;

    /// A fresh store with a server of its own, which will be stopped and started. Override this only if
    /// [`fresh`](Self::fresh) shares a server among cases.
    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        self.fresh()
    }

    /// How a worker process connects to the store that [`Site::url`] named.
    fn connect<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Fencepost>> {
        Box::pin(Fencepost::connect(url))
    }

    /// The program to start as a worker: this one, unless you have a binary that calls
    /// [`worker_main`](super::worker_main).
    fn worker(&self) -> std::io::Result<PathBuf> {
        std::env::current_exe()
    }
}

/// One store, made for one case. Dropping it cleans up.
///
/// Return [`Unable::Unsupported`] for what the store cannot do: the cases that need it are shown as ignored, with the
/// reason.
pub trait Site: Send + Sync {
    /// Another client on this store.
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>>;

    /// The URL for another process; `Unsupported` if no other process can connect.
    fn url(&self) -> Result<String, Unable>;

    /// From now on no client gets a reply: calls hang, or fail as unreachable.
    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>>;

    /// Ends a [`cut`](Self::cut).
    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>>;

    /// Whether this store's notifications reach its clients; `Unsupported` if something in between drops them.
    fn notifies(&self) -> Result<(), Unable> {
        Ok(())
    }

    /// Stops the store and starts it again with the data it had kept. Clients may have to reconnect.
    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to restart")
    }

    /// Freezes the store's server (SIGSTOP).
    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to stop")
    }

    /// Continues a frozen server (SIGCONT).
    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to resume")
    }
}

/// The result of an operation that the store does not support.
#[must_use]
pub fn no<T: Send + 'static>(why: &'static str) -> BoxFuture<'static, Result<T, Unable>> {
    Box::pin(async move { Err(Unable::Unsupported(why.into())) })
}

/// Why a harness could not do something. It is not a `std::error::Error`, so that a case cannot mistake a skip for a
/// failure.
#[derive(Debug)]
pub enum Unable {
    /// This store or this machine cannot do it: the case is skipped with this reason.
    Unsupported(String),
    /// It should have worked: the case fails.
    Failed(String),
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => write!(f, "not supported: {why}"),
            Self::Failed(why) => write!(f, "the harness failed: {why}"),
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Unable {
    fn from(error: E) -> Self {
        Self::Failed(crate::fixture::one_line(&error))
    }
}
