//! The server ends and starts again, or stands still.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Postgres, SOON, connect, fails, ms, two, until, until_waiting, within,
};

/// Room for a restart in the middle of it, and short enough to see a renewal.
const ROOMY: Duration = ms(15_000);

#[tokio::test]
async fn a_lock_outlives_a_crash_and_tokens_go_on_rising() {
    let server = Postgres::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ROOMY).acquire().await.unwrap();

    server.restart().unwrap();
    let before = guard.deadline();
    until("they are connected again", async || theirs.inspect("x").await.is_ok()).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "it is still held");
    until("the guard is renewed after the crash", async || guard.deadline() > before).await;
    let token = guard.check().expect("nothing was lost");
    assert_eq!(theirs.inspect("x").await.unwrap().holder.unwrap().token, Some(token));

    guard.release().await.unwrap();
    server.restart().unwrap();
    let next = theirs.lock("x").acquire_within(SOON).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A waiter's connections go with the server. It keeps waiting, and has its turn.
#[tokio::test]
async fn a_waiter_outlives_a_crash_too() {
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
    let next = within(SOON, "the waiter's turn comes", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// The server stands still past the lease: its holder is told by its own clock, nobody is granted, and nobody
/// hangs. When it wakes the lock can be had, with a higher token.
#[tokio::test]
async fn a_server_that_stands_still_past_the_lease() {
    let server = Postgres::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    server.stop().unwrap();
    within(SOON, "the holder is told", guard.lost()).await;
    let words = [&server.address().to_string(), "answer"];
    let tried = within(SOON, "nobody hangs", theirs.lock("x").try_acquire()).await;
    fails(tried, &ErrorKind::Unreachable, &words);
    let waited = within(SOON, "nobody hangs", theirs.lock("x").acquire_within(ms(300))).await;
    fails(waited, &ErrorKind::Unreachable, &["\"x\""]);
    let new = within(SOON, "nobody hangs", fencepost::Fencepost::connect(&server.url())).await;
    fails(new, &ErrorKind::Unreachable, &words);

    server.resume().unwrap();
    let next = connect(&server.url()).await.lock("x").acquire_within(SOON).await.unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once() {
    let server = Postgres::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.kill().unwrap();
    let words = [&server.address().to_string(), "refused"];
    fails(client.lock("x").try_acquire().await, &ErrorKind::Unreachable, &words);
    let new = fencepost::Fencepost::connect(&server.url()).await;
    fails(new, &ErrorKind::Unreachable, &words);
}
