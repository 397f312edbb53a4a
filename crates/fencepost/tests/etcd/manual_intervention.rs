//! Somebody revokes a lease, deletes a key or breaks a lock of ours.
//!
//! What must hold: a holder that loses its grant learns it, with the cause, at its next renewal. A waiter that loses
//! its position queues again, and is never granted a lock that another client holds.

use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus, LossCause};
use fencepost_testkit::{
    Etcd, Mode, Process, Proxy, Trigger, connect, fails_because, granted, ms, pass, until,
    until_waiting, waits, within,
};

use crate::common::{LEASE, LONG, SOON, queue, remaining_ttl, shared};

/// How a grant or position is removed behind the client's back.
type Removal = fn(&Etcd, name: &str, lease: &str);

fn revoke(etcd: &Etcd, _name: &str, lease: &str) {
    etcd.etcdctl(&["lease", "revoke", lease]).unwrap();
}

fn delete(etcd: &Etcd, name: &str, lease: &str) {
    assert_eq!(etcd.etcdctl(&["del", &format!("{name}/{lease}")]).unwrap().trim(), "1");
}

/// etcd PR#20813: a revoked lease was still renewed. etcd#5571: the holder was not notified.
async fn guard_is_lost_after(name: &str, remove: Removal, cause: LossCause) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = ours.lock(name).ttl(LEASE).acquire().await.unwrap();
    let deadline = guard.deadline();
    remove(&etcd, name, &queue(&etcd, name)[0]);
    // The store has granted the lock again, and the holder learns it at the next renewal. Until then only a fence
    // protects.
    let next = theirs.lock(name).ttl(LEASE).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, cause);
    assert!(guard.deadline() <= deadline, "it was not renewed");
    fails_because(guard.check(), ErrorKind::Lost, cause, &[name]);
    fails_because(guard.release().await, ErrorKind::Lost, cause, &[name]);
    next.check().unwrap();
    assert!(ours.lock(name).try_acquire().await.unwrap().is_none(), "the next one's is untouched");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_lost_when_its_lease_is_revoked() {
    guard_is_lost_after("manual/revoked", revoke, LossCause::SessionGone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_lost_when_its_key_is_deleted() {
    guard_is_lost_after("manual/deleted", delete, LossCause::Broken).await;
}

/// Renewals share a batch: the loss of one guard must not end the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_lease_of_one_guard_does_not_end_the_others() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let names: Vec<_> = (0..6).map(|number| format!("manual/many-{number}")).collect();
    let each: Vec<_> = names.iter().map(|name| waits(&client, name, LEASE)).collect();
    let mut guards = Vec::new();
    for one in each {
        guards.push(granted(one).await);
    }
    revoke(&etcd, &names[2], &queue(&etcd, &names[2])[0]);
    let lost = guards.remove(2);
    assert_eq!(within(SOON, "the guard is lost", lost.lost()).await, LossCause::SessionGone);
    let before: Vec<_> = guards.iter().map(fencepost::Guard::deadline).collect();
    for (guard, before) in guards.iter().zip(before) {
        until("the others are renewed", async || guard.deadline() > before).await;
        assert_eq!(guard.status(), GuardStatus::Held);
    }
}

/// A server may have a low operation limit: a client with many locks must still renew all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_guards_are_renewed_with_a_low_operation_limit() {
    let etcd = Etcd::builder().arg("--max-txn-ops=8").start().unwrap();
    let client = connect(&etcd.url()).await;
    let each: Vec<_> = (0..40).map(|n| waits(&client, &format!("x{n}"), LEASE)).collect();
    let mut guards = Vec::new();
    for one in each {
        guards.push(granted(one).await);
    }
    for _ in 0..2 {
        let before: Vec<_> = guards.iter().map(fencepost::Guard::deadline).collect();
        until("all are renewed", async || {
            guards.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before)
        })
        .await;
    }
    assert!(guards.iter().all(|guard| guard.status() == GuardStatus::Held));
}

