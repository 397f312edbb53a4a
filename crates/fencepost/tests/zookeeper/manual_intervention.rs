//! Somebody ends our session or deletes our node.

use fencepost::{ErrorKind, GuardStatus, LossCause};
use fencepost_testkit::{
    LONG, SOON, fails_because, granted, now, until, until_waiting, waits, within,
};

use super::common::Site;
use super::raw_client::{expire_session_of, session_of};

/// The only node in this directory.
fn only_node(site: &Site, dir: &str) -> String {
    let nodes = site.children(dir);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    format!("{}{dir}/{}", site.chroot, nodes[0])
}

/// CURATOR-604, curator#1121: after its session had expired, the client reconnected, found its old node, and
/// continued as if it held. Here every guard of the session is lost at once and stays lost. The next grant is in
/// another session, and the old guards do not affect it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_session_ends_its_guards_at_once_and_for_good() {
    let site = Site::shared();
    let client = site.client().await;
    let one = client.lock("one").ttl(LONG).acquire().await.unwrap();
    let two = client.lock("two").ttl(LONG).acquire().await.unwrap();
    let other = client.lock("other").ttl(LONG / 2).acquire().await.unwrap();
    let node = only_node(&site, "/one");
    let old = session_of(&site.server, &node);
    expire_session_of(&site.server, &node);
    for guard in [&one, &two] {
        let cause = within(SOON, "the guard is lost", guard.lost()).await;
        assert_eq!(cause, LossCause::SessionGone);
        assert!(guard.deadline() > now(), "long before its lease ran out");
    }
    assert_eq!(other.status(), GuardStatus::Held, "another session");

    let next = client.lock("one").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > one.token());
    let new = only_node(&site, "/one");
    assert_ne!(session_of(&site.server, &new), old);
    let (lost, gone) = (ErrorKind::Lost, LossCause::SessionGone);
    fails_because(one.release().await, lost, gone, &["\"one\"", "session"]);
    drop(two);
    within(SOON, "it is renewed", client.renew("one", next.owner(), None)).await.unwrap();
    assert_eq!(only_node(&site, "/one"), new);
    next.check().unwrap();
    next.release().await.unwrap();
    other.release().await.unwrap();
}

/// etcd#11456, kazoo#760: the waiter's session expires in the queue. When its predecessor releases, the waiter must
/// not take its old position for a grant: it queues again, and is granted in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_an_expired_session_queues_again() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let holder = theirs.lock("line").ttl(LONG).acquire().await.unwrap();
    let first = only_node(&site, "/line");
    let waiter = waits(&ours, "line", LONG);
    until_waiting(&theirs, "line", 1).await;
    let second = waits(&theirs, "line", LONG);
    until_waiting(&theirs, "line", 2).await;
    let positions = site.children("/line");
    let path = |node: &String| format!("{}/line/{node}", site.chroot);
    // The first of the two waiters: the only node of our session.
    let holding = session_of(&site.server, &first);
    let ours_was = positions.iter().find(|node| session_of(&site.server, &path(node)) != holding);
    let ours_was = ours_was.unwrap();
    expire_session_of(&site.server, &path(ours_was));
    until("it queues again", async || {
        let line = site.children("/line");
        line.len() == 3 && !line.contains(ours_was)
    })
    .await;
    assert!(!waiter.is_finished() && !second.is_finished(), "it is held");
    holder.release().await.unwrap();
    let next = granted(second).await;
    assert!(!waiter.is_finished(), "it is behind those who came before its new position");
    let token = next.token();
    next.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

/// Holder and first waiter share the session that expires, and another client is third. Only the third may be
/// granted: the waiter must not take the holder's end for its own grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_session_of_holder_and_waiter_ends_both() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let holder = ours.lock("both").ttl(LONG).acquire().await.unwrap();
    let node = only_node(&site, "/both");
    let waiter = waits(&ours, "both", LONG);
    until_waiting(&theirs, "both", 1).await;
    let third = waits(&theirs, "both", LONG);
    until_waiting(&theirs, "both", 2).await;
    expire_session_of(&site.server, &node);
    let next = granted(third).await;
    assert_eq!(within(SOON, "the guard is lost", holder.lost()).await, LossCause::SessionGone);
    until_waiting(&theirs, "both", 1).await;
    assert!(!waiter.is_finished(), "it is held");
    assert!(next.token() > holder.token());
    let token = next.token();
    next.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}
