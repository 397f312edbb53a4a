//! A process that uses locks stands still, and goes on.

use std::time::Duration;

use fencepost_testkit::{
    GAP, Worker, connect, granted, lock_as_told, ms, now, pass, say, until, until_waiting, waits,
};

use crate::common::{LONG, SOON, line, shared};

const TTL: Duration = Duration::from_secs(2);

/// This is no test but the other process, if it was started as one: takes the lock, and looks at its guard all
/// the time.
#[tokio::test]
async fn worker() {
    let Some((_, guard)) = lock_as_told().await else { return };
    let mut last = now();
    loop {
        pass(ms(1)).await;
        let state = guard.state();
        if now().since(last) > GAP {
            say(&format!("woke {state:?}"));
        }
        last = now();
    }
}

/// The story behind fencing: a holder freezes past its lease and wakes up sure of its lock. Here its first look
/// tells it, before any timer or packet does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_is_lost_at_its_first_look() {
    let etcd = shared();
    let name = "frozen/holder";
    let theirs = connect(&etcd.url()).await;
    let worker = Worker::start(&etcd.url(), name, TTL);
    let token = worker.token().await;
    worker.process.stop().unwrap();
    let next = granted(waits(&theirs, name, LONG)).await;
    assert!(next.token().get() > token, "{} after {token}", next.token());
    worker.process.resume().unwrap();
    until("the worker wakes", async || !worker.said("woke").is_empty()).await;
    let first = &worker.said("woke")[0];
    assert!(first.starts_with("Lost("), "{first}");
    next.check().unwrap();
    assert_eq!(line(&etcd, name).len(), 1, "it undid nothing that is not its own");
    next.release().await.unwrap();
}

/// etcd#11456, #9921: the waiter's lease had died in its sleep; when its predecessor had gone it believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_waiter_does_not_hold_when_it_wakes() {
    let etcd = shared();
    let name = "frozen/waiter";
    let theirs = connect(&etcd.url()).await;
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let worker = Worker::start(&etcd.url(), name, TTL);
    until_waiting(&theirs, name, 1).await;
    let old = line(&etcd, name)[1].clone();
    worker.process.stop().unwrap();
    // Its lease dies; the holder goes, and another one has the lock.
    until_waiting(&theirs, name, 0).await;
    holder.release().await.unwrap();
    let next = theirs.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
    worker.process.resume().unwrap();
    until_waiting(&theirs, name, 1).await;
    assert_ne!(line(&etcd, name)[1], old, "a fresh place");
    assert!(worker.said("granted").is_empty());
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(worker.token().await > token);
}
