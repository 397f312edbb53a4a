//! The server crashes and restarts, with or without its data.

use std::time::Duration;

use fencepost::guarantees::{Fault, Holds};
use fencepost::{Fencepost, LossCause};
use fencepost_testkit::{
    LONG, Persistence, Redis, SOON, connect, ms, two, until, until_waiting, within,
};

/// Long enough for a restart, and short enough to see a renewal.
const ROOMY: Duration = ms(3000);

/// The declared exclusion and tokens under a fault.
fn declared(client: &Fencepost, fault: Fault) -> (Holds, Holds) {
    let guarantees = client.guarantees();
    let (_, kept) = guarantees.rows().find(|(under, _)| *under == fault).unwrap();
    (kept.exclusion, kept.tokens)
}

#[tokio::test]
async fn lock_survives_a_crash_of_a_server_that_syncs_every_write() {
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
    let token = guard.check().expect("nothing was lost").token();
    let shown = theirs.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(token), "the record is there as well");

    guard.release().await.unwrap();
    server.restart().unwrap();
    let next = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// The waiter's connection ends with the server. It keeps waiting at its position.
#[tokio::test]
async fn waiter_survives_a_crash() {
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
    let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// redsync#149 for one server: without persistence a restart loses the holder. That is declared; but a token must
/// never repeat (etcd#16028).
#[tokio::test]
async fn server_that_loses_its_locks_still_grants_higher_tokens() {
    let server = Redis::builder().persist(Persistence::None).start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    assert_eq!(declared(&ours, Fault::StoreCrash), (Holds::No, Holds::Yes));
    assert_eq!(declared(&ours, Fault::DataLoss), (Holds::No, Holds::Yes));
    let mut highest = ours.lock("x").acquire().await.unwrap().token();
    for _ in 0..3 {
        let guard = ours.lock("x").ttl(ROOMY / 2).wait_timeout(SOON).acquire().await.unwrap();
        assert!(guard.token() > highest);
        server.restart().unwrap();
        let second = theirs.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert!(second.token() > guard.token(), "{} after {}", second.token(), guard.token());
        let cause = within(ROOMY, "the guard is lost", guard.lost()).await;
        // Whichever came first after the crash: its renewal, or the second holder.
        assert!(matches!(cause, LossCause::Expired | LossCause::TakenOver), "{cause}");
        assert!(second.check().is_ok(), "the first holder's end is not the second's");
        highest = second.token();
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn server_that_syncs_once_a_second_declares_loss() {
    let server = Redis::builder().persist(Persistence::EverySec).start().unwrap();
    let client = connect(&server.url()).await;
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::No, Holds::Yes));
}

/// redisson#4698, etcd#6922: the lock was gone, and the holder was not notified.
#[tokio::test]
async fn guard_is_lost_when_the_server_is_flushed() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let taken = ours.lock("y").ttl(ms(1500)).acquire().await.unwrap();
    server.command(&["FLUSHALL"]).unwrap().text().unwrap();
    let second = theirs.lock("y").ttl(LONG).try_acquire().await.unwrap();
    let second = second.expect("nothing is left of the first");

    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::Expired);
    assert_eq!(within(SOON, "the guard is lost", taken.lost()).await, LossCause::TakenOver);
    let next = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > guard.token());
    assert!(second.token() > taken.token());
    // The end of a lost guard does not end its successor.
    let (lost, taken_token) = (guard.release().await, taken.token());
    assert!(lost.is_err(), "it was lost");
    drop(taken);
    ours.close().await;
    assert!(next.check().is_ok() && second.check().is_ok());
    let shown = theirs.inspect("y").await.unwrap().holder.unwrap().token;
    assert_eq!(shown, Some(second.token()), "not {taken_token}, and not nobody");
}
