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
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod until_changed;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use crate::backend::{Store, Surroundings};
use crate::error::Result;
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
