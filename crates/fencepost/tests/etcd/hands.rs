//! Somebody lays hands on what is ours: revokes a lease, deletes a key, breaks a lock.
//!
//! What must hold: whoever loses its grant so is told at its next renewal, and told why; whoever loses its
//! place gets another, and is never granted what somebody else has.

use std::time::Duration;

use fencepost::{ErrorKind, GuardState, LossCause};
use fencepost_testkit::{
    Etcd, Process, Proxy, Trigger, connect, fails, granted, granted_unheard, until, until_waiting,
    waits, within,
};

use crate::common::{LEASE, LONG, SOON, kept_for, line, shared};

/// A way to take from somebody what it has in line.
type Taking = fn(&Etcd, name: &str, lease: &str);

fn revoke(etcd: &Etcd, _name: &str, lease: &str) {
    etcd.etcdctl(&["lease", "revoke", lease]).unwrap();
}

fn delete(etcd: &Etcd, name: &str, lease: &str) {
    assert_eq!(etcd.etcdctl(&["del", &format!("{name}/{lease}")]).unwrap().trim(), "1");
}

/// etcd PR#20813: a lease that was revoked was renewed all the same. etcd#5571: nobody told the holder.
async fn a_holder_is_told(name: &str, take: Taking, cause: LossCause) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = ours.lock(name).ttl(LEASE).acquire().await.unwrap();
    let deadline = guard.deadline();
    take(&etcd, name, &line(&etcd, name)[0]);
    // The store has given it away, and tells at the next renewal: until then it is the fence's matter.
    let next = theirs.lock(name).ttl(LEASE).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, cause);
    assert!(guard.deadline() <= deadline, "it was not renewed");
    fails(guard.check(), &ErrorKind::Lost(cause), &[name]);
    fails(guard.release().await, &ErrorKind::Lost(cause), &[name]);
    next.check().unwrap();
    assert!(ours.lock(name).try_acquire().await.unwrap().is_none(), "the next one's is untouched");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_lease_is_revoked_is_told() {
    a_holder_is_told("hands/revoked", revoke, LossCause::SessionGone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_key_is_deleted_is_told() {
    a_holder_is_told("hands/deleted", delete, LossCause::Broken).await;
}

/// Renewals of many guards go together: one that is lost is no other one's loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_guards_only_the_one_whose_lease_is_revoked_is_lost() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let names: Vec<_> = (0..6).map(|number| format!("hands/many-{number}")).collect();
    let each: Vec<_> = names.iter().map(|name| waits(&client, name, LEASE)).collect();
    let mut guards = Vec::new();
    for one in each {
        guards.push(granted(one).await);
    }
    revoke(&etcd, &names[2], &line(&etcd, &names[2])[0]);
    let lost = guards.remove(2);
    assert_eq!(within(SOON, "the guard is lost", lost.lost()).await, LossCause::SessionGone);
    let before: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
    for (guard, before) in guards.iter().zip(before) {
        until("the others are renewed", async || guard.deadline() > before).await;
        assert_eq!(guard.state(), GuardState::Held);
    }
}

/// A server may take fewer operations at once than is usual; whoever holds many locks must not lose them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_guards_are_renewed_by_a_server_that_takes_few_operations_at_once() {
    let etcd = Etcd::builder().arg("--max-txn-ops=8").start().unwrap();
    let client = connect(&etcd.url()).await;
    let each: Vec<_> = (0..40).map(|n| waits(&client, &format!("x{n}"), LEASE)).collect();
    let mut guards = Vec::new();
    for one in each {
        guards.push(granted(one).await);
    }
    for _ in 0..2 {
        let before: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
        until("all are renewed", async || {
            guards.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before)
        })
        .await;
    }
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
}

/// Somebody deletes the holder's key, and puts it back when another one has the lock. The key that is there is
/// not the one that was granted: it was made later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_key_is_put_back_is_told() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "hands/put-back";
    let guard = ours.lock(name).ttl(LEASE).acquire().await.unwrap();
    let lease = line(&etcd, name)[0].clone();
    delete(&etcd, name, &lease);
    let next = theirs.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    etcd.etcdctl(&["put", &format!("{name}/{lease}"), "", &format!("--lease={lease}")]).unwrap();
    assert!(next.token() > guard.token());
    within(SOON, "the guard is lost", guard.lost()).await;
    next.check().unwrap();
}

