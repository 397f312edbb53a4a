//! Identifying the holder of a key that was deleted after it was read, on a real etcd.

use fencepost_core::Value;
use fencepost_testkit::Etcd as Server;

use super::*;
use crate::backend::{Acquired, Backend as _, Queue};
use crate::backends::etcd::testing::{open, request};

#[tokio::test]
async fn released_candidate_is_not_a_third_party_client() {
    let server = Server::builder().start().unwrap();
    let etcd = open(server.address()).await;
    let mut keys = Vec::new();
    let limit = etcd.0.now() + Duration::from_secs(15);
    for (name, owner) in [("stays", 1), ("goes", 2)] {
        let value = Some(Value::new("words").unwrap());
        let request = request(name, owner).with_value(value);
        let grant = request.grant.clone();
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
    // After the compaction etcd cannot read the old revision.
    server.etcdctl(&["put", "other", "x"]).unwrap();
    server.etcdctl(&["compact", &(keys[1].mod_revision + 2).to_string()]).unwrap();
    assert_eq!(who(&keys[0]).await, ours, "it is there");
    assert!(!who(&keys[1]).await.1, "its label cannot be read");
}
