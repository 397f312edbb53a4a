//! An ensemble of three: members that end, stand still, or are cut off.

use std::time::Duration;

use fencepost::GuardState;
use fencepost_testkit::{
    LONG, SOON, Victim, ZooKeeperEnsemble, ZooKeeperMember, connect, granted, now, until,
    until_renewed, until_waiting, waits, within,
};
use tokio::sync::mpsc::unbounded_channel;

use super::common::LEASE;
use super::ensemble::{Scene, set_scene, victim_of};

/// One after the other on one ensemble, since three Java machines start slowly.
#[tokio::test]
async fn an_ensemble_keeps_its_locks() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let url = format!("{}/ensemble", ensemble.url());
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    let ttl = Duration::from_secs(10);
    let mut last = None;
    for round in 0..3 {
        // Some of these sessions are with the member that goes.
        let mut guards = Vec::new();
        for (number, client) in [&ours, &theirs, &ours, &theirs].into_iter().enumerate() {
            let lock = client.lock(format!("kept/{number}")).ttl(ttl);
            guards.push(lock.acquire_within(SOON).await.unwrap());
        }
        let member = &ensemble.members()[match round {
            0 => ensemble.leader().unwrap(),
            _ => (ensemble.leader().unwrap() + round) % 3,
        }];
        match round {
            0 => member.kill().unwrap(),
            1 => member.stop().unwrap(),
            _ => member.cut_off(),
        }
        let began = now();
        // Nobody is granted what is held, and what is free can be had, in time.
        let free = within(SOON * 2, "a free lock is granted", async {
            loop {
                match theirs.lock("free").ttl(LONG).acquire_within(SOON).await {
                    Ok(guard) => break guard,
                    // An election may take as long as a client's patience.
                    Err(error) => assert_eq!(*error.kind(), fencepost::ErrorKind::Unreachable),
                }
            }
        });
        let free = free.await;
        println!("round {round}: granted {:?} after the fault", now().since(began));
        assert!(Some(free.token()) > last, "{} after {last:?}", free.token());
        last = Some(free.token());
        free.release().await.unwrap();
        until("all guards are renewed", async || {
            guards
                .iter()
                .all(|guard| guard.state() == GuardState::Held && guard.remaining() > ttl / 2)
        })
        .await;
        for (number, guard) in guards.iter().enumerate() {
            guard.check().unwrap();
            let held = ours.lock(format!("kept/{number}")).try_acquire().await;
            assert!(held.unwrap().is_none(), "kept/{number} was granted twice");
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        match round {
            0 => member.start_again().unwrap(),
            1 => member.resume().unwrap(),
            _ => member.heal(),
        }
        ensemble.wait_until_healthy().unwrap();
    }
}

/// redisson#4698, kazoo#282: what a client had was lost, or hung for ever, with the member that it hung on. Here
/// that is the leader, and it dies; the guard is renewed through the others, and nobody else is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_the_leader() {
    let scene = set_scene(Victim::Leader, &[LEASE]).await;
    let guard = scene.ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let rival = waits(&scene.theirs, "x", LEASE);
    until_waiting(&scene.theirs, "x", 1).await;

    victim_of(&scene).kill().unwrap();
    until_renewed(&guard, 2).await;
    until("it is held", async || guard.state() == GuardState::Held).await;
    assert!(scene.has_moved_on());
    assert!(!rival.is_finished(), "it is held");
    assert_ne!(scene.three.leader().unwrap(), scene.victim);
    assert!(scene.theirs.lock("x").try_acquire().await.unwrap().is_none());

    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(rival).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
}

