//! Sessions: shared, limited by the server, ended with what they carried, and never piling up.

use std::time::Duration;

use fencepost::{ErrorKind, GuardState, LossCause};
use fencepost_testkit::{LONG, Mode, Proxy, SOON, ZooKeeper, connect, fails, pass, until, within};

use super::common::Site;

const BRIEF: Duration = Duration::from_secs(1);

#[tokio::test]
async fn grants_of_one_ttl_share_a_session() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(200_000).start().unwrap();
    let site = Site { server: server.into(), chroot: "/s".into() };
    let client = site.client().await;
    assert_eq!(site.sessions(), 1);
    let mut guards = Vec::new();
    for number in 0..10 {
        let name = format!("shared/{number}");
        guards.push(client.lock(&name).ttl(LONG).acquire().await.unwrap());
    }
    assert_eq!(site.sessions(), 2);
    // One guard's end is not the others'.
    guards.pop().unwrap().release().await.unwrap();
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
    drop(guards);
    // A script's grant has one of its own, for as long as it is held.
    for _ in 0..10 {
        let guard = client.lock("script").ttl(LONG).lease_only().acquire().await.unwrap();
        guard.release().await.unwrap();
        assert!(client.lock("script").lease_only().try_acquire().await.unwrap().is_some());
    }
    until("the scripts' sessions are closed", async || site.sessions() <= 2).await;
    client.close().await;
    drop(client);
    until("all are closed", async || site.sessions() == 0).await;
}

/// What the server does not allow is seen in the guard.
#[tokio::test]
async fn a_server_that_clamps_is_believed() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(3000).start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("long").ttl(LONG).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), Duration::from_secs(2));
    // It is renewed all the same.
    pass(Duration::from_secs(3)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let guard = client.lock("short").ttl(Duration::from_millis(100)).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), Duration::from_millis(266));
    let found = client.guarantees().found;
    assert!(
        found.iter().any(|(what, it)| *what == "TTL" && it.contains("266ms to 2.0s")),
        "{found:?}"
    );
    assert!(found.iter().any(|(what, it)| *what == "servers" && it.contains("standalone")));
    assert!(found.iter().any(|(what, it)| *what == "version" && it.contains("ZooKeeper 3.")));
}

#[tokio::test]
async fn a_longer_ttl_is_refused_and_the_same_is_not() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("ttl").ttl(BRIEF).lease_only().acquire().await.unwrap();
    let (ttl, owner) = (guard.ttl(), guard.detach());
    let longer = fencepost::Ttl::new(LONG).unwrap();
    fails(client.renew("ttl", owner, Some(longer)).await, &ErrorKind::Refused, &["longer TTL"]);
    assert_eq!(client.renew("ttl", owner, Some(ttl)).await.unwrap().value.ttl, ttl);
}

/// All guards of a session that ended are told as soon as the server says so.
#[tokio::test]
async fn a_session_that_ended_takes_all_its_guards_and_none_of_the_next() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let one = client.lock("one").ttl(BRIEF).acquire().await.unwrap();
    let two = client.lock("two").ttl(BRIEF).acquire().await.unwrap();
    proxy.set_mode(Mode::Silent);
    until("the session ends", async || site.children("/one").is_empty()).await;
    // Lost by their own clocks, long before.
    assert!(one.check().is_err() && two.check().is_err());
    proxy.set_mode(Mode::Pass);
    // CURATOR-604: what comes next has nothing to do with the old session.
    let next = client.lock("one").ttl(BRIEF).acquire_within(SOON).await.unwrap();
    assert!(next.token() > one.token());
    drop((one, two));
    pass(BRIEF * 2).await;
    next.check().unwrap();
    next.release().await.unwrap();
    until("nothing is left", async || client.list().await.unwrap().is_empty()).await;
}

/// A guard that is lost but not dropped does not hold the lock for ever, though its session lives.
#[tokio::test]
async fn a_lost_guard_does_not_hold_the_lock_with_its_session() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let other = ours.lock("other").ttl(BRIEF).acquire().await.unwrap();
    let guard = ours.lock("stuck").ttl(BRIEF).max_hold(BRIEF).acquire().await.unwrap();
    assert_eq!(within(SOON, "lost", guard.lost()).await, LossCause::MaxHold);
    let next = theirs.lock("stuck").ttl(LONG).acquire_within(SOON).await.unwrap();
    other.check().unwrap();
    drop(guard);
    next.check().unwrap();
}

/// A release that could not be made in time is made when the servers are back: the session is shared, so the
/// node would not end by itself.
#[tokio::test]
async fn a_release_is_made_up_for_long_after() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let kept = client.lock("kept").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let guard = client.lock("late").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let ttl = Duration::from_millis(300);
    let brief = client.lock("brief").ttl(ttl).acquire().await.unwrap();
    proxy.set_mode(Mode::Refuse);
    drop((guard, brief));
    // The library gives up on the brief one meanwhile.
    pass(ttl * 4).await;
    proxy.set_mode(Mode::Pass);
    until("both are gone", async || {
        site.children("/late").is_empty() && site.children("/brief").is_empty()
    })
    .await;
    kept.check().unwrap();
}
