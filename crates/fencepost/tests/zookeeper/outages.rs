//! No majority is there: all servers stand still, or crash, or two of three do.
//!
//! What must hold: nobody is granted anything (P5), a guard is lost by its own clock (P4) unless the servers
//! are back before, and the same clients go on when they are.

use std::time::Duration;

use fencepost::{ErrorKind, GuardState, LossCause};
use fencepost_testkit::{
    LONG, SOON, ZooKeeperMember, connect, fails, granted, log, nothing_is_left, now, pass, until,
    until_renewed, until_waiting, waits, within,
};

use super::common::LEASE;
use super::ensemble::Three;

/// How much later than its limit a call may come back on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// The servers freeze for longer than the lease, as in a snapshot of their machines. When they go on, the
/// session may have its full time again: the guard has been lost all the same, and nobody holds twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_stand_still_past_the_lease() {
    let three = Three::take();
    let (ours, theirs) = (connect(&three.url()).await, connect(&three.url()).await);
    let guard = ours.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let rival = waits(&theirs, "x", 2 * LEASE);
    until_waiting(&theirs, "x", 1).await;
    three.all(|member| member.stop().unwrap());
    let cause = within(SOON, "the guard is lost", guard.lost()).await;
    assert_eq!(cause, LossCause::StoreUnreachable);
    assert!(guard.deadline() <= now());
    assert!(!rival.is_finished(), "nobody could grant it");

    three.all(|member| member.resume().unwrap());
    // It waits on, or is told that there was nobody to grant it: then it asks again.
    let next = match within(2 * SOON, "the rival is answered", rival).await.unwrap() {
        Ok(next) => next,
        Err(error) => {
            assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
            theirs.lock("x").ttl(2 * LEASE).acquire_within(SOON).await.unwrap()
        }
    };
    assert!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    assert_eq!(guard.state(), GuardState::Lost(cause), "lost is lost");
    fails(guard.release().await, &ErrorKind::Lost(cause), &["\"x\""]);
    until_renewed(&next, 1).await;
    assert!(ours.lock("x").try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
}

/// Power is lost for all servers, and comes back: what they had synced is there, sessions and places included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_a_crash_of_all_servers() {
    let three = Three::take();
    let ttl = 2 * SOON;
    let (ours, theirs) = (connect(&three.url()).await, connect(&three.url()).await);
    let guard = ours.lock("x").ttl(ttl).acquire().await.unwrap();
    let places = three.line(0, "x");
    let before = guard.deadline();
    three.all(|member| member.kill().unwrap());
    three.all(|member| member.launch().unwrap());
    three.wait_until_healthy().unwrap();
    let rival = waits(&theirs, "x", LEASE);
    until("the guard is renewed", async || {
        guard.check().expect("the guard is not lost");
        guard.deadline() > before + ttl / 4 && guard.state() == GuardState::Held
    })
    .await;
    assert!(!rival.is_finished(), "it is held");
    assert_eq!(three.line(1, "x")[..1], places);
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(granted(rival).await.token() > token);
}

/// node-redlock#288: contention and outage looked alike. Here whoever asks is told that, and of which members,
/// and in time. When a quorum is back, the same client is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nobody_is_granted_and_all_are_told() {
    let three = Three::take();
    let leader = three.leader().unwrap();
    let client = connect(&three.url()).await;
    let guard = client.lock("held").ttl(LEASE).acquire().await.unwrap();
    let mut changes = guard.changes();
    let gone: [&ZooKeeperMember; 2] = [0, 2].map(|far| &three.members()[(leader + far) % 3]);
    for member in gone {
        member.kill().unwrap();
    }
    let all: Vec<_> = three.members().iter().map(|one| one.address().to_string()).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();

    let limit = Duration::from_secs(3);
    let limited = async {
        let locked = client.lock("x").ttl(LONG).acquire_within(limit);
        let locked = within(limit + SLACK, "it gives up", locked).await;
        fails(locked, &ErrorKind::Unreachable, &all);
    };
    let trying = async {
        let tried = client.lock("x").ttl(LONG).try_acquire();
        let tried = within(SOON / 2 + SLACK, "it gives up", tried).await;
        fails(tried, &ErrorKind::Unreachable, &all);
    };
    let looking = async {
        let seen = within(SOON / 2 + SLACK, "it gives up", client.inspect("x")).await;
        fails(seen, &ErrorKind::Unreachable, &all);
    };
    // The caller's own limit; the future is dropped, and what it may have asked for is undone.
    let patient = async {
        let waiting = client.lock("y").ttl(LONG).acquire();
        tokio::select! {
            outcome = waiting => panic!("{outcome:?}"),
            () = pass(limit) => {}
        }
    };
    // One that sets no limit waits on, until the store is back.
    let endless = waits(&client, "endless", LONG);
    let holding = async {
        let mut states = Vec::new();
        loop {
            let (state, _) = within(SOON, "the guard changes", changes.next()).await;
            states.push(state);
            if matches!(state, GuardState::Lost(_)) {
                return states;
            }
        }
    };
    let (states, ..) = tokio::join!(holding, limited, trying, looking, patient);
    let end = [GuardState::RenewalFailing, GuardState::Lost(LossCause::StoreUnreachable)];
    assert!(states.ends_with(&end), "{states:?}");
    until("a waiter logs the outage", async || log().contains("waiting for \"endless\"")).await;
    assert!(!endless.is_finished(), "an outage ended a wait without a limit");

    gone[0].launch().unwrap();
    three.wait_until_healthy().unwrap();
    granted(endless).await.release().await.unwrap();
    let token = guard.token();
    drop(guard);
    for name in ["x", "y", "endless", "held"] {
        nothing_is_left(&client, name).await;
    }
    let next = client.lock("held").acquire_within(SOON).await.unwrap();
    assert!(next.token() > token);
}
