//! A node that restarted without its data does not know to whom it gave its key.
//!
//! redsync#149: one node after the other is restarted, each gives its key again, and there are two holders though a
//! majority was always up. So a node does not vote until every earlier lease has ended.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{LONG, SOON, connect, fails, now, two};

use crate::Nodes;

const MAX_TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn restarted_nodes_vote_only_after_every_earlier_lease() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("max_ttl=2s")).await;
    let asked = now();
    let outcome = ours.lock("x").ttl(MAX_TTL).try_acquire().await;
    let mut words: Vec<&str> = nodes.0.iter().map(|node| node.shown.as_str()).collect();
    words.extend(["0 of 3 nodes answered", "only, and votes after 2.0s"]);
    let error = fails(outcome, ErrorKind::Unreachable, &words);
    // Two nodes that do not vote decide the attempt.
    assert!(error.one_line().matches("votes after 2.0s").count() >= 2, "{error}");
    // They vote later, and a waiter is granted then.
    let guard = ours.lock("x").ttl(MAX_TTL).wait_timeout(SOON).acquire().await.unwrap();
    assert!(now().since(asked) > MAX_TTL / 2, "a fresh node voted");

    // A majority forgets the grant. Its holder is gone too, so only its lease protects it.
    let (token, deadline) = (guard.token(), guard.deadline());
    let _owner = guard.detach();
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    assert_eq!(nodes.with("x"), 1);
    let next = theirs.lock("x").ttl(MAX_TTL).wait_timeout(SOON).acquire().await.unwrap();
    assert!(
        now() >= deadline,
        "granted {:?} before the first lease was over",
        deadline.since(now())
    );
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// A living holder learns at its renewal that a majority has lost its grant.
#[tokio::test]
async fn guard_forgotten_by_a_majority_is_lost() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(Duration::from_millis(1500)).acquire().await.unwrap();
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    let cause = fencepost_testkit::within(SOON, "the guard is lost", guard.lost()).await;
    assert_eq!(cause, fencepost::LossCause::Expired);
}

/// Control: `restarted=vote` is for nodes that keep their data.
#[tokio::test]
async fn control_nodes_that_vote_at_once_grant_twice() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let first = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    nodes.0.iter().take(2).for_each(|node| node.server.restart().unwrap());
    let second = theirs.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert!(first.check().is_ok(), "the first does not know yet");
    assert!(second.token() > first.token(), "{} after {}", second.token(), first.token());
}