/// etcd#11456: the waiter's lease died while it was queued, its predecessor let go, and Lock returned OK though
/// another one held. Here its lease is long: only its own look, when it is woken, can tell it.
async fn a_waiter_does_not_believe(name: &str, take: Taking) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, name, LONG);
    until_waiting(&theirs, name, 1).await;
    let behind = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 2).await;
    let places = line(&etcd, name);
    take(&etcd, name, &places[1]);

    let token = holder.token();
    holder.release().await.unwrap();
    let next = granted(behind).await;
    assert!(next.token() > token);
    // It has noticed, and has a fresh place behind the one who holds.
    until_waiting(&theirs, name, 1).await;
    assert!(!waiter.is_finished(), "another one holds");
    next.check().unwrap();
    let now = line(&etcd, name);
    assert_eq!(now[0], places[2]);
    assert!(!places.contains(&now[1]), "a fresh place");

    let token = next.token();
    next.release().await.unwrap();
    let last = granted(waiter).await;
    assert!(last.token() > token, "{} after {token}", last.token());
    last.release().await.unwrap();
    until("nothing is left", async || line(&etcd, name).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_revoked_does_not_believe_in_its_turn() {
    a_waiter_does_not_believe("hands/waiter/revoked", revoke).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_key_is_deleted_does_not_believe_in_its_turn() {
    a_waiter_does_not_believe("hands/waiter/deleted", delete).await;
}

/// It also notices by itself, when it keeps its lease alive, and queues up again while the lock is held.
async fn a_waiter_queues_again(name: &str, take: Taking) {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, name, LEASE);
    until_waiting(&theirs, name, 1).await;
    let old = line(&etcd, name)[1].clone();
    take(&etcd, name, &old);
    until_waiting(&theirs, name, 0).await;
    until_waiting(&theirs, name, 1).await;
    assert!(!waiter.is_finished(), "it is held");
    assert_ne!(line(&etcd, name)[1], old);
    let token = holder.token();
    holder.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_revoked_queues_again() {
    a_waiter_queues_again("hands/again/revoked", revoke).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_key_is_deleted_queues_again() {
    a_waiter_queues_again("hands/again/deleted", delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_broken_is_told_so_and_the_next_has_a_higher_token() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "hands/broken";
    let guard = ours.lock(name).ttl(LEASE).label("web-1").acquire().await.unwrap();
    let lease = line(&etcd, name)[0].clone();
    let waiter = waits(&theirs, name, LEASE);
    until_waiting(&theirs, name, 1).await;
    let broken = theirs.break_lock(name).await.unwrap().unwrap();
    assert_eq!((broken.label.as_str(), broken.token), ("web-1", Some(guard.token())));
    let next = granted(waiter).await;
    assert!(broken.floor > guard.token() && broken.floor <= next.token());
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::Broken);
    assert_eq!(kept_for(&etcd, &lease), None, "its lease was of this one grant");
    fails(guard.release().await, &ErrorKind::Lost(LossCause::Broken), &[name]);
    next.check().unwrap();
    next.release().await.unwrap();
    assert!(theirs.break_lock(name).await.unwrap().is_none(), "nobody holds it");
}

/// One that releases without having been told yet learns it from the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_a_break_says_broken() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "hands/broken/release";
    let guard = client.lock(name).ttl(LONG).acquire().await.unwrap();
    client.break_lock(name).await.unwrap().unwrap();
    let next = client.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    fails(guard.release().await, &ErrorKind::Lost(LossCause::Broken), &[name]);
    next.release().await.unwrap();
}

/// A session of another make of client may carry more than this lock: its key goes, its lease stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_makes_holder_is_broken_without_its_session() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "hands/foreign";
    let directory = tempfile::tempdir().unwrap();
    let mut command = etcd.etcdctl_command();
    command.args(["lock", "--ttl=60", name]);
    let stranger = Process::spawn(&command, &directory.path().join("log")).unwrap();
    until("etcdctl holds the lock", async || stranger.log().contains(name)).await;
    let lease = line(&etcd, name)[0].clone();
    assert!(client.lock(name).try_acquire().await.unwrap().is_none());
    let held = client.inspect(name).await.unwrap().holder.unwrap();
    assert!(held.label.as_str().contains("another client"), "{held:?}");

    let broken = client.break_lock(name).await.unwrap().unwrap();
    assert_eq!(broken.token, held.token);
    let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(Some(guard.token()) > held.token);
    assert!(kept_for(&etcd, &lease).is_some(), "its session lives on");
    assert!(stranger.is_running());
    // Releasing is not its own any more: our grant stays when it goes.
    drop(stranger);
    etcd.etcdctl(&["lease", "revoke", &lease]).unwrap();
    assert_eq!(client.inspect(name).await.unwrap().holder.unwrap().token, Some(guard.token()));
    guard.release().await.unwrap();
}

/// The break was carried out and its answer lost; by the time it is asked for again the next one has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_that_is_asked_for_again_does_not_hit_the_next() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let operator = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let name = "hands/break/again";
    let first = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 1).await;

    proxy.cut_on(Trigger::after("fencepost.broken/"));
    let (broken, next) = tokio::join!(operator.break_lock(name), granted_unheard(&proxy, waiter));
    let broken = broken.unwrap().expect("it was our break that was carried out");
    assert_eq!(broken.token, Some(first.token()));
    assert!(next.token() > first.token());
    let held = theirs.inspect(name).await.unwrap().holder.unwrap();
    assert_eq!(held.token, Some(next.token()), "the next one was not hit");
    assert_eq!(next.state(), GuardState::Held);
    next.release().await.unwrap();
}

/// Not even if it is asked for so late that the first one's key would be found gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_that_never_arrived_is_asked_for_again() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let operator = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let name = "hands/break/before";
    let first = theirs.lock(name).ttl(Duration::from_mins(1)).acquire().await.unwrap();
    proxy.cut_on(Trigger::before("fencepost.broken/"));
    let broken = within(SOON, "the break comes back", operator.break_lock(name)).await;
    assert_eq!(broken.unwrap().unwrap().token, Some(first.token()));
    assert_eq!(proxy.fired(), 1);
    assert!(theirs.inspect(name).await.unwrap().holder.is_none());
}

/// Somebody puts a value into the holder's key and so takes it off its lease. For everybody else it counts no
/// more: the next one is granted. The holder must not go on, and its key must not stay for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_key_is_taken_off_its_lease_is_told() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "hands/off-its-lease";
    let guard = ours.lock(name).ttl(LEASE).acquire().await.unwrap();
    let lease = line(&etcd, name)[0].clone();
    etcd.etcdctl(&["put", &format!("{name}/{lease}"), "note"]).unwrap();
    let next = theirs.lock(name).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    within(SOON, "the guard is lost", guard.lost()).await;
    next.check().unwrap();
    next.release().await.unwrap();
    until("nothing is left of it", async || line(&etcd, name).is_empty()).await;
}
