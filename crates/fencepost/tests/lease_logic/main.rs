//! Renewals, deadlines and loss on a manual clock. Nothing here sleeps; the tests wait for conditions of the client's
//! own thread.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]
#![expect(clippy::unchecked_time_subtraction, reason = "constants; a test that is wrong panics")]

mod near_misses;
mod notifications;
mod observers;
mod outages;
mod secrets;
mod streams;
mod world;

use std::future::Future as _;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost::backend::PageRequest;
use fencepost::backends::memory::Memory;
use fencepost::clock::BootClock;
use fencepost::{ErrorKind, Fencepost, GuardStatus, LossCause, Moment};
use fencepost_conformance::Line;
use world::{Fault, PanickingClock, World, eventually, ms, soon};

const TTL: Duration = Duration::from_secs(30);
/// 1% of the TTL and 2 ms.
const MARGIN: Duration = Duration::from_millis(302);
/// The TTL without the margin: how long a guard trusts a reply, counted from its request.
const TRUSTED: Duration = Duration::from_millis(29_698);

#[tokio::test]
async fn lease_is_renewed_at_a_third_of_its_ttl_and_not_before() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    for round in 1..=5 {
        let before = world.now();
        world.until_heartbeat_waits().await;
        world.clock.advance(TTL / 3 - ms(1));
        assert_eq!(world.store.renewals(), round - 1, "renewed before it was due");
        world.clock.advance(ms(1));
        let due = before + TTL / 3;
        eventually("the renewal is credited", || guard.deadline() == due + TRUSTED).await;
        assert_eq!(world.store.renewals(), round);
        assert_eq!(world.store.last_renewal(), due, "a third of the TTL after the last");
        assert_eq!(guard.status(), GuardStatus::Held);
    }
}

#[tokio::test]
async fn deadline_counts_from_the_request_and_keeps_its_margin() {
    let world = World::new().await;
    let asked = world.now();
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!(guard.deadline(), asked + TRUSTED);
    assert_eq!(guard.remaining(), TRUSTED);
    world.line.set(Line::Silent);
    let lost = tokio::spawn(guard.lost());
    world.clock.advance(TRUSTED - Duration::from_nanos(1));
    assert_eq!(guard.remaining(), Duration::from_nanos(1));
    guard.check().expect("a nanosecond is left");
    world.clock.advance(Duration::from_nanos(1));
    // A read of the guard sees the loss, whether or not the heartbeat has run.
    assert!(matches!(guard.status(), GuardStatus::Lost(_)), "{:?}", guard.status());
    assert_eq!(guard.remaining(), Duration::ZERO);
    soon("the guard is lost", lost).await.unwrap();
    // The store would grant it again a margin later.
    let held = world.memory_holder("a").await;
    assert!(held.is_some(), "the guard is lost before the store gives the lock away");
    world.clock.advance(MARGIN);
    assert!(world.memory_holder("a").await.is_none());
}

#[tokio::test]
async fn guard_is_lost_at_its_deadline_without_a_read() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.line.set(Line::Refusing);
    world.until_heartbeat_waits().await;
    let mut changes = guard.changes();
    world.clock.advance(TTL / 3);
    eventually("the first renewal fails", || guard.status() == GuardStatus::RenewalFailing).await;
    assert_eq!(soon("a change", changes.next()).await.0, GuardStatus::RenewalFailing);
    let lost = tokio::spawn(guard.lost());
    world.clock.advance(TTL * 2 / 3 - MARGIN);
    assert_eq!(soon("the guard is lost", lost).await.unwrap(), LossCause::StoreUnreachable);
    let (state, _) = soon("a change", changes.next()).await;
    assert_eq!(state, GuardStatus::Lost(LossCause::StoreUnreachable));
}

#[tokio::test]
async fn failed_renewals_are_retried_and_recover() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let first_deadline = guard.deadline();
    world.line.set(Line::Refusing);
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("renewal is failing", || guard.status() == GuardStatus::RenewalFailing).await;
    assert_eq!(guard.deadline(), first_deadline, "a failed renewal moves nothing");
    guard.check().expect("failing is not lost");
    // It is retried repeatedly, not only once (redisson#4698, #775, #2515).
    for _ in 0..3 {
        world.advance_until_retry(TTL / 20).await;
        assert_eq!(guard.status(), GuardStatus::RenewalFailing);
    }
    world.line.set(Line::Whole);
    world.advance_until_retry(TTL / 20).await;
    eventually("it is renewed", || guard.status() == GuardStatus::Held).await;
    assert_eq!(guard.deadline(), world.now() + TRUSTED);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn hanging_renewal_is_abandoned_and_retried() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.store.inject(Fault::HangForEver);
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("the renewal hangs", || world.store.faults_left() == 0).await;
    world.until_alarms(2).await;
    world.clock.advance(TTL / 3);
    eventually("it is given up", || guard.status() == GuardStatus::RenewalFailing).await;
    world.advance_until_retry(TTL / 20).await;
    eventually("the next one goes through", || guard.status() == GuardStatus::Held).await;
    assert_eq!(guard.deadline(), world.now() + TRUSTED);
}

