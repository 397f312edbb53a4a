//! Other Redlock clients on the same nodes: npm `redlock`, redlock-py and redsync keep the same key with one
//! value on every node. A client with a single server is none of them, and can not take part.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{LONG, SOON, connect, ms, nothing_is_left, until, until_waiting, within};

use crate::{Node, Nodes};

/// The longest that a waiter goes without looking is 250 ms; the rest is for a busy machine.
const LOOKS: Duration = ms(2000);

impl Node {
    /// What `redlock` runs on each node.
    fn take(&self, name: &str, value: &str) -> bool {
        let set = ["SET", name, value, "NX", "PX", "60000"];
        !self.server.command(&set).unwrap().is_nil()
    }

    fn give_back(&self, name: &str, value: &str) -> bool {
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] \
                      then return redis.call('del', KEYS[1]) else return 0 end";
        self.server.command(&["EVAL", script, "1", name, value]).unwrap().int().unwrap() == 1
    }
}

#[tokio::test]
async fn another_client_with_a_majority_keeps_us_out() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    nothing_is_left(&client, "x").await;
    let value = "yZzvRr7wyFyVXwSMLKCzgY";
    assert!(nodes.0[1..].iter().all(|node| node.take("x", value)));
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").ttl(LONG).acquire_within(ms(400)).await.unwrap_err();
    assert_eq!(error.holder().expect("a majority has it").token, None, "{error}");
    let shown = client.inspect("x").await.unwrap().holder.expect("a majority has it");
    assert_eq!(shown.token, None);
    until("our vote on the third is taken back", async || nodes.with("x") == 2).await;

    let other = client.clone();
    let waiting = tokio::spawn(async move { other.lock("x").ttl(LONG).acquire().await });
    until_waiting(&client, "x", 1).await;
    assert!(nodes.0[1..].iter().all(|node| node.give_back("x", value)), "theirs is untouched");
    let guard = within(LOOKS, "we have it", waiting).await.unwrap().unwrap();
    until("all nodes have it", async || nodes.with("x") == 3).await;
    assert!(!nodes.0.iter().any(|node| node.take("x", value)), "and they are kept out");
    assert!(!nodes.0.iter().any(|node| node.give_back("x", value)));
    guard.release().await.unwrap();
    until("it is theirs to take", async || nodes.with("x") == 0).await;
    assert!(nodes.0.iter().all(|node| node.take("x", value)));
}

/// As seen with stock clients: one with a single server of the five does not exclude a Redlock client.
#[tokio::test]
async fn a_client_with_a_minority_does_not_keep_us_out() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].take("x", "single"));
    let guard = client.lock("x").ttl(ms(1500)).acquire_within(SOON).await.unwrap();
    let before = guard.deadline();
    until("it is renewed without that node", async || guard.deadline() > before).await;
    let shown = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(guard.token()));
    guard.release().await.unwrap();
    assert!(nodes.0[0].give_back("x", "single"), "theirs is untouched");
}

/// Two of them met, and neither has a majority: nobody is granted until one lets go, and that is contention.
#[tokio::test]
async fn nodes_that_two_others_have_between_them_are_waited_for() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].take("x", "one") && nodes.0[1].take("x", "other"));
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").acquire_within(ms(300)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(_)), "it is contention: {error}");
    assert!(nodes.0[0].give_back("x", "one"));
    let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    guard.release().await.unwrap();
}

/// And nobody is said to hold what nobody holds; `inspect` does not say so either.
#[tokio::test]
async fn nobody_is_said_to_hold_what_two_others_have_between_them() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    assert!(nodes.0[0].take("x", "one") && nodes.0[1].take("x", "other"));
    assert_eq!(client.inspect("x").await.unwrap().holder, None);
    let error = client.lock("x").acquire_within(ms(300)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Held(None), "{error}");
}
