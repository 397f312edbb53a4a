//! Shared by the unit tests on a real etcd.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Label, LockName, OwnerId, Ttl};

use super::{Etcd, EtcdOptions};
use crate::backend::{BackendContext, GrantId, Liveness, Request};
use crate::clock::BootClock;

/// A store that uses the runtime of the test.
pub(super) async fn open(address: impl std::fmt::Display) -> Arc<Etcd> {
    let options = EtcdOptions::parse(&format!("//{address}")).unwrap();
    let context = BackendContext::new(Arc::new(BootClock), tokio::runtime::Handle::current());
    Etcd::open(options, &context).await.unwrap()
}

/// A request of an owner that is tied to no process.
pub(super) fn request(name: &str, owner: u128) -> Request {
    let grant = GrantId { name: LockName::new(name).unwrap(), owner: OwnerId::from_bits(owner) };
    Request::new(grant, Ttl::new(Duration::from_mins(2)).unwrap(), Label::new("web-1").unwrap())
        .with_liveness(Liveness::LeaseOnly)
}
