//! Bugs that a review found and that were fixed: servers that change their limits, reply slowly, or have ACLs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus, LossCause};
use fencepost_testkit::{LONG, Mode, Proxy, SOON, ZooKeeper, connect, fails, pass, until, within};

use super::common::Site;

/// Restarts the server with another longest session.
fn set_max_session_timeout(server: &ZooKeeper, from: u32, to: u32) {
    let config = server.directory().join("zoo.cfg");
    let text = std::fs::read_to_string(&config).unwrap();
    let line = |limit| format!("maxSessionTimeout={limit}\n");
    assert!(text.contains(&line(from)), "{text}");
    std::fs::write(&config, text.replace(&line(from), &line(to))).unwrap();
    server.restart().unwrap();
}

/// From then on the session may expire after three seconds, and its guard knows.
#[tokio::test]
async fn shorter_session_shortens_its_guards() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(60_000).start().unwrap();
    let client = connect(&server.url()).await;
    // Its next renewal, which would report it, is due after 13 seconds.
    let guard = client.lock("shorter").ttl(Duration::from_secs(40)).acquire().await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(35));
    let lost = tokio::spawn(guard.lost());
    set_max_session_timeout(&server, 60_000, 3000);
    until("the guard counts on less", async || guard.remaining() <= Duration::from_secs(2)).await;
    // The renewal is too late, and `lost` resolves without a read of the guard.
    within(Duration::from_secs(4), "it is lost", lost).await.unwrap();
    assert!(guard.check().is_err());
}

#[tokio::test]
async fn longer_session_keeps_its_guards() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(9000).start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("longer").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), Duration::from_secs(6));
    set_max_session_timeout(&server, 9000, 12_000);
    until("it is renewed", async || guard.ttl().as_duration() == Duration::from_secs(8)).await;
    // Three renewals, and longer than a lease.
    pass(Duration::from_secs(9)).await;
    guard.check().unwrap();
    assert_eq!(guard.status(), GuardStatus::Held);
    assert!(guard.remaining() > Duration::from_secs(4));
    guard.release().await.unwrap();
}

/// Each reply takes longer than the first timeout.
#[tokio::test]
async fn slow_store_is_waited_for() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let url = format!("zookeeper://{}{}", proxy.address(), site.chroot);
    for before in [false, true] {
        let delay = Mode::Delay(Duration::from_millis(900));
        proxy.set_mode(if before { delay } else { Mode::Pass });
        let client = connect(&url).await;
        proxy.set_mode(delay);
        let lock = client.lock("slow").ttl(Duration::from_secs(30));
        let guard = within(LONG, "granted", lock.acquire()).await.unwrap();
        pass(Duration::from_secs(3)).await;
        guard.check().unwrap();
        within(LONG, "released", guard.release()).await.unwrap();
        assert!(site.children("/slow").is_empty());
    }
}

/// One of two connections is frozen: a short timeout and a short lease must use the other.
#[tokio::test]
async fn frozen_server_is_left_in_time() {
    let site = Site::shared();
    let proxies = [0, 1].map(|_| Proxy::to(site.server.address()).unwrap());
    let [one, other] = proxies.each_ref().map(Proxy::address);
    let client = connect(&format!("zookeeper://{one},{other}{}", site.chroot)).await;
    let brief = client.lock("brief").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    for proxy in &proxies {
        proxy.set_mode(Mode::Silent);
        let lock = client.lock("quick").ttl(Duration::from_secs(30));
        let guard = lock.wait_timeout(Duration::from_secs(4)).acquire().await.unwrap();
        guard.release().await.unwrap();
        pass(Duration::from_secs(4)).await;
        brief.check().unwrap();
        proxy.set_mode(Mode::Pass);
    }
}

#[tokio::test]
async fn unsafe_limits_are_unfit_for_correctness() {
    let builder = || ZooKeeper::builder().tick_time(200);
    let one = builder().max_session_timeout(60_000).start().unwrap();
    let other = builder().max_session_timeout(3000).min_session_timeout(300).start().unwrap();
    let refused = ErrorKind::Refused;
    let both = connect(&format!("{},{}", one.url(), other.address())).await;
    fails(both.lock("a").for_correctness().try_acquire().await, refused, &["the same", "limits"]);
    let found = both.guarantees().server_info;
    assert!(found.iter().any(|(what, it)| *what == "TTL" && it.contains("different")), "{found:?}");
    let low = connect(&other.url()).await;
    fails(low.lock("a").for_correctness().try_acquire().await, refused, &["two ticks"]);
    let fit = connect(&one.url()).await;
    fit.lock("a").for_correctness().acquire().await.unwrap().release().await.unwrap();
}

/// A break by one user must not block the breaks of others.
#[tokio::test]
async fn break_under_another_acl_is_noticed() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("open").ttl(LONG).acquire().await.unwrap();
    let address = site.server.address();
    let url = format!("zookeeper://ann:secret@{address}{}?acl=creator", site.chroot);
    let ann = connect(&url).await;
    let hers = ann.lock("hers").ttl(LONG).acquire().await.unwrap();
    ann.break_lock("hers").await.unwrap().unwrap();
    assert_eq!(within(SOON, "the guard is lost", hers.lost()).await, LossCause::Broken);
    client.break_lock("open").await.unwrap().unwrap();
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::Broken);
}

/// A server restored from a backup closes sessions that have seen newer writes. Such a session is over, and the next
/// one works.
#[tokio::test]
async fn restored_server_is_used_again() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(3000).start().unwrap();
    let client = connect(&server.url()).await;
    let (data, copy) = (server.directory().join("data"), server.directory().join("copy"));
    let copy_all = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        let done = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    server.kill().unwrap();
    copy_all(&data, &copy);
    server.start_again().unwrap();
    let brief = Duration::from_secs(2);
    for name in ["a", "b", "c"] {
        client
            .lock(name)
            .ttl(brief)
            .wait_timeout(SOON)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    server.kill().unwrap();
    copy_all(&copy, &data);
    server.start_again().unwrap();
    until("it is used again", async || {
        match client.lock("a").ttl(brief).wait_timeout(Duration::from_secs(2)).acquire().await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                false
            }
        }
    })
    .await;
}
