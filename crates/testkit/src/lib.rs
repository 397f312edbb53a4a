//! What the tests share: real servers, a network that breaks on purpose, and helpers that know the library. This crate
//! never ships.
//!
//! A store's rules are tested against the store itself, not against a model of it. A [`Redis`] is the installed
//! `redis-server`, on a loopback port and in its own temporary directory, so tests run side by side; an [`Etcd`], a
//! [`ZooKeeper`] and a [`Postgres`] are likewise the installed ones, and [`SeaweedFs`] is an S3-compatible one. An
//! [`EtcdCluster`] and a [`ZooKeeperEnsemble`] have three members each, and a network between them from which a member can
//! be cut off. Tests that do not disturb them may use [shared](shared()) ones. A [`Proxy`] is between a client and any TCP
//! server and holds back, delays or cuts what passes; a [`Valve`] knows scripts of Redis, a [`Gate`](gate::Gate) requests of
//! HTTP, and [`switching_proxy()`] sends connections on different routes. [`Process`], [`ports`] and [`wait`] are the parts
//! for the next server.
//!
//! What must hold:
//!
//! - Nothing outlives the test run. A server is killed by its pid when its handle is dropped, and by the
//!   kernel when the test process ends in any other way: see [`Process`].
//! - Servers are blocking code and the proxy has its own thread, so a test may use any runtime, or none. Calls take
//!   milliseconds (starting a cluster, seconds); blocking a test's runtime with one is fine.
//! - Nothing sleeps and hopes. Waits are for a condition, with a limit ([`wait::until`]).
//! - Nothing is skipped. A missing program is an error that says what to install.
//!
//! The helpers that know the library ([`connect`], [`until`], [`within`], [`records`] and the like) panic where a test would.
//!
//! ```no_run
//! use fencepost_testkit::{Mode, Proxy, Redis, Trigger};
//!
//! # fn main() -> std::io::Result<()> {
//! let redis = Redis::builder().start()?;
//! let proxy = Proxy::to(redis.address())?;
//! let url = format!("redis://{}", proxy.address());
//!
//! // The lock is taken, and its answer is lost with the connection.
//! proxy.cut_on(Trigger::after("EVALSHA"));
//! // ... the client under test connects to `url` and acquires ...
//! assert_eq!(proxy.fired(), 1);
//!
//! // The network is gone, and comes back.
//! proxy.set_mode(Mode::Silent);
//! proxy.set_mode(Mode::Pass);
//!
//! // The server freezes, and crashes, and comes back with what it had on disk.
//! redis.stop()?;
//! redis.resume()?;
//! redis.restart()?;
//! assert_eq!(redis.command(&["PING"])?.text()?, "PONG");
//! # Ok(())
//! # }
//! ```
//!
//! A member that is cut off still has its clients, and cannot serve them:
//!
//! ```no_run
//! use fencepost_testkit::EtcdCluster;
//!
//! # fn main() -> std::io::Result<()> {
//! let cluster = EtcdCluster::start()?;
//! let old = cluster.leader()?;
//! cluster.members()[old].cut_off();
//! let new = cluster.leader()?;
//! assert_ne!(new, old);
//! cluster.members()[old].heal();
//! cluster.wait_until_healthy()?;
//! # Ok(())
//! # }
//! ```

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "helpers of tests are no interface for others"
)]

mod bound;
mod breaks;
mod client;
mod clients;
mod cluster;
pub mod command;
mod disk;
pub mod elections;
mod errors;
mod etcd;
pub mod gate;
mod guards;
pub mod interop;
mod java;
mod nginx;
mod peers;
pub mod ports;
mod postgres;
mod process;
mod program;
mod proxy;
pub mod records;
mod redis;
mod reply;
mod routes;
mod seaweed;
mod server;
mod shared;
mod switching_proxy;
mod time;
mod tls;
mod url;
mod valve;
pub mod wait;
mod worker;
mod zookeeper;

pub use breaks::broken_holder_learns_at_once;
pub use client::Client;
pub use clients::{connect, has, nothing_is_left, try_connect, two, until_waiting};
pub use cluster::{Cluster, Clustered, Member};
pub use disk::directory_on_disk;
pub use errors::{ODD_SECRET, SECRET, fails, fails_because, log, logged};
pub use etcd::{Builder as EtcdBuilder, Etcd};
pub use guards::{counts_from, granted, granted_without_reply, until_renewed, waits};
pub use java::java_classpath;
pub use nginx::Nginx;
pub use postgres::{Builder as PostgresBuilder, Database, PgBouncer, Postgres};
pub use process::Process;
pub use program::own_program;
pub use proxy::{Mode, Proxy, Trigger};
pub use redis::{Builder as RedisBuilder, Persistence, Redis};
pub use reply::Reply;
pub use routes::{Fixture, Routes, Victim};
pub use seaweed::SeaweedFs;
pub use server::Server;
pub use shared::{Slot, shared};
pub use switching_proxy::switching_proxy;
pub use time::{LONG, SOON, ms, now, pass, until, within};
pub use tls::Certificates;
pub use valve::Valve;
pub use worker::{GAP, Worker, report, run_worker};
pub use zookeeper::{Builder as ZooKeeperBuilder, ZooKeeper};

/// Three `etcd` servers that are one store.
pub type EtcdCluster = Cluster<Etcd>;
/// One of them.
pub type EtcdMember = Member<Etcd>;
/// Three ZooKeeper servers that are one store.
pub type ZooKeeperEnsemble = Cluster<ZooKeeper>;
/// One of them.
pub type ZooKeeperMember = Member<ZooKeeper>;
