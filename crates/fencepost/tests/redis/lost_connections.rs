//! The connection fails during a call, or the server freezes.
//!
//! What must hold (P6): the retry finds the result of the first request; nothing is granted twice, no guard is
//! lost, nothing is left behind. TTLs are a minute and the next grant takes seconds, so the test only passes if the
//! call was undone and did not expire.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardStatus};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, fails, has, ms, nothing_is_left, now,
    try_connect, two, until, until_waiting, within,
};

/// How far a call may overrun its limit on a busy machine.
const OVERRUN: Duration = Duration::from_secs(2);

/// A client behind a fault proxy, and one without.
struct Fixture {
    server: Redis,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn fixture() -> Fixture {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    // From here on the server knows the scripts, and one EVALSHA is one step.
    ours.lock("x").acquire().await.unwrap().release().await.unwrap();
    Fixture { server, proxy, ours, theirs }
}

fn triggers() -> [Trigger; 2] {
    [Trigger::before("EVALSHA"), Trigger::after("EVALSHA")]
}

#[tokio::test]
async fn acquire_whose_connection_is_lost_is_granted_once() {
    let Fixture { proxy, ours, theirs, server: _server } = fixture().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        let shown = theirs.inspect("x").await.unwrap();
        assert_eq!(shown.holder.unwrap().token, Some(guard.token()), "{trigger:?}");
        assert_eq!(shown.waiting, 0, "{trigger:?}");
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "{trigger:?}");
        guard.release().await.unwrap();
        nothing_is_left(&theirs, "x").await;
    }
}

#[tokio::test]
async fn try_acquire_whose_connection_is_lost_is_granted_once() {
    let Fixture { proxy, ours, theirs, server: _server } = fixture().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock("x").ttl(LONG).try_acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        drop(guard.expect("it was free, and what the first try got is ours"));
        nothing_is_left(&theirs, "x").await;
    }
}

/// redis-py#3847, redsync: the acquire was applied, its reply was lost, and the lock stayed until its TTL.
#[tokio::test]
async fn acquire_that_was_applied_without_a_reply_is_undone() {
    let Fixture { server, proxy, ours, theirs } = fixture().await;
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock("x").ttl(LONG).wait_timeout(ms(300)).acquire();
    let (outcome, ()) = tokio::join!(unheard, until("it is granted", async || has(&server, "x")));
    fails(outcome, ErrorKind::Unreachable, &["redis", "\"x\""]);
    // The client cannot reconnect for a while.
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client closes", ours.close()).await;
    assert!(!has(&server, "x"), "nothing came later");
}

/// curator#980: a release that lost its connection left its node behind. Here it is retried, and if the first attempt
/// worked, it is no loss that the lock is gone.
#[tokio::test]
async fn release_whose_connection_is_lost_releases() {
    let Fixture { server, proxy, ours, theirs } = fixture().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        proxy.cut_on(trigger.clone());
        let outcome = within(SOON, "the release comes back", guard.release()).await;
        assert!(outcome.is_ok(), "{trigger:?}: {outcome:?}");
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert!(!has(&server, "x"), "{trigger:?}");
        nothing_is_left(&theirs, "x").await;
    }
}

/// The same with a waiter: the release was applied and the lock granted again, and then the release is retried. That
/// is no loss either, because the guard was held when it was released.
#[tokio::test]
async fn release_whose_connection_is_lost_with_a_waiter_releases() {
    let Fixture { proxy, ours, theirs, server: _server } = fixture().await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = theirs.clone();
    let waiting = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
    until_waiting(&theirs, "x", 1).await;
    // The reply is delayed until the waiter has the lock.
    proxy.cut_on(Trigger::after("EVALSHA"));
    let releasing = async {
        until("the release is carried out", async || proxy.fired() == 1).await;
        proxy.set_mode(Mode::Silent);
        let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
        proxy.set_mode(Mode::Pass);
        next
    };
    let (outcome, next) = tokio::join!(guard.release(), releasing);
    assert!(next.check().is_ok());
    assert!(outcome.is_ok(), "it was released, and only then given to the next: {outcome:?}");
}

/// dynamolock#280, pglock#175: the renewal was applied, its reply was lost, and the lock was declared lost.
#[tokio::test]
async fn renewal_whose_connection_is_lost_does_not_lose_the_guard() {
    let Fixture { proxy, ours, theirs, server: _server } = fixture().await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let first = guard.deadline();
    until("the server knows the script", async || guard.deadline() > first).await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        until("a renewal is cut", async || proxy.fired() == count + 1).await;
        let before = guard.deadline();
        until("it is renewed all the same", async || guard.deadline() > before).await;
        assert_eq!(guard.status(), GuardStatus::Held, "{trigger:?}");
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "{trigger:?}");
    }
    guard.release().await.unwrap();
}

/// Each call must succeed within its timeout, however often its connection is cut.
#[tokio::test]
async fn flapping_connection_grants_and_releases() {
    let Fixture { proxy, ours, theirs, server: _server } = fixture().await;
    let mut last = None;
    for _ in 0..20 {
        for trigger in triggers() {
            proxy.cut_on(trigger);
        }
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    assert!(proxy.fired() >= 20, "{}", proxy.fired());
    nothing_is_left(&theirs, "x").await;
}

/// A frozen server is worse than a dead one: the kernel accepts connection and request, and nothing replies. When it
/// resumes, it applies the requests.
#[tokio::test]
async fn frozen_server_is_unreachable_within_the_callers_limit() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let limit = ms(300);
    for connected in [true, false] {
        server.stop().unwrap();
        let asked = now();
        let outcome = ours.lock("x").ttl(LONG).wait_timeout(limit).acquire().await;
        let took = now().since(asked);
        assert!(took < limit + OVERRUN, "it took {took:?} to give up");
        fails(outcome, ErrorKind::Unreachable, &["redis", "\"x\""]);
        if !connected {
            // As long as it takes to close the old connection.
            let address = server.address().to_string();
            let outcome = try_connect(&server.url()).await;
            fails(outcome, ErrorKind::Unreachable, &[&address, "did not answer"]);
        }
        server.resume().unwrap();
        nothing_is_left(&theirs, "x").await;
        nothing_is_left(&ours, "x").await;
    }
    within(SOON, "the client closes", ours.close()).await;
    assert!(!has(&server, "x"), "nothing came later");
}
