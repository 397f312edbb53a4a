//! The connection is cut at a certain request, before or after it.
//!
//! What must hold (P6): the retry finds the result of the first request; nothing is done twice, no guard is lost, nothing
//! is left behind. Leases are long, so the test only passes if the call was undone and did not expire.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardStatus};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, Trigger, connect, granted, ms, nothing_is_left, pass, until,
    until_waiting, waits, within,
};

use super::common::Site;

/// A client behind a fault proxy, and one without.
struct Fixture {
    site: Site,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn fixture() -> Fixture {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let ours = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let theirs = site.client().await;
    Fixture { site, proxy, ours, theirs }
}

/// Only the request that creates our node has its name without a number: the length of its data follows.
const CREATE: &[u8] = b"-lock-\0\0\0";

fn create() -> [Trigger; 2] {
    [Trigger::before(CREATE), Trigger::after(CREATE)]
}

/// A path and any version: only a delete has that.
fn delete_of(node: &str) -> Vec<u8> {
    [node.as_bytes(), &[0xff; 4]].concat()
}

/// A path and data: only a heartbeat has that.
fn heartbeat_of(node: &str) -> Vec<u8> {
    [node.as_bytes(), &[0; 3]].concat()
}

/// The reason for kazoo's and Curator's "protected" nodes: the node was created, the reply was lost, and the retry
/// created another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_whose_connection_is_lost_makes_one_node() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    let (mut fired, mut last) = (0, None);
    for round in 0..3 {
        for trigger in create() {
            proxy.cut_on(trigger.clone());
            let lock = ours.lock("x").ttl(LONG);
            let guard = match round {
                0 => lock.wait_timeout(SOON).acquire().await.unwrap(),
                1 => {
                    lock.try_acquire().await.unwrap().expect("it was free, and what it got is its")
                }
                _ => within(SOON, "granted", lock.lease_only().acquire()).await.unwrap(),
            };
            fired += 1;
            assert_eq!(proxy.fired(), fired, "{round} {trigger:?}");
            assert!(Some(guard.token()) > last, "{round} {trigger:?}");
            last = Some(guard.token());
            assert_eq!(site.children("/x").len(), 1, "{round} {trigger:?}");
            assert_eq!(theirs.inspect("x").await.unwrap().holder.unwrap().token, last);
            assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
            guard.release().await.unwrap();
            assert!(site.children("/x").is_empty(), "{round} {trigger:?}");
        }
    }
}

/// A waiter has one position, and is granted in order, though its watch is cut too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_connection_is_lost_has_one_position() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    for (count, trigger) in create().into_iter().enumerate() {
        let holder = theirs.lock("queue").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        proxy.cut_on(trigger.clone());
        let waiter = waits(&ours, "queue", LONG);
        until("the call was cut", async || proxy.fired() == count + 1).await;
        until_waiting(&theirs, "queue", 1).await;
        proxy.close_all();
        let token = holder.token();
        assert!(!waiter.is_finished(), "{trigger:?}");
        assert_eq!(site.children("/queue").len(), 2, "{trigger:?}");
        holder.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(next.token() > token, "{trigger:?}");
        assert_eq!(site.children("/queue").len(), 1, "{trigger:?}");
        next.release().await.unwrap();
    }
}

/// kazoo#282, curator#600: the caller was cancelled while its node was being created, and the contender without an
/// owner stayed in the queue as long as the session. Here other grants of the session continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquire_leaves_no_contender() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    let kept = ours.lock("kept").ttl(LONG).acquire().await.unwrap();
    ours.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    for mode in [Mode::DropAnswers, Mode::DropRequests, Mode::Silent, Mode::Refuse] {
        proxy.set_mode(mode);
        let acquire = waits(&ours, "x", LONG);
        match mode {
            Mode::DropAnswers => {
                until("its node is made", async || site.children("/x").len() == 1).await;
            }
            // The request is in flight, which cannot be observed.
            _ => pass(ms(50)).await,
        }
        acquire.abort();
        assert!(acquire.await.unwrap_err().is_cancelled());
        // The request that was held back passes now.
        proxy.set_mode(Mode::Pass);
        nothing_is_left(&theirs, "x").await;
    }
    // The same while it waits behind another holder.
    let holder = theirs.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    proxy.set_mode(Mode::DropRequests);
    waiter.abort();
    pass(ms(50)).await;
    proxy.close_all();
    proxy.set_mode(Mode::Pass);
    until_waiting(&theirs, "x", 0).await;
    holder.release().await.unwrap();
    nothing_is_left(&theirs, "x").await;
    kept.check().unwrap();
    within(SOON, "the client closes", ours.close()).await;
    assert!(site.children("/x").is_empty(), "nothing came later");
}

