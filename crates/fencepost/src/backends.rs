//! The stores that grant locks, one module each.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "postgres", feature = "redis", all(feature = "sqlite", unix)))]
mod live_grants;
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
#[cfg(any(feature = "postgres", feature = "redis"))]
mod waiter_registry;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use fencepost_core::{Moment, Ttl};

use crate::backend::{BackendContext, Store};
#[cfg(any(feature = "redis", feature = "zookeeper"))]
use crate::backend::{NotHeld, Renewal, Renewals, Renewed, StoreResult};
use crate::error::Result;
use crate::store_options::StoreKind;

#[cfg_attr(
    not(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper")),
    expect(clippy::unused_async, reason = "the other stores await their connection")
)]
pub(crate) async fn open(store: StoreKind, context: BackendContext) -> Result<Store> {
    #[cfg(not(any(
        feature = "etcd",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    )))]
    let _ = context;
    match store {
        StoreKind::Memory { name } => Ok(memory::Memory::of_this_process(&name).into()),
        #[cfg(all(feature = "sqlite", unix))]
        StoreKind::Sqlite(options) => sqlite::open(options, context),
        #[cfg(feature = "etcd")]
        StoreKind::Etcd(options) => Ok(Store::from(etcd::Etcd::open(options, &context).await?)),
        #[cfg(feature = "redis")]
        StoreKind::Redis(options) => Ok(Store::from(redis::Redis::open(options, &context).await?)),
        #[cfg(feature = "redis")]
        StoreKind::Redlock(options) => {
            Ok(Store::without_ledger(redlock::Redlock::open(options, &context).await?))
        }
        #[cfg(feature = "postgres")]
        StoreKind::Postgres(options) => {
            Ok(Store::from(postgres::Postgres::open(*options, &context).await?))
        }
        #[cfg(feature = "zookeeper")]
        StoreKind::ZooKeeper(options) => {
            Ok(Store::from(zookeeper::ZooKeeper::open(options, &context).await?))
        }
    }
}

/// When a position that counts from `heartbeat` is renewed again, while it waits.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn heartbeat_due(heartbeat: Moment, ttl: Ttl) -> Moment {
    heartbeat + ttl.as_duration() / 3
}

/// Whether a grant after a wait may count from its position's last heartbeat, which the store confirmed: at least two
/// thirds of the lease are left. If not, the grant is renewed before it counts.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn may_count_from(heartbeat: Moment, ttl: Ttl, now: Moment) -> bool {
    now < heartbeat_due(heartbeat, ttl)
}

/// Renews each grant with a call of its own. All are under way at once.
#[cfg(any(feature = "redis", feature = "zookeeper"))]
async fn renew_each<'a, F>(batch: &'a [Renewal], renew: impl Fn(&'a Renewal) -> F) -> Renewals
where
    F: Future<Output = StoreResult<Result<Renewed, NotHeld>>>,
{
    let calls = batch.iter().map(|renewal| {
        let call = renew(renewal);
        async move { (renewal.grant.clone(), call.await) }
    });
    futures_util::future::join_all(calls).await.into_iter().collect()
}

#[cfg(all(test, any(feature = "etcd", feature = "zookeeper")))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn grant_counts_from_a_heartbeat_while_two_thirds_of_the_lease_are_left() {
        let (ttl, heartbeat) = (Ttl::new(Duration::from_secs(3)).unwrap(), Moment::default());
        let after = |ms| may_count_from(heartbeat, ttl, heartbeat + Duration::from_millis(ms));
        assert!(after(0) && after(999));
        // From here on the position is renewed.
        assert!(!after(1000) && !after(3001));
        assert_eq!(heartbeat_due(heartbeat, ttl), heartbeat + Duration::from_secs(1));
    }
}
