//! Distributed locks that stay safe when a process pauses.
//!
//! A lock with a TTL is not enough: its holder can freeze past the lease, wake, and write over the next
//! holder's work. So every grant carries a fencing [`Token`] that only rises, and the resource refuses a
//! stale one. And a guard knows its own end: it turns lost on a clock that counts suspend, before the
//! store can give the lock away, without asking the network.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use std::time::Duration;
//! use fencepost::Fencepost;
//!
//! let fp = Fencepost::connect("memory:").await?; // or Fencepost::from_env()
//!
//! // Wait for the lock, at most five seconds; an error of kind `Held` says who has it.
//! let guard = fp.lock("invoice/42").acquire_within(Duration::from_secs(5)).await?;
//!
//! // The work is cancelled the moment the guard is lost. Send the token with every write.
//! let token = guard.token();
//! guard.run(async { println!("writing under token {token}") }).await?;
//!
//! guard.release().await?;
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! The resource's side, which refuses a stale token, is in [`fences`].
//!
//! Without async, the same in [`blocking`]. To put locks on a store of your own, implement [`Backend`] and
//! run the suite of the crate `fencepost-conformance` against it.

pub mod backend;
pub mod backends;
pub mod blocking;
#[doc(hidden)]
pub mod bounded_store;
mod claims;
mod client;
mod counts;
mod election;
mod fencepost;
pub mod fences;
mod flight;
mod guard;
mod hold;
mod keeper;
pub mod ledger;
mod lock;
mod once;
mod options;
mod outage;
mod owner;
mod store_url;
mod transaction;
mod watch;

// Under the names that they have had here.
#[cfg(all(feature = "sqlite", unix))]
use fencepost_base::disk;
#[cfg(feature = "postgres")]
use fencepost_base::postgres;
use fencepost_base::{block_on, error, race, retry, store_error};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use fencepost_base::{tls, url};

pub use crate::fencepost::Fencepost;
pub use backend::{Backend, LossCause, Observe, Store};
pub use claims::Claims;
pub use counts::Counts;
pub use election::{Election, Leader, Leadership, Observer, Term};
pub use error::{Error, ErrorKind, Result};
pub use fencepost_base::{clock, guarantees};
pub use fencepost_core::{Invalid, Label, LockName, Moment, OwnerId, Token, Ttl, Value};
pub use flight::SingleFlight;
pub use guard::{Changes, Guard, Standing};
pub use hold::GuardState;
pub use ledger::Ledger;
pub use lock::Lock;
pub use once::{Begun, DEFAULT_KEEP, LONGEST_KEEP, OnFailure, Once, Recorded, Run, Turn};
pub use options::DEFAULT_TTL;
pub use store_url::{default_url, env_url, server_of};
pub use transaction::Transaction;
pub use watch::Watch;

// A fence works in the caller's own transaction, on the caller's own connection or store, so the caller needs the
// same version of these.
#[cfg(feature = "object-store")]
pub use object_store;
#[cfg(feature = "redis")]
pub use redis;
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "postgres")]
pub use tokio_postgres;
