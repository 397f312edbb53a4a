//! A process that uses locks is frozen and resumes.

use std::time::Duration;

use fencepost_testkit::{
    GAP, Worker, connect, granted, ms, now, pass, report, run_worker, until, until_waiting, waits,
};

use crate::common::{LONG, SOON, queue, shared};

const TTL: Duration = Duration::from_secs(2);

/// The other process, not a test: acquires the lock and reads its guard continuously.
#[tokio::test]
async fn worker() {
    let Some((_, guard)) = run_worker().await else { return };
    let mut last = now();
    loop {
        pass(ms(1)).await;
        let state = guard.status();
        if now().since(last) > GAP {
            report(&format!("woke {state:?}"));
        }
        last = now();
    }
}

/// The story behind fencing: a holder is frozen past its lease and wakes up convinced that it holds. Here its first
/// read of the guard reports the loss, before any timer or packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_lost_when_it_first_reads_its_guard() {
    let etcd = shared();
    let name = "frozen/holder";
    let theirs = connect(&etcd.url()).await;
    let worker = Worker::start(&etcd.url(), name, TTL);
    let token = worker.token().await;
    worker.process.stop().unwrap();
    let next = granted(waits(&theirs, name, LONG)).await;
    assert!(next.token().get() > token, "{} after {token}", next.token());
    worker.process.resume().unwrap();
    until("the worker wakes", async || !worker.reports("woke").is_empty()).await;
    let first = &worker.reports("woke")[0];
    assert!(first.starts_with("Lost("), "{first}");
    next.check().unwrap();
    assert_eq!(queue(&etcd, name).len(), 1, "it undid nothing that is not its own");
    next.release().await.unwrap();
}

/// etcd#11456, #9921: the waiter's lease expired while it was frozen. When its predecessor released, it assumed that
/// it had the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_waiter_is_not_granted_when_it_wakes() {
    let etcd = shared();
    let name = "frozen/waiter";
    let theirs = connect(&etcd.url()).await;
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let worker = Worker::start(&etcd.url(), name, TTL);
    until_waiting(&theirs, name, 1).await;
    let old = queue(&etcd, name)[1].clone();
    worker.process.stop().unwrap();
    // Its lease expires, the holder releases, and another client is granted.
    until_waiting(&theirs, name, 0).await;
    holder.release().await.unwrap();
    let next = theirs.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    worker.process.resume().unwrap();
    until_waiting(&theirs, name, 1).await;
    assert_ne!(queue(&etcd, name)[1], old, "a new position");
    assert!(worker.reports("granted").is_empty());
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(worker.token().await > token);
}
