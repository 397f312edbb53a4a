//! `Changes`, `Watch` and `Observer` as streams: one that is dropped while it waits, and polled again, loses nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost::{GuardStatus, LossCause};
use futures_core::Stream;

use crate::world::{World, soon};

const TTL: Duration = Duration::from_secs(30);

/// The next item. Dropping this future drops what `StreamExt::next` would.
async fn item<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    soon("an item", poll_fn(|context| Pin::new(&mut *stream).poll_next(context))).await
}

/// Polls once, as a `select!` does whose other branch wins: nothing is there yet.
fn waits<S: Stream + Unpin>(stream: &mut S) -> bool {
    Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[tokio::test]
async fn watch_resumes_after_a_dropped_poll() {
    let world = World::new().await;
    let mut watch = world.client.watch("a").unwrap();
    assert!(item(&mut watch).await.unwrap().unwrap().holder.is_none());
    assert!(waits(&mut watch));
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let info = item(&mut watch).await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().token, Some(guard.token()));
    // Changed between two polls.
    guard.release().await.unwrap();
    assert!(item(&mut watch).await.unwrap().unwrap().holder.is_none());
    // `next` takes over from a poll that waits, and the stream from `next`.
    assert!(waits(&mut watch));
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let info = soon("the holder", watch.next()).await.unwrap();
    assert_eq!(info.holder.unwrap().token, Some(guard.token()));
    assert!(waits(&mut watch), "nothing is shown twice");
    guard.release().await.unwrap();
    assert!(item(&mut watch).await.unwrap().unwrap().holder.is_none());
}

#[tokio::test]
async fn observer_resumes_after_a_dropped_poll() {
    let world = World::new().await;
    let election = world.client.election("a").ttl(TTL);
    let mut observer = election.observe().unwrap();
    assert!(item(&mut observer).await.unwrap().unwrap().is_none());
    assert!(waits(&mut observer));
    let leadership = election.campaign("one").await.unwrap();
    let leader = item(&mut observer).await.unwrap().unwrap().unwrap();
    assert_eq!(
        (leader.term, leader.value.unwrap().text()),
        (Some(leadership.term()), "one".into())
    );
    // A waiter changes the lock, and not the leader.
    let candidate = tokio::spawn(async move { election.campaign("two").await });
    while world.memory_waiting("a").await == 0 {
        tokio::task::yield_now().await;
    }
    assert!(waits(&mut observer));
    leadership.proclaim("still one").await.unwrap();
    let leader = item(&mut observer).await.unwrap().unwrap().unwrap();
    assert_eq!(leader.value.unwrap().text(), "still one");
    candidate.abort();
}

#[tokio::test]
async fn changes_resume_after_a_dropped_poll_and_end_with_the_loss() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut changes = guard.changes();
    for _ in 0..2 {
        assert!(waits(&mut changes));
        world.renew_once(&guard).await;
        assert_eq!(item(&mut changes).await, Some((GuardStatus::Held, guard.deadline())));
    }
    // `next` takes over from a poll that waits.
    assert!(waits(&mut changes));
    world.renew_once(&guard).await;
    assert_eq!(soon("the renewal", changes.next()).await.1, guard.deadline());
    assert!(waits(&mut changes), "nothing is shown twice");
    world.client.break_lock("a").await.unwrap();
    let (status, _) = item(&mut changes).await.unwrap();
    assert_eq!(status, GuardStatus::Lost(LossCause::Broken));
    assert!(item(&mut changes).await.is_none());
    // Who begins to follow it after the loss, because it was frozen before, learns of it too.
    let late = &mut guard.changes();
    assert_eq!(soon("the loss", late.next()).await.0, GuardStatus::Lost(LossCause::Broken));
    assert!(item(late).await.is_none(), "the loss was the last change");
    assert_eq!(item(&mut guard.changes()).await.unwrap().0, GuardStatus::Lost(LossCause::Broken));
}
