//! Distributed locks that stay safe when a process pauses.
//!
//! A lock with a TTL is not enough: its holder can freeze past the lease, wake, and overwrite the next holder's work. So
//! every grant has a fencing [`Token`] that only rises, and a fence at the resource refuses a stale one. And a guard knows
//! its own deadline: it is lost before the store can grant the lock again, by a clock that runs on during suspend,
//! without a call to the network.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use std::time::Duration;
//! use fencepost::Fencepost;
//!
//! let fp = Fencepost::connect("memory:").await?; // or Fencepost::from_env()
//!
//! // Wait for the lock, at most five seconds; an error of kind `Held` says who holds it.
//! let guard = fp.lock("invoice/42").wait_timeout(Duration::from_secs(5)).acquire().await?;
//!
//! // The work is cancelled the moment the guard is lost. Pass `fencing` to a fence with every write.
//! let fencing = guard.fencing();
//! guard.run(async { println!("writing under token {}", fencing.token()) }).await?;
//!
//! guard.release().await?;
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! | you want | use |
//! |---|---|
//! | one holder at a time | [`Fencepost::lock`] |
//! | one active instance, and the others to know it | [`Fencepost::election`] |
//! | work done once per key, such as a nightly job | [`Fencepost::once`]; for many keys [`Fencepost::claim`] |
//! | one computation for many callers | [`Fencepost::single_flight`] |
//! | a database, store or file that refuses a stale token | [`fences`] |
//! | the same without async | [`blocking`] |
//! | locks on a store of your own | [`Backend`], and the suite of the crate `fencepost-conformance` |
//!
//! In the repository, `examples/` has a file for each, and `examples/service` is an HTTP service with most of them on one
//! PostgreSQL.
//!
//! # Cargo features
//!
//! | feature | stores | fences |
//! |---|---|---|
//! | `sqlite`, on by default | `sqlite:` | `fences::sqlite` |
//! | `postgres` | `postgres://` | `fences::postgres` |
//! | `redis` | `redis://`, `redlock://` | `fences::redis` |
//! | `etcd` | `etcd://` | |
//! | `zookeeper` | `zookeeper://` | |
//! | `object-store` | | `fences::object` |
//!
//! `memory:` and `fences::file` need none; `fences::column` and `fences::cas` come with `sqlite` and with `postgres`. With
//! `default-features = false` no SQLite is compiled.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod backends;
pub mod blocking;
#[doc(hidden)]
pub mod bounded_store;
mod claims;
mod client;
mod election;
mod fencepost;
pub mod fences;
mod flight;
mod grant_state;
mod guard;
mod heartbeat;
pub mod ledger;
mod lock;
mod metrics;
mod once;
mod options;
mod outage;
mod owner;
mod store_options;
mod transaction;
mod watch;

// Under the names that they have had here.
#[cfg(all(feature = "sqlite", unix))]
use fencepost_base::disk;
#[cfg(feature = "postgres")]
use fencepost_base::postgres;
use fencepost_base::{block_on, error, race, random, retry, store_error};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use fencepost_base::{tls, url};

pub use crate::fencepost::Fencepost;
pub use backend::{Backend, LossCause, Observe, Store};
pub use claims::Claims;
pub use election::{Election, Leader, Leadership, Observer, Term};
pub use error::{Error, ErrorKind, Result};
pub use fencepost_base::{clock, guarantees};
pub use fencepost_core::{
    FencingToken, Invalid, Label, LockName, Moment, OwnerId, Token, Ttl, Value,
};
pub use flight::SingleFlight;
pub use grant_state::GuardStatus;
pub use guard::{Changes, Guard, GuardHandle};
pub use ledger::Ledger;
pub use lock::Lock;
pub use metrics::Metrics;
pub use once::{
    DEFAULT_RETENTION, MAX_RETENTION, OnFailure, Once, Recorded, RunGuard, RunHandle, Start,
};
pub use options::DEFAULT_TTL;
pub use store_options::{StoreOptions, default_url, env_url, server_of};
pub use transaction::Transaction;
pub use watch::Watch;
