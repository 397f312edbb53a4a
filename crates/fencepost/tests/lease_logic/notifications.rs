//! A notification makes the holder renew at once, and the reply decides. A broken guard confirms the break.

use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus, LossCause, Ttl};

use crate::world::{World, eventually, ms, soon};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn notified_holder_renews_at_once() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.until_heartbeat_waits().await;
    world.clock.advance(ms(10));
    assert_eq!(world.store.renewals(), 0);
    world.store.notify_holder();
    eventually("the grant is renewed", || world.store.renewals() == 1).await;
    // Nothing was broken: the notification was wrong, and the guard stays.
    assert_eq!(guard.status(), GuardStatus::Held);
    assert_eq!(world.store.releases(), 0);
}

#[tokio::test]
async fn notification_before_the_grant_is_kept() {
    let world = World::new().await;
    let gate = world.store.hold_back_acquires();
    let lock = world.client.lock("a").ttl(TTL);
    let acquire = tokio::spawn(lock.acquire());
    eventually("the store has granted", || gate.waiting() == 1).await;
    world.store.notify_holder();
    gate.open();
    let guard = soon("the guard is there", acquire).await.unwrap().unwrap();
    eventually("the grant is renewed", || world.store.renewals() == 1).await;
    guard.check().unwrap();
}

#[tokio::test]
async fn broken_guard_is_released_once_to_confirm() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let broken = world.client.break_lock("a").await.unwrap().unwrap();
    assert_eq!(broken.token, Some(guard.token()));
    assert_eq!(soon("it is lost", guard.lost()).await, LossCause::Broken);
    eventually("the holder confirms", || world.store.releases() == 1).await;
}

#[tokio::test]
async fn refused_release_is_retried() {
    // For example, a demoted primary or a missing right is fixed before the lease ends.
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.store.refuse_releases(3);
    drop(guard);
    world.advance_until(ms(1500), "the release is retried", || world.store.releases() >= 4).await;
    world.until_free("a").await;
}

#[tokio::test]
async fn lease_only_acquire_is_refused_if_the_store_keeps_a_shorter_ttl() {
    let world = World::new().await;
    world.store.limit_ttl(Ttl::new(Duration::from_secs(6)).unwrap());
    let refused = world.client.lock("a").ttl(TTL).lease_only().acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.one_line().contains("6.0s"), "{refused}");
    world.until_free("a").await;
    // A guard is renewed in time, so it accepts the shorter TTL.
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), Duration::from_secs(6));
}

#[tokio::test]
async fn ttl_is_rounded_down_to_milliseconds() {
    let world = World::new().await;
    let lock = world.client.lock("a").ttl(Duration::from_secs(10) / 3).lease_only();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl().as_duration(), ms(3333));
}
