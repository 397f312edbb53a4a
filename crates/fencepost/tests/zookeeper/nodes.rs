//! What third-party clients see of our nodes, and we of theirs.

use std::time::Duration;

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{LONG, SOON, connect, until, until_waiting, within};

use super::common::Site;
use super::raw_client::{ALL, Kind, Raw};

#[tokio::test]
async fn nodes_are_named_like_those_of_curator_and_kazoo() {
    let site = Site::shared();
    for (style, start, middle) in [("", "_c_", "-lock-"), ("?style=kazoo", "", "__lock__")] {
        let client = connect(&format!("{}{style}", site.url())).await;
        let guard = client.lock("invoice/42").label("me").ttl(LONG).acquire().await.unwrap();
        let nodes = site.children("/invoice/42");
        let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
        assert!(node.starts_with(start), "{node}");
        let (prefix, number) = node.split_at(node.len() - 10);
        assert!(prefix.ends_with(middle) && number.parse::<u32>().is_ok(), "{node}");
        assert!(!node.contains(&guard.owner().reveal()));
        let path = format!("{}/invoice/42/{node}", site.chroot);
        assert_eq!(site.server.get(&path).unwrap().unwrap(), "me\nfencepost 1 60000 -");
        guard.release().await.unwrap();
        assert!(site.children("/invoice/42").is_empty());
    }
}

/// A third-party node is in the same queue: it is waited for, shown, broken on request, and never touched otherwise.
#[tokio::test]
async fn third_party_nodes_share_the_queue() {
    let site = Site::shared();
    let client = site.client().await;
    client.lock("shared").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    for (node, data, shown) in [
        ("_c_x-lock-0000000000", "10.0.0.7", "another client (10.0.0.7)"),
        ("abc__lock__0000000000", "", "another client"),
        ("abc__rlock__0000000000", "reader", "another client (reader)"),
    ] {
        let path = format!("{}/shared/{node}", site.chroot);
        let mut theirs = Raw::connect(site.server.address());
        theirs.create(&path, data, Kind::Ephemeral, ALL);
        assert!(client.lock("shared").try_acquire().await.unwrap().is_none(), "{node}");
        let info = client.inspect("shared").await.unwrap();
        let holder = info.holder.unwrap();
        assert_eq!(holder.label.as_str(), shown);
        assert!(holder.token.is_some() && holder.ttl.is_none() && !holder.no_expiry);
        assert_eq!(client.list().await.unwrap().len(), 1);
        let waiter = client.clone();
        let waiting = tokio::spawn(async move { waiter.lock("shared").ttl(LONG).acquire().await });
        until("it waits", async || client.inspect("shared").await.unwrap().waiting == 1).await;
        assert_eq!(site.server.get(&path).unwrap().as_deref(), Some(data), "it was touched");
        let broken = client.break_lock("shared").await.unwrap().unwrap();
        assert_eq!(broken.token, holder.token);
        let guard = within(SOON, "the next one", waiting).await.unwrap().unwrap();
        assert!(guard.token() >= broken.floor);
        guard.release().await.unwrap();
    }
    // Third-party clients read no note, so none is left.
    assert!(site.children("/.fencepost/broken").is_empty());
}

/// A directory below is another lock, or third-party data: it is not in the queue.
#[tokio::test]
async fn other_children_do_not_count() {
    let site = Site::shared();
    let client = site.client().await;
    let below = client.lock("a/b").ttl(LONG).acquire().await.unwrap();
    for node in ["lease_holder", "x-lock-123", "x-0000000000"] {
        site.server.create(&format!("{}/a/{node}", site.chroot), "").unwrap();
    }
    let guard = client.lock("a").ttl(LONG).try_acquire().await.unwrap().expect("it is free");
    let names: Vec<_> = client.list().await.unwrap().iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names, ["a", "a/b"]);
    guard.release().await.unwrap();
    below.release().await.unwrap();
}

