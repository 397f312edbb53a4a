//! An ensemble of three: members die, freeze, or are partitioned.

use std::time::Duration;

use fencepost::GuardStatus;
use fencepost_testkit::{
    LONG, SOON, Victim, ZooKeeperEnsemble, ZooKeeperMember, connect, granted, now, until,
    until_renewed, until_waiting, waits, within,
};
use tokio::sync::mpsc::unbounded_channel;

use super::common::LEASE;
use super::ensemble::{Fixture, fixture, victim_of};

/// All on one ensemble, because three JVMs start slowly.
#[tokio::test]
async fn ensemble_keeps_its_locks() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let url = format!("{}/ensemble", ensemble.url());
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    let ttl = Duration::from_secs(10);
    let mut last = None;
    for round in 0..3 {
        // Some of these sessions are on the member that fails.
        let mut guards = Vec::new();
        for (number, client) in [&ours, &theirs, &ours, &theirs].into_iter().enumerate() {
            let lock = client.lock(format!("kept/{number}")).ttl(ttl);
            guards.push(lock.wait_timeout(SOON).acquire().await.unwrap());
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
        // What is held is not granted, and what is free is granted in time.
        let free = within(SOON * 2, "a free lock is granted", async {
            loop {
                match theirs.lock("free").ttl(LONG).wait_timeout(SOON).acquire().await {
                    Ok(guard) => break guard,
                    // An election may take as long as a call's timeout.
                    Err(error) => assert_eq!(error.kind(), fencepost::ErrorKind::Unreachable),
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
                .all(|guard| guard.status() == GuardStatus::Held && guard.remaining() > ttl / 2)
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

/// redisson#4698, kazoo#282: grants and waits were lost, or hung forever, with the member they used. Here the leader
/// dies, the other members renew the guard, and nobody else is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_survives_the_death_of_the_leader() {
    let fixture = fixture(Victim::Leader, &[LEASE]).await;
    let guard = fixture.ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let rival = waits(&fixture.theirs, "x", LEASE);
    until_waiting(&fixture.theirs, "x", 1).await;

    victim_of(&fixture).kill().unwrap();
    until_renewed(&guard, 2).await;
    until("it is held", async || guard.status() == GuardStatus::Held).await;
    assert!(fixture.has_moved_on());
    assert!(!rival.is_finished(), "it is held");
    assert_ne!(fixture.three.leader().unwrap(), fixture.victim);
    assert!(fixture.theirs.lock("x").try_acquire().await.unwrap().is_none());

    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(rival).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
}

/// kazoo#282, curator#600: a waiter hung forever after a reconnect, or lost its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_their_order_when_the_leader_dies() {
    let fixture = fixture(Victim::Leader, &[LEASE]).await;
    let holder = fixture.theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    let (sender, mut grants) = unbounded_channel();
    for number in 0..4 {
        let client = if number % 2 == 0 { &fixture.ours } else { &fixture.theirs };
        let (lock, sender) = (client.lock("x").ttl(LEASE), sender.clone());
        tokio::spawn(async move { sender.send((number, lock.acquire().await)) });
        until_waiting(&fixture.theirs, "x", number + 1).await;
    }
    let positions = fixture.three.queue((fixture.victim + 1) % 3, "x");
    assert_eq!(positions.len(), 5);

    victim_of(&fixture).kill().unwrap();
    let leader = fixture.three.leader().unwrap();
    until_renewed(&holder, 2).await;
    assert!(grants.try_recv().is_err(), "it is held");
    assert_eq!(fixture.three.queue(leader, "x"), positions, "they are the positions that they had");
    let mut last = holder.token();
    holder.release().await.unwrap();
    for number in 0..4 {
        let (who, guard) = within(SOON, "the next is granted", grants.recv()).await.unwrap();
        let guard = guard.unwrap();
        assert_eq!(who, number, "waiters are granted in order");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        assert!(grants.try_recv().is_err(), "one at a time");
        last = guard.token();
        guard.release().await.unwrap();
    }
}

/// A member fails silently, as `fail` says. All calls of its clients move to other members within their session, and
/// grants and positions stay.
async fn client_leaves(victim: Victim, fail: impl FnOnce(&ZooKeeperMember)) {
    let fixture = fixture(victim, &[LEASE]).await;
    let Fixture { ours, theirs, three, .. } = &fixture;
    let guard = ours.lock("held").ttl(LEASE).acquire().await.unwrap();
    let theirs_first = theirs.lock("wanted").ttl(LEASE).acquire().await.unwrap();
    let waiter = waits(ours, "wanted", LEASE);
    until_waiting(theirs, "wanted", 1).await;
    assert!(!fixture.has_moved_on(), "all of it went through the member that fails");
    let other = (fixture.victim + 1) % 3;
    let positions = (three.queue(other, "held"), three.queue(other, "wanted"));

    fail(victim_of(&fixture));
    let fresh = ours.lock("fresh").ttl(LEASE).wait_timeout(SOON).acquire().await.unwrap();
    assert!(fixture.has_moved_on());
    until_renewed(&guard, 2).await;
    until("it is held", async || guard.status() == GuardStatus::Held).await;
    for name in ["held", "fresh", "wanted"] {
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
    assert!(!waiter.is_finished(), "it is held");
    let kept = (three.queue(other, "held"), three.queue(other, "wanted"));
    assert_eq!(kept, positions, "the same nodes, and so the same session");

    let token = theirs_first.token();
    theirs_first.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token, "{} after {token}", next.token());
    for guard in [guard, fresh, next] {
        guard.release().await.unwrap();
    }
}

/// It still accepts connections, but cannot serve: it has no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_partitioned_member() {
    client_leaves(Victim::Follower, ZooKeeperMember::cut_off).await;
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

/// A partitioned leader serves for a moment while the others elect another: its replies must not count, and what it
/// was sent before is known to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_leaves_a_partitioned_leader() {
    client_leaves(Victim::Leader, ZooKeeperMember::cut_off).await;
}

/// kazoo#282: the watch is on the failed member, and the holder releases at once, before the waiter has a reason to
/// send anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_watch_fails_is_granted() {
    for fail in [ZooKeeperMember::cut_off, |member: &ZooKeeperMember| member.stop().unwrap()] {
        let fixture = fixture(Victim::Follower, &[LONG]).await;
        let holder = fixture.theirs.lock("x").ttl(LONG).acquire().await.unwrap();
        let waiter = waits(&fixture.ours, "x", LONG);
        until_waiting(&fixture.theirs, "x", 1).await;
        fail(victim_of(&fixture));
        let token = holder.token();
        holder.release().await.unwrap();
        let next = within(2 * SOON, "the waiter is granted", waiter).await.unwrap().unwrap();
        assert!(next.token() > token);
    }
}

/// A lease of three seconds is renewed every second. A frozen member must be left before the lease ends, or one
/// frozen member of three ends every such guard of its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lease_survives_a_frozen_member() {
    let short = Duration::from_secs(3);
    let fixture = fixture(Victim::Follower, &[short]).await;
    let guard = fixture.ours.lock("x").ttl(short).acquire().await.unwrap();
    victim_of(&fixture).stop().unwrap();
    until_renewed(&guard, 3).await;
    assert!(fixture.has_moved_on());
    assert_eq!(guard.status(), GuardStatus::Held);
    guard.release().await.unwrap();
}
