//! One step reaches one slot of a cluster. Here a cluster is mostly one node that has all slots: it enforces the same.
//! The connections are plain ones, to one node; the crate's own to a cluster is not used here.

use fencepost::ErrorKind;
use fencepost::fences::redis::{self, Fence};
use fencepost_testkit::Redis;
use fencepost_testkit::wait::{SOON, until};

use super::common::*;

fn cluster(slots: [&str; 2]) -> Redis {
    let node = Redis::builder().config("cluster-enabled", "yes").start().unwrap();
    // Else it serves nothing until all slots are somebody's.
    node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    node.command(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]).unwrap();
    until(SOON, "the cluster is up", || {
        Ok(node.command(&["CLUSTER", "INFO"])?.text()?.contains("cluster_state:ok"))
    })
    .unwrap();
    node
}

const ALL: [&str; 2] = ["0", "16383"];

#[tokio::test]
async fn the_mark_lies_beside_the_data() {
    let node = cluster(ALL);
    let mut redis = connect(&node).await;
    let fence = Fence::new().beside("{user:7}:cart").unwrap();
    fence.enter(&mut redis, &name("cart of user 7"), token(33)).await.unwrap();
    let both = fence
        .checked(&name("cart of user 7"), token(33))
        .hset("{user:7}:cart", "a", 1)
        .incr("{user:7}:sum", 3);
    assert_eq!(both.run::<(i64, i64)>(&mut redis).await.unwrap(), (1, 3));
    fence
        .reset(&mut redis, &name("cart of user 7"), token(40).into(), "ops", "a test")
        .await
        .unwrap();
    let stale = fence.checked(&name("cart of user 7"), token(39)).del("{user:7}:cart");
    assert_eq!(*error_of(stale.run::<()>(&mut redis).await).kind(), ErrorKind::Stale);
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
async fn keys_of_another_slot_are_refused_here_or_there_and_nothing_is_done() {
    let node = cluster(ALL);
    let mut redis = connect(&node).await;
    // Told where the data lies, the client sees it.
    let fence = Fence::new().beside("{user:7}").unwrap();
    let apart = fence.checked(&name("a"), token(1)).set("{user:7}:x", 1).set("{user:8}:x", 1);
    let error = error_of(apart.run::<()>(&mut redis).await);
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("{user:8}:x"), "{error}");
    // Not told, the cluster does.
    let apart = Fence::new().checked(&name("a"), token(1)).set("b", 1);
    let error = error_of(apart.run::<()>(&mut redis).await);
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("Fence::beside"), "{error}");
    assert_eq!(int(&node, &["DBSIZE"]), 0);
    // A lock that is called like its data needs to be told nothing.
    let same = Fence::new().checked(&name("user:7"), token(1)).set("{user:7}:x", 1);
    same.run::<()>(&mut redis).await.unwrap();
}

/// Why "one lock, one place" is a rule and not a taste.
#[tokio::test]
async fn at_another_place_a_lock_has_another_mark() {
    let node = cluster(ALL);
    let mut redis = connect(&node).await;
    let (here, there) = (Fence::new(), Fence::new().beside("{b}").unwrap());
    here.enter(&mut redis, &name("a"), token(34)).await.unwrap();
    there.enter(&mut redis, &name("a"), token(33)).await.unwrap();
    let shown = redis::show(&mut redis, Some(&name("a"))).await.unwrap();
    let tokens: Vec<_> = shown.iter().map(|mark| mark.token.get()).collect();
    assert_eq!(tokens, [33, 34], "both are shown: that is how one finds out");
}

#[tokio::test]
async fn a_slot_that_nobody_serves_is_out_of_reach() {
    let node = cluster(["0", "1"]);
    let mut redis = connect(&node).await;
    let error = error_of(Fence::new().enter(&mut redis, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_node_without_the_slot_names_the_one_that_has_it() {
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
    // "a" lies in slot 15495.
    let fence = Fence::new();
    let error = error_of(fence.enter(&mut connect(&low).await, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("15495") && error.to_string().contains(&port), "{error}");
    fence
        .checked(&name("a"), token(1))
        .set("{a}:x", 1)
        .run::<()>(&mut connect(&high).await)
        .await
        .unwrap();
}
