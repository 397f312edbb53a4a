//! A node that was restarted without its data has forgotten to whom it gave its key.
//!
//! redsync#149: one node after the other is restarted, each gives its key again, and there are two holders
//! though a majority was up all the time. Hence a node does not vote until every lease from before is over.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{LONG, SOON, connect, fails, now, two};

use crate::Nodes;

const MAX_TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn nodes_vote_only_when_every_lease_from_before_is_over() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("max_ttl=2s")).await;
    let asked = now();
    let outcome = ours.lock("x").ttl(MAX_TTL).try_acquire().await;
    let mut words: Vec<&str> = nodes.0.iter().map(|node| node.shown.as_str()).collect();
    words.extend(["0 of 3 nodes answered", "only, and votes after 2.0s"]);
    let error = fails(outcome, &ErrorKind::Unreachable, &words);
    // Two that do not vote are enough to know.
    assert!(error.to_string().matches("votes after 2.0s").count() >= 2, "{error}");
    // They do after a while, and who waits is there then.
    let guard = ours.lock("x").ttl(MAX_TTL).acquire_within(SOON).await.unwrap();
    assert!(now().since(asked) > MAX_TTL / 2, "a fresh node voted");

    // A majority forgets it. Its holder is gone as well, so its lease is all that protects it.
    let (token, deadline) = (guard.token(), guard.deadline());
    let _owner = guard.detach();
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    assert_eq!(nodes.with("x"), 1);
    let next = theirs.lock("x").ttl(MAX_TTL).acquire_within(SOON).await.unwrap();
    assert!(
        now() >= deadline,
        "granted {:?} before the first lease was over",
        deadline.since(now())
    );
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// With the holder alive: it is told at its renewal that a majority no longer knows it.
#[tokio::test]
async fn a_holder_that_a_majority_has_forgotten_is_told() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(Duration::from_millis(1500)).acquire().await.unwrap();
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    let cause = fencepost_testkit::within(SOON, "it is told", guard.lost()).await;
    assert_eq!(cause, fencepost::LossCause::Expired);
}

/// The control, and what `restarted=vote` says: it is for nodes that keep their data.
#[tokio::test]
async fn without_that_rule_there_would_be_two_holders() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let first = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    let second = theirs.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    assert!(first.check().is_ok(), "the first has not heard of it yet");
    assert!(second.token() > first.token(), "{} after {}", second.token(), first.token());
}
