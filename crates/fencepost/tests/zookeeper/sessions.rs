//! Sessions: shared, limited by the server, ended with all their grants, and never accumulating.

use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus, LossCause};
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
    // The end of one guard does not end the others.
    guards.pop().unwrap().release().await.unwrap();
    assert!(guards.iter().all(|guard| guard.status() == GuardStatus::Held));
    drop(guards);
    // A lease-only grant has its own session, while it is held.
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

/// A TTL above the server's limit is shortened in the guard.
#[tokio::test]
async fn guard_uses_the_ttl_that_the_server_allows() {
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
    let found = client.guarantees().server_info;
    assert!(
        found.iter().any(|(what, it)| *what == "TTL" && it.contains("266ms to 2.0s")),
        "{found:?}"
    );
    assert!(found.iter().any(|(what, it)| *what == "servers" && it.contains("standalone")));
    assert!(found.iter().any(|(what, it)| *what == "version" && it.contains("ZooKeeper 3.")));
}

#[tokio::test]
async fn longer_ttl_is_refused_and_the_same_is_not() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("ttl").ttl(BRIEF).lease_only().acquire().await.unwrap();
    let (ttl, owner) = (guard.ttl(), guard.detach());
    let longer = fencepost::Ttl::new(LONG).unwrap();
    fails(client.renew("ttl", owner, Some(longer)).await, ErrorKind::Refused, &["longer TTL"]);
    assert_eq!(client.renew("ttl", owner, Some(ttl)).await.unwrap().value.ttl, ttl);
}

/// All guards of an expired session are lost as soon as the server reports it.
#[tokio::test]
async fn expired_session_ends_all_its_guards_and_no_later_one() {
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
    // CURATOR-604: later grants do not depend on the old session.
    let next = client.lock("one").ttl(BRIEF).wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > one.token());
    drop((one, two));
    pass(BRIEF * 2).await;
    next.check().unwrap();
    next.release().await.unwrap();
    until("nothing is left", async || client.list().await.unwrap().is_empty()).await;
}

/// A guard that is lost but not dropped does not keep the lock, though its session lives.
#[tokio::test]
async fn lost_guard_does_not_keep_the_lock() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let other = ours.lock("other").ttl(BRIEF).acquire().await.unwrap();
    let guard = ours.lock("stuck").ttl(BRIEF).max_hold(BRIEF).acquire().await.unwrap();
    assert_eq!(within(SOON, "lost", guard.lost()).await, LossCause::MaxHold);
    let next = theirs.lock("stuck").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    other.check().unwrap();
    drop(guard);
    next.check().unwrap();
}

/// A release that failed in an outage is completed when the servers are back: the session is shared, so the node
/// would not end by itself.
#[tokio::test]
async fn release_is_completed_after_an_outage() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let kept = client.lock("kept").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let guard = client.lock("late").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let ttl = Duration::from_millis(300);
    let brief = client.lock("brief").ttl(ttl).acquire().await.unwrap();
    proxy.set_mode(Mode::Refuse);
    drop((guard, brief));
    // Meanwhile the library gives up the brief one.
    pass(ttl * 4).await;
    proxy.set_mode(Mode::Pass);
    until("both are gone", async || {
        site.children("/late").is_empty() && site.children("/brief").is_empty()
    })
    .await;
    kept.check().unwrap();
}
