//! Who is behind a key that has gone since it was read, on a real etcd.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Label, OwnerId, Ttl, Value};
use fencepost_testkit::Etcd as Server;

use super::*;
use tokio_util::task::TaskTracker;

use crate::backend::{Liveness, LossSignal, Surroundings};
use crate::backends::bridge::{Acquired, Backend as _, Wait};
use crate::backends::etcd::{Etcd, EtcdUrl};
use crate::clock::BootClock;

#[tokio::test]
async fn a_candidate_that_has_gone_since_is_no_stranger() {
    let server = Server::builder().start().unwrap();
    let url = EtcdUrl::parse(&format!("//{}", server.address())).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let around = Surroundings {
        clock: Arc::new(BootClock),
        runtime,
        tasks: TaskTracker::new(),
        create: true,
    };
    let etcd = Etcd::open(url, &around).await.unwrap();
    let mut keys = Vec::new();
    let limit = etcd.0.now() + OUTAGE;
    for (name, owner) in [("stays", OwnerId::from_bits(1)), ("goes", OwnerId::from_bits(2))] {
        let name = LockName::new(name).unwrap();
        let request = Request {
            name: name.clone(),
            owner,
            ttl: Ttl::new(Duration::from_mins(2)).unwrap(),
            label: Label::new("web-1").unwrap(),
            value: Some(Value::new("words").unwrap()),
            liveness: Liveness::LeaseOnly,
            loss: LossSignal::default(),
        };
        let acquired = etcd.acquire(request, Wait::No).await.unwrap();
        assert!(matches!(acquired, Acquired::Granted(_)));
        keys.push(etcd.0.holder(&name, limit).await.unwrap().unwrap());
        if name.as_str() == "goes" {
            etcd.release(name, owner).await.unwrap();
        }
    }
    let who = async |key: &api::KeyValue| {
        let identity = etcd.0.identify(key, limit).await.unwrap();
        (identity.label.to_string(), identity.ours)
    };
    let ours = ("web-1".to_owned(), true);
    assert_eq!(who(&keys[0]).await, ours);
    assert_eq!(who(&keys[1]).await, ours);
    // Now etcd does not know any more what was when they began to say so.
    server.etcdctl(&["put", "other", "x"]).unwrap();
    server.etcdctl(&["compact", &(keys[1].mod_revision + 2).to_string()]).unwrap();
    assert_eq!(who(&keys[0]).await, ours, "it is there");
    assert!(!who(&keys[1]).await.1, "nobody can tell");
}
