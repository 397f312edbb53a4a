//! What a review found, and how it is now: servers that change their limits, answer slowly, or have ACLs.

use std::time::Duration;

use fencepost::GuardState;
use fencepost_testbed::ZooKeeper;

use super::common::{connect, now, pass, until, within};

/// The server starts again with another longest session.
fn limit(server: &ZooKeeper, from: u32, to: u32) {
    let config = server.directory().join("zoo.cfg");
    let text = std::fs::read_to_string(&config).unwrap();
    let line = |limit| format!("maxSessionTimeout={limit}\n");
    assert!(text.contains(&line(from)), "{text}");
    std::fs::write(&config, text.replace(&line(from), &line(to))).unwrap();
    server.restart().unwrap();
}

/// The session may end after three seconds from then on, and its guard knows.
#[tokio::test]
async fn a_session_that_becomes_shorter_shortens_its_guards() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(60_000).start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("shorter").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(25));
    let lost = tokio::spawn(guard.lost());
    limit(&server, 60_000, 3000);
    until("the guard counts on less", async || guard.remaining() <= Duration::from_secs(2)).await;
    // It is renewed in time, or lost in time and told so.
    let known = now();
    while guard.state() == GuardState::Held && now().since(known) < Duration::from_secs(4) {
        assert!(guard.remaining() <= Duration::from_secs(2));
        pass(Duration::from_millis(20)).await;
    }
    if guard.check().is_err() {
        within(Duration::from_secs(1), "those who wait are told", lost).await.unwrap();
    }
}

#[tokio::test]
async fn a_session_that_becomes_longer_keeps_its_guards() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(9000).start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("longer").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), Duration::from_secs(6));
    limit(&server, 9000, 12_000);
    until("it is renewed", async || guard.ttl().as_duration() == Duration::from_secs(8)).await;
    // Three renewals, and longer than a lease.
    pass(Duration::from_secs(9)).await;
    guard.check().unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    assert!(guard.remaining() > Duration::from_secs(4));
    guard.release().await.unwrap();
}
