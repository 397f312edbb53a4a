//! Some nodes fail. Up to (N - 1) / 2 failures go unnoticed; one more is reported as an outage.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Mode, SOON, connect, fails, ms, nothing_is_left, now, two, until, within,
};

use crate::{Node, Nodes};

/// Far less than the timeout of a hanging node, and enough for a busy machine.
const MAX_CALL_TIME: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Its process is gone.
    Dead,
    /// It accepts connections and requests, and does nothing.
    Stopped,
    /// Its network drops everything.
    Silent,
    /// It replies late.
    Slow(Duration),
    /// It was restarted without its data.
    Emptied,
}

impl Node {
    fn inject(&self, fault: Fault) {
        match fault {
            Fault::Dead => self.server.kill().unwrap(),
            Fault::Stopped => self.server.stop().unwrap(),
            Fault::Silent => self.proxy.set_mode(Mode::Silent),
            Fault::Slow(by) => self.proxy.set_mode(Mode::Delay(by)),
            Fault::Emptied => self.server.restart().unwrap(),
        }
    }

    fn heal(&self, fault: Fault) {
        match fault {
            Fault::Dead => self.server.start_again().unwrap(),
            Fault::Stopped => self.server.resume().unwrap(),
            Fault::Silent | Fault::Slow(_) => self.proxy.set_mode(Mode::Pass),
            Fault::Emptied => {}
        }
    }
}

async fn minority_fault_is_tolerated(fault: Fault) {
    let nodes = Nodes::start(5);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let guard = ours.lock("held").ttl(ms(2000)).wait_timeout(SOON).acquire().await.unwrap();
    let mut highest = guard.token();
    nodes.0.iter().take(2).for_each(|node| node.inject(fault));
    // First before the client has noticed the failure, then after.
    for _ in 0..2 {
        let asked = now();
        let other = theirs.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert!(ours.lock("x").try_acquire().await.unwrap().is_none(), "{fault:?}");
        other.release().await.unwrap();
        let took = now().since(asked);
        assert!(took < MAX_CALL_TIME, "{fault:?}: it took {took:?}");
        assert!(other_is_higher(&mut highest, &theirs).await, "{fault:?}");
        let before = guard.deadline();
        until("the guard is renewed", async || guard.deadline() > before).await;
    }
    assert!(theirs.lock("held").try_acquire().await.unwrap().is_none(), "{fault:?}");
    assert!(guard.check().is_ok(), "{fault:?}");
    within(MAX_CALL_TIME, "it is released", guard.release()).await.unwrap();
    nodes.0.iter().take(2).for_each(|node| node.heal(fault));
    for name in ["x", "held"] {
        nothing_is_left(&theirs, name).await;
        until("no node has a key of it", async || nodes.with(name) == 0).await;
    }
}

/// Tokens of one name rise, whichever nodes form the majority.
async fn other_is_higher(highest: &mut fencepost::Token, client: &fencepost::Fencepost) -> bool {
    let guard = client.lock("rising").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    let higher = guard.token() > *highest;
    *highest = guard.token();
    guard.release().await.unwrap();
    higher
}

#[tokio::test]
async fn two_of_five_may_be_dead() {
    minority_fault_is_tolerated(Fault::Dead).await;
}

#[tokio::test]
async fn two_of_five_may_be_frozen() {
    minority_fault_is_tolerated(Fault::Stopped).await;
}

#[tokio::test]
async fn two_of_five_may_be_partitioned() {
    minority_fault_is_tolerated(Fault::Silent).await;
}

#[tokio::test]
async fn two_of_five_may_be_slow() {
    minority_fault_is_tolerated(Fault::Slow(ms(100))).await;
}

#[tokio::test]
async fn two_of_five_may_be_slower_than_the_timeout() {
    minority_fault_is_tolerated(Fault::Slow(LONG)).await;
}

#[tokio::test]
async fn two_of_five_may_have_lost_their_data() {
    minority_fault_is_tolerated(Fault::Emptied).await;
}

