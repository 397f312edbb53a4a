//! Bugs that a review found and that were fixed. Each test opens with the story of one.

use std::time::Duration;

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, connect, ms, nothing_is_left, now, two, until, within,
};

use crate::Nodes;

/// A node that the break had not reached still had the key and released it. This counted as a release, so the holder
/// did not learn that another client had worked beside it.
#[tokio::test]
async fn release_after_a_break_and_a_new_grant_reports_broken() {
    let nodes = Nodes::start(3);
    let ours = connect(&nodes.url("restarted=vote")).await;
    // The other client cannot reach the third node.
    let route = Proxy::to(nodes.0[2].server.address()).unwrap();
    let hosts = format!("{},{},{}", nodes.0[0].shown, nodes.0[1].shown, route.address());
    let theirs = connect(&format!("redlock://{hosts}?restarted=vote")).await;
    nothing_is_left(&theirs, "x").await;
    for taken_over in [true, false] {
        route.set_mode(Mode::Pass);
        until("the last release has reached them all", async || nodes.with("x") == 0).await;
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        until("every node has it", async || nodes.with("x") == 3).await;
        route.set_mode(Mode::Silent);
        assert!(theirs.break_lock("x").await.unwrap().is_some());
        let next = if taken_over {
            Some(theirs.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap())
        } else {
            None
        };
        let error = guard.release().await.expect_err("it was broken");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        let causes = [LossCause::Broken, LossCause::TakenOver].map(Some);
        assert!(causes.contains(&error.loss_cause()), "{error}");
        if let Some(next) = next {
            let shown = theirs.inspect("x").await.unwrap().holder.expect("the next one has it");
            assert_eq!(shown.token, Some(next.token()));
            next.release().await.unwrap();
        }
    }
}

/// The value was passed on as text, so no node found it: the lock was reported as broken and stayed.
#[tokio::test]
async fn lock_with_a_binary_value_is_broken_on_each_node() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let set = r"redis.call('SET', KEYS[1], '\255\254\0\r\n+:\128', 'PX', 60000) return 1";
    for node in &nodes.0 {
        assert_eq!(node.server.command(&["EVAL", set, "1", "x"]).unwrap().int().unwrap(), 1);
    }
    let broken = client.break_lock("x").await.unwrap().expect("a majority has it");
    assert_eq!(broken.token, None);
    until("no node has it", async || nodes.with("x") == 0).await;
    let next = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert!(next.token() > broken.floor, "{} and the floor {}", next.token(), broken.floor);
    next.release().await.unwrap();
}

/// Each client kept a node from the others, and all reported a holder that did not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_concurrent_tries_is_granted() {
    const ROUNDS: usize = 30;
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    let clients = [connect(&url).await, connect(&url).await, connect(&url).await];
    for round in 0..ROUNDS {
        let name = format!("n/{round}");
        let all = clients.clone().map(|client| {
            let name = name.clone();
            tokio::spawn(async move { client.lock(name).ttl(LONG).try_acquire().await })
        });
        let mut granted = Vec::new();
        for task in all {
            let tried = within(SOON, "it is decided", task).await.unwrap();
            granted.extend(tried.unwrap());
        }
        assert_eq!(granted.len(), 1, "round {round}: one has it, and only one");
    }
}

/// Connecting waited for a frozen node until the timeout, though a majority was there at once.
#[tokio::test]
async fn frozen_node_does_not_delay_connect() {
    let nodes = Nodes::start(3);
    nodes.0[1].server.stop().unwrap();
    let mut took = Vec::new();
    // The shortest of several, because the machine may be busy.
    for _ in 0..3 {
        let asked = now();
        let client = connect(&nodes.url("restarted=vote")).await;
        took.push(now().since(asked));
        nothing_is_left(&client, "x").await;
    }
    assert!(took.iter().any(|span| *span < ms(1500)), "{took:?}");
}

/// Every release left a note on every node for a minute, though its acquire had been answered long before.
#[tokio::test]
async fn release_right_after_its_acquire_leaves_no_note() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    for _ in 0..20 {
        let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    within(SOON, "the client closes", client.close()).await;
    until("all have released it", async || nodes.with("x") == 0).await;
    // A node that has not yet answered the vote when the release is sent does need a note.
    for node in &nodes.0 {
        let count = ["EVAL", "return #redis.call('KEYS', 'fencepost:withdrawn:*')", "0"];
        let left = node.server.command(&count).unwrap().int().unwrap();
        assert!(left < 20, "{left} of 20 releases left a note on {}", node.shown);
    }
}

/// Each release had its own task that kept connecting to the unreachable node.
#[tokio::test]
async fn dead_node_gets_each_missed_release_once() {
    const CYCLES: i64 = 500;
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    let away = &nodes.0[2].server;
    away.kill().unwrap();
    for _ in 0..CYCLES {
        let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    away.start_again().unwrap();
    let received = || {
        let stats = away.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = calls.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse::<i64>().unwrap())
    };
    until("it has got the releases", async || received() >= CYCLES).await;
    within(SOON, "the client closes", client.close()).await;
    // Once each, and then no more.
    let all = received();
    assert!(all <= CYCLES + CYCLES / 10, "{all} calls for {CYCLES} releases");
    let other = connect(&nodes.url("restarted=vote")).await;
    let guard = other.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    until("it votes again", async || nodes.with("x") == 3).await;
    guard.release().await.unwrap();
    until("and releases", async || nodes.with("x") == 0).await;
}

/// A former lock whose key has another type now failed the whole list.
#[tokio::test]
async fn list_skips_a_former_lock_that_is_another_type_now() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let _first = ours.lock("a").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    ours.lock("b").wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
    let _last = ours.lock("c").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    until("it is released everywhere", async || nodes.with("b") == 0).await;
    for node in &nodes.0 {
        node.server.command(&["HSET", "b", "field", "theirs"]).unwrap().int().unwrap();
    }
    let locks = within(Duration::from_secs(5), "it is listed", theirs.list()).await.unwrap();
    let names: Vec<&str> = locks.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
}
