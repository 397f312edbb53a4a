//! The server's wall clock jumps. This ends leases, and so exclusion. Within the retention, tokens still rise.

use fencepost::guarantees::{Fault, Holds};
use fencepost::{Fencepost, LossCause};
use fencepost_testkit::{
    LONG, Redis, SOON, connect, has, logged, ms, two, until, until_waiting, within,
};

const HOUR: i64 = 3600;
const RECORD: &str = "fencepost:lock:{x}";

fn clock_line(client: &Fencepost) -> String {
    let found = client.guarantees().server_info;
    found.into_iter().find(|(what, _)| *what == "clock").unwrap().1
}

/// The server's time in the unit of a token.
fn time(server: &Redis) -> u64 {
    let reply = server.command(&["TIME"]).unwrap();
    let [seconds, micros] = reply.items().unwrap() else { panic!("{reply:?}") };
    let micros = seconds.int().unwrap() * 1_000_000 + micros.int().unwrap();
    u64::try_from(micros).unwrap()
}

/// valkey#2651: a forward jump of the clock ended every lock on the server, and nobody noticed.
#[tokio::test]
async fn forward_clock_jump_ends_leases_and_guards() {
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
    assert_eq!(within(SOON, "the guard is lost", guard.lost()).await, LossCause::TakenOver);
    assert_eq!(within(SOON, "the guard is lost", alone.lost()).await, LossCause::Expired);
    assert!(
        clock_line(&ours).contains("it jumped once since we connected"),
        "{}",
        clock_line(&ours)
    );
    let address = server.address().to_string();
    assert!(logged(&[&address, "clock jumped forwards by"]), "the log says so");

    // After the jump back, tokens from the future are not granted again.
    server.set_clock_offset(0).unwrap();
    let highest = next.token();
    next.release().await.unwrap();
    let after = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(after.token() > highest, "{} after {highest}", after.token());
}

#[tokio::test]
async fn backward_clock_jump_does_not_lower_tokens() {
    let server = Redis::builder().faketime().start().unwrap();
    let client = connect(&server.url()).await;
    let mut highest = client.lock("x").acquire().await.unwrap().token();
    let guard = client.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    server.set_clock_offset(-HOUR).unwrap();
    assert!(time(&server) < guard.token().get(), "its time is behind its tokens");
    assert!(guard.token() > highest);
    highest = guard.token();
    guard.release().await.unwrap();
    for _ in 0..3 {
        let guard = client.lock("x").wait_timeout(SOON).acquire().await.unwrap();
        assert!(guard.token() > highest, "{} after {highest}", guard.token());
        highest = guard.token();
        guard.release().await.unwrap();
    }
    assert!(clock_line(&client).contains("jumped"), "{}", clock_line(&client));
    let address = server.address().to_string();
    assert!(logged(&[&address, "clock jumped backwards by"]), "the log says so");
    // The lock's state stays until the clock has passed its token by the retention (1 h).
    let kept = server.command(&["PTTL", RECORD]).unwrap().int().unwrap();
    assert!(kept > (2 * HOUR - 60) * 1000, "it is kept for {kept} ms only");

    // Control: tokens depend on the state or the clock. Without both they fall.
    server.command(&["DEL", RECORD]).unwrap();
    let fallen = client.lock("x").wait_timeout(SOON).acquire().await.unwrap().token();
    assert!(fallen < highest, "{fallen} after {highest}: then what were they resting on?");
}

/// The lock's state stays for the retention by the server's clock. If the clock is ahead for longer than that and is then
/// set back, both the state and the time are gone; the guarantees declare it.
#[tokio::test]
async fn clock_ahead_past_the_retention_lowers_tokens_as_declared() {
    let server = Redis::builder().faketime().start().unwrap();
    let client = connect(&format!("{}?retention=1s", server.url())).await;
    server.set_clock_offset(2 * HOUR).unwrap();
    let guard = client.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    let ahead = guard.token();
    guard.release().await.unwrap();
    until("the record is over", async || !has(&server, RECORD)).await;
    server.set_clock_offset(0).unwrap();
    let fallen = client.lock("x").wait_timeout(SOON).acquire().await.unwrap().token();
    assert!(fallen < ahead, "{fallen} after {ahead}: then the table is too modest");
    let rows = client.guarantees();
    let (_, kept) = rows.rows().find(|(under, _)| *under == Fault::ClockJump).unwrap();
    assert_eq!(kept.tokens, Holds::No, "the table says that tokens rise");
}

/// Without the state the clock alone keeps tokens rising, while it is right.
#[tokio::test]
async fn deleted_state_does_not_lower_tokens() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    let before = guard.deadline();
    server.command(&["DEL", RECORD]).unwrap();
    until("the guard is renewed without it", async || guard.deadline() > before).await;
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    let token = guard.check().unwrap().token();
    guard.release().await.unwrap();
    server.command(&["DEL", RECORD]).unwrap();
    let next = theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A position in the queue is a lease on the same clock: after a backward jump, dead waiters must not stay ahead.
#[tokio::test]
async fn waiter_is_granted_though_the_clock_was_set_back() {
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
    let next = within(SOON, "the waiter is granted", first).await.unwrap().unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}
