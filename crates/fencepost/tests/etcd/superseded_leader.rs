//! A leader is frozen, another is elected, and the old one resumes as if nothing had happened.
//!
//! What must hold: a guard never claims more time than the store keeps. A leader answers keep-alives from memory,
//! even when it has been superseded (etcd#15247 and related issues).

use std::time::Duration;

use fencepost::{Fencepost, Guard, GuardStatus, LossCause, Moment};
use fencepost_testkit::{
    Etcd, EtcdCluster, Mode, Process, Routes, connect, granted, ms, now, until, waits, within,
};
use tempfile::TempDir;

use crate::common::{LEASE, SOON, queue, remaining_ttl};

/// A remaining TTL is reported in whole seconds, rounded down.
const ROUNDED: Duration = Duration::from_secs(1);

/// Compares the guard with the store until it was renewed this often.
async fn assert_claims_no_more_than_the_store(
    etcd: &Etcd,
    lease: &str,
    guard: &Guard,
    times: usize,
) {
    let mut renewed = 0;
    let mut last = guard.deadline();
    until("the guard was renewed a few times", async || {
        // In this order: after a renewal in between, the store keeps more than was claimed before.
        let claimed = guard.deadline();
        let kept = remaining_ttl(etcd, lease).unwrap_or_default();
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
async fn guard_claims_no_more_than_the_store_keeps() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let routes = Routes::to(&cluster.url());
    let ours = routes.client_at(old, &[]).await;
    let guard = ours.lock("x").ttl(LEASE).acquire().await.unwrap();
    let lease = queue(&cluster.members()[old], "x")[0].clone();
    cluster.members()[old].stop().unwrap();
    let new = cluster.leader().unwrap();
    assert_ne!(new, old);
    let rival = connect(&cluster.url()).await;
    assert_claims_no_more_than_the_store(&cluster.members()[new], &lease, &guard, 1).await;
    cluster.members()[old].resume().unwrap();
    assert_claims_no_more_than_the_store(&cluster.members()[new], &lease, &guard, 2).await;
    assert_eq!(guard.status(), GuardStatus::Held);
    assert!(rival.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(rival.lock("x").wait_timeout(SOON).acquire().await.unwrap().token() > token);
}

/// The old leader resumes in isolation, so no peer can correct it. For a moment it answers keep-alives that have no
/// effect.
struct Superseded {
    cluster: EtcdCluster,
    old: usize,
    new: usize,
    guard: Guard,
    lease: String,
    deadline: Moment,
    /// Sends the same request as our renewal.
    control: Process,
    _directory: TempDir,
}

impl Superseded {
    /// Freezes the leader while another is elected. The renewal of this client, which only knows the old leader,
    /// waits there, and so does the control.
    async fn new(cluster: EtcdCluster, old: usize, ours: &Fencepost) -> Self {
        let member = &cluster.members()[old];
        let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
        let lease = queue(member, "x")[0].clone();
        member.stop().unwrap();
        member.cut_off();
        let deadline = guard.deadline();
        let new = cluster.leader().unwrap();
        assert_ne!(new, old);
        let directory = tempfile::tempdir().unwrap();
        let mut command = member.etcdctl_command();
        command.args(["lease", "keep-alive", "--once", &lease]);
        let control = Process::spawn(&command, &directory.path().join("log")).unwrap();
        // The renewal was sent after a third of the lease, and again after a second without a reply. The second
        // attempt waits for two seconds: now is in the middle of them, and seconds after the election.
        until("our renewal waits there", async || guard.remaining() + ms(100) < LEASE).await;
        assert_eq!(guard.deadline(), deadline);
        Self { cluster, old, new, guard, lease, deadline, control, _directory: directory }
    }

    /// The old leader resumes, and it does reply.
    async fn resume_old_leader(&self) {
        self.cluster.members()[self.old].resume().unwrap();
        until("the control is answered", async || !self.control.is_running()).await;
        let log = self.control.log();
        assert!(log.contains("keepalived with TTL"), "the control: {log}");
    }
}

/// A client that knows only the old leader, and believed it, would continue while the next one is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_by_a_superseded_leader_does_not_count() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let ours = connect(&cluster.members()[old].url()).await;
    let fixture = Superseded::new(cluster, old, &ours).await;
    let theirs = connect(&fixture.cluster.members()[fixture.new].url()).await;
    let rival = waits(&theirs, "x", LEASE);
    fixture.resume_old_leader().await;
    let guard = &fixture.guard;
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::StoreUnreachable);
    assert_eq!(guard.deadline(), fixture.deadline, "nothing that it said counted");
    let next = granted(rival).await;
    assert!(next.token() > guard.token());
}

/// The old leader answers the keep-alive, and the client reads its key from another member, which has it. But the
/// lease was not renewed there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_by_a_superseded_leader_and_a_read_elsewhere_do_not_add_up() {
    let cluster = EtcdCluster::start().unwrap();
    let old = cluster.leader().unwrap();
    let routes = Routes::to(&cluster.url());
    let ours = routes.client_at(old, &[]).await;
    routes.shut_but(old);
    let fixture = Superseded::new(cluster, old, &ours).await;
    fixture.resume_old_leader().await;
    routes.set(Mode::Pass);
    assert_claims_no_more_than_the_store(
        &fixture.cluster.members()[fixture.new],
        &fixture.lease,
        &fixture.guard,
        2,
    )
    .await;
    assert_eq!(fixture.guard.status(), GuardStatus::Held);
    fixture.guard.check().unwrap();
}
