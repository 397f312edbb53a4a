//! Which servers are fit for correctness, and what the others lack.

use fencepost::guarantees::Correctness;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{Persistence, Redis, RedisBuilder, SOON, connect, fails, until};

fn synced() -> RedisBuilder {
    Redis::builder().persist(Persistence::Always)
}

/// The lock is refused for correctness with these words, and granted otherwise.
async fn is_unfit(client: &Fencepost, words: &[&str]) {
    let all = [&["correctness"], words].concat();
    let outcome = client.lock("x").for_correctness().wait_timeout(SOON).acquire().await;
    fails(outcome, ErrorKind::Refused, &all);
    fails(client.lock("x").for_correctness().try_acquire().await, ErrorKind::Refused, &all);
    client.lock("x").wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
}

async fn is_fit(client: &Fencepost) {
    assert_eq!(client.guarantees().correctness, Correctness::Fit);
    let guard = client.lock("x").for_correctness().wait_timeout(SOON).acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn synced_server_without_replicas_is_fit() {
    let server = synced().start().unwrap();
    let client = connect(&server.url()).await;
    is_fit(&client).await;
}

#[tokio::test]
async fn unsynced_server_is_refused_with_the_settings_that_fix_it() {
    let forgetful = Redis::builder().start().unwrap();
    let client = connect(&forgetful.url()).await;
    let words = ["appendonly is no", "set `appendonly yes`, `appendfsync always` in redis.conf"];
    is_unfit(&client, &words).await;

    // The message's own settings, by CONFIG SET: they make the server fit for a new client.
    for line in [["appendonly", "yes"], ["appendfsync", "always"]] {
        let set = [&["CONFIG", "SET"], &line[..]].concat();
        forgetful.command(&set).unwrap().text().unwrap();
    }
    let client = connect(&forgetful.url()).await;
    is_fit(&client).await;

    let late = Redis::builder().persist(Persistence::EverySec).start().unwrap();
    let client = connect(&late.url()).await;
    is_unfit(&client, &["appendfsync is everysec", "set `appendfsync always` in redis.conf"]).await;

    let lax = synced().config("no-appendfsync-on-rewrite", "yes").start().unwrap();
    let client = connect(&lax.url()).await;
    is_unfit(&client, &["during a rewrite", "`no-appendfsync-on-rewrite no`"]).await;
}

/// A client rereads the server's settings every five seconds.
#[tokio::test]
async fn server_that_stops_syncing_is_refused() {
    let server = synced().start().unwrap();
    let client = connect(&server.url()).await;
    is_fit(&client).await;
    server.command(&["CONFIG", "SET", "appendfsync", "everysec"]).unwrap().text().unwrap();
    // The settings are read every five seconds.
    until("it is noticed", async || client.guarantees().correctness != Correctness::Fit).await;
    is_unfit(&client, &["appendfsync is everysec"]).await;
}

#[tokio::test]
async fn server_that_can_evict_a_lock_is_refused() {
    let server = synced().config("maxmemory-policy", "allkeys-lru").start().unwrap();
    let client = connect(&server.url()).await;
    let words = ["maxmemory-policy is allkeys-lru", "evicted", "`maxmemory-policy noeviction`"];
    is_unfit(&client, &words).await;
}

#[tokio::test]
async fn server_that_hides_its_settings_is_refused() {
    let server = synced().start().unwrap();
    for (user, hidden) in [("blind", "-config"), ("deaf", "-info")] {
        let rules = ["ACL", "SETUSER", user, "on", ">hunter2", "~*", "&*", "+@all", hidden];
        server.command(&rules).unwrap().text().unwrap();
        let client = connect(&format!("redis://{user}:hunter2@{}", server.address())).await;
        is_unfit(&client, &["may not read", "ACL SETUSER", "+config|get +info"]).await;
    }
    let client = connect(&server.url()).await;
    // A user with the right to read them is fit.
    is_fit(&client).await;
}

#[tokio::test]
async fn server_with_a_wrong_clock_is_refused() {
    for offset in [10, -10] {
        let server = synced().faketime().start().unwrap();
        server.set_clock_offset(offset).unwrap();
        let client = connect(&server.url()).await;
        is_unfit(&client, &["its clock differs", "NTP"]).await;
    }
}
