//! One of three members fails while a client is connected to it.
//!
//! What must hold: a majority is left, so clients notice a short delay at most. Guards stay held, waiters keep their
//! positions, and new calls go to another member.

use std::time::Duration;

use fencepost::GuardStatus;
use fencepost_testkit::{
    EtcdCluster, EtcdMember, Victim, granted, until, until_renewed, until_waiting, waits, within,
};
use tokio::sync::mpsc::unbounded_channel;

use crate::common::{LEASE, LONG, SOON, queue};

type Fixture = fencepost_testkit::Fixture<EtcdCluster>;

async fn fixture(victim: Victim) -> Fixture {
    let cluster = EtcdCluster::start().unwrap();
    let (url, victim) = (cluster.url(), victim.under(cluster.leader().unwrap()));
    Fixture::with(cluster, &url, victim, [&[], &[]]).await
}

fn victim_of(fixture: &Fixture) -> &EtcdMember {
    &fixture.three.members()[fixture.victim]
}

/// redisson#4698, etcd#6922: a renewal that failed once was never retried, or the holder was not notified. Here the
/// leader dies with its connection, and the next leader renews the guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_survives_the_death_of_the_leader() {
    let fixture = fixture(Victim::Leader).await;
    let guard = fixture.ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let rival = waits(&fixture.theirs, "x", LEASE);
    until_waiting(&fixture.theirs, "x", 1).await;

    victim_of(&fixture).kill().unwrap();
    until_renewed(&guard, 2).await;
    assert_eq!(guard.status(), GuardStatus::Held);
    assert!(fixture.has_moved_on());
    assert!(!rival.is_finished(), "it is held");
    assert!(fixture.theirs.lock("x").try_acquire().await.unwrap().is_none());
    assert_ne!(fixture.three.leader().unwrap(), fixture.victim);

    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(rival).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
}

/// kazoo#282, curator#600: a waiter hung forever after a reconnect, or lost its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_their_order_when_the_leader_dies() {
    let fixture = fixture(Victim::Leader).await;
    let holder = fixture.theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    let (sender, mut grants) = unbounded_channel();
    for number in 0..4 {
        let client = if number % 2 == 0 { &fixture.ours } else { &fixture.theirs };
        let (lock, sender) = (client.lock("x").ttl(LEASE), sender.clone());
        tokio::spawn(async move { sender.send((number, lock.acquire().await)) });
        until_waiting(&fixture.theirs, "x", number + 1).await;
    }
    let positions = queue(&fixture.three.members()[(fixture.victim + 1) % 3], "x");

    victim_of(&fixture).kill().unwrap();
    let alive = &fixture.three.members()[fixture.three.leader().unwrap()];
    until_renewed(&holder, 2).await;
    assert!(grants.try_recv().is_err(), "it is held");
    assert_eq!(queue(alive, "x"), positions, "they are the positions that they had");
    let mut last = holder.token();
    holder.release().await.unwrap();
    for number in 0..4 {
        let (who, guard) = within(SOON, "the next is granted", grants.recv()).await.unwrap();
        let guard = guard.unwrap();
        assert_eq!(who, number, "waiters are granted in order");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        assert!(grants.try_recv().is_err(), "one at a time");
        assert!(fixture.theirs.lock("x").try_acquire().await.unwrap().is_none());
        last = guard.token();
        guard.release().await.unwrap();
    }
}

/// A member fails silently, as `fail` says. All calls of its clients move to other members.
async fn client_leaves(victim: Victim, fail: impl FnOnce(&EtcdMember)) {
    let fixture = fixture(victim).await;
    let Fixture { ours, theirs, .. } = &fixture;
    let guard = ours.lock("held").ttl(LEASE).acquire().await.unwrap();
    let theirs_first = theirs.lock("wanted").ttl(LEASE).acquire().await.unwrap();
    let waiter = waits(ours, "wanted", LEASE);
    until_waiting(theirs, "wanted", 1).await;
    assert!(!fixture.has_moved_on(), "all of it went through the member that fails");

    fail(victim_of(&fixture));
    let fresh = ours.lock("fresh").ttl(LEASE).wait_timeout(SOON).acquire().await.unwrap();
    assert!(fixture.has_moved_on());
    until_renewed(&guard, 2).await;
    assert_eq!(guard.status(), GuardStatus::Held);
    for name in ["held", "fresh", "wanted"] {
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
    assert!(!waiter.is_finished(), "it is held");

    let token = theirs_first.token();
    theirs_first.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    assert!(theirs.lock("wanted").try_acquire().await.unwrap().is_none());
    for guard in [guard, fresh, next] {
        guard.release().await.unwrap();
    }
}

/// A partitioned member still replies, but cannot serve: it has no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_partitioned_member() {
    client_leaves(Victim::Follower, EtcdMember::cut_off).await;
}

/// The kernel accepts connection and request, and nothing replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_frozen_member() {
    client_leaves(Victim::Follower, |member| member.stop().unwrap()).await;
}

/// The same, and the others must first elect a leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_frozen_leader() {
    client_leaves(Victim::Leader, |member| member.stop().unwrap()).await;
}

/// The holder releases at once, before the waiter has a reason to send anything. Its watch is on the failed member,
/// and its lease is long.
async fn waiter_is_granted_after(fail: impl FnOnce(&EtcdMember)) {
    let fixture = fixture(Victim::Follower).await;
    let holder = fixture.theirs.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&fixture.ours, "x", LONG);
    until_waiting(&fixture.theirs, "x", 1).await;
    fail(victim_of(&fixture));
    let token = holder.token();
    holder.release().await.unwrap();
    let next = within(2 * SOON, "the waiter is granted", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_watch_is_partitioned_is_granted() {
    waiter_is_granted_after(EtcdMember::cut_off).await;
}

/// The client probes its connection every ten seconds, and closes it five seconds later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_watch_is_frozen_is_granted() {
    waiter_is_granted_after(|member| member.stop().unwrap()).await;
}

/// A lease of three seconds is renewed every second. A frozen member must be left before the lease ends, or one
/// frozen member of three ends every such guard of its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lease_survives_a_frozen_member() {
    let fixture = fixture(Victim::Follower).await;
    let guard = fixture.ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    victim_of(&fixture).stop().unwrap();
    until_renewed(&guard, 3).await;
    until("it asks another member", async || fixture.has_moved_on()).await;
    assert_eq!(guard.status(), GuardStatus::Held);
    guard.release().await.unwrap();
}
