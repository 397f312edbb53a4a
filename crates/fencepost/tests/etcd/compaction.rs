//! The server compacts its history while a client watches.

use fencepost_testkit::{Etcd, EtcdCluster, Routes, connect, granted, until_waiting, waits};

use crate::common::{LONG, shared};

/// Writes a few revisions, and compacts all but the last.
fn compact(etcd: &Etcd) {
    let mut revision = String::new();
    for value in ["one", "two", "three"] {
        let output = etcd.etcdctl(&["put", "history", value, "-w", "fields"]).unwrap();
        let line = output.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        line.unwrap().trim().clone_into(&mut revision);
    }
    etcd.etcdctl(&["compact", "--physical=true", &revision]).unwrap();
    // Control: the old revision cannot be read any more.
    let old = etcd.etcdctl(&["get", "history", "--rev=1"]).unwrap_err();
    assert!(old.to_string().contains("compacted"), "{old}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_granted_after_a_compaction() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock("history/x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, "history/x", LONG);
    until_waiting(&theirs, "history/x", 1).await;
    compact(&etcd);
    assert!(!waiter.is_finished());
    let token = holder.token();
    holder.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

/// The member that serves the watch is frozen and misses the release. When it resumes, the missed events have been
/// compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_granted_though_its_member_missed_compacted_events() {
    let cluster = EtcdCluster::start().unwrap();
    let behind = (cluster.leader().unwrap() + 1) % 3;
    let (member, routes, other_routes) =
        (&cluster.members()[behind], Routes::to(&cluster.url()), Routes::to(&cluster.url()));
    let ours = routes.client_at(behind, &[]).await;
    let theirs = other_routes.client_at((behind + 1) % 3, &[]).await;
    let holder = theirs.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    member.stop().unwrap();
    let token = holder.token();
    holder.release().await.unwrap();
    compact(&cluster.members()[(behind + 1) % 3]);
    member.resume().unwrap();
    assert!(granted(waiter).await.token() > token);
}

/// Acquires that open their watch while the server compacts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_during_compactions_is_granted() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mut last = None;
    for _ in 0..3 {
        let holder = theirs.lock("history/y").ttl(LONG).acquire().await.unwrap();
        assert!(Some(holder.token()) > last);
        let waiter = waits(&ours, "history/y", LONG);
        compact(&etcd);
        until_waiting(&theirs, "history/y", 1).await;
        compact(&etcd);
        holder.release().await.unwrap();
        let guard = granted(waiter).await;
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}
