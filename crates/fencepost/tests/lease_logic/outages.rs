//! Calls to a store that does not reply: a wait continues, every other call ends.

use std::time::Duration;

use fencepost::backend::{GrantId, Outcome, Renewal};
use fencepost::{ErrorKind, GuardStatus, LockName};
use fencepost_conformance::Line;

use crate::world::{Fault, World, eventually, ms, soon};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn wait_without_limit_outlasts_an_outage() {
    let world = World::new().await;
    world.line.set(Line::Refusing);
    let lock = world.client.lock("a").ttl(TTL);
    let waiting = tokio::spawn(lock.acquire());
    // Far longer than the limit of any single call.
    for _ in 0..40 {
        world.clock.advance(ms(1500));
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished(), "the outage ended the wait");
    world.line.set(Line::Whole);
    world.advance_until(ms(500), "it is granted", || waiting.is_finished()).await;
    let guard = soon("it is granted", waiting).await.unwrap().unwrap();
    guard.check().unwrap();
    assert_eq!(world.memory_holder("a").await, Some(guard.token()));
}

#[tokio::test]
async fn wait_with_a_limit_ends_there_and_names_the_outage() {
    let world = World::new().await;
    world.line.set(Line::Refusing);
    let lock = world.client.lock("a").ttl(TTL);
    let waiting = tokio::spawn(lock.wait_timeout(Duration::from_secs(3)).acquire());
    world.advance_until(ms(1000), "the wait ends", || waiting.is_finished()).await;
    let error = soon("the wait ends", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn try_acquire_fails_at_once_in_an_outage() {
    let world = World::new().await;
    world.line.set(Line::Refusing);
    let error = soon("the try ends", world.client.lock("a").try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn each_call_of_a_client_has_a_limit() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).lease_only().acquire().await.unwrap();
    let owner = guard.detach();
    world.line.set(Line::Silent);
    let client = world.client.clone();
    let calls = tokio::spawn(async move {
        let token = fencepost::Token::new(1).unwrap();
        // One after the other: each must end by itself.
        [
            ("inspect", client.inspect("a").await.map(drop)),
            ("list", client.list().await.map(drop)),
            ("break_lock", client.break_lock("a").await.map(drop)),
            ("break_grant", client.break_grant("a", token).await.map(drop)),
            ("renew", client.renew("a", owner, None).await.map(drop)),
            ("release", client.release("a", owner).await),
        ]
    });
    for _ in 0..60 {
        if calls.is_finished() {
            break;
        }
        eventually("it waits for the clock", || world.clock.alarms() > 1 || calls.is_finished())
            .await;
        world.clock.advance(Duration::from_secs(1));
    }
    for (call, outcome) in soon("all calls end", calls).await.unwrap() {
        let error = outcome.expect_err(call);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{call}: {error}");
        assert!(error.one_line().contains("did not answer within"), "{call}: {error}");
    }
}

#[tokio::test]
async fn outage_during_the_confirmation_does_not_end_the_wait() {
    let world = World::new().await;
    let first = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let old = first.token();
    let waiting = tokio::spawn(world.client.lock("a").ttl(TTL).acquire());
    while world.memory_waiting("a").await == 0 {
        tokio::task::yield_now().await;
    }
    world.store.inject(Fault::HangForEver);
    first.release().await.unwrap();
    eventually("the confirmation hangs", || world.store.faults_left() == 0).await;
    world.advance_until(ms(2500), "it is granted again", || waiting.is_finished()).await;
    let guard = soon("it is granted", waiting).await.unwrap().unwrap();
    assert!(guard.token() > old);
    assert_eq!(world.memory_holder("a").await, Some(guard.token()));
}

#[tokio::test]
async fn wait_with_a_limit_ends_there_though_the_store_hangs() {
    let world = World::new().await;
    world.line.set(Line::Refusing);
    let start = world.now();
    let waiting = tokio::spawn(
        world.client.lock("a").ttl(TTL).wait_timeout(Duration::from_secs(3)).acquire(),
    );
    tokio::task::yield_now().await;
    // From here on nothing replies, not even with a refusal.
    world.line.set(Line::Silent);
    while !waiting.is_finished() {
        world.clock.advance(ms(250));
        tokio::task::yield_now().await;
        assert!(world.now().since(start) < Duration::from_secs(5), "the wait continues");
    }
    let error = soon("the wait ends", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn closed_client_ends_a_wait_in_an_outage() {
    let world = World::new().await;
    world.line.set(Line::Refusing);
    let waiting = tokio::spawn(world.client.lock("a").ttl(TTL).acquire());
    tokio::task::yield_now().await;
    let client = world.client.clone();
    let closing = tokio::spawn(async move { client.close().await });
    tokio::task::yield_now().await;
    world.line.set(Line::Whole);
    world.advance_until(ms(500), "the wait ends", || waiting.is_finished()).await;
    let error = soon("the wait ends", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    soon("it is closed", closing).await.unwrap();
}

/// The answers of a batch are known by their grants: one that is missing is that of one guard alone.
#[tokio::test]
async fn missing_answer_is_a_failed_renewal_of_unknown_outcome() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let bystander = world.client.lock("b").ttl(TTL).acquire().await.unwrap();
    let first_deadline = guard.deadline();
    world.store.inject(Fault::LeaveOut("a"));
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("one is failing", || guard.status() == GuardStatus::RenewalFailing).await;
    eventually("the other is renewed", || bystander.deadline() > first_deadline).await;
    assert_eq!(bystander.status(), GuardStatus::Held);
    assert_eq!(guard.deadline(), first_deadline, "nobody knows whether it was renewed");
    world.advance_until_retry(TTL / 20).await;
    eventually("it is renewed", || guard.status() == GuardStatus::Held).await;
    // What the store may have done is said to a caller, too.
    let owner = guard.owner();
    world.store.inject(Fault::LeaveOut("a"));
    let error = world.client.renew("a", owner, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.one_line().contains("left out the answer"), "{error}");
    world.store.inject(Fault::LeaveOut("a"));
    let grant = GrantId { name: LockName::new("a").unwrap(), owner };
    let batch = vec![Renewal::new(grant.clone())];
    let answers = world.client.store().renew_batch(batch, TTL).await;
    assert_eq!(answers.to(&grant).unwrap_err().outcome(), Outcome::Unknown);
}
