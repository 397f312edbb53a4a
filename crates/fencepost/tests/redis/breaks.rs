//! A break: the server notifies the holder, which renews at once and confirms. A holder that is not notified learns
//! of it at its next renewal.

use fencepost::{Fencepost, Guard, LossCause};
use fencepost_testkit::{LONG, Proxy, Redis, SOON, connect, has, logged, ms, two, until, within};

const CHANNEL: &str = "fencepost:wake:broken:0:";

/// How many clients listen to breaks.
fn listening(server: &Redis) -> i64 {
    let reply = server.command(&["PUBSUB", "NUMSUB", CHANNEL]).unwrap();
    reply.items().unwrap()[1].int().unwrap()
}

/// A guard whose client already listens to breaks.
async fn held(client: &Fencepost, server: &Redis) -> Guard {
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    until("its client listens", async || listening(server) > 0).await;
    guard
}

async fn is_broken(operator: &Fencepost, guard: &Guard) {
    let broken = operator.break_lock("x").await.unwrap().expect("it was held");
    assert_eq!((broken.token, broken.confirmed), (Some(guard.token()), true));
    assert_eq!(within(SOON, "it is lost", guard.lost()).await, LossCause::Broken);
}

#[tokio::test]
async fn broken_holder_is_notified_and_confirms() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    assert_eq!(listening(&server), 0, "a client without a grant listens to nothing");
    for _ in 0..3 {
        let guard = held(&ours, &server).await;
        is_broken(&theirs, &guard).await;
        assert!(guard.release().await.is_err());
    }
}

#[tokio::test]
async fn holder_is_notified_after_its_connection_was_cut() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (ours, theirs) =
        (connect(&format!("redis://{}", proxy.address())).await, connect(&server.url()).await);
    let guard = held(&ours, &server).await;
    proxy.close_all();
    until("the old connection is gone", async || listening(&server) == 0).await;
    until("it listens again", async || listening(&server) == 1).await;
    is_broken(&theirs, &guard).await;
}

/// Databases share their server's channels, and so do clients with different prefixes.
#[tokio::test]
async fn break_in_another_database_or_prefix_is_ignored() {
    let server = Redis::builder().start().unwrap();
    let ours = connect(&server.url()).await;
    let guard = held(&ours, &server).await;
    let deadline = guard.deadline();
    for other in [format!("{}/1", server.url()), format!("{}?prefix=p:", server.url())] {
        let other = connect(&other).await;
        let theirs = other.lock("x").ttl(LONG).acquire().await.unwrap();
        until("the break is confirmed", async || match other.break_lock("x").await.unwrap() {
            Some(broken) => broken.confirmed,
            None => theirs.check().is_err(),
        })
        .await;
    }
    guard.check().unwrap();
    assert_eq!(guard.deadline(), deadline, "there was no reason to renew");
}

/// A notification names the grant and not its owner, whose id is a secret. It ends nothing by itself.
#[tokio::test]
async fn notification_has_no_secret_and_a_forged_one_only_renews() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = held(&ours, &server).await;
    let mut listener = server.client().unwrap();
    listener.command(&["SUBSCRIBE", CHANNEL]).unwrap();
    let before = guard.deadline();
    let message = format!("{} x", guard.token());
    for forged in ["", "x", "1 x", "99999999999999999999 x", &message] {
        server.command(&["PUBLISH", CHANNEL, forged]).unwrap().int().unwrap();
        assert_eq!(listener.receive().unwrap().items().unwrap()[2].text().unwrap(), forged);
    }
    until("it is renewed", async || guard.deadline() > before).await;
    guard.check().unwrap();
    is_broken(&theirs, &guard).await;
    assert_eq!(listener.receive().unwrap().items().unwrap()[2].text().unwrap(), message);
}

#[tokio::test]
async fn holder_that_may_not_subscribe_learns_at_the_next_renewal() {
    let server = Redis::builder().start().unwrap();
    let rules = ["on", ">hunter2", "~*", "resetchannels", "+@all"];
    server.command(&[&["ACL", "SETUSER", "mute"], &rules[..]].concat()).unwrap().text().unwrap();
    let ours = connect(&format!("redis://mute:hunter2@{}", server.address())).await;
    let theirs = connect(&server.url()).await;
    let guard = ours.lock("x").ttl(ms(1500)).acquire().await.unwrap();
    until("explain says so", async || {
        ours.guarantees()
            .server_info
            .iter()
            .any(|(what, line)| *what == "break" && line.contains("renewal"))
    })
    .await;
    assert!(logged(&[&server.address().to_string(), "broken holders are not notified"]));
    theirs.break_lock("x").await.unwrap().expect("it was held");
    assert_eq!(within(SOON, "it is lost", guard.lost()).await, LossCause::Broken);
}

/// A third-party client cannot confirm, so the break does not wait.
#[tokio::test]
async fn third_party_holder_is_broken_without_a_wait() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let polls = || {
        let stats = server.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
        stats.lines().filter(|line| line.starts_with("cmdstat_exists:")).count()
    };
    for value in ["theirs", "0123456789abcdef0123456789abcdef"] {
        server.command(&["SET", "x", value, "PX", "60000"]).unwrap().text().unwrap();
        server.command(&["CONFIG", "RESETSTAT"]).unwrap().text().unwrap();
        let broken = client.break_lock("x").await.unwrap().expect("it was held");
        assert_eq!((broken.token, broken.confirmed), (None, false));
        assert_eq!(polls(), 0, "nobody looked for a confirmation");
        assert!(!has(&server, "x"));
    }
}