/// CURATOR-498, curator#980: a release that lost its connection was not retried, and its node stayed until the
/// session ended. Here the session continues, so it would stay forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_whose_connection_is_lost_is_retried() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    let kept = ours.lock("kept").ttl(LONG).acquire().await.unwrap();
    let mut fired = 0;
    for (after, dropped) in [(false, false), (true, false), (false, true), (true, true)] {
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        let pattern = delete_of(&site.children("/x")[0]);
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        fired += 1;
        if dropped {
            drop(guard);
            until("the release was cut", async || proxy.fired() == fired).await;
        } else {
            within(SOON, "the release comes back", guard.release()).await.unwrap();
            assert_eq!(proxy.fired(), fired, "{after}");
            assert!(site.children("/x").is_empty(), "{after}");
        }
        until("its node is gone", async || site.children("/x").is_empty()).await;
        nothing_is_left(&theirs, "x").await;
    }
    kept.check().unwrap();
}

/// The same with a waiter: when the release is retried, another client has the lock, and keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_release_does_not_hit_the_next_holder() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let node = site.children("/x")[0].clone();
    let waiter = waits(&theirs, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    proxy.cut_on(Trigger::after(delete_of(&node)));
    let reply_lost = async {
        until("the release is carried out", async || proxy.fired() == 1).await;
        proxy.set_mode(Mode::Silent);
        let next = granted(waiter).await;
        proxy.set_mode(Mode::Pass);
        next
    };
    let (outcome, next) = tokio::join!(guard.release(), reply_lost);
    assert!(outcome.is_ok(), "it was released, and only then given to the next: {outcome:?}");
    next.check().unwrap();
    assert_eq!(theirs.inspect("x").await.unwrap().holder.unwrap().token, Some(next.token()));
}

/// The reply to a break is lost and the next client is granted: the retried break must not hit it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_break_hits_once() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    for (count, after) in [false, true].into_iter().enumerate() {
        let holder = theirs.lock("x").ttl(LONG).label("hit").acquire().await.unwrap();
        let waiter = waits(&theirs, "x", LONG);
        until_waiting(&theirs, "x", 1).await;
        // The note that is created in the same transaction.
        let pattern = "/.fencepost/broken/";
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        let broken = within(SOON, "it is broken", ours.break_lock("x")).await.unwrap().unwrap();
        assert_eq!(proxy.fired(), count + 1, "after: {after}");
        assert_eq!((broken.label.as_str(), broken.token), ("hit", Some(holder.token())));
        let next = granted(waiter).await;
        assert!(next.token() >= broken.floor);
        let cause = within(SOON, "the guard is lost", holder.lost()).await;
        assert_eq!(cause, fencepost::LossCause::Broken, "after: {after}");
        // Another break that is answered: the first one is not in flight any more.
        assert!(ours.break_lock("nobody").await.unwrap().is_none());
        next.check().unwrap();
        assert_eq!(site.children("/x").len(), 1);
        next.release().await.unwrap();
    }
}

/// dynamolock#280, pglock#175: the renewal was applied, its reply was lost, and the lock was declared lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_whose_connection_is_lost_does_not_lose_the_guard() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    let guard = ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let pattern = heartbeat_of(&site.children("/x")[0]);
    for (count, after) in [false, true].into_iter().enumerate() {
        let pattern = pattern.clone();
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        until("a renewal is cut", async || proxy.fired() == count + 1).await;
        let before = guard.deadline();
        until("it is renewed all the same", async || {
            guard.check().expect("the guard is not lost");
            guard.deadline() > before && guard.status() == GuardStatus::Held
        })
        .await;
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "after: {after}");
    }
    guard.release().await.unwrap();
}

/// The servers are unreachable for as long as the caller waits, and the reply to the create is lost. The caller gets
/// an error, and its node is deleted when they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_that_was_applied_without_a_reply_is_undone() {
    let Fixture { site, proxy, ours, theirs } = fixture().await;
    ours.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock("x").ttl(LONG).wait_timeout(ms(2500)).acquire();
    let made = until("its node is made", async || site.children("/x").len() == 1);
    let (outcome, ()) = tokio::join!(unheard, made);
    fencepost_testkit::fails(outcome, ErrorKind::Unreachable, &[]);
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client closes", ours.close()).await;
    assert!(site.children("/x").is_empty(), "nothing came later");
}
