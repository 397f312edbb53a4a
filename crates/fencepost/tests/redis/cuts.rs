//! The connection breaks in the middle of a call, or the server stands still.
//!
//! What must hold (P6): the next connection finds out what became of the call; nothing is granted twice,
//! nothing is lost that was not, and nothing is left behind. TTLs are a minute and the next one is granted
//! in seconds, so what passes was undone and did not run out.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardState};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, fails, has, ms, nothing_is_left, now,
    try_connect, two, until, until_waiting, within,
};

/// How much later than its limit a call may come back on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// A client behind a line that can be cut, and one that has its own.
struct Lines {
    server: Redis,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn lines() -> Lines {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    // From here on the server knows the scripts, and one EVALSHA is one step.
    ours.lock("x").acquire().await.unwrap().release().await.unwrap();
    Lines { server, proxy, ours, theirs }
}

fn triggers() -> [Trigger; 2] {
    [Trigger::before("EVALSHA"), Trigger::after("EVALSHA")]
}

#[tokio::test]
async fn an_acquire_that_is_cut_off_is_granted_once() {
    let Lines { proxy, ours, theirs, server: _server } = lines().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
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
async fn a_try_that_is_cut_off_is_granted_once() {
    let Lines { proxy, ours, theirs, server: _server } = lines().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock("x").ttl(LONG).try_acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        drop(guard.expect("it was free, and what the first try got is ours"));
        nothing_is_left(&theirs, "x").await;
    }
}

/// redis-py#3847, redsync: the acquire was carried out, nobody heard of it, and the lock was left to its TTL.
#[tokio::test]
async fn an_acquire_that_was_carried_out_unheard_is_undone() {
    let Lines { server, proxy, ours, theirs } = lines().await;
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock("x").ttl(LONG).acquire_within(ms(300));
    let (outcome, ()) = tokio::join!(unheard, until("it is granted", async || has(&server, "x")));
    fails(outcome, &ErrorKind::Unreachable, &["redis", "\"x\""]);
    // And the way back is blocked for a while.
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(!has(&server, "x"), "nothing came later");
}

/// curator#980: a release that was hit by the loss of its connection left its node behind. Here it is asked for
/// again; and if it had worked, that the lock is gone by then is no loss.
#[tokio::test]
async fn a_release_that_is_cut_off_is_a_release() {
    let Lines { server, proxy, ours, theirs } = lines().await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        proxy.cut_on(trigger.clone());
        let outcome = within(SOON, "the release comes back", guard.release()).await;
        assert!(outcome.is_ok(), "{trigger:?}: {outcome:?}");
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert!(!has(&server, "x"), "{trigger:?}");
        nothing_is_left(&theirs, "x").await;
    }
}

/// The same with somebody waiting: the release that was carried out hands the lock on, and when it is asked
/// for again somebody else has it. That is no loss either: the guard was held when it was released.
#[tokio::test]
async fn a_release_that_is_cut_off_with_a_waiter_is_a_release() {
    let Lines { proxy, ours, theirs, server: _server } = lines().await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = theirs.clone();
    let waiting = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
    until_waiting(&theirs, "x", 1).await;
    // The way back takes until the waiter has the lock.
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

/// dynamolock#280, pglock#175: the renewal was applied, its answer lost, and the lock declared lost.
#[tokio::test]
async fn a_renewal_that_is_cut_off_is_no_loss() {
    let Lines { proxy, ours, theirs, server: _server } = lines().await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let first = guard.deadline();
    until("the server knows the script", async || guard.deadline() > first).await;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        until("a renewal is cut", async || proxy.fired() == count + 1).await;
        let before = guard.deadline();
        until("it is renewed all the same", async || guard.deadline() > before).await;
        assert_eq!(guard.state(), GuardState::Held, "{trigger:?}");
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "{trigger:?}");
    }
    guard.release().await.unwrap();
}

/// A line that flaps: each call has to get through within its patience, however often it is cut.
#[tokio::test]
async fn locks_are_taken_and_released_over_a_line_that_flaps() {
    let Lines { proxy, ours, theirs, server: _server } = lines().await;
    let mut last = None;
    for _ in 0..20 {
        for trigger in triggers() {
            proxy.cut_on(trigger);
        }
        let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    assert!(proxy.fired() >= 20, "{}", proxy.fired());
    nothing_is_left(&theirs, "x").await;
}

/// A server that stands still is worse than one that is gone: the kernel takes the connection and the
/// request, and nobody answers. What was asked for meanwhile is carried out when it goes on.
#[tokio::test]
async fn a_server_that_stands_still_is_unreachable_within_the_callers_limit() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let limit = ms(300);
    for connected in [true, false] {
        server.stop().unwrap();
        let asked = now();
        let outcome = ours.lock("x").ttl(LONG).acquire_within(limit).await;
        let took = now().since(asked);
        assert!(took < limit + SLACK, "it took {took:?} to give up");
        fails(outcome, &ErrorKind::Unreachable, &["redis", "\"x\""]);
        if !connected {
            // As long as it takes to give the old connection up.
            let address = server.address().to_string();
            let outcome = try_connect(&server.url()).await;
            fails(outcome, &ErrorKind::Unreachable, &[&address, "did not answer"]);
        }
        server.resume().unwrap();
        nothing_is_left(&theirs, "x").await;
        nothing_is_left(&ours, "x").await;
    }
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(!has(&server, "x"), "nothing came later");
}
