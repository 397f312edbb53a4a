//! From when a grant counts whose owner waited for it.
//!
//! What must hold: from the last write on its session that was confirmed; and waiters send few of those.

use std::time::Duration;

use fencepost_testkit::{
    LONG, SOON, ZooKeeper, connect, counts_from, granted, now, pass, until_waiting, waits, within,
};
use futures_util::future::select_all;

use super::common::Site;

/// Nothing is written between the release and the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_after_a_short_wait_counts_from_the_node() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let mut holder = theirs.lock("short").ttl(LONG).acquire().await.unwrap();
    for lease_only in [false, true] {
        let lock = ours.lock("short").ttl(LONG);
        let lock = if lease_only { lock.lease_only() } else { lock };
        let asked = now();
        let waiter = tokio::spawn(lock.acquire());
        until_waiting(&theirs, "short", 1).await;
        let queued = now();
        let next = tokio::spawn(theirs.lock("short").ttl(LONG).acquire());
        until_waiting(&theirs, "short", 2).await;
        holder.release().await.unwrap();
        let guard = granted(waiter).await;
        let from = counts_from(&guard);
        assert!(asked <= from && from <= queued, "{from:?} not in {asked:?} to {queued:?}");
        guard.release().await.unwrap();
        holder = granted(next).await;
    }
}

/// The waiters of a client are on one session, so one write serves all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_after_a_long_wait_counts_from_a_heartbeat_that_all_waiters_share() {
    const WAITERS: usize = 30;
    let ttl = Duration::from_secs(3);
    let server = ZooKeeper::builder().max_session_timeout(200_000).start().unwrap();
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let holder = theirs.lock("long").ttl(LONG).acquire().await.unwrap();
    let waiters: Vec<_> = (0..WAITERS).map(|_| waits(&ours, "long", ttl)).collect();
    until_waiting(&theirs, "long", WAITERS).await;
    let (queued, written) = (now(), transactions(&server));
    // Longer than a lease, so that each of them must have been renewed.
    pass(ttl * 3 / 2).await;
    let (before, written) = (now(), transactions(&server) - written);
    assert!((2..10).contains(&written), "{written} writes in {:?}", before.since(queued));
    holder.release().await.unwrap();
    let (guard, ..) = within(SOON, "the first is granted", select_all(waiters)).await;
    let guard = guard.unwrap().unwrap();
    let from = counts_from(&guard);
    assert!(queued < from && from <= before, "{from:?} not in {queued:?} to {before:?}");
}

/// The number of the server's last transaction.
fn transactions(server: &ZooKeeper) -> u64 {
    let said = server.four_letter("srvr").unwrap();
    let zxid = said.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
    u64::from_str_radix(zxid.trim(), 16).unwrap()
}