/// Somebody deletes the holder's key and recreates it after another client was granted. The recreated key has a later
/// revision than the grant. The holder is cut off meanwhile: otherwise it would revoke its lease, and no key could be
/// put on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_lost_when_its_key_is_recreated() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let name = "manual/put-back";
    let guard = ours.lock(name).ttl(LONG).acquire().await.unwrap();
    let lease = queue(&etcd, name)[0].clone();
    proxy.set_mode(Mode::Silent);
    delete(&etcd, name, &lease);
    let next = theirs.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    etcd.etcdctl(&["put", &format!("{name}/{lease}"), "", &format!("--lease={lease}")]).unwrap();
    assert!(next.token() > guard.token());
    guard.check().unwrap();
    proxy.set_mode(Mode::Pass);
    within(SOON, "the guard is lost", guard.lost()).await;
    next.check().unwrap();
}

/// etcd#11456: the waiter's lease expired in the queue, its predecessor released, and Lock returned OK although
/// another client held the lock. Here the lease is long, so only the waiter's own read can notice.
async fn waiter_is_not_granted_after(name: &str, remove: Removal) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, name, LONG);
    until_waiting(&theirs, name, 1).await;
    let behind = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 2).await;
    let positions = queue(&etcd, name);
    remove(&etcd, name, &positions[1]);

    let token = holder.token();
    holder.release().await.unwrap();
    let next = granted(behind).await;
    assert!(next.token() > token);
    // It noticed, and has a new position behind the holder.
    until_waiting(&theirs, name, 1).await;
    assert!(!waiter.is_finished(), "another one holds");
    next.check().unwrap();
    let now = queue(&etcd, name);
    assert_eq!(now[0], positions[2]);
    assert!(!positions.contains(&now[1]), "a new position");

    let token = next.token();
    next.release().await.unwrap();
    let last = granted(waiter).await;
    assert!(last.token() > token, "{} after {token}", last.token());
    last.release().await.unwrap();
    until("nothing is left", async || queue(&etcd, name).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_a_revoked_lease_is_not_granted() {
    waiter_is_not_granted_after("manual/waiter/revoked", revoke).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_a_deleted_key_is_not_granted() {
    waiter_is_not_granted_after("manual/waiter/deleted", delete).await;
}

/// The waiter also notices when it renews its lease, and queues again while the lock is held.
async fn waiter_queues_again_after(name: &str, remove: Removal) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, name, LEASE);
    until_waiting(&theirs, name, 1).await;
    let old = queue(&etcd, name)[1].clone();
    remove(&etcd, name, &old);
    until_waiting(&theirs, name, 0).await;
    until_waiting(&theirs, name, 1).await;
    assert!(!waiter.is_finished(), "it is held");
    assert_ne!(queue(&etcd, name)[1], old);
    let token = holder.token();
    holder.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_a_revoked_lease_queues_again() {
    waiter_queues_again_after("manual/again/revoked", revoke).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_a_deleted_key_queues_again() {
    waiter_queues_again_after("manual/again/deleted", delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_guard_is_lost_and_the_next_has_a_higher_token() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "manual/broken";
    let guard = ours.lock(name).ttl(LEASE).label("web-1").acquire().await.unwrap();
    let lease = queue(&etcd, name)[0].clone();
    let waiter = waits(&theirs, name, LEASE);
    until_waiting(&theirs, name, 1).await;
    let broken = theirs.break_lock(name).await.unwrap().unwrap();
    assert_eq!((broken.label.as_str(), broken.token), ("web-1", Some(guard.token())));
    let next = granted(waiter).await;
    assert!(broken.floor > guard.token() && broken.floor <= next.token());
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::Broken);
    assert_eq!(remaining_ttl(&etcd, &lease), None, "its lease was of this one grant");
    fails_because(guard.release().await, ErrorKind::Lost, LossCause::Broken, &[name]);
    next.check().unwrap();
    next.release().await.unwrap();
    assert!(theirs.break_lock(name).await.unwrap().is_none(), "nobody holds it");
}

/// A holder that releases before it was notified learns of the break from the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_after_a_break_reports_broken() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "manual/broken/release";
    let guard = client.lock(name).ttl(LONG).acquire().await.unwrap();
    client.break_lock(name).await.unwrap().unwrap();
    let next = client.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    fails_because(guard.release().await, ErrorKind::Lost, LossCause::Broken, &[name]);
    next.release().await.unwrap();
}

/// The session of a third-party client may carry other locks: the break deletes its key and keeps its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn third_party_holder_is_broken_without_its_session() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "manual/foreign";
    let directory = tempfile::tempdir().unwrap();
    let mut command = etcd.etcdctl_command();
    command.args(["lock", "--ttl=60", name]);
    let third_party = Process::spawn(&command, &directory.path().join("log")).unwrap();
    until("etcdctl holds the lock", async || third_party.log().contains(name)).await;
    let lease = queue(&etcd, name)[0].clone();
    assert!(client.lock(name).try_acquire().await.unwrap().is_none());
    let held = client.inspect(name).await.unwrap().holder.unwrap();
    assert!(held.label.as_str().contains("another client"), "{held:?}");

    let broken = client.break_lock(name).await.unwrap().unwrap();
    assert_eq!(broken.token, held.token);
    let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(Some(guard.token()) > held.token);
    assert!(remaining_ttl(&etcd, &lease).is_some(), "its session lives on");
    assert!(third_party.is_running());
    // The key is gone, so the end of the third-party session must not end our grant.
    drop(third_party);
    etcd.etcdctl(&["lease", "revoke", &lease]).unwrap();
    assert_eq!(client.inspect(name).await.unwrap().holder.unwrap().token, Some(guard.token()));
    guard.release().await.unwrap();
}

