//! A process that uses locks stands still, and goes on.

use std::time::Duration;

use fencepost::{GuardState, Moment};
use fencepost_testkit::{
    GAP, LONG, Mode, Proxy, SOON, Worker, ZooKeeper, ZooKeeperEnsemble, granted, lock_as_told, ms,
    now, pass, say, until, until_waiting, waits,
};

use super::common::Site;
use super::raw::Raw;

const TTL: Duration = Duration::from_secs(2);

/// This is no test but the other process, if it was started as one: takes the lock, and looks at its guard all
/// the time.
#[tokio::test]
async fn worker() {
    let Some((_client, guard)) = lock_as_told().await else { return };
    let (mut last, mut deadline) = (now(), None);
    loop {
        pass(ms(1)).await;
        let state = guard.state();
        if now().since(last) > GAP {
            say(&format!("woke {state:?}"));
        }
        last = now();
        if deadline != Some(guard.deadline()) {
            say(&format!("until {}", guard.deadline().as_nanos()));
            deadline = Some(guard.deadline());
        }
        if matches!(state, GuardState::Lost(_)) {
            say(&format!("lost {state:?}"));
            return;
        }
    }
}

/// The story behind fencing: a holder freezes past its lease and wakes up sure of its lock. Here its first look
/// tells it, before any timer or packet does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_is_lost_at_its_first_look() {
    let site = Site::shared();
    let theirs = site.client().await;
    let worker = Worker::start(&site.url(), "holder", TTL);
    let token = worker.token().await;
    worker.process.stop().unwrap();
    let next = granted(waits(&theirs, "holder", LONG)).await;
    assert!(next.token().get() > token, "{} after {token}", next.token());
    worker.process.resume().unwrap();
    until("the worker wakes", async || !worker.said("woke").is_empty()).await;
    let first = &worker.said("woke")[0];
    assert!(first.starts_with("Lost("), "{first}");
    next.check().unwrap();
    assert_eq!(site.children("/holder").len(), 1, "it undid nothing that is not its own");
    next.release().await.unwrap();
}

/// etcd#11456, CURATOR-604: the waiter's session died in its sleep; when its predecessor had gone it believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_waiter_does_not_hold_when_it_wakes() {
    let site = Site::shared();
    let theirs = site.client().await;
    let holder = theirs.lock("waiter").ttl(LONG).acquire().await.unwrap();
    let first = site.children("/waiter");
    let worker = Worker::start(&site.url(), "waiter", TTL);
    until_waiting(&theirs, "waiter", 1).await;
    let old = site.children("/waiter");
    worker.process.stop().unwrap();
    // Its session dies; the holder goes, and another one has the lock.
    until_waiting(&theirs, "waiter", 0).await;
    assert_eq!(site.children("/waiter"), first);
    holder.release().await.unwrap();
    let next = theirs.lock("waiter").ttl(LONG).acquire_within(SOON).await.unwrap();
    worker.process.resume().unwrap();
    until_waiting(&theirs, "waiter", 1).await;
    assert!(!site.children("/waiter").iter().any(|node| old.contains(node)), "a fresh place");
    assert!(worker.said("granted").is_empty());
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(worker.token().await > token);
}

/// A server that keeps sessions for three seconds only: who asks for a minute and freezes has two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_counts_on_no_more_than_the_server_keeps() {
    let server = ZooKeeper::builder().tick_time(200).max_session_timeout(3000).start().unwrap();
    let site = Site { server: server.into(), chroot: "/clamped".into() };
    let worker = Worker::start(&site.url(), "x", LONG);
    worker.token().await;
    worker.until_renewed().await;
    worker.process.stop().unwrap();
    let node = format!("{}/x/{}", site.chroot, site.children("/x")[0]);
    let mut raw = Raw::connect(site.server.address());
    until("its session ends", async || !raw.exists(&node)).await;
    let gone = now();
    // What it believed when it was stopped, it said at the latest when it wakes.
    worker.process.resume().unwrap();
    until("it is lost", async || !worker.said("lost").is_empty()).await;
    let until = worker.said("until").pop().unwrap().parse().unwrap();
    assert!(Moment::from_nanos(until) <= gone, "it held for longer than the server");
}

/// A follower answers a write before the leader has heard that the session lives: it passes that on with the next
/// ping, every half tick. So a client that stood still, woke, beat once, and whose follower is cut off at that
/// moment, is dead to the leader a whole timeout after it fell asleep, not after it woke (beat.rs).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_after_a_pause_counts_from_before_it() {
    let (ttl, timeout) = (Duration::from_secs(5), ms(7500));
    // Half a tick is half a second: time to cut the follower off before it passes the beat on.
    let ensemble = ZooKeeperEnsemble::with(&ZooKeeper::builder().tick_time(1000)).unwrap();
    for round in 0..3 {
        let leader = ensemble.leader().unwrap();
        let (at_leader, follower) =
            (&ensemble.members()[leader], &ensemble.members()[(leader + 1) % 3]);
        let way = Proxy::to(follower.address()).unwrap();
        let (url, dir) = (format!("zookeeper://{}", way.address()), format!("pause/{round}"));
        let worker = Worker::start(&url, &dir, ttl);
        worker.token().await;
        let node = at_leader.children(&format!("/{dir}")).unwrap().remove(0);
        worker.until_renewed().await;
        worker.process.stop().unwrap();
        let before = worker.said("until").len();
        pass(ttl * 87 / 100).await;
        let woke = now();
        worker.process.resume().unwrap();
        until("it beats", async || worker.said("until").len() > before).await;
        follower.cut_off();
        way.set_mode(Mode::Refuse);
        assert!(!worker.said("woke")[0].starts_with("Lost"), "it woke before its lease ended");

        let mut raw = Raw::connect(at_leader.address());
        until("its session ends", async || !raw.exists(&format!("/{dir}/{node}"))).await;
        let gone = now();
        until("it is lost", async || !worker.said("lost").is_empty()).await;
        let until = Moment::from_nanos(worker.said("until").pop().unwrap().parse().unwrap());
        assert!(until <= gone, "it held {:?} longer than the leader", until.since(gone));
        println!("lost {:?} before the leader let go", gone.since(until));
        // Then the leader had not heard of the beat, and that is what was to be shown.
        if gone < woke + timeout {
            break;
        }
        follower.heal();
        ensemble.wait_until_healthy().unwrap();
    }
}
