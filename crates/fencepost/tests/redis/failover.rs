//! A replica is promoted without the last writes.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::guarantees::{Correctness, Fault, Holds};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, connect, fails, has, logged, try_connect, two, until,
};

/// redisson#2669, node-redlock#16: the replica did not know of the lock, was promoted, and granted it again. One
/// server cannot prevent that; it is declared. The fence still works: the new tokens are higher than any before,
/// including those that the replica never saw.
#[tokio::test]
async fn failover_that_loses_writes_grants_again_with_higher_tokens() {
    let primary = Redis::builder().start().unwrap();
    let line = Proxy::to(primary.address()).unwrap();
    let master = format!("127.0.0.1 {}", line.port());
    let replica = Redis::builder().config("replicaof", &master).start().unwrap();
    replica.wait_in_step().unwrap();

    let client = connect(&primary.url()).await;
    let guarantees = client.guarantees();
    let (_, kept) = guarantees.rows().find(|(fault, _)| *fault == Fault::Failover).unwrap();
    assert_eq!((kept.exclusion, kept.tokens), (Holds::No, Holds::No));
    let names = ["held", "often", "once"];
    let known = client.lock("known").ttl(LONG).acquire().await.unwrap();
    until("the replica knows of the first lock", async || has(&replica, "known")).await;

    // From here on the replica gets nothing.
    line.set_mode(Mode::Silent);
    let mut highest = Vec::new();
    for name in names {
        let rounds = if name == "often" { 20 } else { 1 };
        let mut token = None;
        for _ in 0..rounds {
            let guard = client.lock(name).ttl(LONG).acquire().await.unwrap();
            token = Some(guard.token());
            guard.release().await.unwrap();
        }
        highest.push(token.unwrap());
    }
    let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    highest[0] = held.token();
    primary.kill().unwrap();
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();

    let other = connect(&replica.url()).await;
    assert!(!has(&replica, "held"), "the replica was cut off before");
    assert!(other.lock("known").try_acquire().await.unwrap().is_none(), "what it knew it keeps");
    let again = other.lock("held").try_acquire().await.unwrap();
    let again = again.expect("exclusion is lost, as declared");
    assert!(held.check().is_ok(), "two hold it now, and only the tokens tell them apart");
    assert!(again.token() > held.token(), "{} after {}", again.token(), held.token());
    again.release().await.unwrap();
    for (name, before) in names.into_iter().zip(highest) {
        let guard = other.lock(name).wait_timeout(SOON).acquire().await.unwrap();
        assert!(guard.token() > before, "{name}: {} after {before}", guard.token());
    }
    drop(known);
}

/// Tokens that the replica never saw are lower than the next one only if its clock is right.
#[tokio::test]
async fn replica_with_a_late_clock_lowers_tokens_as_declared() {
    let primary = Redis::builder().start().unwrap();
    let line = Proxy::to(primary.address()).unwrap();
    let master = format!("127.0.0.1 {}", line.port());
    let replica = Redis::builder().config("replicaof", &master).faketime().start().unwrap();
    replica.set_clock_offset(-5).unwrap();
    replica.wait_in_step().unwrap();
    let client = connect(&primary.url()).await;
    let guarantees = client.guarantees();
    let (_, kept) = guarantees.rows().find(|(fault, _)| *fault == Fault::Failover).unwrap();
    assert_eq!(kept.tokens, Holds::No, "the table says that tokens rise");
    line.set_mode(Mode::Silent);
    let token = client.lock("x").ttl(LONG).acquire().await.unwrap().token();
    primary.kill().unwrap();
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
    let fallen =
        connect(&replica.url()).await.lock("x").wait_timeout(SOON).acquire().await.unwrap().token();
    assert!(fallen < token, "{fallen} after {token}: then the table is too modest");
}

/// A release that a replica refused is retried until the server is a primary again. Otherwise the lock would stay
/// until its TTL.
#[tokio::test]
async fn release_refused_by_a_replica_is_retried() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    // An unreachable primary changes no data.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap().text().unwrap();
    drop(guard);
    let address = server.address().to_string();
    until("the release is refused", async || logged(&[&address, "release failed", "replica"]))
        .await;
    assert!(has(&server, "x"));
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
    until("it is released", async || !has(&server, "x")).await;
}

/// The same with a right that is missing for a while.
#[tokio::test]
async fn release_refused_by_the_acl_is_retried() {
    let server = Redis::builder().start().unwrap();
    let set = |rules: &[&str]| {
        let user = ["ACL", "SETUSER", "locks"];
        server.command(&[&user[..], rules].concat()).unwrap().text().unwrap();
    };
    set(&["on", ">hunter2", "~*", "&*", "+@all"]);
    let client = connect(&format!("redis://locks:hunter2@{}", server.address())).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    set(&["-evalsha"]);
    drop(guard);
    let address = server.address().to_string();
    until("the release is refused", async || logged(&[&address, "release failed", "ACL"])).await;
    set(&["+evalsha"]);
    until("it is released", async || !has(&server, "x")).await;
}

#[tokio::test]
async fn server_with_a_replica_is_unfit() {
    let primary = Redis::builder().persist(fencepost_testkit::Persistence::Always).start().unwrap();
    let _replica = Redis::builder().replica_of(&primary).start().unwrap();
    let client = connect(&primary.url()).await;
    let Correctness::Unfit { why, remedy } = client.guarantees().correctness else {
        panic!("it has a replica");
    };
    assert!(why.contains("replica") && why.contains("promoted"), "{why}");
    assert!(remedy.contains("without replicas"), "{remedy}");
    let refused = client.lock("x").for_correctness().try_acquire().await;
    fails(refused, ErrorKind::Refused, &["correctness", "replica", "without replicas"]);
    // Without `for_correctness` it is granted.
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn replica_is_refused() {
    let primary = Redis::builder().start().unwrap();
    let replica = Redis::builder().replica_of(&primary).start().unwrap();
    let refused = try_connect(&replica.url()).await;
    let shown = replica.address().to_string();
    fails(refused, ErrorKind::Refused, &[&shown, "replica", "name its primary"]);
}

/// Host and port identify a server: one host may have many.
#[tokio::test]
async fn primary_is_named_with_its_port() {
    let primary = Redis::builder().start().unwrap();
    let replica = Redis::builder().replica_of(&primary).start().unwrap();
    let refused = try_connect(&replica.url()).await;
    fails(refused, ErrorKind::Refused, &[&primary.address().to_string()]);
}

/// The primary returns, demoted, at the known address.
#[tokio::test]
async fn demoted_primary_grants_nothing() {
    let server = Redis::builder().start().unwrap();
    let other = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("held").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let port = other.port().to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap().text().unwrap();
    let refused = theirs.lock("x").wait_timeout(SOON).acquire().await;
    fails(refused, ErrorKind::Refused, &[&server.address().to_string(), "replica", "primary"]);
    // The holder's renewals fail, which is no loss yet. After its promotion the server continues with its data,
    // unless it has synced the other server's data first.
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
    until("its clients have noticed", async || theirs.inspect("x").await.is_ok()).await;
    theirs.lock("x").wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
    let token = guard.token();
    drop(guard);
    let next = theirs.lock("held").wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > token);
}
