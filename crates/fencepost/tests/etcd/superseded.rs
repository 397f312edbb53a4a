//! A leader stands still, another is elected, and the old one goes on as if nothing had happened.
//!
//! What must hold: a guard never claims more time than the store keeps. A leader answers keep-alives from its
//! own memory, also one that is a leader no more (etcd#15247 and its kin).

use std::time::Duration;

use fencepost::{Fencepost, Guard, GuardState, LossCause, Moment};
use fencepost_testkit::{
    Etcd, EtcdCluster, Mode, Process, Ways, connect, granted, ms, now, until, waits, within,
};
use tempfile::TempDir;

use crate::common::{LEASE, SOON, kept_for, line};

/// A lease is told in whole seconds, rounded down.
const ROUNDED: Duration = Duration::from_secs(1);

/// Compares the guard with the store until it was renewed that often.
async fn claims_no_more_than_is_kept(etcd: &Etcd, lease: &str, guard: &Guard, times: usize) {
    let mut renewed = 0;
    let mut last = guard.deadline();
    until("the guard was renewed a few times", async || {
        // In this order: if it is renewed in between, the store keeps more than was claimed before.
        let claimed = guard.deadline();
        let kept = kept_for(etcd, lease).unwrap_or_default();
        let claimed = claimed.since(now());
        assert!(claimed <= kept + ROUNDED, "claims {claimed:?} of {kept:?}");
        guard.check().expect("the guard is not lost");
        renewed += usize::from(guard.deadline() > last);
        last = guard.deadline();
        renewed >= times
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_claims_no_more_than_the_store_keeps() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let ways = Ways::to(&cluster.url());
    let ours = ways.client_at(old, &[]).await;
    let guard = ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let lease = line(&cluster.members()[old], "x")[0].clone();
    cluster.members()[old].stop().unwrap();
    let new = cluster.leader().unwrap();
    assert_ne!(new, old);
    let rival = connect(&cluster.url()).await;
    claims_no_more_than_is_kept(&cluster.members()[new], &lease, &guard, 1).await;
    cluster.members()[old].resume().unwrap();
    claims_no_more_than_is_kept(&cluster.members()[new], &lease, &guard, 2).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert!(rival.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(rival.lock("x").acquire_within(SOON).await.unwrap().token() > token);
}

/// The old leader wakes alone: no peer can tell it. For a moment it answers whoever asks it to keep a lease
/// alive, and nothing comes of it.
struct Superseded {
    cluster: EtcdCluster,
    old: usize,
    new: usize,
    guard: Guard,
    lease: String,
    deadline: Moment,
    /// Asks the same of it as our renewal.
    control: Process,
    _directory: TempDir,
}

impl Superseded {
    /// A leader that stands still while another is elected. The guard of this client, which asks only the old
    /// one, waits at its door to be renewed, and so does the control.
    async fn set(cluster: EtcdCluster, old: usize, ours: &Fencepost) -> Self {
        let member = &cluster.members()[old];
        let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
        let lease = line(member, "x")[0].clone();
        member.stop().unwrap();
        member.cut_off();
        let deadline = guard.deadline();
        let new = cluster.leader().unwrap();
        assert_ne!(new, old);
        let directory = tempfile::tempdir().unwrap();
        let mut command = member.etcdctl_command();
        command.args(["lease", "keep-alive", "--once", &lease]);
        let control = Process::spawn(&command, &directory.path().join("log")).unwrap();
        // The renewal has left a third of the lease after the last one, and once more when that was not
        // answered within a second. That one waits there for two seconds: now is in the middle of it, and
        // seconds after the election.
        until("our renewal waits there", async || guard.remaining() + ms(100) < LEASE).await;
        assert_eq!(guard.deadline(), deadline);
        Self { cluster, old, new, guard, lease, deadline, control, _directory: directory }
    }

    /// The old leader goes on. It does answer.
    async fn wakes(&self) {
        self.cluster.members()[self.old].resume().unwrap();
        until("the control is answered", async || !self.control.is_running()).await;
        let said = self.control.log();
        assert!(said.contains("keepalived with TTL"), "the control: {said}");
    }
}

/// A client that has nobody else to ask, and believed it, would hold on while the next one is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_superseded_leader_keeps_alive_is_not_kept() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let ours = connect(&cluster.members()[old].url()).await;
    let scene = Superseded::set(cluster, old, &ours).await;
    let theirs = connect(&scene.cluster.members()[scene.new].url()).await;
    let rival = waits(&theirs, "x", LEASE);
    scene.wakes().await;
    let guard = &scene.guard;
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::StoreUnreachable);
    assert_eq!(guard.deadline(), scene.deadline, "nothing that it said counted");
    let next = granted(rival).await;
    assert!(next.token() > guard.token());
}

/// The old leader answers the keep-alive, and then the client reads its key elsewhere: the key is there. But
/// the lease was not renewed where it counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keep_alive_of_one_leader_and_a_read_of_the_next_do_not_add_up() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let ways = Ways::to(&cluster.url());
    let ours = ways.client_at(old, &[]).await;
    ways.shut_but(old);
    let scene = Superseded::set(cluster, old, &ours).await;
    scene.wakes().await;
    ways.set(Mode::Pass);
    claims_no_more_than_is_kept(&scene.cluster.members()[scene.new], &scene.lease, &scene.guard, 2)
        .await;
    assert_eq!(scene.guard.state(), GuardState::Held);
    scene.guard.check().unwrap();
}
