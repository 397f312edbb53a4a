//! A process that uses locks is frozen and resumes.

use std::time::Duration;

use fencepost::{GuardStatus, Moment};
use fencepost_testkit::{
    GAP, LONG, Mode, Proxy, SOON, Worker, ZooKeeper, ZooKeeperEnsemble, granted, ms, now, pass,
    report, run_worker, until, until_waiting, waits,
};

use super::common::Site;
use super::raw_client::Raw;

const TTL: Duration = Duration::from_secs(2);

/// The other process, not a test: acquires the lock and reads its guard continuously.
#[tokio::test]
async fn worker() {
    let Some((_client, guard)) = run_worker().await else { return };
    let (mut last, mut deadline) = (now(), None);
    loop {
        pass(ms(1)).await;
        let state = guard.status();
        if now().since(last) > GAP {
            report(&format!("woke {state:?}"));
        }
        last = now();
        if deadline != Some(guard.deadline()) {
            report(&format!("until {}", guard.deadline().as_nanos()));
            deadline = Some(guard.deadline());
        }
        if matches!(state, GuardStatus::Lost(_)) {
            report(&format!("lost {state:?}"));
            return;
        }
    }
}

/// The story behind fencing: a holder is frozen past its lease and wakes up convinced that it holds. Here its first
/// read of the guard reports the loss, before any timer or packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_lost_when_it_first_reads_its_guard() {
    let site = Site::shared();
    let theirs = site.client().await;
    let worker = Worker::start(&site.url(), "holder", TTL);
    let token = worker.token().await;
    worker.process.stop().unwrap();
    let next = granted(waits(&theirs, "holder", LONG)).await;
    assert!(next.token().get() > token, "{} after {token}", next.token());
    worker.process.resume().unwrap();
    until("the worker wakes", async || !worker.reports("woke").is_empty()).await;
    let first = &worker.reports("woke")[0];
    assert!(first.starts_with("Lost("), "{first}");
    next.check().unwrap();
    assert_eq!(site.children("/holder").len(), 1, "it undid nothing that is not its own");
    next.release().await.unwrap();
}

/// etcd#11456, CURATOR-604: the waiter's session expired while it was frozen. When its predecessor released, it
/// assumed that it had the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_waiter_is_not_granted_when_it_wakes() {
    let site = Site::shared();
    let theirs = site.client().await;
    let holder = theirs.lock("waiter").ttl(LONG).acquire().await.unwrap();
    let first = site.children("/waiter");
    let worker = Worker::start(&site.url(), "waiter", TTL);
    until_waiting(&theirs, "waiter", 1).await;
    let old = site.children("/waiter");
    worker.process.stop().unwrap();
    // Its session expires, the holder releases, and another client is granted.
    until_waiting(&theirs, "waiter", 0).await;
    assert_eq!(site.children("/waiter"), first);
    holder.release().await.unwrap();
    let next = theirs.lock("waiter").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    worker.process.resume().unwrap();
    until_waiting(&theirs, "waiter", 1).await;
    assert!(!site.children("/waiter").iter().any(|node| old.contains(node)), "a new position");
    assert!(worker.reports("granted").is_empty());
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(worker.token().await > token);
}

/// The server keeps sessions for three seconds only: a holder that asked for a minute has a lease of two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_claims_no_more_than_the_server_keeps() {
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
    // At the latest when it wakes, it prints the deadline that it had when it was frozen.
    worker.process.resume().unwrap();
    until("it is lost", async || !worker.reports("lost").is_empty()).await;
    let until = worker.reports("until").pop().unwrap().parse().unwrap();
    assert!(Moment::from_nanos(until) <= gone, "it held for longer than the server");
}

/// A follower answers a write before the leader knows that the session lives: it reports it with the next ping, every
/// half tick. A client freezes, wakes and sends a heartbeat, and its follower is partitioned at that moment. For the
/// leader the session then ends a timeout after the freeze began, not after the wake (`lease_credit.rs`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_after_a_pause_counts_from_before_the_pause() {
    let (ttl, timeout) = (Duration::from_secs(5), ms(7500));
    // Half a tick is half a second: time to partition the follower before it reports the heartbeat.
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
        let before = worker.reports("until").len();
        pass(ttl * 87 / 100).await;
        let woke = now();
        worker.process.resume().unwrap();
        until("it sends a heartbeat", async || worker.reports("until").len() > before).await;
        follower.cut_off();
        way.set_mode(Mode::Refuse);
        assert!(!worker.reports("woke")[0].starts_with("Lost"), "it woke before its lease ended");

        let mut raw = Raw::connect(at_leader.address());
        until("its session ends", async || !raw.exists(&format!("/{dir}/{node}"))).await;
        let gone = now();
        until("it is lost", async || !worker.reports("lost").is_empty()).await;
        let until = Moment::from_nanos(worker.reports("until").pop().unwrap().parse().unwrap());
        assert!(until <= gone, "it held {:?} longer than the leader", until.since(gone));
        println!("lost {:?} before the leader let go", gone.since(until));
        // Then the leader did not know of the heartbeat, which was the case to show.
        if gone < woke + timeout {
            break;
        }
        follower.heal();
        ensemble.wait_until_healthy().unwrap();
    }
}
