//! P4 on the store: whenever and however a client is cut off, its guard is lost before the leader grants the lock
//! again.
//!
//! An observer that is not cut off polls the node. The node is certainly gone when a reply says so; a guard with a
//! later deadline would have been held twice.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{Guard, Moment};
use fencepost_testkit::{
    LONG, Mode, Proxy, Routes, SOON, ZooKeeper, ZooKeeperMember, connect, ms, now, pass, until,
    wait, within,
};

use super::common::Site;
use super::ensemble::PooledEnsemble;
use super::raw_client::Raw;

const TTL: Duration = Duration::from_secs(1);
const ROUNDS: u64 = 4;

/// The next pseudo-random number (`SplitMix64`).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The seed, from `FENCEPOST_SEED` or the clock.
fn seed() -> u64 {
    let given = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| now().as_nanos());
    println!("FENCEPOST_SEED={seed}");
    seed
}

/// Polls the node until it is gone, and returns the moment of the reply that says so.
fn watch(at: &ZooKeeper, node: String) -> tokio::task::JoinHandle<Moment> {
    let mut raw = Raw::connect(at.address());
    tokio::task::spawn_blocking(move || {
        wait::until(2 * SOON, "the node is gone", || Ok(!raw.exists(&node))).unwrap();
        let gone = now();
        raw.close();
        gone
    })
}

/// Asserts that the guard was lost before the node was gone.
async fn assert_lost_in_time(guard: &Guard, gone: Moment, how: &str) {
    within(SOON, "it is lost", guard.lost()).await;
    assert!(guard.check().is_err());
    let lost = guard.deadline();
    assert!(lost <= gone, "{how}: held for {:?} after its node was gone", lost.since(gone));
    println!("{how}: lost {:?} before its node was gone", gone.since(lost));
}

/// Clients on every member, the leader included, are cut off at any moment between heartbeats, by a network that is
/// silent, refuses, or drops one direction only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_of_a_partitioned_client_is_lost_before_the_next_grant() {
    let mut seed = seed();
    let three = PooledEnsemble::take();
    let leader = three.leader().unwrap();
    for round in 0..ROUNDS {
        let mut tasks = Vec::new();
        for at in 0..3 {
            let routes = Routes::to(&three.url());
            let client = routes.client_at(at, &[TTL]).await;
            let name = format!("r{round}/{at}");
            let guard = client.lock(&name).ttl(TTL).acquire().await.unwrap();
            let node = format!("{}/{name}/{}", three.chroot, three.queue(at, &name)[0]);
            let gone = watch(&three.members()[leader], node);
            let modes = [Mode::Silent, Mode::Refuse, Mode::DropAnswers, Mode::DropRequests];
            let mode = modes[(next(&mut seed) % 4) as usize];
            let after = ms(next(&mut seed) % 1500);
            let how = format!("round {round}, {mode:?} after {after:?}, leader: {}", at == leader);
            tasks.push(tokio::spawn(async move {
                pass(after).await;
                guard.check().expect("until it is cut off it holds");
                routes.set(mode);
                within(SOON, "it is lost", guard.lost()).await;
                // While its requests arrive, its attempts to connect keep its session.
                routes.set(Mode::Silent);
                assert_lost_in_time(&guard, gone.await.unwrap(), &how).await;
                drop((guard, client));
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// The follower is partitioned just after it answered a heartbeat, and its client can reach no other member: the
/// follower has not reported the heartbeat to the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_unknown_to_the_leader_does_not_count_too_long() {
    let three = PooledEnsemble::take();
    for (round, ttl) in [TTL, 2 * TTL, TTL / 2].into_iter().enumerate() {
        let leader = three.leader().unwrap();
        let at = (leader + 1) % 3;
        let routes = Routes::to(&three.url());
        let client = routes.client_at(at, &[ttl]).await;
        let name = format!("renewal/{round}");
        let (guard, gone) = loop {
            let guard = client.lock(&name).ttl(ttl).acquire().await.unwrap();
            let node = format!("{}/{name}/{}", three.chroot, three.queue(leader, &name)[0]);
            let gone = watch(&three.members()[leader], node);
            routes.shut_but(at);
            let before = guard.deadline();
            let renewed = || guard.deadline() > before;
            until("it is renewed or lost", async || renewed() || guard.check().is_err()).await;
            // On a busy machine such a short lease may end first: then acquire again.
            if guard.check().is_ok() {
                break (guard, gone);
            }
        };
        let member: &ZooKeeperMember = &three.members()[at];
        member.cut_off();
        assert_lost_in_time(&guard, gone.await.unwrap(), &format!("{ttl:?}")).await;
        member.heal();
        three.wait_until_healthy().unwrap();
    }
}

/// A server that keeps sessions for less than was requested: the guard relies on what it keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_shortened_by_the_server_shortens_the_guard() {
    let builder = ZooKeeper::builder().tick_time(200).min_session_timeout(2500);
    let server = builder.max_session_timeout(3000).start().unwrap();
    let site = Arc::new(Site { server: server.into(), chroot: "/short".into() });
    let mut seed = seed();
    let mut tasks = Vec::new();
    for (number, (asked, kept)) in
        [(LONG, ms(2000)), (LONG, ms(2000)), (ms(200), ms(1666))].into_iter().enumerate()
    {
        let proxy = Proxy::to(site.server.address()).unwrap();
        let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
        let name = format!("x{number}");
        let (site, after) = (Arc::clone(&site), ms(next(&mut seed) % 2000));
        tasks.push(tokio::spawn(async move {
            let (guard, gone) = loop {
                let guard = client.lock(&name).ttl(asked).acquire().await.unwrap();
                assert_eq!(guard.ttl().as_duration(), kept);
                let nodes = site.children(&format!("/{name}"));
                let node = nodes.first().map(|node| format!("{}/{name}/{node}", site.chroot));
                let gone = node.map(|node| watch(&site.server, node));
                pass(after).await;
                // On a busy machine such a short lease may end first: then acquire again.
                if let (Ok(_), Some(gone)) = (guard.check(), gone) {
                    break (guard, gone);
                }
            };
            proxy.set_mode(Mode::Silent);
            assert_lost_in_time(&guard, gone.await.unwrap(), &format!("asked {asked:?}")).await;
            drop((guard, client));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// consul#4935: a client reported the loss but kept its session, so nobody could acquire. Here replies are lost: the
/// guard is lost, but each attempt to connect would keep the session, and so the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_guard_is_not_kept_by_a_client_without_replies() {
    let site = Site::shared();
    let theirs = site.client().await;
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let guard = client.lock("deaf").ttl(TTL).acquire().await.unwrap();
    proxy.set_mode(Mode::DropAnswers);
    within(SOON, "it is lost", guard.lost()).await;
    // More than ten leases.
    let next = theirs.lock("deaf").ttl(LONG).wait_timeout(SOON).acquire().await;
    next.expect("nobody holds it").release().await.unwrap();
}
