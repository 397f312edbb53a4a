//! One member of three fails, and a client hangs on it.
//!
//! What must hold: a majority serves, so nobody notices more than a moment's silence. Guards stay held, waiters
//! keep their places, whoever comes is served by another member.

use std::time::Duration;

use fencepost::GuardState;
use fencepost_testkit::{
    EtcdCluster, EtcdMember, Victim, granted, until, until_renewed, until_waiting, waits, within,
};
use tokio::sync::mpsc::unbounded_channel;

use crate::common::{LEASE, LONG, SOON, line};

type Scene = fencepost_testkit::Scene<EtcdCluster>;

async fn set_scene(victim: Victim) -> Scene {
    let cluster = EtcdCluster::start().unwrap();
    let (url, victim) = (cluster.url(), victim.under(cluster.leader().unwrap()));
    Scene::with(cluster, &url, victim, [&[], &[]]).await
}

fn victim_of(scene: &Scene) -> &EtcdMember {
    &scene.three.members()[scene.victim]
}

/// redisson#4698, etcd#6922: a renewal that failed once was never tried again, or nobody was told. Here the
/// leader dies, and with it the connection; the guard is renewed by the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_the_leader() {
    let scene = set_scene(Victim::Leader).await;
    let guard = scene.ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let rival = waits(&scene.theirs, "x", LEASE);
    until_waiting(&scene.theirs, "x", 1).await;

    victim_of(&scene).kill().unwrap();
    until_renewed(&guard, 2).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert!(scene.has_moved_on());
    assert!(!rival.is_finished(), "it is held");
    assert!(scene.theirs.lock("x").try_acquire().await.unwrap().is_none());
    assert_ne!(scene.three.leader().unwrap(), scene.victim);

    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(rival).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
}

/// kazoo#282, curator#600: whoever waited hung for ever after a reconnect, or lost its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_keep_their_order_when_the_leader_dies() {
    let scene = set_scene(Victim::Leader).await;
    let holder = scene.theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    let (tell, mut told) = unbounded_channel();
    for number in 0..4 {
        let client = if number % 2 == 0 { &scene.ours } else { &scene.theirs };
        let (lock, tell) = (client.lock("x").ttl(LEASE), tell.clone());
        tokio::spawn(async move { tell.send((number, lock.acquire().await)) });
        until_waiting(&scene.theirs, "x", number + 1).await;
    }
    let places = line(&scene.three.members()[(scene.victim + 1) % 3], "x");

    victim_of(&scene).kill().unwrap();
    let alive = &scene.three.members()[scene.three.leader().unwrap()];
    until_renewed(&holder, 2).await;
    assert!(told.try_recv().is_err(), "it is held");
    assert_eq!(line(alive, "x"), places, "they are the places that they had");
    let mut last = holder.token();
    holder.release().await.unwrap();
    for number in 0..4 {
        let (who, guard) = within(SOON, "the next is granted", told.recv()).await.unwrap();
        let guard = guard.unwrap();
        assert_eq!(who, number, "first come, first served");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        assert!(told.try_recv().is_err(), "one at a time");
        assert!(scene.theirs.lock("x").try_acquire().await.unwrap().is_none());
        last = guard.token();
        guard.release().await.unwrap();
    }
}

/// A member fails without a word to its clients: `fail` says how. All that a client does moves on to others.
async fn moves_on(victim: Victim, fail: impl FnOnce(&EtcdMember)) {
    let scene = set_scene(victim).await;
    let Scene { ours, theirs, .. } = &scene;
    let guard = ours.lock("held").ttl(LEASE).acquire().await.unwrap();
    let theirs_first = theirs.lock("wanted").ttl(LEASE).acquire().await.unwrap();
    let waiter = waits(ours, "wanted", LEASE);
    until_waiting(theirs, "wanted", 1).await;
    assert!(!scene.has_moved_on(), "all of it went through the member that fails");

    fail(victim_of(&scene));
    let fresh = ours.lock("fresh").ttl(LEASE).acquire_within(SOON).await.unwrap();
    assert!(scene.has_moved_on());
    until_renewed(&guard, 2).await;
    assert_eq!(guard.state(), GuardState::Held);
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

/// It still answers, but can not do anything: it has no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_on_from_a_member_that_is_cut_off() {
    moves_on(Victim::Follower, EtcdMember::cut_off).await;
}

/// The kernel takes the connection and the request, and nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_on_from_a_member_that_stands_still() {
    moves_on(Victim::Follower, |member| member.stop().unwrap()).await;
}

/// The same, and the others have to elect another leader first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_on_from_a_leader_that_stands_still() {
    moves_on(Victim::Leader, |member| member.stop().unwrap()).await;
}

/// The holder releases at once, before the one who waits had a reason to ask anybody: its watch hangs on the
/// member that failed, and its lease is long.
async fn is_still_woken(fail: impl FnOnce(&EtcdMember)) {
    let scene = set_scene(Victim::Follower).await;
    let holder = scene.theirs.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&scene.ours, "x", LONG);
    until_waiting(&scene.theirs, "x", 1).await;
    fail(victim_of(&scene));
    let token = holder.token();
    holder.release().await.unwrap();
    let next = within(2 * SOON, "the waiter is granted", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_watch_is_cut_off_is_still_granted() {
    is_still_woken(EtcdMember::cut_off).await;
}

/// Its connection is tried every ten seconds, and given up five later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_watch_stands_still_is_still_granted() {
    is_still_woken(|member| member.stop().unwrap()).await;
}

/// A lease of three seconds is renewed every second: a member that stands still must be left sooner than the
/// lease ends, or one frozen member of three loses every such lock of its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_lease_outlives_a_member_that_stands_still() {
    let scene = set_scene(Victim::Follower).await;
    let guard = scene.ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    victim_of(&scene).stop().unwrap();
    until_renewed(&guard, 3).await;
    until("it asks another member", async || scene.has_moved_on()).await;
    assert_eq!(guard.state(), GuardState::Held);
    guard.release().await.unwrap();
}
