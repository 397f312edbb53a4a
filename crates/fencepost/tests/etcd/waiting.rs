//! From when a grant counts whose owner waited for it.
//!
//! What must hold: from the last renewal of its position that the present leader is known to have answered, and never
//! from a later moment than a request of this position left.

use std::time::Duration;

use fencepost_testkit::{
    Etcd, EtcdCluster, connect, counts_from, granted, now, pass, until, until_waiting, waits,
};

use crate::common::{LEASE, LONG, SOON, queue, remaining_ttl, shared};

/// One read hands the lock over: nothing is renewed between the release and the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_after_a_short_wait_counts_from_the_lease() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "waiting/short";
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let asked = now();
    let waiter = waits(&ours, name, LONG);
    until_waiting(&theirs, name, 1).await;
    let queued = now();
    holder.release().await.unwrap();
    let guard = granted(waiter).await;
    let from = counts_from(&guard);
    assert!(asked <= from && from <= queued, "{from:?} not in {asked:?} to {queued:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_after_a_long_wait_counts_from_the_last_renewal() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "waiting/long";
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, name, LEASE);
    until_waiting(&theirs, name, 1).await;
    let lease = queue(&etcd, name)[1].clone();
    let mut last = LEASE;
    let mut before = now();
    until("the waiter renews its lease", async || {
        let start = now();
        let kept = remaining_ttl(&etcd, &lease).expect("it is alive");
        let renewed = kept > last;
        if !renewed {
            (last, before) = (kept, start);
        }
        renewed
    })
    .await;
    let renewed = now();
    holder.release().await.unwrap();
    let guard = granted(waiter).await;
    let from = counts_from(&guard);
    assert!(before <= from && from <= renewed, "{from:?} not in {before:?} to {renewed:?}");
    guard.release().await.unwrap();
}

/// `fencepost acquire` prints the TTL and ends, so nobody renews the lease, of which a third might be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_of_a_script_after_a_wait_has_its_whole_lease() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "waiting/script";
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let script = tokio::spawn(ours.lock(name).ttl(LONG).lease_only().acquire());
    until_waiting(&theirs, name, 1).await;
    // Less than the time after which a waiter renews.
    pass(LONG / 40).await;
    let before = now();
    holder.release().await.unwrap();
    let guard = granted(script).await;
    let from = counts_from(&guard);
    assert!(before <= from, "{from:?}, before {before:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_that_fails_writes_nothing() {
    let etcd = Etcd::builder().start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock("x").ttl(LONG).label("web-1").acquire().await.unwrap();
    let revision = || {
        let status = etcd.etcdctl(&["endpoint", "status", "-w", "fields"]).unwrap();
        let index = status.lines().find_map(|line| line.strip_prefix("\"RaftIndex\" : "));
        index.unwrap().to_owned()
    };
    let before = revision();
    for _ in 0..3 {
        assert!(ours.lock("x").try_acquire().await.unwrap().is_none());
    }
    let held = ours.lock("x").wait_timeout(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(held.holder().unwrap().label.as_str(), "web-1");
    assert_eq!(revision(), before, "nothing went through the log");
    holder.release().await.unwrap();
    let guard = ours.lock("x").ttl(LONG).try_acquire().await.unwrap();
    assert!(guard.is_some() && revision() != before, "the control: a grant did");
}

/// A leader that was replaced answers keep-alives from memory, so what was answered in an earlier term proves nothing
/// about the present leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_in_an_earlier_term_does_not_count() {
    let cluster = EtcdCluster::start().unwrap();
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let holder = theirs.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    let queued = now();
    let old = cluster.leader().unwrap();
    cluster.members()[old].kill().unwrap();
    assert_ne!(cluster.leader().unwrap(), old);
    holder.release().await.unwrap();
    let guard = granted(waiter).await;
    let from = counts_from(&guard);
    assert!(from > queued, "{from:?}, before {queued:?}");
    assert!(now().since(from) < SOON);
    guard.release().await.unwrap();
}
