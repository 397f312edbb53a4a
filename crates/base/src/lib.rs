//! What the lock client and the fences share: errors, the clock, retries, guarantees, and connections to servers that both
//! use.

#![allow(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "most of it is for the other crates of this workspace alone"
)]

pub mod block_on;
pub mod clock;
#[cfg(unix)]
pub mod disk;
pub mod error;
pub mod guarantees;
pub mod label;
pub mod race;
pub mod random;
pub mod retry;
pub mod store_error;

// Connections to servers, only for the other crates of this workspace.
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod postgres;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub mod redis;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;
#[doc(hidden)]
pub mod url;

use std::future::Future;
use std::pin::Pin;

pub use error::{Error, ErrorKind, Result};

/// A boxed future, so that traits with async calls can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
