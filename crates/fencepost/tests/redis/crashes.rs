//! The server ends and starts again, with what it had or without.

use std::time::Duration;

use fencepost::guarantees::{Fault, Holds};
use fencepost::{Fencepost, LossCause};
use fencepost_testkit::{
    LONG, Persistence, Redis, SOON, connect, ms, two, until, until_waiting, within,
};

/// Room for a restart in the middle of it, and short enough to see a renewal.
const ROOMY: Duration = ms(3000);

/// What the store says of exclusion and tokens under a fault.
fn declared(client: &Fencepost, fault: Fault) -> (Holds, Holds) {
    let guarantees = client.guarantees();
    let (_, kept) = guarantees.rows().find(|(under, _)| *under == fault).unwrap();
    (kept.exclusion, kept.tokens)
}

#[tokio::test]
async fn a_lock_outlives_a_crash_of_a_server_that_syncs_every_write() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    assert_eq!(declared(&ours, Fault::StoreCrash), (Holds::Yes, Holds::Yes));
    let guard = ours.lock("x").ttl(ROOMY).acquire().await.unwrap();

    server.restart().unwrap();
    let before = guard.deadline();
    until("they are connected again", async || theirs.inspect("x").await.is_ok()).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "it is still held");
    until("the guard is renewed after the crash", async || guard.deadline() > before).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "and stays so");
    let token = guard.check().expect("nothing was lost");
    let shown = theirs.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(token), "the record is there as well");

    guard.release().await.unwrap();
    server.restart().unwrap();
    let next = theirs.lock("x").acquire_within(SOON).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A waiter's connection goes with the server. It keeps waiting, and its place is where it was.
#[tokio::test]
async fn a_waiter_outlives_a_crash_too() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
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

/// redsync#149 for one server: without persistence a restart forgets who holds what. That is declared; what
/// must not happen is that a token comes again (etcd#16028).
#[tokio::test]
async fn a_server_that_forgets_its_locks_still_hands_out_higher_tokens() {
    let server = Redis::builder().persist(Persistence::None).start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    assert_eq!(declared(&ours, Fault::StoreCrash), (Holds::No, Holds::Yes));
    assert_eq!(declared(&ours, Fault::DataLoss), (Holds::No, Holds::Yes));
    let mut highest = ours.lock("x").acquire().await.unwrap().token();
    for _ in 0..3 {
        let guard = ours.lock("x").ttl(ROOMY / 2).acquire_within(SOON).await.unwrap();
        assert!(guard.token() > highest);
        server.restart().unwrap();
        let second = theirs.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert!(second.token() > guard.token(), "{} after {}", second.token(), guard.token());
        let cause = within(ROOMY, "the first holder is told", guard.lost()).await;
        // Whichever came first after the crash: its renewal, or the second holder.
        assert!(matches!(cause, LossCause::Expired | LossCause::TakenOver), "{cause}");
        assert!(second.check().is_ok(), "the first holder's end is not the second's");
        highest = second.token();
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_syncs_once_a_second_does_not_promise_to_remember() {
    let server = Redis::builder().persist(Persistence::EverySec).start().unwrap();
    let client = connect(&server.url()).await;
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::No, Holds::Yes));
}

/// redisson#4698, etcd#6922: the lock was gone, and nobody told the holder.
#[tokio::test]
async fn a_holder_is_told_when_the_server_is_flushed() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let taken = ours.lock("y").ttl(ms(1500)).acquire().await.unwrap();
    server.command(&["FLUSHALL"]).unwrap().text().unwrap();
    let second = theirs.lock("y").ttl(LONG).try_acquire().await.unwrap();
    let second = second.expect("nothing is left of the first");

    assert_eq!(within(SOON, "it is told", guard.lost()).await, LossCause::Expired);
    assert_eq!(within(SOON, "it is told", taken.lost()).await, LossCause::TakenOver);
    let next = theirs.lock("x").acquire_within(SOON).await.unwrap();
    assert!(next.token() > guard.token());
    assert!(second.token() > taken.token());
    // A lost guard's end does not end what came after it.
    let (lost, taken_token) = (guard.release().await, taken.token());
    assert!(lost.is_err(), "it was lost");
    drop(taken);
    ours.close().await;
    assert!(next.check().is_ok() && second.check().is_ok());
    let shown = theirs.inspect("y").await.unwrap().holder.unwrap().token;
    assert_eq!(shown, Some(second.token()), "not {taken_token}, and not nobody");
}
