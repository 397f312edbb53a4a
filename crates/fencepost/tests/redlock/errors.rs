//! Invalid calls, and wrong replies of a node.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Redis, SECRET, SOON, connect, fails, has, logged, ms, nothing_is_left, try_connect,
};

use crate::{Node, Nodes};

#[tokio::test]
async fn ttl_above_the_limit_is_invalid_and_the_limit_is_named() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote&max_ttl=5s")).await;
    let lock = || client.lock("x").ttl(ms(5001));
    let words = ["TTL of 5.0s", "redlock", "at most 5.0s"];
    fails(lock().acquire().await, ErrorKind::Invalid, &words);
    fails(lock().try_acquire().await, ErrorKind::Invalid, &words);
    let guard = client.lock("x").ttl(ms(5000)).wait_timeout(SOON).acquire().await.unwrap();
    let longer = fencepost::Ttl::new(Duration::from_secs(8)).unwrap();
    let outcome = client.renew("x", guard.owner(), Some(longer)).await;
    fails(outcome, ErrorKind::Invalid, &["TTL of 8.0s", "at most 5.0s"]);
    guard.release().await.unwrap();
    // The default TTL of 30 s is above the limit.
    fails(client.lock("x").try_acquire().await, ErrorKind::Invalid, &["at most 5.0s"]);
}

#[tokio::test]
async fn even_number_of_nodes_works_with_a_warning() {
    let nodes = Nodes::start(4);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(logged(&["WARN", "redlock: 4 nodes", "than 3 would"]));
    nodes.0[0].server.kill().unwrap();
    nothing_is_left(&client, "x").await;
    nodes.0[1].server.kill().unwrap();
    let outcome = client.lock("x").wait_timeout(ms(300)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &["3 are needed"]);
}

#[tokio::test]
async fn urls_that_name_a_server_twice_or_only_one_are_invalid() {
    for (url, words) in [
        ("redlock://:hunter2@a,b,a", ["a:6379", "twice"]),
        ("redlock://a:6379,b,a", ["a:6379", "twice"]),
        ("redlock://:hunter2@a", ["several", "redis://HOST"]),
        ("redlock://a,b,c?max_ttl=25h", ["max_ttl=25h", "24h"]),
        ("redlock://a,b,c?restarted=maybe", ["restarted=maybe", "restarted=wait"]),
        ("redlock://a,b,c?frob=1", ["frob", "max_ttl"]),
    ] {
        fails(try_connect(url).await, ErrorKind::Invalid, &words);
    }
}

/// A server under two names would have two votes, and its crash would be that of a majority.
#[tokio::test]
async fn server_under_two_names_has_one_vote() {
    let (one, other) = (Redis::builder().start().unwrap(), Redis::builder().start().unwrap());
    let hosts = format!("127.0.0.1:{0},localhost:{0},127.0.0.1:{1}", one.port(), other.port());
    let client = match try_connect(&format!("redlock://{hosts}?restarted=vote")).await {
        Err(error) => {
            let kinds = [ErrorKind::Invalid, ErrorKind::Refused];
            return assert!(kinds.contains(&error.kind()), "{error}");
        }
        Ok(client) => client,
    };
    // Otherwise it is granted by two servers or not at all.
    other.kill().unwrap();
    let outcome = client.lock("x").wait_timeout(ms(500)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &["2 are needed"]);
}

#[tokio::test]
async fn node_whose_key_is_not_a_lock_is_skipped() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    nodes.0[0].server.command(&["LPUSH", "x", "theirs"]).unwrap();
    let guard = client.lock("x").ttl(ms(1500)).wait_timeout(SOON).acquire().await.unwrap();
    let before = guard.deadline();
    fencepost_testkit::until("it is renewed", async || guard.deadline() > before).await;
    let shown = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(guard.token()));
    guard.release().await.unwrap();
    assert_eq!(nodes.with("x"), 1, "what is theirs stays");
    // With two such nodes it is never granted.
    nodes.0[1].server.command(&["LPUSH", "x", "theirs"]).unwrap();
    let words =
        [&*nodes.0[0].shown, &nodes.0[1].shown, "something other than a lock", "2 are needed"];
    let outcome = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await;
    fails(outcome, ErrorKind::Refused, &words);
    fencepost_testkit::until("the third has nothing", async || !has(&nodes.0[2].server, "x")).await;
}

#[tokio::test]
async fn redlock_is_unfit_for_correctness_and_reports_why() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let outcome = client.lock("x").for_correctness().try_acquire().await;
    let words = ["redlock", "correctness", "clocks", "fence the resource with the token", "redis:"];
    fails(outcome, ErrorKind::Refused, &words);
    assert_eq!(nodes.with("x"), 0);
}

#[tokio::test]
async fn one_password_is_used_for_all_nodes_and_a_wrong_one_is_reported_for_each() {
    let locked = Redis::builder().password(SECRET);
    let nodes = Nodes((0..3).map(|_| Node::start(&locked)).collect());
    let hosts = nodes.hosts();
    let encoded = SECRET.replace('/', "%2F").replace(' ', "%20");
    let client = connect(&format!("redlock://:{encoded}@{hosts}?restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    let shown = nodes.0.iter().map(|node| node.shown.as_str());
    let words: Vec<&str> = shown.chain(["password"]).collect();
    let wrong = try_connect(&format!("redlock://:hunter2-not@{hosts}")).await;
    fails(wrong, ErrorKind::Refused, &words);
    let missing = try_connect(&format!("redlock://{hosts}")).await;
    fails(missing, ErrorKind::Refused, &words);
}
