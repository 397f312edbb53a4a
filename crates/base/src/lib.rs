//! What the lock client and the fences share: errors, the clock, retries, what a store promises.

pub mod block_on;
pub mod clock;
#[cfg(unix)]
pub mod disk;
pub mod error;
pub mod guarantees;
pub mod label;
pub mod race;
pub mod retry;
pub mod store_error;

use std::future::Future;
use std::pin::Pin;

pub use error::{Error, ErrorKind, Result};

/// A boxed future, so that traits with async calls can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
