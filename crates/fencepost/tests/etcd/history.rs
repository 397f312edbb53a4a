//! The servers forget old revisions (compaction) while somebody watches.

use fencepost_testkit::{Etcd, EtcdCluster, Ways, connect, granted, until_waiting, waits};

use crate::common::{LONG, shared};

/// Moves the store on by a few revisions, and has it forget all before the last.
fn compact(etcd: &Etcd) {
    let mut revision = String::new();
    for value in ["one", "two", "three"] {
        let said = etcd.etcdctl(&["put", "history", value, "-w", "fields"]).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        line.unwrap().trim().clone_into(&mut revision);
    }
    etcd.etcdctl(&["compact", "--physical=true", &revision]).unwrap();
    // The control: what was before can not be watched any more.
    let old = etcd.etcdctl(&["get", "history", "--rev=1"]).unwrap_err();
    assert!(old.to_string().contains("compacted"), "{old}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_granted_after_a_compaction() {
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

/// The member that serves the watch stands still, misses the release, and when it goes on what it missed has
/// been compacted away already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_granted_though_its_member_missed_what_was_compacted() {
    let cluster = EtcdCluster::start().unwrap();
    let behind = (cluster.leader().unwrap() + 1) % 3;
    let (member, ways, other_ways) =
        (&cluster.members()[behind], Ways::to(&cluster.url()), Ways::to(&cluster.url()));
    let ours = ways.client_at(behind, &[]).await;
    let theirs = other_ways.client_at((behind + 1) % 3, &[]).await;
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

/// An acquire that comes while a member stands still, and opens its watch on a server that compacts meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_during_compactions_is_granted() {
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
