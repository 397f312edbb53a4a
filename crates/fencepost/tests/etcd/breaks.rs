//! A holder is notified when its key is deleted, and confirms a break.
//!
//! The TTL is so long that no renewal comes during the test: what the holder learns, it learned from a watch.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use fencepost::{Fencepost, Guard, GuardStatus, LossCause};
use fencepost_testkit::{
    Etcd, EtcdCluster, Proxy, broken_holder_learns_at_once, connect, ms, pass, until, within,
};

use crate::common::{LONG, SOON, queue, shared};

/// One of the server's own metrics: the number of watches, or of watch streams.
fn count(etcd: &Etcd, what: &str) -> usize {
    let mut socket = TcpStream::connect(etcd.address()).unwrap();
    // HTTP/1.0 has no chunks, which could split a line.
    write!(socket, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(what)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {what} in {text}"))
}

fn watchers(etcd: &Etcd) -> usize {
    count(etcd, "etcd_debugging_mvcc_watcher_total ")
}

fn streams(etcd: &Etcd) -> usize {
    count(etcd, "etcd_debugging_mvcc_watch_stream_total ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_holder_is_notified_at_once_and_confirms() {
    let etcd = Etcd::builder().start().unwrap();
    let (holder, operator) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    broken_holder_learns_at_once(&holder, &operator, LONG).await;
    let left = etcd.etcdctl(&["get", "--prefix", "--keys-only", "fencepost.broken/"]).unwrap();
    assert_eq!(left.trim(), "", "a note that was confirmed is gone");
}

async fn held_for_a_moment(client: &Fencepost, name: &str) -> Guard {
    let guard = client.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    pass(ms(400)).await;
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_learns_at_once_that_its_key_or_lease_is_gone() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "breaks/by-hand";
    let guard = held_for_a_moment(&client, name).await;
    let key = format!("{name}/{}", queue(&etcd, name)[0]);
    etcd.etcdctl(&["del", &key]).unwrap();
    assert_eq!(within(SOON, "it learns", guard.lost()).await, LossCause::Broken);
    let guard = held_for_a_moment(&client, name).await;
    etcd.etcdctl(&["lease", "revoke", &queue(&etcd, name)[0]]).unwrap();
    assert_eq!(within(SOON, "it learns", guard.lost()).await, LossCause::SessionGone);
}

/// The connection breaks, and the client reconnects: its guard is watched again, and it learns what happened
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_is_watched_again_after_a_reconnect() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.address()).unwrap();
    let (ours, theirs) =
        (connect(&format!("etcd://{}", proxy.address())).await, connect(&etcd.url()).await);
    let name = "breaks/reconnect";
    for _ in 0..3 {
        let guard = held_for_a_moment(&ours, name).await;
        proxy.close_all();
        theirs.break_lock(name).await.unwrap().unwrap();
        assert_eq!(within(SOON, "it learns", guard.lost()).await, LossCause::Broken);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_is_watched_again_after_a_leader_change() {
    let cluster = EtcdCluster::start().unwrap();
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = held_for_a_moment(&ours, "x").await;
    let leader = cluster.leader().unwrap();
    cluster.members()[leader].kill().unwrap();
    until("another one leads", async || theirs.break_lock("x").await.is_ok_and(|it| it.is_some()))
        .await;
    assert_eq!(within(SOON, "it learns", guard.lost()).await, LossCause::Broken);
    cluster.members()[leader].start_again().unwrap();
}

/// One stream carries all watches. None is left when the guards are gone, and a brief grant has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_share_one_stream_and_end_with_their_grants() {
    const MANY: usize = 300;
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    let before = (streams(&etcd), watchers(&etcd));
    for _ in 0..50 {
        client.lock("brief").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    let mut guards = Vec::new();
    for number in 0..MANY {
        guards.push(client.lock(format!("many/{number}")).ttl(LONG).acquire().await.unwrap());
    }
    until("all are watched", async || watchers(&etcd) == before.1 + MANY).await;
    assert_eq!(streams(&etcd), before.0 + 1);
    let last = guards.pop().unwrap();
    for guard in guards {
        assert_eq!(guard.status(), GuardStatus::Held);
        guard.release().await.unwrap();
    }
    until("only one is watched", async || watchers(&etcd) == before.1 + 1).await;
    last.check().unwrap();
    drop(client);
    drop(last);
    until("nothing is watched", async || watchers(&etcd) == before.1).await;
}
