//! The server crashes or is frozen.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Postgres, SOON, connect, fails, ms, two, until, until_waiting, within,
};

/// Long enough for a restart, and short enough to see a renewal.
const ROOMY: Duration = ms(15_000);

#[tokio::test]
async fn lock_survives_a_crash_and_tokens_keep_rising() {
    let server = Postgres::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ROOMY).acquire().await.unwrap();

    server.restart().unwrap();
    let before = guard.deadline();
    until("they are connected again", async || theirs.inspect("x").await.is_ok()).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "it is still held");
    until("the guard is renewed after the crash", async || guard.deadline() > before).await;
    let token = guard.check().expect("nothing was lost").token();
    assert_eq!(theirs.inspect("x").await.unwrap().holder.unwrap().token, Some(token));

    guard.release().await.unwrap();
    server.restart().unwrap();
    let next = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A release that wakes a waiter is answered once it is on disk, though the waiter is woken before. The control shows that
/// the step itself does not wait.
#[tokio::test]
async fn release_that_wakes_a_waiter_survives_a_crash() {
    const WAITER: &str = "00000000-0000-0000-0000-000000000001";
    // The server syncs nothing on its own.
    let server = Postgres::builder().setting("wal_writer_delay", "10s").start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    for (name, answered) in [("x", true), ("control", false)] {
        let guard = ours.lock(name).ttl(LONG).acquire().await.unwrap();
        let (channel, owner) = ("0".repeat(32), guard.owner().reveal());
        let queue = format!(
            "select fencepost.acquire('{name}', '{WAITER}', 30000, 'waiter', 'fencepost_{channel}')"
        );
        server.psql(&queue).unwrap();
        if answered {
            guard.release().await.unwrap();
        } else {
            let release = format!(
                "select r_unsynced from fencepost.release('{name}', '{owner}', 60000, false)"
            );
            assert_eq!(server.psql(&release).unwrap().trim(), "t");
        }
        server.restart().unwrap();
        until("they are connected again", async || theirs.inspect(name).await.is_ok()).await;
        let held = theirs.inspect(name).await.unwrap().holder.is_some();
        assert_eq!(held, !answered, "{name}");
    }
}

/// The waiter's connections end with the server. It keeps waiting, and is granted.
#[tokio::test]
async fn waiter_survives_a_crash() {
    let server = Postgres::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock("x").acquire().await });
    until_waiting(&ours, "x", 1).await;
    server.restart().unwrap();
    until_waiting(&ours, "x", 1).await;
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// The server is frozen past the lease: the holder loses its guard by its own clock, nothing is granted, and no call
/// hangs. After it resumes the lock is granted with a higher token.
#[tokio::test]
async fn guard_is_lost_while_the_server_is_frozen_past_the_lease() {
    let server = Postgres::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    server.stop().unwrap();
    within(SOON, "the guard is lost", guard.lost()).await;
    let words = [&server.address().to_string(), "answer"];
    let tried = within(SOON, "the call ends", theirs.lock("x").try_acquire()).await;
    fails(tried, ErrorKind::Unreachable, &words);
    let waited =
        within(SOON, "nobody hangs", theirs.lock("x").wait_timeout(ms(300)).acquire()).await;
    fails(waited, ErrorKind::Unreachable, &["\"x\""]);
    let new = within(SOON, "the call ends", fencepost::Fencepost::connect(&server.url())).await;
    fails(new, ErrorKind::Unreachable, &words);

    server.resume().unwrap();
    let next = connect(&server.url()).await.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn dead_server_is_unreachable_at_once() {
    let server = Postgres::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.kill().unwrap();
    let words = [&server.address().to_string(), "refused"];
    fails(client.lock("x").try_acquire().await, ErrorKind::Unreachable, &words);
    let new = fencepost::Fencepost::connect(&server.url()).await;
    fails(new, ErrorKind::Unreachable, &words);
}
