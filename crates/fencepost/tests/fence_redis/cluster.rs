//! A script can use only one slot of a cluster. Most tests use one node that has all slots, which enforces the same.
//! The connections are plain ones to one node.

use fencepost::ErrorKind;
use fencepost::fences::redis::{self, Fence};
use fencepost_testkit::Redis;
use fencepost_testkit::wait::{SOON, until};

use super::common::*;

fn cluster(slots: [&str; 2]) -> Redis {
    let node = Redis::builder().config("cluster-enabled", "yes").start().unwrap();
    // Otherwise the node refuses all requests until every slot is served.
    node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    node.command(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]).unwrap();
    until(SOON, "the cluster is up", || {
        Ok(node.command(&["CLUSTER", "INFO"])?.text()?.contains("cluster_state:ok"))
    })
    .unwrap();
    node
}

const ALL_SLOTS: [&str; 2] = ["0", "16383"];

#[tokio::test]
async fn mark_is_in_the_slot_of_the_data() {
    let node = cluster(ALL_SLOTS);
    let mut redis = connect(&node).await;
    let fence = Fence::new().beside("{user:7}:cart").unwrap();
    fence.enter(&mut redis, &fencing("cart of user 7", 33)).await.unwrap();
    let both = fence
        .checked(&fencing("cart of user 7", 33))
        .hset("{user:7}:cart", "a", 1)
        .incr("{user:7}:sum", 3);
    assert_eq!(both.run::<(i64, i64)>(&mut redis).await.unwrap(), (1, 3));
    fence
        .reset(&mut redis, &name("cart of user 7"), token(40).into(), "ops", "a test")
        .await
        .unwrap();
    let stale = fence.checked(&fencing("cart of user 7", 39)).del("{user:7}:cart");
    assert_eq!(error_of(stale.run::<()>(&mut redis).await).kind(), ErrorKind::Stale);
    let slot = |key: &str| int(&node, &["CLUSTER", "KEYSLOT", key]);
    for key in ["fencepost:mark:{user:7}cart of user 7", "fencepost:resets:{user:7}cart of user 7"]
    {
        assert_eq!(int(&node, &["EXISTS", key]), 1, "{key}");
        assert_eq!(slot(key), slot("{user:7}:cart"));
    }
    assert_eq!(redis::show(&mut redis, None).await.unwrap().len(), 1);
    assert_eq!(redis::audit(&mut redis, Some(&name("cart of user 7"))).await.unwrap().len(), 1);
}

#[tokio::test]
async fn keys_of_another_slot_are_refused_and_nothing_is_done() {
    let node = cluster(ALL_SLOTS);
    let mut redis = connect(&node).await;
    // A client that knows where the data is refuses it itself.
    let fence = Fence::new().beside("{user:7}").unwrap();
    let apart = fence.checked(&fencing("a", 1)).set("{user:7}:x", 1).set("{user:8}:x", 1);
    let error = error_of(apart.run::<()>(&mut redis).await);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.one_line().contains("{user:8}:x"), "{error}");
    // Otherwise the cluster refuses it.
    let apart = Fence::new().checked(&fencing("a", 1)).set("b", 1);
    let error = error_of(apart.run::<()>(&mut redis).await);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.one_line().contains("Fence::beside"), "{error}");
    assert_eq!(int(&node, &["DBSIZE"]), 0);
    // A lock whose name is the hash tag of its data needs no `beside`.
    let same = Fence::new().checked(&fencing("user:7", 1)).set("{user:7}:x", 1);
    same.run::<()>(&mut redis).await.unwrap();
}

/// Why each lock must always use the same slot.
#[tokio::test]
async fn lock_has_another_mark_in_another_slot() {
    let node = cluster(ALL_SLOTS);
    let mut redis = connect(&node).await;
    let (here, there) = (Fence::new(), Fence::new().beside("{b}").unwrap());
    here.enter(&mut redis, &fencing("a", 34)).await.unwrap();
    there.enter(&mut redis, &fencing("a", 33)).await.unwrap();
    let shown = redis::show(&mut redis, Some(&name("a"))).await.unwrap();
    let tokens: Vec<_> = shown.iter().map(|mark| mark.token.get()).collect();
    assert_eq!(tokens, [33, 34], "both are shown: that is how one finds out");
}

#[tokio::test]
async fn unserved_slot_is_unreachable() {
    let node = cluster(["0", "1"]);
    let mut redis = connect(&node).await;
    let error = error_of(Fence::new().enter(&mut redis, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn wrong_node_names_the_node_of_the_slot() {
    let (low, high) = (cluster(["0", "8191"]), cluster(["8192", "16383"]));
    let port = high.port().to_string();
    low.command(&["CLUSTER", "MEET", "127.0.0.1", &port]).unwrap();
    until(SOON, "the nodes know each other's slots", || {
        let knows = |node: &Redis| {
            Ok::<_, std::io::Error>(
                node.command(&["CLUSTER", "INFO"])?.text()?.contains("cluster_slots_ok:16384"),
            )
        };
        Ok(knows(&low)? && knows(&high)?)
    })
    .unwrap();
    // "a" is in slot 15495.
    let fence = Fence::new();
    let error = error_of(fence.enter(&mut connect(&low).await, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("15495") && error.one_line().contains(&port), "{error}");
    fence
        .checked(&fencing("a", 1))
        .set("{a}:x", 1)
        .run::<()>(&mut connect(&high).await)
        .await
        .unwrap();
}
