//! Guard rails: near misses are told, once each, before they are losses; and nothing is told of what is well.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{Counts, GuardState};
use fencepost_conformance::Line;

use crate::world::{Trick, World, eventually, ms, soon};

const TTL: Duration = Duration::from_secs(30);

impl World {
    fn counts(&self) -> Counts {
        self.client.counts()
    }
}

#[tokio::test]
async fn a_renewal_that_is_late_is_told_once_per_episode() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    for episode in 1..=2 {
        let from = world.now();
        world.line.set(Line::Refusing);
        world.keeper_waits().await;
        world.clock.advance(TTL / 3);
        eventually("it fails", || guard.state() == GuardState::RenewalFailing).await;
        while world.now() < from + TTL / 3 * 2 {
            assert_eq!(world.counts().late_renewals, episode - 1, "told before two thirds");
            world.tries_again(TTL / 20).await;
        }
        eventually("it is told", || world.counts().late_renewals == episode).await;
        for _ in 0..2 {
            world.tries_again(TTL / 20).await;
        }
        // A late one is still one: the episode ends.
        world.line.set(Line::Whole);
        world.tries_again(TTL / 20).await;
        eventually("it is renewed", || guard.state() == GuardState::Held).await;
        world.settled().await;
        assert_eq!(world.counts().late_renewals, episode, "told again in the same episode");
        assert_eq!(world.counts().losses, 0);
    }
}

#[tokio::test]
async fn a_renewal_that_hangs_is_told() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.store.play(Trick::HangForEver);
    world.keeper_waits().await;
    world.clock.advance(TTL / 3);
    eventually("the renewal hangs", || world.store.tricks_left() == 0).await;
    world.alarms(2).await;
    world.clock.advance(TTL / 3);
    eventually("it is told", || world.counts().late_renewals == 1).await;
    assert!(guard.check().is_ok());
}

#[tokio::test]
async fn of_a_healthy_guard_nothing_is_told() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    for _ in 0..6 {
        world.renew_once(&guard).await;
    }
    guard.release().await.unwrap();
    let counts = world.counts();
    assert_eq!((counts.late_renewals, counts.near_max_hold, counts.unread_tokens), (0, 0, 0));
    assert_eq!(counts.losses, 0);
    assert!(counts.grants >= 1, "{counts:?}");
}

#[tokio::test]
async fn the_end_of_max_hold_is_told_when_it_is_near() {
    let world = World::new().await;
    let (asked, max) = (world.now(), TTL * 5);
    let guard = world.client.lock("a").ttl(TTL).max_hold(max).acquire().await.unwrap();
    while world.now() + TTL / 3 < asked + max / 5 * 4 {
        world.renew_once(&guard).await;
    }
    assert_eq!(world.counts().near_max_hold, 0, "told too soon");
    world.keeper_waits().await;
    world.clock.advance(TTL / 3);
    eventually("it is told", || world.counts().near_max_hold == 1).await;
    world.renew_once(&guard).await;
    assert_eq!(world.counts().near_max_hold, 1, "told twice");
    world.clock.advance(max);
    eventually("it is lost", || guard.check().is_err()).await;
    assert_eq!((world.counts().near_max_hold, world.counts().losses), (1, 1));
}

/// Shorter than the time to the first renewal; and the look costs the store nothing.
#[tokio::test]
async fn a_short_max_hold_is_told_of_without_a_renewal() {
    let world = World::new().await;
    let max = TTL / 6;
    let guard = world.client.lock("a").ttl(TTL).max_hold(max).acquire().await.unwrap();
    world.keeper_waits().await;
    world.clock.advance(max / 5 * 4 - ms(1));
    world.settled().await;
    assert_eq!(world.counts().near_max_hold, 0, "told too soon");
    world.clock.advance(ms(1));
    eventually("it is told", || world.counts().near_max_hold == 1).await;
    world.settled().await;
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
async fn a_token_that_nobody_read_is_told_of() {
    let world = World::new().await;
    let lock = || world.client.lock("a").ttl(TTL).for_correctness();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    // Told on the thread that gives it back.
    let here = tracing::subscriber::set_default(subscriber);
    lock().acquire().await.unwrap().release().await.unwrap();
    drop(here);
    assert_eq!(world.counts().unread_tokens, 1);
    let said = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(said.contains("fencepost::rails") && said.contains("never read"), "{said}");

    drop(lock().acquire().await.unwrap());
    assert_eq!(world.counts().unread_tokens, 2);
    // What the library reads for itself shows no fence anything.
    let guard = lock().acquire().await.unwrap();
    guard.run(async {}).await.unwrap();
    let _ = (format!("{guard:?}"), guard.state(), guard.remaining(), guard.deadline());
    world.renew_once(&guard).await;
    guard.release().await.unwrap();
    assert_eq!(world.counts().unread_tokens, 3);
    let election = world.client.election("b").ttl(TTL).for_correctness();
    let leadership = election.campaign("value").await.unwrap();
    leadership.proclaim("other").await.unwrap();
    let _ = format!("{leadership:?}");
    leadership.resign().await.unwrap();
    assert_eq!(world.counts().unread_tokens, 4);
}

#[tokio::test]
async fn of_a_token_that_somebody_has_nothing_is_told() {
    let world = World::new().await;
    let lock = || world.client.lock("a").ttl(TTL).for_correctness();
    let guard = lock().acquire().await.unwrap();
    let _ = guard.token();
    guard.release().await.unwrap();
    let guard = lock().acquire().await.unwrap();
    guard.check().unwrap();
    drop(guard);
    // The work has taken it along.
    let guard = soon("the dropped one is released", lock().acquire()).await.unwrap();
    let standing = guard.standing();
    guard.run(async { standing.token() }).await.unwrap();
    guard.release().await.unwrap();
    let election = world.client.election("b").ttl(TTL).for_correctness();
    let leadership = election.campaign("").await.unwrap();
    let _ = leadership.term();
    leadership.resign().await.unwrap();
    // Another process goes on with this one.
    let owner = lock().lease_only().acquire().await.unwrap().detach();
    world.client.release("a", owner).await.unwrap();
    // And this was never meant for a fence.
    drop(world.client.lock("c").ttl(TTL).acquire().await.unwrap());
    assert_eq!(world.counts().unread_tokens, 0);
}