/// A persistent node with a contender's name is no contender: it holds nothing, waits for nothing and is not broken.
#[tokio::test]
async fn persistent_node_that_looks_like_a_contender_does_not_count() {
    let site = Site::shared();
    let client = site.client().await;
    client.lock("a").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let mut raw = Raw::connect(site.server.address());
    let path = |node: &str| format!("{}/a/{node}", site.chroot);
    let odd =
        ["x-latch-0000000000", "x-lock-0000000001", "y__lock__0000000000", "z-lock-1700000000"];
    for (node, kind) in
        odd.iter().zip([Kind::Persistent, Kind::Container, Kind::Container, Kind::Persistent])
    {
        // We may not read one of them.
        let permissions = if node.starts_with('x') { ALL } else { ALL & !1 };
        raw.create(&path(node), "data", kind, permissions);
    }
    assert!(client.list().await.unwrap().is_empty());
    assert!(client.inspect("a").await.unwrap().holder.is_none());
    assert!(client.break_lock("a").await.unwrap().is_none());
    for at_once in [true, false] {
        let lock = client.lock("a").ttl(LONG);
        let guard = if at_once {
            lock.try_acquire().await.unwrap().expect("it is free")
        } else {
            lock.wait_timeout(SOON).acquire().await.unwrap()
        };
        let info = client.inspect("a").await.unwrap();
        assert_eq!((info.waiting, info.waiters.len()), (0, 0));
        assert_eq!(info.holder.unwrap().token, Some(guard.token()));
        assert_eq!(client.list().await.unwrap()[0].waiting, 0);
        guard.release().await.unwrap();
    }
    let guard = client.lock("a").label("me").ttl(LONG).acquire().await.unwrap();
    let other = site.client().await;
    let held = other.lock("a").wait_timeout(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(held.kind(), ErrorKind::Held, "{held}");
    let holder = held.holder().expect("it is known");
    assert_eq!(holder.label.as_str(), "me");
    let waiting = tokio::spawn(async move { other.lock("a").ttl(LONG).acquire().await });
    until_waiting(&client, "a", 1).await;
    assert_eq!(client.list().await.unwrap()[0].waiting, 1);
    let token = guard.token();
    assert_eq!(client.break_lock("a").await.unwrap().unwrap().token, Some(token));
    let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    // A lease-only grant is found by its owner id, behind them.
    next.release().await.unwrap();
    let script = client.lock("a").ttl(LONG).lease_only().acquire().await.unwrap();
    let renewed = site.client().await.renew("a", script.owner(), None).await;
    assert_eq!(renewed.unwrap().value.token, script.token());
    script.release().await.unwrap();
    for node in odd {
        assert!(raw.exists(&path(node)), "{node} was touched");
    }
}

/// An operator deletes our node: the guard is lost at once, and the next client is granted.
#[tokio::test]
async fn guard_is_lost_at_once_when_its_node_is_deleted() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("hand").ttl(LONG).acquire().await.unwrap();
    let node = site.children("/hand").remove(0);
    site.server.delete(&format!("{}/hand/{node}", site.chroot)).unwrap();
    let cause = within(SOON, "the guard is lost", guard.lost()).await;
    assert_eq!(cause, LossCause::TakenOver);
    client
        .lock("hand")
        .ttl(LONG)
        .wait_timeout(SOON)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// kazoo#760, curator#600: the same while it waits. It queues again, and is granted.
#[tokio::test]
async fn waiter_with_a_deleted_node_queues_again() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let guard = ours.lock("line").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock("line").ttl(LONG).acquire().await });
    until("it waits", async || site.children("/line").len() == 2).await;
    let mut line = site.children("/line");
    line.sort_by_key(|node| node[node.len() - 10..].to_owned());
    let first = line.remove(1);
    site.server.delete(&format!("{}/line/{first}", site.chroot)).unwrap();
    until("it waits again", async || {
        let line = site.children("/line");
        line.len() == 2 && !line.contains(&first)
    })
    .await;
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// The holder reads the note of the break, and deletes it.
#[tokio::test]
async fn confirmed_break_leaves_no_note() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    for _ in 0..3 {
        let guard = ours.lock("break").ttl(LONG).acquire().await.unwrap();
        theirs.break_lock("break").await.unwrap().unwrap();
        assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::Broken);
    }
    until("no note is left", async || site.children("/.fencepost/broken").is_empty()).await;
    assert!(ours.list().await.unwrap().is_empty(), "our own nodes are no locks");
}

/// ZooKeeper accepts no control characters, but third-party clients use paths that are not valid names here.
#[tokio::test]
async fn third_party_lock_with_an_invalid_name_is_listed() {
    let site = Site::shared();
    let client = site.client().await;
    client.lock("a").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let mut raw = Raw::connect(site.server.address());
    raw.create(&format!("{}/50%", site.chroot), "", Kind::Persistent, ALL);
    raw.create(&format!("{}/50%/x-lock-0000000000", site.chroot), "", Kind::Ephemeral, ALL);
    let list = client.list().await.unwrap();
    let names: Vec<_> = list.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["50%"]);
    assert!(list[0].holder.is_some());
}
