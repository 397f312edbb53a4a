//! What the suite must be able to do to a store. Everything else it does through the public library.

use std::fmt;
use std::path::PathBuf;

use fencepost::backend::BoxFuture;
use fencepost::{Error, Fencepost, Result};

/// A kind of store that the suite can run on. Write one per backend.
pub trait Harness: Send + Sync + 'static {
    /// The first part of each test's name: `sqlite` gives `sqlite::drop_releases`.
    fn name(&self) -> &str;

    /// A fresh, empty store. [`Unable::Unsupported`] skips the case, visibly: say what is missing.
    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>>;

    /// A fresh store whose server nobody else uses: it will be stopped and started. Say how here only if
    /// [`fresh`](Self::fresh) shares a server among cases.
    fn fresh_server(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
        self.fresh()
    }

    /// How a worker process reaches the store that [`Site::url`] named.
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
/// What a store can not do it says with [`Unable::Unsupported`]: the cases that need it are then shown as
/// ignored, with the reason.
pub trait Site: Send + Sync {
    /// Another client on this store.
    fn connect(&self) -> BoxFuture<'_, Result<Fencepost>>;

    /// How another process reaches this store; `Unsupported` if none can.
    fn url(&self) -> Result<String, Unable>;

    /// From now on no client gets an answer: calls hang, or fail as unreachable.
    fn cut(&self) -> BoxFuture<'_, Result<(), Unable>>;

    /// Ends a [`cut`](Self::cut).
    fn heal(&self) -> BoxFuture<'_, Result<(), Unable>>;

    /// Whether this store's notifications reach its clients; `Unsupported` if something in between drops them.
    fn notifies(&self) -> Result<(), Unable> {
        Ok(())
    }

    /// Ends the store and starts it again on what it had kept. Clients may have to connect anew.
    fn restart(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to restart")
    }

    /// Stops the store's server where it stands (SIGSTOP).
    fn stop(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to stop")
    }

    /// Lets a stopped server go on (SIGCONT).
    fn resume(&self) -> BoxFuture<'_, Result<(), Unable>> {
        no("this store has no server to resume")
    }
}

/// An answer for what a store can not do.
#[must_use]
pub fn no<T: Send + 'static>(why: &'static str) -> BoxFuture<'static, Result<T, Unable>> {
    Box::pin(async move { Err(Unable::Unsupported(why.into())) })
}

/// Why a harness did not do what it was asked to. It is no `std::error::Error`, so that a case can not
/// mistake a skip for a failure.
#[derive(Debug)]
pub enum Unable {
    /// This store, or this machine, can not do it: the case is skipped with this reason.
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

impl From<Error> for Unable {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<std::io::Error> for Unable {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