/// kazoo#282, curator#600: whoever waited hung for ever after a reconnect, or lost its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_keep_their_order_when_the_leader_dies() {
    let scene = set_scene(Victim::Leader, &[LEASE]).await;
    let holder = scene.theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    let (tell, mut told) = unbounded_channel();
    for number in 0..4 {
        let client = if number % 2 == 0 { &scene.ours } else { &scene.theirs };
        let (lock, tell) = (client.lock("x").ttl(LEASE), tell.clone());
        tokio::spawn(async move { tell.send((number, lock.acquire().await)) });
        until_waiting(&scene.theirs, "x", number + 1).await;
    }
    let places = scene.three.line((scene.victim + 1) % 3, "x");
    assert_eq!(places.len(), 5);

    victim_of(&scene).kill().unwrap();
    let leader = scene.three.leader().unwrap();
    until_renewed(&holder, 2).await;
    assert!(told.try_recv().is_err(), "it is held");
    assert_eq!(scene.three.line(leader, "x"), places, "they are the places that they had");
    let mut last = holder.token();
    holder.release().await.unwrap();
    for number in 0..4 {
        let (who, guard) = within(SOON, "the next is granted", told.recv()).await.unwrap();
        let guard = guard.unwrap();
        assert_eq!(who, number, "first come, first served");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        assert!(told.try_recv().is_err(), "one at a time");
        last = guard.token();
        guard.release().await.unwrap();
    }
}

/// A member fails without a word to its clients: `fail` says how. All that a client does moves on to others
/// within its session, and what it held and waited for is what it had.
async fn moves_on(victim: Victim, fail: impl FnOnce(&ZooKeeperMember)) {
    let scene = set_scene(victim, &[LEASE]).await;
    let Scene { ours, theirs, three, .. } = &scene;
    let guard = ours.lock("held").ttl(LEASE).acquire().await.unwrap();
    let theirs_first = theirs.lock("wanted").ttl(LEASE).acquire().await.unwrap();
    let waiter = waits(ours, "wanted", LEASE);
    until_waiting(theirs, "wanted", 1).await;
    assert!(!scene.has_moved_on(), "all of it went through the member that fails");
    let other = (scene.victim + 1) % 3;
    let places = (three.line(other, "held"), three.line(other, "wanted"));

    fail(victim_of(&scene));
    let fresh = ours.lock("fresh").ttl(LEASE).acquire_within(SOON).await.unwrap();
    assert!(scene.has_moved_on());
    until_renewed(&guard, 2).await;
    until("it is held", async || guard.state() == GuardState::Held).await;
    for name in ["held", "fresh", "wanted"] {
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
    assert!(!waiter.is_finished(), "it is held");
    let kept = (three.line(other, "held"), three.line(other, "wanted"));
    assert_eq!(kept, places, "the same nodes, and so the same session");

    let token = theirs_first.token();
    theirs_first.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    for guard in [guard, fresh, next] {
        guard.release().await.unwrap();
    }
}

/// It still takes connections, and serves none: it has no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_on_from_a_member_that_is_cut_off() {
    moves_on(Victim::Follower, ZooKeeperMember::cut_off).await;
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

/// A leader that is cut off serves on for a moment, while the others elect another: what it says then must not
/// be believed, and what it was told before is known to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_on_from_a_leader_that_is_cut_off() {
    moves_on(Victim::Leader, ZooKeeperMember::cut_off).await;
}

/// kazoo#282: the watch hangs on the member that failed, and the holder releases at once, before the one who
/// waits had a reason to ask anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_watch_fails_is_still_granted() {
    for fail in [ZooKeeperMember::cut_off, |member: &ZooKeeperMember| member.stop().unwrap()] {
        let scene = set_scene(Victim::Follower, &[LONG]).await;
        let holder = scene.theirs.lock("x").ttl(LONG).acquire().await.unwrap();
        let waiter = waits(&scene.ours, "x", LONG);
        until_waiting(&scene.theirs, "x", 1).await;
        fail(victim_of(&scene));
        let token = holder.token();
        holder.release().await.unwrap();
        let next = within(2 * SOON, "the waiter is granted", waiter).await.unwrap().unwrap();
        assert!(next.token() > token);
    }
}

/// A lease of three seconds is renewed every second: a member that stands still must be left sooner than the
/// lease ends, or one frozen member of three loses every such lock of its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_lease_outlives_a_member_that_stands_still() {
    let short = Duration::from_secs(3);
    let scene = set_scene(Victim::Follower, &[short]).await;
    let guard = scene.ours.lock("x").ttl(short).acquire().await.unwrap();
    victim_of(&scene).stop().unwrap();
    until_renewed(&guard, 3).await;
    assert!(scene.has_moved_on());
    assert_eq!(guard.state(), GuardState::Held);
    guard.release().await.unwrap();
}
