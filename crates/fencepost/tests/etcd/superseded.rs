//! A leader stands still, another is elected, and the old one goes on as if nothing had happened.
//!
//! What must hold: a guard never claims more time than the store keeps. A leader answers keep-alives from its
//! own memory, also one that is a leader no more (etcd#15247 and its kin).

use std::time::Duration;

use fencepost::{GuardState, LossCause};
use fencepost_testbed::{EtcdCluster, Process};

use crate::common::{
    LEASE, SOON, Ways, connect, granted, kept_for, line, ms, pass, until, until_renewed,
    until_waiting, waits, within,
};

/// A lease is told in whole seconds, rounded down.
const ROUNDED: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_claims_no_more_than_the_store_keeps() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let ways = Ways::to(&cluster);
    let ours = ways.client_at(old).await;
    let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    let lease = line(&cluster.members()[old], "x")[0].clone();
    cluster.members()[old].stop().unwrap();
    let new = cluster.leader().unwrap();
    assert_ne!(new, old);
    let rival = connect(&cluster.url()).await;
    let asks = async |times: usize| {
        let mut renewed = 0;
        let mut last = guard.deadline();
        until("the guard was renewed a few times", async || {
            // Asked in this order: what the store keeps only shrinks until the guard is looked at.
            let kept = kept_for(&cluster.members()[new], &lease);
            let claimed = guard.remaining();
            let kept = kept.unwrap_or_default();
            assert!(claimed <= kept + ROUNDED, "claims {claimed:?} of {kept:?}");
            renewed += usize::from(guard.deadline() > last);
            last = guard.deadline();
            renewed >= times
        })
        .await;
    };
    asks(1).await;
    cluster.members()[old].resume().unwrap();
    asks(2).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert!(rival.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(rival.lock("x").acquire_within(SOON).await.unwrap().token() > token);
}

/// The old leader wakes alone: no peer can tell it. For a moment it answers whoever asks it to keep a lease
/// alive, and nothing comes of it. A client that believed it would hold on while the next one is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_superseded_leader_keeps_alive_does_not_count() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let member = &cluster.members()[old];
    // It knows this member only.
    let ours = connect(&member.url()).await;
    let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    let lease = line(member, "x")[0].clone();
    until_renewed(&guard, 1).await;

    member.stop().unwrap();
    member.cut_off();
    let deadline = guard.deadline();
    let new = cluster.leader().unwrap();
    assert_ne!(new, old);
    let theirs = connect(&cluster.members()[new].url()).await;
    let rival = waits(&theirs, "x", LEASE);
    // The control asks the same of it, beside our own renewal, and both wait at its door.
    let directory = tempfile::tempdir().unwrap();
    let mut command = member.etcdctl_command();
    command.args(["lease", "keep-alive", "--once", &lease]);
    let control = Process::spawn(&command, &directory.path().join("log")).unwrap();
    // As long as it takes until our renewal waits there, too.
    pass(2 * LEASE / 3 + ms(200)).await;
    assert_eq!(guard.deadline(), deadline);
    member.resume().unwrap();
    until("the control is answered", async || !control.is_running()).await;
    assert!(control.log().contains("keepalived with TTL"), "the control: {}", control.log());

    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::StoreUnreachable);
    assert_eq!(guard.deadline(), deadline, "nothing that it said counted");
    let next = granted(rival).await;
    assert!(next.token() > guard.token());
}