/// The break was applied and its reply was lost. When it is retried, the next client has the lock. The server may
/// send something unasked, which triggers the cut before the break is applied: then the test repeats with another
/// lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_break_does_not_hit_the_next_holder() {
    let mut round = 0;
    while !break_is_retried(&format!("manual/break/again/{round}")).await {
        round += 1;
        assert!(round < 10, "no break was carried out before its connection was cut");
    }
}

/// Whether the break was applied before the retry.
async fn break_is_retried(name: &str) -> bool {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let operator = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let first = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let mut waiter = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 1).await;

    proxy.cut_on(Trigger::after("fencepost.broken/"));
    let reply_lost = async {
        until("the connection is cut", async || proxy.fired() == 1).await;
        proxy.set_mode(Mode::Silent);
        let carried_out = tokio::select! {
            next = &mut waiter => Some(next.unwrap().unwrap()),
            () = pass(ms(1500)) => None,
        };
        proxy.set_mode(Mode::Pass);
        match carried_out {
            Some(next) => (next, true),
            None => (granted(waiter).await, false),
        }
    };
    let (broken, (next, carried_out)) = tokio::join!(operator.break_lock(name), reply_lost);
    let broken = broken.unwrap().expect("it was our break that was carried out");
    assert_eq!(broken.token, Some(first.token()));
    assert!(next.token() > first.token());
    let held = theirs.inspect(name).await.unwrap().holder.unwrap();
    assert_eq!(held.token, Some(next.token()), "the next one was not hit");
    assert_eq!(next.status(), GuardStatus::Held);
    next.release().await.unwrap();
    carried_out
}

/// The first attempt was lost before it reached the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_that_never_arrived_is_retried() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let operator = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let name = "manual/break/before";
    let first = theirs.lock(name).ttl(Duration::from_mins(1)).acquire().await.unwrap();
    proxy.cut_on(Trigger::before("fencepost.broken/"));
    let broken = within(SOON, "the break comes back", operator.break_lock(name)).await;
    assert_eq!(broken.unwrap().unwrap().token, Some(first.token()));
    assert_eq!(proxy.fired(), 1);
    assert!(theirs.inspect(name).await.unwrap().holder.is_none());
}

/// Somebody overwrites the holder's key and so detaches it from its lease. For other clients it does not count any
/// more, and the next one is granted. The holder must learn it, and its key must not stay forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_lost_when_its_key_is_detached_from_the_lease() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "manual/off-its-lease";
    let guard = ours.lock(name).ttl(LEASE).acquire().await.unwrap();
    let lease = queue(&etcd, name)[0].clone();
    etcd.etcdctl(&["put", &format!("{name}/{lease}"), "note"]).unwrap();
    let next = theirs.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    within(SOON, "the guard is lost", guard.lost()).await;
    next.check().unwrap();
    next.release().await.unwrap();
    until("nothing is left of it", async || queue(&etcd, name).is_empty()).await;
}