/// node-redlock#284, #288: contention and outage looked alike. And no call may exceed its limit.
async fn majority_fault_is_an_outage(fault: Fault, state: &str) {
    let nodes = Nodes::start(5);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    nothing_is_left(&ours, "x").await;
    nodes.0.iter().take(3).for_each(|node| node.inject(fault));
    let (asked, limit) = (now(), ms(500));
    let outcome = ours.lock("x").ttl(LONG).wait_timeout(limit).acquire().await;
    let took = now().since(asked);
    assert!(took < limit + MAX_CALL_TIME, "{fault:?}: it took {took:?} to give up");
    fails(outcome, ErrorKind::Unreachable, &["\"x\""]);
    // The votes on the other two are undone without waiting for the three.
    until("no vote is left", async || {
        nodes.0.iter().skip(3).all(|node| !fencepost_testkit::has(&node.server, "x"))
    })
    .await;
    let asked = now();
    let tried = ours.lock("x").ttl(LONG).try_acquire().await;
    let took = now().since(asked);
    assert!(took < MAX_CALL_TIME, "{fault:?}: it took {took:?} to give up");
    fails(tried, ErrorKind::Unreachable, &[&names(&nodes)[..], &[state]].concat());

    nodes.0.iter().take(3).for_each(|node| node.heal(fault));
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client closes", ours.close()).await;
    until("no node has a key of it", async || nodes.with("x") == 0).await;
}

/// The words of an error that names every node.
fn names(nodes: &Nodes) -> Vec<&str> {
    let named = nodes.0.iter().map(|node| node.shown.as_str());
    named.chain(["\"x\" cannot be locked", "of 5 nodes answered", "3 are needed"]).collect()
}

#[tokio::test]
async fn three_of_five_dead_are_an_outage() {
    majority_fault_is_an_outage(Fault::Dead, "Connection re").await;
}

#[tokio::test]
async fn three_of_five_frozen_are_an_outage() {
    majority_fault_is_an_outage(Fault::Stopped, "no answer within 500ms").await;
}

#[tokio::test]
async fn three_of_five_partitioned_are_an_outage() {
    majority_fault_is_an_outage(Fault::Silent, "no answer within 500ms").await;
}

/// A failed wait reports as much as a failed try.
#[tokio::test]
async fn wait_for_hanging_nodes_names_them() {
    let nodes = Nodes::start(5);
    let client = connect(&nodes.url("restarted=vote")).await;
    nodes.0.iter().take(3).for_each(|node| node.inject(Fault::Silent));
    let outcome = client.lock("x").ttl(LONG).wait_timeout(ms(1200)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &names(&nodes));
}

/// An operator inspects and breaks when something is wrong: two of three nodes reply at once.
#[tokio::test]
async fn inspect_and_break_do_not_wait_for_a_hanging_node() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    nodes.0[0].inject(Fault::Stopped);
    let asked = now();
    let shown = theirs.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(guard.token()));
    assert_eq!(theirs.list().await.unwrap().len(), 1);
    assert!(theirs.break_lock("x").await.unwrap().is_some());
    let took = now().since(asked);
    assert!(took < MAX_CALL_TIME, "it took {took:?}");
}

/// P4 and P5 for a holder: if a majority stays unreachable, the guard is lost in time; if it returns in time, nothing
/// is lost.
#[tokio::test]
async fn guard_survives_a_short_outage_of_the_majority_and_is_lost_in_a_long_one() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(ms(2000)).wait_timeout(SOON).acquire().await.unwrap();
    let silence = |mode| nodes.0.iter().take(2).for_each(|node| node.proxy.set_mode(mode));
    let failing = async |guard: &fencepost::Guard| {
        let mut changes = guard.changes();
        within(SOON, "renewals fail", async {
            while changes.next().await.0 != fencepost::GuardStatus::RenewalFailing {}
        })
        .await;
    };
    silence(Mode::Silent);
    failing(&guard).await;
    assert!(guard.check().is_ok(), "failing renewals are not yet a loss");
    silence(Mode::Pass);
    let before = guard.deadline();
    until("it is renewed again", async || guard.deadline() > before).await;
    silence(Mode::Silent);
    let cause = within(SOON, "the guard is lost", guard.lost()).await;
    assert_eq!(cause, fencepost::LossCause::StoreUnreachable);
    silence(Mode::Pass);
    drop(guard);
    nothing_is_left(&client, "x").await;
}

/// A client connects to its servers one by one: missing ones are used when they are back.
#[tokio::test]
async fn client_connects_to_a_majority_and_not_to_less() {
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    nodes.0[0].inject(Fault::Dead);
    let client = connect(&url).await;
    nothing_is_left(&client, "x").await;
    nodes.0[1].inject(Fault::Dead);
    let words = [&*nodes.0[0].shown, &nodes.0[1].shown, "1 of 3 nodes answered", "2 are needed"];
    fails(fencepost_testkit::try_connect(&url).await, ErrorKind::Unreachable, &words);
    // The node that was missing at first is needed now.
    nodes.0[0].heal(Fault::Dead);
    until("it is found", async || client.inspect("x").await.is_ok()).await;
    nothing_is_left(&client, "x").await;
}
