//! Near misses are reported once each, before they become losses; a healthy guard reports nothing.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{GuardStatus, Metrics};
use fencepost_conformance::Line;

use crate::world::{Fault, World, eventually, ms, soon};

const TTL: Duration = Duration::from_secs(30);

impl World {
    fn metrics(&self) -> Metrics {
        self.client.metrics()
    }
}

#[tokio::test]
async fn late_renewal_is_reported_once_per_episode() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    for episode in 1..=2 {
        let from = world.now();
        world.line.set(Line::Refusing);
        world.until_heartbeat_waits().await;
        world.clock.advance(TTL / 3);
        eventually("it fails", || guard.status() == GuardStatus::RenewalFailing).await;
        while world.now() < from + TTL / 3 * 2 {
            assert_eq!(world.metrics().late_renewals, episode - 1, "reported before two thirds");
            world.advance_until_retry(TTL / 20).await;
        }
        eventually("it is reported", || world.metrics().late_renewals == episode).await;
        for _ in 0..2 {
            world.advance_until_retry(TTL / 20).await;
        }
        // A late renewal is still a renewal: the episode ends.
        world.line.set(Line::Whole);
        world.advance_until_retry(TTL / 20).await;
        eventually("it is renewed", || guard.status() == GuardStatus::Held).await;
        world.settle().await;
        assert_eq!(world.metrics().late_renewals, episode, "reported again in the same episode");
        assert_eq!(world.metrics().losses, 0);
    }
}

#[tokio::test]
async fn hanging_renewal_is_reported() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.store.inject(Fault::HangForEver);
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("the renewal hangs", || world.store.faults_left() == 0).await;
    world.until_alarms(2).await;
    world.clock.advance(TTL / 3);
    eventually("it is reported", || world.metrics().late_renewals == 1).await;
    assert!(guard.check().is_ok());
}

#[tokio::test]
async fn healthy_guard_reports_nothing() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    for _ in 0..6 {
        world.renew_once(&guard).await;
    }
    guard.release().await.unwrap();
    let metrics = world.metrics();
    assert_eq!((metrics.late_renewals, metrics.near_max_hold, metrics.unfenced_grants), (0, 0, 0));
    assert_eq!(metrics.losses, 0);
    assert!(metrics.grants >= 1, "{metrics:?}");
}

#[tokio::test]
async fn approaching_max_hold_is_reported() {
    let world = World::new().await;
    let (asked, max) = (world.now(), TTL * 5);
    let guard = world.client.lock("a").ttl(TTL).max_hold(max).acquire().await.unwrap();
    while world.now() + TTL / 3 < asked + max / 5 * 4 {
        world.renew_once(&guard).await;
    }
    assert_eq!(world.metrics().near_max_hold, 0, "reported too soon");
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("it is reported", || world.metrics().near_max_hold == 1).await;
    world.renew_once(&guard).await;
    assert_eq!(world.metrics().near_max_hold, 1, "reported twice");
    world.clock.advance(max);
    eventually("it is lost", || guard.check().is_err()).await;
    assert_eq!((world.metrics().near_max_hold, world.metrics().losses), (1, 1));
}

/// Shorter than the time to the first renewal; the report sends nothing to the store.
#[tokio::test]
async fn short_max_hold_is_reported_without_a_renewal() {
    let world = World::new().await;
    let max = TTL / 6;
    let guard = world.client.lock("a").ttl(TTL).max_hold(max).acquire().await.unwrap();
    world.until_heartbeat_waits().await;
    world.clock.advance(max / 5 * 4 - ms(1));
    world.settle().await;
    assert_eq!(world.metrics().near_max_hold, 0, "reported too soon");
    world.clock.advance(ms(1));
    eventually("it is reported", || world.metrics().near_max_hold == 1).await;
    world.settle().await;
    assert_eq!(world.store.batches(), 0, "a renewal was sent before it was due");
    guard.check().unwrap();
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn grant_for_correctness_without_a_fence_is_reported() {
    let world = World::new().await;
    let lock = || world.client.lock("a").ttl(TTL).for_correctness();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    // Reported on the thread that releases.
    let here = tracing::subscriber::set_default(subscriber);
    lock().acquire().await.unwrap().release().await.unwrap();
    drop(here);
    assert_eq!(world.metrics().unfenced_grants, 1);
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        logged.contains("fencepost::near_miss") && logged.contains("neither fencing()"),
        "{logged}"
    );

    drop(lock().acquire().await.unwrap());
    assert_eq!(world.metrics().unfenced_grants, 2);
    // Nor does what the library reads for itself count, nor the number alone, which is for logs.
    let guard = lock().acquire().await.unwrap();
    guard.run(async {}).await.unwrap();
    let _ = (format!("{guard:?}"), guard.status(), guard.remaining(), guard.deadline());
    let _ = (guard.token(), guard.handle().token());
    world.renew_once(&guard).await;
    guard.release().await.unwrap();
    assert_eq!(world.metrics().unfenced_grants, 3);
    let election = world.client.election("b").ttl(TTL).for_correctness();
    let leadership = election.campaign("value").await.unwrap();
    leadership.proclaim("other").await.unwrap();
    let _ = (format!("{leadership:?}"), leadership.term(), leadership.handle().number());
    leadership.resign().await.unwrap();
    assert_eq!(world.metrics().unfenced_grants, 4);
}

#[tokio::test]
async fn grant_whose_fencing_token_was_given_out_is_not_reported() {
    let world = World::new().await;
    let lock = || world.client.lock("a").ttl(TTL).for_correctness();
    let guard = lock().acquire().await.unwrap();
    let _ = guard.fencing();
    guard.release().await.unwrap();
    let guard = lock().acquire().await.unwrap();
    guard.check().unwrap();
    drop(guard);
    // The work got it through the handle.
    let guard = soon("the dropped one is released", lock().acquire()).await.unwrap();
    let handle = guard.handle();
    guard.run(async { handle.fencing() }).await.unwrap();
    guard.release().await.unwrap();
    let election = world.client.election("b").ttl(TTL).for_correctness();
    let leadership = election.campaign("").await.unwrap();
    let _ = leadership.fencing();
    leadership.resign().await.unwrap();
    // Another process continues with this grant.
    let owner = lock().lease_only().acquire().await.unwrap().detach();
    world.client.release("a", owner).await.unwrap();
    // This lock was never meant for a fence.
    drop(world.client.lock("c").ttl(TTL).acquire().await.unwrap());
    assert_eq!(world.metrics().unfenced_grants, 0);
}