#[tokio::test]
async fn panic_in_a_renewal_does_not_end_the_heartbeat() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let bystander = world.client.lock("b").ttl(TTL).acquire().await.unwrap();
    world.store.inject(Fault::Panic);
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("renewal is failing", || guard.status() == GuardStatus::RenewalFailing).await;
    let both = || guard.status() == GuardStatus::Held && bystander.status() == GuardStatus::Held;
    world.advance_until(TTL / 20, "both are renewed again", both).await;
    assert_eq!(world.client.lock("b").try_acquire().await.unwrap().map(|_| ()), None);
}

/// For example, the application's log subscriber panics in the heartbeat.
#[tokio::test]
async fn panic_in_the_heartbeat_loop_skips_no_guard() {
    let clock = PanickingClock::default();
    let memory = Memory::new(Arc::new(BootClock));
    let open = move |_| async move { Ok(memory.into()) };
    let client = Fencepost::with_backend(Arc::new(clock.clone()), open).await.unwrap();
    let lock = |name: &str| client.lock(name).ttl(ms(600)).acquire();
    let guards = [lock("a").await.unwrap(), lock("b").await.unwrap(), lock("c").await.unwrap()];
    let before = guards.each_ref().map(fencepost::Guard::deadline);
    // The first read of the loop finds what is due, the second is at the first due guard.
    clock.panic_at_second_read();
    let renewed = || guards.iter().zip(before).all(|(guard, before)| guard.deadline() > before);
    eventually("all are renewed after the panic", || clock.has_panicked() && renewed()).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// The machine sleeps or the process is frozen during a renewal. Its reply is there when they wake, after the
/// deadline.
#[tokio::test]
async fn reply_after_the_deadline_does_not_revive_the_guard() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let wake = world.store.inject_freeze();
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    eventually("the renewal is under way", || world.store.frozen() == 1).await;
    // The store has renewed, so there the lock is still held; but the guard did not know in time.
    world.clock.advance(TTL * 2 / 3);
    assert!(guard.check().is_err(), "the deadline has passed");
    wake.send(()).unwrap();
    eventually("the late answer has come", || world.store.renewals() == 1).await;
    world.settle().await;
    assert!(matches!(guard.status(), GuardStatus::Lost(_)), "{:?}", guard.status());
    let error = guard.run(async {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// consul#4935: the client reported the loss but kept renewing, so nobody else could acquire.
#[tokio::test]
async fn lost_guard_stays_lost_and_is_not_renewed() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    world.line.set(Line::Refusing);
    world.until_heartbeat_waits().await;
    world.clock.advance(TRUSTED);
    soon("the guard is lost", guard.lost()).await;
    world.line.set(Line::Whole);
    let before = world.store.renewals();
    for _ in 0..5 {
        world.clock.advance(TTL / 10);
        world.settle().await;
        assert!(matches!(guard.status(), GuardStatus::Lost(_)), "{:?}", guard.status());
    }
    assert_eq!(world.store.renewals(), before, "a lost guard is not renewed");
    let next = world.client.lock("a").ttl(TTL).try_acquire().await.unwrap();
    assert!(next.unwrap().token() > guard.token());
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn released_guard_is_not_renewed() {
    let world = World::new().await;
    let guard = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.release().await.unwrap();
    world.clock.advance(TTL);
    world.settle().await;
    assert_eq!(world.store.renewals(), 0);
    assert!(world.memory_holder("a").await.is_none());
}

#[tokio::test]
async fn max_hold_ends_a_healthy_guard_to_the_nanosecond() {
    let world = World::new().await;
    let max = TTL * 2;
    let asked = world.now();
    let guard = world.client.lock("a").ttl(TTL).max_hold(max).acquire().await.unwrap();
    while world.now() + TTL / 3 < asked + max {
        world.renew_once(&guard).await;
    }
    let left = (asked + max).since(world.now());
    assert_eq!(guard.deadline(), asked + max, "the nearer of the two ends counts");
    world.clock.advance(left - Duration::from_nanos(1));
    guard.check().expect("not yet");
    world.clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.status(), GuardStatus::Lost(LossCause::MaxHold));
}

#[tokio::test]
async fn heartbeat_stops_without_progress() {
    let world = World::new().await;
    let lock = world.client.lock("a").ttl(TTL).progress_within(TTL / 2);
    let guard = lock.acquire().await.unwrap();
    for _ in 0..6 {
        guard.progress();
        world.renew_once(&guard).await;
    }
    guard.progress();
    // From here on the work hangs. One more renewal falls within the allowed silence.
    world.renew_once(&guard).await;
    let (renewals, deadline) = (world.store.renewals(), guard.deadline());
    while world.now() < deadline {
        world.until_heartbeat_waits().await;
        world.clock.advance(TTL / 20);
    }
    assert_eq!(guard.status(), GuardStatus::Lost(LossCause::NoProgress));
    assert_eq!(world.store.renewals(), renewals, "a hung holder is not renewed");
}

#[tokio::test]
async fn progress_that_resumes_in_time_keeps_the_guard() {
    let world = World::new().await;
    let lock = world.client.lock("a").ttl(TTL).progress_within(TTL / 4);
    let guard = lock.acquire().await.unwrap();
    let first = guard.deadline();
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 2); // past the renewal that was due, which was held back
    world.settle().await;
    assert_eq!(world.store.renewals(), 0);
    guard.progress();
    world.advance_until_retry(TTL / 20).await;
    eventually("it is renewed after all", || guard.deadline() > first).await;
    assert_eq!(guard.status(), GuardStatus::Held);
}

/// etcd#11456, #9921: the waiter's lease expired in the queue, and its acquire still succeeded.
#[tokio::test]
async fn queued_grant_counts_from_the_renewal_that_confirms_it() {
    let world = World::new().await;
    let holder = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut waiting = Box::pin(world.client.lock("a").ttl(TTL).acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(world.memory_waiting("a").await, 1);
    holder.release().await.unwrap();
    // The store has granted it; the waiter learns of it three seconds later.
    world.clock.advance(Duration::from_secs(3));
    let before = world.store.renewals();
    let confirmed = world.now();
    let guard = soon("the waiter is granted", waiting).await.unwrap();
    assert_eq!(world.store.renewals(), before + 1, "one renewal confirms the grant");
    assert_eq!(guard.deadline(), confirmed + TRUSTED);
}

#[tokio::test]
async fn expired_queued_grant_is_not_returned() {
    let world = World::new().await;
    let holder = world.client.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut waiting = Box::pin(world.client.lock("a").ttl(TTL).acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let first = holder.token();
    holder.release().await.unwrap();
    // Frozen past its grant, which another client got meanwhile.
    world.clock.advance(TTL);
    let other = world.client.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
    assert!(other.token() > first);
    for _ in 0..10 {
        let poll = waiting.as_mut().poll(&mut context);
        assert!(matches!(poll, Poll::Pending), "a grant that is over was handed out");
    }
    let second = other.token();
    other.release().await.unwrap();
    let guard = soon("the waiter is granted", waiting).await.unwrap();
    assert!(guard.token() > second, "its grant is one of its own");
}

#[tokio::test]
async fn grant_whose_reply_took_its_whole_lease_is_not_returned() {
    let world = World::new().await;
    let gate = world.store.hold_back_acquires();
    let client = world.client.clone();
    let within = Duration::from_mins(1);
    let asked =
        tokio::spawn(async move { client.lock("a").ttl(TTL).wait_timeout(within).acquire().await });
    eventually("the store has granted", || gate.waiting() == 1).await;
    let first = world.memory_holder("a").await.unwrap();
    world.clock.advance(TTL);
    gate.open();
    // The reply is too old to be trusted: the client acquires again as a new owner.
    let guard = soon("an answer", asked).await.unwrap().unwrap();
    assert!(guard.token() > first, "a grant that was over when it came was handed out");
    assert_eq!(guard.deadline(), world.now() + TRUSTED);
}

/// A caller's limit holds whatever the store does.
#[tokio::test]
async fn silent_store_is_unreachable_at_the_callers_limit() {
    let world = World::new().await;
    world.line.set(Line::Silent);
    let limit = Duration::from_secs(2);
    let mut asked = Box::pin(world.client.lock("a").wait_timeout(limit).acquire());
    assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    world.clock.advance(limit + Duration::from_secs(1)); // with what it may overshoot
    let error = soon("an answer", asked).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    world.line.set(Line::Whole);
    soon("the client closes", world.client.close()).await;
    assert!(world.memory_holder("a").await.is_none(), "what was asked for is undone");
}

#[tokio::test]
async fn due_renewals_of_a_client_go_in_one_batch() {
    let world = World::new().await;
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(world.client.lock(format!("n/{number}")).ttl(TTL).acquire().await.unwrap());
    }
    world.until_heartbeat_waits().await;
    world.clock.advance(TTL / 3);
    let deadline = world.now() + TRUSTED;
    let renewed = || guards.iter().all(|guard| guard.deadline() == deadline);
    eventually("all are renewed", renewed).await;
    assert_eq!(world.store.renewals(), 100);
    assert_eq!(world.store.batches(), 1, "what is due together is renewed together");
    drop(guards);
    soon("the client closes", world.client.close()).await;
    let left = world.memory_store().observe.list(PageRequest::new(), Moment::NEVER).await.unwrap();
    assert!(left.value.locks.is_empty());
}
