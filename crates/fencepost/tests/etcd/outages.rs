//! No majority: all servers are frozen or crash, or two of three do.
//!
//! What must hold: nothing is granted (P5), a guard is lost by its own clock (P4) unless the servers are back in
//! time, and the same clients recover.

use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus, LossCause};
use fencepost_testkit::{
    Etcd, EtcdCluster, EtcdMember, connect, fails, fails_because, granted, log, ms,
    nothing_is_left, now, pass, until, until_renewed, until_waiting, waits, within,
};

use crate::common::{LEASE, LONG, SOON};

/// How far a call may overrun its limit on a busy machine.
const OVERRUN: Duration = Duration::from_secs(2);

/// The servers freeze past the lease, as in a snapshot of their machines. After they resume, the lease may have its
/// full time again, but the guard stays lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_lost_while_all_servers_are_frozen_past_the_lease() {
    let cluster = EtcdCluster::start().unwrap();
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let rival = waits(&theirs, "x", LEASE);
    until_waiting(&theirs, "x", 1).await;
    cluster.members().iter().for_each(|member| member.stop().unwrap());
    let cause = within(SOON, "the guard is lost", guard.lost()).await;
    assert_eq!(cause, LossCause::StoreUnreachable);
    assert!(guard.deadline() <= now());
    assert!(!rival.is_finished(), "nobody could grant it");

    cluster.members().iter().for_each(|member| member.resume().unwrap());
    let next = granted(rival).await;
    assert!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    assert_eq!(guard.status(), GuardStatus::Lost(cause), "lost is lost");
    fails_because(guard.release().await, ErrorKind::Lost, cause, &["\"x\""]);
    until_renewed(&next, 1).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_survives_a_crash_of_all_servers() {
    let cluster = EtcdCluster::start().unwrap();
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    let rival = waits(&theirs, "x", 2 * LEASE);
    until_waiting(&theirs, "x", 1).await;
    cluster.members().iter().for_each(|member| member.kill().unwrap());
    cluster.members().iter().for_each(|member| member.launch().unwrap());
    cluster.wait_until_healthy().unwrap();
    until_renewed(&guard, 2).await;
    assert_eq!(guard.status(), GuardStatus::Held);
    assert!(!rival.is_finished(), "it is held");
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(granted(rival).await.token() > token);
}

/// redisson#4698: a renewal failed once and was never retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_reports_failing_renewals_and_recovers() {
    let etcd = Etcd::builder().start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = ours.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    etcd.kill().unwrap();
    until("the renewal fails", async || guard.status() == GuardStatus::RenewalFailing).await;
    guard.check().expect("failing is not lost");
    etcd.start_again().unwrap();
    until_renewed(&guard, 1).await;
    until("it is held again", async || guard.status() == GuardStatus::Held).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token);
}

/// node-redlock#288: contention and outage looked alike. Here the error names the members, and comes in time. When a
/// quorum is back, the same clients are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_without_a_quorum_and_calls_fail_in_time() {
    let cluster = EtcdCluster::start().unwrap();
    let leader = cluster.leader().unwrap();
    let client = connect(&cluster.url()).await;
    let guard = client.lock("held").ttl(2 * LEASE).acquire().await.unwrap();
    let mut changes = guard.changes();
    let gone: [&EtcdMember; 2] = [0, 2].map(|far| &cluster.members()[(leader + far) % 3]);
    for member in gone {
        member.kill().unwrap();
    }
    let all: Vec<_> = cluster.members().iter().map(|one| one.address().to_string()).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();

    let limit = Duration::from_secs(3);
    let limited = async {
        let locked = client.lock("x").ttl(LONG).wait_timeout(limit).acquire();
        let locked = within(limit + OVERRUN, "it gives up", locked).await;
        fails(locked, ErrorKind::Unreachable, &all);
    };
    let trying = async {
        let tried = client.lock("x").ttl(LONG).try_acquire();
        let tried = within(ms(5000) + OVERRUN, "it gives up", tried).await;
        fails(tried, ErrorKind::Unreachable, &all);
    };
    let looking = async {
        let seen = within(ms(5000) + OVERRUN, "it gives up", client.inspect("x")).await;
        fails(seen, ErrorKind::Unreachable, &all);
    };
    // The caller's own timeout: the future is dropped, and its request is undone.
    let cancelled = async {
        let waiting = client.lock("y").ttl(LONG).acquire();
        tokio::select! {
            outcome = waiting => panic!("{outcome:?}"),
            () = pass(limit) => {}
        }
    };
    // A wait without a limit continues until the store is back.
    let endless = waits(&client, "endless", LONG);
    let holding = async {
        let mut states = Vec::new();
        loop {
            let (state, _) = within(SOON, "the guard changes", changes.next()).await;
            states.push(state);
            if matches!(state, GuardStatus::Lost(_)) {
                return states;
            }
        }
    };
    let (states, ..) = tokio::join!(holding, limited, trying, looking, cancelled);
    let end = [GuardStatus::RenewalFailing, GuardStatus::Lost(LossCause::StoreUnreachable)];
    assert!(states.ends_with(&end), "{states:?}");
    until("a waiter logs the outage", async || log().contains("waiting for \"endless\"")).await;
    assert!(!endless.is_finished(), "an outage ended a wait without a limit");

    gone[0].start_again().unwrap();
    cluster.wait_until_healthy().unwrap();
    granted(endless).await.release().await.unwrap();
    let token = guard.token();
    drop(guard);
    for name in ["x", "y", "endless", "held"] {
        nothing_is_left(&client, name).await;
    }
    let next = client.lock("held").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token);
}
