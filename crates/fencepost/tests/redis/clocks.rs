//! The server's wall clock leaps. It ends the leases, so exclusion goes with it; the tokens do not, within the retention.

use fencepost::guarantees::{Fault, Holds};
use fencepost::{Fencepost, LossCause};
use fencepost_testkit::{
    LONG, Redis, SOON, connect, has, logged, ms, two, until, until_waiting, within,
};

const HOUR: i64 = 3600;
const RECORD: &str = "fencepost:record:x";

fn clock_line(client: &Fencepost) -> String {
    let found = client.guarantees().found;
    found.into_iter().find(|(what, _)| *what == "clock").unwrap().1
}

/// The server's time as a token would have it.
fn time(server: &Redis) -> u64 {
    let reply = server.command(&["TIME"]).unwrap();
    let [seconds, micros] = reply.items().unwrap() else { panic!("{reply:?}") };
    let micros = seconds.int().unwrap() * 1_000_000 + micros.int().unwrap();
    u64::try_from(micros).unwrap()
}

/// valkey#2651: a clock that was set forward ended every lock on the server, and nobody noticed.
#[tokio::test]
async fn a_clock_that_leaps_ahead_ends_leases_and_holders_are_told() {
    let server = Redis::builder().faketime().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let (_, kept) = ours.guarantees().rows().find(|(under, _)| *under == Fault::ClockJump).unwrap();
    assert_eq!((kept.exclusion, kept.tokens), (Holds::No, Holds::No));
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let alone = ours.lock("y").ttl(ms(1500)).acquire().await.unwrap();
    assert!(!clock_line(&ours).contains("jump"), "{}", clock_line(&ours));

    server.set_clock_offset(HOUR).unwrap();
    let next = theirs.lock("x").ttl(LONG).try_acquire().await.unwrap();
    let next = next.expect("its lease has ended early, as declared");
    assert!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    assert_eq!(within(SOON, "it is told", guard.lost()).await, LossCause::TakenOver);
    assert_eq!(within(SOON, "it is told", alone.lost()).await, LossCause::Expired);
    assert!(
        clock_line(&ours).contains("it jumped once since we connected"),
        "{}",
        clock_line(&ours)
    );
    let address = server.address().to_string();
    assert!(logged(&[&address, "clock jumped forwards by"]), "the log says so");

    // Back where it was: what was granted in the future is not granted again.
    server.set_clock_offset(0).unwrap();
    let highest = next.token();
    next.release().await.unwrap();
    let after = theirs.lock("x").acquire_within(SOON).await.unwrap();
    assert!(after.token() > highest, "{} after {highest}", after.token());
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_take_tokens_back() {
    let server = Redis::builder().faketime().start().unwrap();
    let client = connect(&server.url()).await;
    let mut highest = client.lock("x").acquire().await.unwrap().token();
    let guard = client.lock("x").acquire_within(SOON).await.unwrap();
    server.set_clock_offset(-HOUR).unwrap();
    assert!(time(&server) < guard.token().get(), "its time is behind its tokens");
    assert!(guard.token() > highest);
    highest = guard.token();
    guard.release().await.unwrap();
    for _ in 0..3 {
        let guard = client.lock("x").acquire_within(SOON).await.unwrap();
        assert!(guard.token() > highest, "{} after {highest}", guard.token());
        highest = guard.token();
        guard.release().await.unwrap();
    }
    assert!(clock_line(&client).contains("jumped"), "{}", clock_line(&client));
    let address = server.address().to_string();
    assert!(logged(&[&address, "clock jumped backwards by"]), "the log says so");
    // The record stays until the clock has come to where its token is, and the retention (1 h) beyond.
    let kept = server.command(&["PTTL", RECORD]).unwrap().int().unwrap();
    assert!(kept > (2 * HOUR - 60) * 1000, "it is kept for {kept} ms only");

    // The control: the tokens rest on the record or the clock. Without both they fall.
    server.command(&["DEL", RECORD]).unwrap();
    let fallen = client.lock("x").acquire_within(SOON).await.unwrap().token();
    assert!(fallen < highest, "{fallen} after {highest}: then what were they resting on?");
}

/// The record is kept for the retention, on the server's clock. One that is ahead for longer than that and is then set
/// back has neither the record nor the time, and the table says so.
#[tokio::test]
async fn clock_that_was_ahead_past_the_retention_takes_tokens_back_as_declared() {
    let server = Redis::builder().faketime().start().unwrap();
    let client = connect(&format!("{}?retention=1s", server.url())).await;
    server.set_clock_offset(2 * HOUR).unwrap();
    let guard = client.lock("x").acquire_within(SOON).await.unwrap();
    let ahead = guard.token();
    guard.release().await.unwrap();
    until("the record is over", async || !has(&server, RECORD)).await;
    server.set_clock_offset(0).unwrap();
    let fallen = client.lock("x").acquire_within(SOON).await.unwrap().token();
    assert!(fallen < ahead, "{fallen} after {ahead}: then the table is too modest");
    let rows = client.guarantees();
    let (_, kept) = rows.rows().find(|(under, _)| *under == Fault::ClockJump).unwrap();
    assert_eq!(kept.tokens, Holds::No, "the table says that tokens rise");
}

/// Without the record the clock alone carries the tokens, as long as it is right.
#[tokio::test]
async fn a_record_that_is_gone_does_not_take_tokens_back() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let before = guard.deadline();
    server.command(&["DEL", RECORD]).unwrap();
    until("the guard is renewed without it", async || guard.deadline() > before).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.check().unwrap();
    guard.release().await.unwrap();
    server.command(&["DEL", RECORD]).unwrap();
    let next = theirs.lock("x").acquire_within(SOON).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A place in the queue is a lease on the same clock: set back, it must not keep the dead in front.
#[tokio::test]
async fn who_waits_is_served_though_the_clock_was_set_back() {
    let server = Redis::builder().faketime().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = theirs.clone();
    let first = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
    until_waiting(&ours, "x", 1).await;
    server.set_clock_offset(-HOUR).unwrap();
    until_waiting(&ours, "x", 1).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = within(SOON, "the waiter's turn comes", first).await.unwrap().unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}
