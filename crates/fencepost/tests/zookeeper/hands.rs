//! Somebody ends our session or takes our node away, behind our back.

use fencepost::{ErrorKind, GuardState, LossCause};
use fencepost_testkit::{LONG, SOON, fails, granted, now, until, until_waiting, waits, within};

use super::common::Site;
use super::raw::{expire_session_of, session_of};

/// The only node in this directory.
fn only(site: &Site, dir: &str) -> String {
    let nodes = site.children(dir);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    format!("{}{dir}/{}", site.chroot, nodes[0])
}

/// CURATOR-604, curator#1121: after the session had expired the client connected again, found its old node, and
/// went on as if it held. Here every guard of the session is told at once and stays lost; what the client
/// takes next is in another session, and what the old guards do does not touch it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_by_hand_takes_its_guards_at_once_and_for_good() {
    let site = Site::shared();
    let client = site.client().await;
    let one = client.lock("one").ttl(LONG).acquire().await.unwrap();
    let two = client.lock("two").ttl(LONG).acquire().await.unwrap();
    let other = client.lock("other").ttl(LONG / 2).acquire().await.unwrap();
    let node = only(&site, "/one");
    let old = session_of(&site.server, &node);
    expire_session_of(&site.server, &node);
    for guard in [&one, &two] {
        let cause = within(SOON, "it is told", guard.lost()).await;
        assert_eq!(cause, LossCause::SessionGone);
        assert!(guard.deadline() > now(), "long before its lease ran out");
    }
    assert_eq!(other.state(), GuardState::Held, "another session");

    let next = client.lock("one").ttl(LONG).acquire_within(SOON).await.unwrap();
    assert!(next.token() > one.token());
    let new = only(&site, "/one");
    assert_ne!(session_of(&site.server, &new), old);
    let lost = ErrorKind::Lost(LossCause::SessionGone);
    fails(one.release().await, &lost, &["\"one\"", "session"]);
    drop(two);
    within(SOON, "it is renewed", client.renew("one", next.owner(), None)).await.unwrap();
    assert_eq!(only(&site, "/one"), new);
    next.check().unwrap();
    next.release().await.unwrap();
    other.release().await.unwrap();
}

/// etcd#11456, kazoo#760: the waiter's session dies while it is queued. Its old place is no place, and a waiter
/// must not believe when the one before it goes: it stands in line again, and is granted in its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_ends_takes_a_fresh_place() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let holder = theirs.lock("line").ttl(LONG).acquire().await.unwrap();
    let first = only(&site, "/line");
    let waiter = waits(&ours, "line", LONG);
    until_waiting(&theirs, "line", 1).await;
    let second = waits(&theirs, "line", LONG);
    until_waiting(&theirs, "line", 2).await;
    let places = site.children("/line");
    let path = |node: &String| format!("{}/line/{node}", site.chroot);
    // The first of the two who wait; of ours there is only one.
    let holding = session_of(&site.server, &first);
    let ours_was = places.iter().find(|node| session_of(&site.server, &path(node)) != holding);
    let ours_was = ours_was.unwrap();
    expire_session_of(&site.server, &path(ours_was));
    until("it stands in line again", async || {
        let line = site.children("/line");
        line.len() == 3 && !line.contains(ours_was)
    })
    .await;
    assert!(!waiter.is_finished() && !second.is_finished(), "it is held");
    holder.release().await.unwrap();
    let next = granted(second).await;
    assert!(!waiter.is_finished(), "it is behind those who came before its fresh place");
    let token = next.token();
    next.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

/// Both at once: the holder and the one behind it are of one session, and somebody else is third. Only the third
/// may hold; the one whose session died must not take the holder's end for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_of_one_session_that_ends_are_both_out() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let holder = ours.lock("both").ttl(LONG).acquire().await.unwrap();
    let node = only(&site, "/both");
    let waiter = waits(&ours, "both", LONG);
    until_waiting(&theirs, "both", 1).await;
    let third = waits(&theirs, "both", LONG);
    until_waiting(&theirs, "both", 2).await;
    expire_session_of(&site.server, &node);
    let next = granted(third).await;
    assert_eq!(within(SOON, "it is told", holder.lost()).await, LossCause::SessionGone);
    until_waiting(&theirs, "both", 1).await;
    assert!(!waiter.is_finished(), "it is held");
    assert!(next.token() > holder.token());
    let token = next.token();
    next.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}
