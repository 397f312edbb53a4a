//! Third-party Redlock clients on the same nodes: npm `redlock`, redlock-py and redsync use the same key with one
//! value on every node. A client of a single server cannot take part.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{LONG, SOON, connect, ms, nothing_is_left, until, until_waiting, within};

use crate::{Node, Nodes};

/// A waiter polls at least every 250 ms; the rest is for a busy machine.
const POLL_LIMIT: Duration = ms(2000);

impl Node {
    /// What a third-party client runs on each node.
    fn try_lock(&self, name: &str, value: &str) -> bool {
        let set = ["SET", name, value, "NX", "PX", "60000"];
        !self.server.command(&set).unwrap().is_nil()
    }

    fn unlock(&self, name: &str, value: &str) -> bool {
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] \
                      then return redis.call('del', KEYS[1]) else return 0 end";
        self.server.command(&["EVAL", script, "1", name, value]).unwrap().int().unwrap() == 1
    }
}

#[tokio::test]
async fn third_party_client_with_a_majority_excludes_us() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    let value = "yZzvRr7wyFyVXwSMLKCzgY";
    assert!(nodes.0[1..].iter().all(|node| node.try_lock("x", value)));
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").ttl(LONG).wait_timeout(ms(400)).acquire().await.unwrap_err();
    assert_eq!(error.holder().expect("a majority has it").token, None, "{error}");
    let shown = client.inspect("x").await.unwrap().holder.expect("a majority has it");
    assert_eq!(shown.token, None);
    until("our vote on the third is taken back", async || nodes.with("x") == 2).await;

    let other = client.clone();
    let waiting = tokio::spawn(async move { other.lock("x").ttl(LONG).acquire().await });
    until_waiting(&client, "x", 1).await;
    assert!(nodes.0[1..].iter().all(|node| node.unlock("x", value)), "theirs is untouched");
    let guard = within(POLL_LIMIT, "we have it", waiting).await.unwrap().unwrap();
    until("all nodes have it", async || nodes.with("x") == 3).await;
    assert!(!nodes.0.iter().any(|node| node.try_lock("x", value)), "and they are kept out");
    assert!(!nodes.0.iter().any(|node| node.unlock("x", value)));
    guard.release().await.unwrap();
    until("it is theirs to take", async || nodes.with("x") == 0).await;
    assert!(nodes.0.iter().all(|node| node.try_lock("x", value)));
}

/// A client of a single server has only one of the nodes, and excludes nobody.
#[tokio::test]
async fn third_party_client_with_a_minority_does_not_exclude_us() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].try_lock("x", "single"));
    let guard = client.lock("x").ttl(ms(1500)).wait_timeout(SOON).acquire().await.unwrap();
    let before = guard.deadline();
    until("it is renewed without that node", async || guard.deadline() > before).await;
    let shown = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(guard.token()));
    guard.release().await.unwrap();
    assert!(nodes.0[0].unlock("x", "single"), "theirs is untouched");
}

/// Two of them collide, and neither has a majority: nothing is granted until one releases. That is contention.
#[tokio::test]
async fn nodes_split_between_two_third_party_clients_are_waited_for() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].try_lock("x", "one") && nodes.0[1].try_lock("x", "other"));
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").wait_timeout(ms(300)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "it is contention: {error}");
    assert!(nodes.0[0].unlock("x", "one"));
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Without a majority there is no holder; `inspect` shows none either.
#[tokio::test]
async fn nodes_split_between_two_third_party_clients_have_no_holder() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].try_lock("x", "one") && nodes.0[1].try_lock("x", "other"));
    assert_eq!(client.inspect("x").await.unwrap().holder, None);
    let error = client.lock("x").wait_timeout(ms(300)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
}
