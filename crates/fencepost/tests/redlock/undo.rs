//! An acquire that is given up is taken back on every node, also on one that could not hear it then.
//!
//! redis-py#3847, rslock#30, redsync: a cancelled acquire left the lock until its TTL. With several nodes it
//! is a key here and there, which are enough to keep a majority from everybody else. TTLs are a minute, and
//! what passes took seconds.

use std::time::Duration;

use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, Trigger, connect, fork_in_the_road, has, ms, nothing_is_left, pass,
    until, within,
};

use crate::Nodes;

/// `SplitMix64`: the same delays in every run.
struct Dice(u64);

impl Dice {
    const fn below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_nanos((bits ^ (bits >> 31)) % limit.as_nanos() as u64)
    }
}

/// Drops acquires at any time, with one node silent for a while; `until_given_up`: for so long that the
/// client has given up its connection to it, and what it sent there arrives behind what it sent later.
async fn dropped_acquires_leave_nothing(until_given_up: bool) {
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    let silent = &nodes.0[2];
    silent.proxy.set_mode(Mode::Silent);
    let mut dice = Dice(15);
    for _ in 0..40 {
        let delay = dice.below(ms(4));
        tokio::select! {
            // A grant that comes first is dropped just so.
            guard = ours.lock("x").ttl(LONG).acquire() => drop(guard.unwrap()),
            () = pass(delay) => {}
        }
    }
    until("the nodes that hear us have nothing", async || {
        nodes.0.iter().take(2).all(|node| !has(&node.server, "x"))
    })
    .await;
    if until_given_up {
        let before = silent.proxy.accepted();
        until("it connects anew", async || silent.proxy.accepted() > before).await;
    }
    silent.proxy.set_mode(Mode::Pass);
    within(SOON, "the client settles everything", ours.close()).await;
    // What was held back arrives one by one, each with its undo behind it or before it.
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
async fn acquires_that_are_dropped_leave_nothing_on_a_node_that_was_silent_then() {
    dropped_acquires_leave_nothing(false).await;
}

#[tokio::test]
async fn acquires_that_are_dropped_leave_nothing_on_a_node_that_was_given_up() {
    dropped_acquires_leave_nothing(true).await;
}

/// A guard that is released, or dropped, while a node is away: the others are free at once, and the one that
/// was away when it is back, though everybody else has forgotten about it.
#[tokio::test]
async fn a_release_reaches_a_node_that_was_away() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    for released in [true, false] {
        let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        until("all have heard of it", async || nodes.with("x") == 3).await;
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

/// A node that was a replica for a while refused the release. The others have released it, and nobody else would end it
/// there before its lease does.
#[tokio::test]
async fn release_that_one_node_refused_is_retried_there() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    until("all have heard of it", async || nodes.with("x") == 3).await;
    let demoted = &nodes.0[0].server;
    // A primary that is not there changes nothing in the data.
    demoted.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap().text().unwrap();
    guard.release().await.unwrap();
    until("the others are free", async || nodes.with("x") == 1).await;
    assert!(has(demoted, "x"));
    demoted.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
    until("so is the one that refused", async || nodes.with("x") == 0).await;
}

/// The node was silent, the others granted, and it was released. Then the vote arrives, behind its release.
#[tokio::test]
async fn a_vote_that_comes_after_its_release_is_refused() {
    let nodes = Nodes::start(3);
    let late = &nodes.0[0];
    let new = Proxy::to(late.server.address()).unwrap();
    let way = fork_in_the_road(late.proxy.address(), new.address());
    let hosts = format!("{way},{},{}", nodes.0[1].shown, nodes.0[2].shown);
    let client = connect(&format!("redlock://{hosts}?restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    until("every node is free", async || nodes.with("x") == 0).await;

    // Of what is held back only the vote will pass: the line is cut when it has been answered.
    late.proxy.set_mode(Mode::DropRequests);
    late.proxy.cut_on(Trigger::after("EVALSHA"));
    let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    let note = format!("fencepost:gone:{}", guard.owner().reveal());
    guard.release().await.unwrap();
    until("the release is heard over the new line", async || has(&late.server, &note)).await;
    assert_eq!(late.proxy.fired(), 0);
    late.proxy.set_mode(Mode::Pass);
    until("the late vote is answered", async || late.proxy.fired() == 1).await;
    assert!(!has(&late.server, "x"), "nobody would release it");
}

/// A note is for an acquire that may still come. What every node has released needs none: they stay for a
/// minute, and a busy lock would leave thousands.
#[tokio::test]
async fn a_release_that_every_node_has_heard_leaves_no_note() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    for _ in 0..10 {
        let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        until("all have heard of it", async || nodes.with("x") == 3).await;
        guard.release().await.unwrap();
        until("all have released it", async || nodes.with("x") == 0).await;
    }
    client.close().await;
    for node in &nodes.0 {
        let count = ["EVAL", "return #redis.call('KEYS', 'fencepost:gone:*')", "0"];
        assert_eq!(node.server.command(&count).unwrap().int().unwrap(), 0);
    }
}

/// An attempt that failed has a vote here or there. Taking it back belongs to what `close` waits for, and what
/// the end of the client waits for: a script that tries once and ends would leave it until the TTL.
#[tokio::test]
async fn a_client_that_tried_in_vain_and_ended_leaves_no_vote() {
    let nodes = Nodes::start(3);
    for node in &nodes.0[1..] {
        let set = ["SET", "x", "theirs", "NX", "PX", "60000"];
        node.server.command(&set).unwrap().text().unwrap();
    }
    let client = connect(&nodes.url("restarted=vote")).await;
    // A network that is not next door: who does not wait for an answer is gone before it comes.
    nodes.0.iter().for_each(|node| node.proxy.set_mode(Mode::Delay(ms(50))));
    let tried = client.lock("x").ttl(LONG).try_acquire().await.unwrap();
    assert!(tried.is_none(), "a majority has it");
    within(SOON, "the client settles everything", client.close()).await;
    drop(client);
    until("the vote is taken back", async || !has(&nodes.0[0].server, "x")).await;
}
