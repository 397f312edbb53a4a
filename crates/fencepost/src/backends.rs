//! The stores that can arbitrate, one module each.

#[cfg(any(feature = "postgres", feature = "redis"))]
mod ears;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
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
use crate::backend::{Backend, Glimpse, LockInfo};
use crate::backend::{Store, Surroundings};
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
use crate::clock::Clock;
use crate::error::Result;
use crate::url::Url;

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
pub(crate) async fn open(url: Url, around: Surroundings) -> Result<Store> {
    #[cfg(not(any(
        feature = "etcd",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    )))]
    let _ = around;
    match url {
        Url::Memory { name } => Ok(memory::Memory::of_this_process(&name).into()),
        #[cfg(all(feature = "sqlite", not(unix)))]
        Url::Sqlite { .. } => Err(crate::Error::refused(
            "the embedded store needs a Unix system: name a server, such as redis://HOST",
        )),
        #[cfg(all(feature = "sqlite", unix))]
        Url::Sqlite { path, options } => sqlite::open(path, options, around).await,
        #[cfg(feature = "etcd")]
        Url::Etcd(url) => Ok(etcd::Etcd::open(*url, &around).await?.into()),
        #[cfg(feature = "redis")]
        Url::Redis(url) => Ok(redis::Redis::open(*url, &around).await?.into()),
        #[cfg(feature = "redis")]
        Url::Redlock(url) => {
            Ok(Store::without_ledger(redlock::Redlock::open(*url, &around).await?))
        }
        #[cfg(feature = "postgres")]
        Url::Postgres(url) => Ok(Store::from(postgres::Postgres::open(*url, &around).await?)),
        #[cfg(feature = "zookeeper")]
        Url::ZooKeeper(url) => Ok(zookeeper::ZooKeeper::open(*url, &around).await?.into()),
    }
}

/// For stores that tell nobody of a change: looks again and again until there is one.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
async fn look_until_changed(
    store: &dyn Backend,
    clock: &dyn Clock,
    every: Duration,
    name: LockName,
    seen: Option<Glimpse>,
) -> Result<LockInfo> {
    loop {
        let info = store.inspect(name.clone()).await?;
        if seen != Some(info.glimpse()) {
            return Ok(info);
        }
        clock.alarm(clock.now() + every).await;
    }
}
