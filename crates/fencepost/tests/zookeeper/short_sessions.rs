//! A server that keeps sessions for less than was requested: no guard relies on more, and a lease-only acquire is
//! refused.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{LONG, SOON, ZooKeeper, fails, log, ms, until};

use crate::common::Site;

/// Sessions of three seconds at most, so leases of two.
fn short_sessions() -> Site {
    let builder = ZooKeeper::builder().tick_time(200).max_session_timeout(3000);
    Site { server: builder.start().unwrap().into(), chroot: "/short".into() }
}

/// A lease-only grant has no heartbeat: a caller that asked for a minute would lose it after seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shortened_lease_only_acquire_is_refused_and_leaves_nothing() {
    let site = short_sessions();
    let client = site.client().await;
    let before = site.sessions();
    let refused = client.lock("x").ttl(LONG).lease_only().acquire().await;
    fails(refused, ErrorKind::Refused, &["\"x\"", "1m00s", "at most 2.0s"]);
    until("its node is gone", async || site.children("/x").is_empty()).await;
    until("its session is gone", async || site.sessions() == before).await;
    // A TTL that the server allows is granted.
    let guard =
        client.lock("x").ttl(ms(2000)).lease_only().wait_timeout(SOON).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), ms(2000));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shortened_acquire_warns_once_and_explain_shows_the_limit() {
    let site = short_sessions();
    let client = site.client().await;
    let found = client.guarantees().server_info;
    let ttl = found.iter().find(|(what, _)| *what == "TTL").expect("a row for the TTL");
    assert!(ttl.1.contains("to 2.0s"), "{ttl:?}");
    for name in ["cut-short-first", "cut-short-second"] {
        let guard = client.lock(name).ttl(LONG).acquire().await.unwrap();
        assert_eq!(guard.ttl().as_duration(), ms(2000));
        guard.release().await.unwrap();
    }
    let log = log();
    let warned: Vec<_> = log.lines().filter(|line| line.contains("cut-short")).collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("2.0s") && warned[0].contains("1m00s"), "{warned:?}");
}

/// A candidate's session is as long as the requested TTL, and its lease is two thirds of that: no warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaign_with_a_kept_ttl_does_not_warn() {
    let site = short_sessions();
    let client = site.client().await;
    let election = client.election("kept-in-full").ttl(Duration::from_secs(3));
    let leader = election.campaign("me").await.unwrap();
    leader.resign().await.unwrap();
    assert!(!log().contains("kept-in-full"), "{}", log());
}
