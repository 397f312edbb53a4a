//! The connection is cut at the very request, before it or after it.
//!
//! What must hold (P6): the call is made again and finds out what became of it; nothing is made twice, nothing
//! is lost that was not, and nothing is left behind. Leases are long, so what is gone in seconds was undone and
//! did not run out.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardState};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, Trigger, connect, granted, granted_unheard, ms, nothing_is_left, pass,
    until, until_waiting, waits, within,
};

use super::common::Site;

/// A client behind a line that can be cut, and one that has its own.
struct Lines {
    site: Site,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn lines() -> Lines {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let ours = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let theirs = site.client().await;
    Lines { site, proxy, ours, theirs }
}

/// Only the request that makes our node has its name without a number: its data's length follows.
const CREATE: &[u8] = b"-lock-\0\0\0";

fn create() -> [Trigger; 2] {
    [Trigger::before(CREATE), Trigger::after(CREATE)]
}

/// A path and any version: only a delete is that.
fn delete_of(node: &str) -> Vec<u8> {
    [node.as_bytes(), &[0xff; 4]].concat()
}

/// A path and data: only a heartbeat is that.
fn beat_of(node: &str) -> Vec<u8> {
    [node.as_bytes(), &[0; 3]].concat()
}

/// kazoo's and Curator's "protected" nodes are for this: the node was made, the answer was lost, and the next
/// attempt made another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_cut_makes_one_node() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    let (mut fired, mut last) = (0, None);
    for round in 0..3 {
        for trigger in create() {
            proxy.cut_on(trigger.clone());
            let lock = ours.lock("x").ttl(LONG);
            let guard = match round {
                0 => lock.acquire_within(SOON).await.unwrap(),
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

/// One that has to queue up: it stands in line once, and is granted in its turn, though its watch is cut too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_cut_stands_in_line_once() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    for (count, trigger) in create().into_iter().enumerate() {
        let holder = theirs.lock("queue").ttl(LONG).acquire_within(SOON).await.unwrap();
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

/// kazoo#282, curator#600: the caller went away while its node was being made, and the contender without an
/// owner stood in the line for as long as the session lived. Here others of the session go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_in_the_middle_leaves_no_contender() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    let kept = ours.lock("kept").ttl(LONG).acquire().await.unwrap();
    ours.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    for mode in [Mode::DropAnswers, Mode::DropRequests, Mode::Silent, Mode::Refuse] {
        proxy.set_mode(mode);
        let acquire = waits(&ours, "x", LONG);
        match mode {
            Mode::DropAnswers => {
                until("its node is made", async || site.children("/x").len() == 1).await;
            }
            // It is under way, which nobody can see.
            _ => pass(ms(50)).await,
        }
        acquire.abort();
        assert!(acquire.await.unwrap_err().is_cancelled());
        // What was held back passes now, late as it is.
        proxy.set_mode(Mode::Pass);
        nothing_is_left(&theirs, "x").await;
    }
    // And while it waits in line, behind another.
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
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(site.children("/x").is_empty(), "nothing came later");
}

/// CURATOR-498, curator#980: a release hit by the loss of its connection was not made again, and its node stood
/// there until the session ended. Here the session goes on, so it would stand for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_cut_is_made_again() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    let kept = ours.lock("kept").ttl(LONG).acquire().await.unwrap();
    let mut fired = 0;
    for (after, dropped) in [(false, false), (true, false), (false, true), (true, true)] {
        let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
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

/// The same with somebody waiting: when the release is asked for again somebody else has the lock, and keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_cut_does_not_hit_the_next() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let node = site.children("/x")[0].clone();
    let waiter = waits(&theirs, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    proxy.cut_on(Trigger::after(delete_of(&node)));
    let (outcome, next) = tokio::join!(guard.release(), granted_unheard(&proxy, waiter));
    assert!(outcome.is_ok(), "it was released, and only then given to the next: {outcome:?}");
    next.check().unwrap();
    assert_eq!(theirs.inspect("x").await.unwrap().holder.unwrap().token, Some(next.token()));
}

/// A break is sent, its answer is lost, the next one has the lock: sent again it must not hit that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_that_is_cut_hits_once() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    for (count, after) in [false, true].into_iter().enumerate() {
        let holder = theirs.lock("x").ttl(LONG).label("hit").acquire().await.unwrap();
        let waiter = waits(&theirs, "x", LONG);
        until_waiting(&theirs, "x", 1).await;
        // The marker that is made in the same step.
        let pattern = "/.fencepost/broken/";
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        let broken = within(SOON, "it is broken", ours.break_lock("x")).await.unwrap().unwrap();
        assert_eq!(proxy.fired(), count + 1, "after: {after}");
        assert_eq!((broken.label.as_str(), broken.token), ("hit", Some(holder.token())));
        let next = granted(waiter).await;
        assert!(next.token() >= broken.floor);
        let cause = within(SOON, "the holder is told", holder.lost()).await;
        assert_eq!(cause, fencepost::LossCause::Broken, "after: {after}");
        // Another break, which is answered: nothing of the first one is under way any more.
        assert!(ours.break_lock("nobody").await.unwrap().is_none());
        next.check().unwrap();
        assert_eq!(site.children("/x").len(), 1);
        next.release().await.unwrap();
    }
}

/// dynamolock#280, pglock#175: the renewal was applied, its answer lost, and the lock declared lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_cut_is_no_loss() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    let guard = ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let pattern = beat_of(&site.children("/x")[0]);
    for (count, after) in [false, true].into_iter().enumerate() {
        let pattern = pattern.clone();
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        until("a renewal is cut", async || proxy.fired() == count + 1).await;
        let before = guard.deadline();
        until("it is renewed all the same", async || {
            guard.check().expect("the guard is not lost");
            guard.deadline() > before && guard.state() == GuardState::Held
        })
        .await;
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "after: {after}");
    }
    guard.release().await.unwrap();
}

/// The servers are out of reach for as long as the caller waits, and the answer to the create is among what is
/// lost: the caller is told, and what it left is undone as soon as they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_carried_out_unheard_is_undone() {
    let Lines { site, proxy, ours, theirs } = lines().await;
    ours.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock("x").ttl(LONG).acquire_within(ms(2500));
    let made = until("its node is made", async || site.children("/x").len() == 1);
    let (outcome, ()) = tokio::join!(unheard, made);
    fencepost_testkit::fails(outcome, &ErrorKind::Unreachable, &[]);
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(site.children("/x").is_empty(), "nothing came later");
}
