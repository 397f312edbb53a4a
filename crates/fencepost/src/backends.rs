//! The stores that can arbitrate, one module each.

#[cfg(any(feature = "postgres", feature = "redis"))]
mod ears;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod polling;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(all(feature = "sqlite", unix))]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod unanswered;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use fencepost_core::LockName;

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use crate::backend::{Glimpse, LockInfo, Observe, StoreResult};
use crate::backend::{Store, Surroundings};
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use crate::clock::Clock;
use crate::error::Result;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use crate::retry::CALL_TIMEOUT;
use crate::store_url::StoreUrl;

#[cfg_attr(
    not(any(
        feature = "etcd",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    )),
    expect(clippy::unused_async, reason = "the other stores have to be waited for")
)]
pub(crate) async fn open(url: StoreUrl, around: Surroundings) -> Result<Store> {
    #[cfg(not(any(
        feature = "etcd",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    )))]
    let _ = around;
    match url {
        StoreUrl::Memory { name } => Ok(memory::Memory::of_this_process(&name).into()),
        #[cfg(all(feature = "sqlite", not(unix)))]
        StoreUrl::Sqlite { .. } => Err(crate::Error::refused(
            "the embedded store needs a Unix system: name a server, such as redis://HOST",
        )),
        #[cfg(all(feature = "sqlite", unix))]
        StoreUrl::Sqlite { path, options } => sqlite::open(path, options, around).await,
        #[cfg(feature = "etcd")]
        StoreUrl::Etcd(url) => Ok(Store::from(etcd::Etcd::open(*url, &around).await?)),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => Ok(Store::from(redis::Redis::open(*url, &around).await?)),
        #[cfg(feature = "redis")]
        StoreUrl::Redlock(url) => {
            Ok(Store::without_ledger(redlock::Redlock::open(*url, &around).await?))
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => Ok(Store::from(postgres::Postgres::open(*url, &around).await?)),
        #[cfg(feature = "zookeeper")]
        StoreUrl::ZooKeeper(url) => {
            Ok(Store::from(zookeeper::ZooKeeper::open(*url, &around).await?))
        }
    }
}

/// For stores that notify nobody of a change: inspects until there is one.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
async fn inspect_until_changed(
    store: &dyn Observe,
    clock: &dyn Clock,
    every: Duration,
    name: LockName,
    seen: Option<Glimpse>,
) -> StoreResult<LockInfo> {
    loop {
        let reply = store.inspect(name.clone(), clock.now() + CALL_TIMEOUT).await?;
        if seen != Some(reply.value.glimpse()) {
            return Ok(reply);
        }
        clock.alarm(clock.now() + every).await;
    }
}
