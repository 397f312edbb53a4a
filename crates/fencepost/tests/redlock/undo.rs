//! A cancelled acquire is undone on every node, even on one that could not be reached then.
//!
//! redis-py#3847, rslock#30, redsync: a cancelled acquire left the lock until its TTL. With several nodes it leaves
//! single keys, enough to keep a majority from everybody else. TTLs are a minute and the test takes seconds, so
//! nothing expires.

use std::time::Duration;

use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, Trigger, connect, has, ms, nothing_is_left, pass, switching_proxy,
    until, within,
};

use crate::Nodes;

/// `SplitMix64`: the same delays in every run.
struct Rng(u64);

impl Rng {
    const fn below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_nanos((bits ^ (bits >> 31)) % limit.as_nanos() as u64)
    }
}

/// Cancels acquires at many moments, with one node silent for a while. `until_given_up`: for so long that the client
/// closes its connection to it. Then earlier requests arrive there after later ones.
async fn dropped_acquires_leave_nothing(until_given_up: bool) {
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    let silent = &nodes.0[2];
    silent.proxy.set_mode(Mode::Silent);
    let mut rng = Rng(15);
    for _ in 0..40 {
        let delay = rng.below(ms(4));
        tokio::select! {
            // A grant that comes first is dropped too.
            guard = ours.lock("x").ttl(LONG).acquire() => drop(guard.unwrap()),
            () = pass(delay) => {}
        }
    }
    until("the reachable nodes have no key", async || {
        nodes.0.iter().take(2).all(|node| !has(&node.server, "x"))
    })
    .await;
    if until_given_up {
        let before = silent.proxy.accepted();
        until("it reconnects", async || silent.proxy.accepted() > before).await;
    }
    silent.proxy.set_mode(Mode::Pass);
    within(SOON, "the client closes", ours.close()).await;
    // Held-back requests arrive one by one, each before or after its undo.
    let mut quiet = 0;
    until("no node has a key of it, for half a second", async || {
        pass(ms(5)).await;
        quiet = if nodes.with("x") == 0 { quiet + 1 } else { 0 };
        quiet == 100
    })
    .await;
    nothing_is_left(&theirs, "x").await;
}

#[tokio::test]
async fn dropped_acquires_leave_nothing_on_a_node_that_was_silent() {
    dropped_acquires_leave_nothing(false).await;
}

#[tokio::test]
async fn dropped_acquires_leave_nothing_on_a_node_that_was_reconnected() {
    dropped_acquires_leave_nothing(true).await;
}

/// A guard is released or dropped while a node is unreachable. The others are free at once. That node is free when it
/// is back, though all other nodes have forgotten the grant.
#[tokio::test]
async fn release_reaches_a_node_that_was_unreachable() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    for released in [true, false] {
        let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        until("every node has it", async || nodes.with("x") == 3).await;
        nodes.0[0].proxy.set_mode(Mode::Silent);
        if released {
            within(SOON, "it is released", guard.release()).await.unwrap();
        } else {
            drop(guard);
        }
        until("the others are free", async || nodes.with("x") == 1).await;
        nodes.0[0].proxy.set_mode(Mode::Pass);
        until("so is the one that was away", async || nodes.with("x") == 0).await;
        nothing_is_left(&client, "x").await;
    }
}

/// A node that was a replica for a while refused the release. The others have released, and nothing else would end
/// the lock there before its TTL.
#[tokio::test]
async fn release_refused_by_one_node_is_retried_there() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    until("every node has it", async || nodes.with("x") == 3).await;
    let demoted = &nodes.0[0].server;
    // An unreachable primary changes no data.
    demoted.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap().text().unwrap();
    guard.release().await.unwrap();
    until("the others are free", async || nodes.with("x") == 1).await;
    assert!(has(demoted, "x"));
    demoted.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
    until("so is the one that refused", async || nodes.with("x") == 0).await;
}

/// The node was silent, the others granted, and the guard was released. Then the vote arrives, after its release.
#[tokio::test]
async fn vote_that_arrives_after_its_release_is_refused() {
    let nodes = Nodes::start(3);
    let late = &nodes.0[0];
    let new = Proxy::to(late.server.address()).unwrap();
    let route = switching_proxy(late.proxy.address(), new.address());
    let hosts = format!("{route},{},{}", nodes.0[1].shown, nodes.0[2].shown);
    let client = connect(&format!("redlock://{hosts}?restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    until("every node is free", async || nodes.with("x") == 0).await;

    // Of the requests held back only the vote will pass: the connection is cut after its reply.
    late.proxy.set_mode(Mode::DropRequests);
    late.proxy.cut_on(Trigger::after("EVALSHA"));
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    let note = format!("fencepost:withdrawn:{{x}}:{}", guard.owner().reveal());
    guard.release().await.unwrap();
    until("the release arrives over the new connection", async || has(&late.server, &note)).await;
    assert_eq!(late.proxy.fired(), 0);
    late.proxy.set_mode(Mode::Pass);
    until("the late vote is answered", async || late.proxy.fired() == 1).await;
    assert!(!has(&late.server, "x"), "nobody would release it");
}

/// A note is for an acquire that may still arrive. If every node has replied, none is needed: notes stay for a
/// minute, and a busy lock would leave thousands.
#[tokio::test]
async fn release_answered_by_each_node_leaves_no_note() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    for _ in 0..10 {
        let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        until("every node has it", async || nodes.with("x") == 3).await;
        guard.release().await.unwrap();
        until("all have released it", async || nodes.with("x") == 0).await;
    }
    client.close().await;
    for node in &nodes.0 {
        let count = ["EVAL", "return #redis.call('KEYS', 'fencepost:withdrawn:*')", "0"];
        assert_eq!(node.server.command(&count).unwrap().int().unwrap(), 0);
    }
}

/// A failed attempt leaves votes on some nodes. `close` and the end of the client wait for their undo: otherwise a
/// script that tries once and exits would leave them until the TTL.
#[tokio::test]
async fn closed_client_leaves_no_vote_of_a_failed_try() {
    let nodes = Nodes::start(3);
    for node in &nodes.0[1..] {
        let set = ["SET", "x", "theirs", "NX", "PX", "60000"];
        node.server.command(&set).unwrap().text().unwrap();
    }
    let client = connect(&nodes.url("restarted=vote")).await;
    // A slow network: without waiting, the client would be gone before the reply.
    nodes.0.iter().for_each(|node| node.proxy.set_mode(Mode::Delay(ms(50))));
    let tried = client.lock("x").ttl(LONG).try_acquire().await.unwrap();
    assert!(tried.is_none(), "a majority has it");
    within(SOON, "the client closes", client.close()).await;
    drop(client);
    until("the vote is taken back", async || !has(&nodes.0[0].server, "x")).await;
}
