//! What the unit tests on a real etcd share.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::{Etcd, EtcdUrl};
use crate::backend::Surroundings;
use crate::clock::BootClock;

/// A store whose client's runtime is that of the test.
pub(super) async fn open(address: impl std::fmt::Display) -> Arc<Etcd> {
    let url = EtcdUrl::parse(&format!("//{address}")).unwrap();
    let around = Surroundings {
        clock: Arc::new(BootClock),
        runtime: tokio::runtime::Handle::current(),
        tasks: TaskTracker::new(),
        create: true,
    };
    Etcd::open(url, &around).await.unwrap()
}
