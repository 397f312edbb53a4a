//! Who is behind a key that has gone since it was read, on a real etcd.

use fencepost_core::{Label, OwnerId, Ttl, Value};
use fencepost_testkit::Etcd as Server;

use super::*;
use crate::backend::{Acquired, Backend as _, GrantId, Liveness, LossSignal, Queue, Request};
use crate::backends::etcd::testing::open;

#[tokio::test]
async fn a_candidate_that_has_gone_since_is_no_stranger() {
    let server = Server::builder().start().unwrap();
    let etcd = open(server.address()).await;
    let mut keys = Vec::new();
    let limit = etcd.0.now() + Duration::from_secs(15);
    for (name, owner) in [("stays", OwnerId::from_bits(1)), ("goes", OwnerId::from_bits(2))] {
        let grant = GrantId { name: LockName::new(name).unwrap(), owner };
        let request = Request {
            grant: grant.clone(),
            ttl: Ttl::new(Duration::from_mins(2)).unwrap(),
            label: Label::new("web-1").unwrap(),
            value: Some(Value::new("words").unwrap()),
            liveness: Liveness::LeaseOnly,
            loss: LossSignal::default(),
        };
        let acquired = etcd.try_acquire(request, Queue::Skip, limit).await.unwrap().value;
        assert!(matches!(acquired, Acquired::Granted(_)));
        keys.push(holder(&etcd.0, &grant.name, limit).await.unwrap().unwrap());
        if name == "goes" {
            etcd.release(grant, limit).await.unwrap().value.unwrap();
        }
    }
    let who = async |key: &api::KeyValue| {
        let identity = identify(&etcd.0, key, limit).await.unwrap();
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
