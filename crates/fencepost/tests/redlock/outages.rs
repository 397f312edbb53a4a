//! Some nodes are gone. Up to (N - 1) / 2 of them nobody should notice; one more is an outage, told as such.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Mode, SOON, connect, fails, ms, nothing_is_left, now, two, until, within,
};

use crate::{Node, Nodes};

/// Far less than a node that hangs would take, and enough for a busy machine.
const BOUND: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Its process is gone.
    Dead,
    /// It takes connections and requests, and does nothing.
    Stopped,
    /// Its network swallows everything.
    Silent,
    /// It answers, late.
    Slow(Duration),
    /// It was restarted, and has forgotten everything.
    Emptied,
}

impl Node {
    fn strike(&self, fault: Fault) {
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

async fn is_borne_by_a_majority(fault: Fault) {
    let nodes = Nodes::start(5);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let guard = ours.lock("held").ttl(ms(2000)).acquire_within(SOON).await.unwrap();
    let mut highest = guard.token();
    nodes.0.iter().take(2).for_each(|node| node.strike(fault));
    // At first they are not known to be gone; then they are.
    for _ in 0..2 {
        let asked = now();
        let other = theirs.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        assert!(ours.lock("x").try_acquire().await.unwrap().is_none(), "{fault:?}");
        other.release().await.unwrap();
        let took = now().since(asked);
        assert!(took < BOUND, "{fault:?}: it took {took:?}");
        assert!(other_is_higher(&mut highest, &theirs).await, "{fault:?}");
        let before = guard.deadline();
        until("the guard is renewed", async || guard.deadline() > before).await;
    }
    assert!(theirs.lock("held").try_acquire().await.unwrap().is_none(), "{fault:?}");
    assert!(guard.check().is_ok(), "{fault:?}");
    within(BOUND, "it is released", guard.release()).await.unwrap();
    nodes.0.iter().take(2).for_each(|node| node.heal(fault));
    for name in ["x", "held"] {
        nothing_is_left(&theirs, name).await;
        until("no node has a key of it", async || nodes.with(name) == 0).await;
    }
}

/// Tokens of one name rise, whichever nodes make up the majority.
async fn other_is_higher(highest: &mut fencepost::Token, client: &fencepost::Fencepost) -> bool {
    let guard = client.lock("rising").ttl(LONG).acquire_within(SOON).await.unwrap();
    let higher = guard.token() > *highest;
    *highest = guard.token();
    guard.release().await.unwrap();
    higher
}

#[tokio::test]
async fn two_of_five_may_be_dead() {
    is_borne_by_a_majority(Fault::Dead).await;
}

#[tokio::test]
async fn two_of_five_may_stand_still() {
    is_borne_by_a_majority(Fault::Stopped).await;
}

#[tokio::test]
async fn two_of_five_may_be_cut_off() {
    is_borne_by_a_majority(Fault::Silent).await;
}

#[tokio::test]
async fn two_of_five_may_be_slow() {
    is_borne_by_a_majority(Fault::Slow(ms(100))).await;
}

#[tokio::test]
async fn two_of_five_may_be_slower_than_anybody_would_wait() {
    is_borne_by_a_majority(Fault::Slow(LONG)).await;
}

#[tokio::test]
async fn two_of_five_may_have_forgotten_everything() {
    is_borne_by_a_majority(Fault::Emptied).await;
}

/// node-redlock#284, #288: contention and outage looked alike. And nobody may wait longer than it said.
async fn is_an_outage_if_it_hits_three(fault: Fault, state: &str) {
    let nodes = Nodes::start(5);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    nothing_is_left(&ours, "x").await;
    nodes.0.iter().take(3).for_each(|node| node.strike(fault));
    let (asked, limit) = (now(), ms(500));
    let outcome = ours.lock("x").ttl(LONG).acquire_within(limit).await;
    let took = now().since(asked);
    assert!(took < limit + BOUND, "{fault:?}: it took {took:?} to give up");
    fails(outcome, &ErrorKind::Unreachable, &["\"x\""]);
    // What was voted for on the other two is taken back without waiting for the three.
    until("no vote is left", async || {
        nodes.0.iter().skip(3).all(|node| !fencepost_testkit::has(&node.server, "x"))
    })
    .await;
    let asked = now();
    let tried = ours.lock("x").ttl(LONG).try_acquire().await;
    let took = now().since(asked);
    assert!(took < BOUND, "{fault:?}: it took {took:?} to give up");
    fails(tried, &ErrorKind::Unreachable, &[&names(&nodes)[..], &[state]].concat());

    nodes.0.iter().take(3).for_each(|node| node.heal(fault));
    nothing_is_left(&theirs, "x").await;
    within(SOON, "the client settles everything", ours.close()).await;
    until("no node has a key of it", async || nodes.with("x") == 0).await;
}

/// What an error says that names every node.
fn names(nodes: &Nodes) -> Vec<&str> {
    let named = nodes.0.iter().map(|node| node.shown.as_str());
    named.chain(["\"x\" can not be locked", "of 5 nodes answered", "3 are needed"]).collect()
}

#[tokio::test]
async fn three_of_five_dead_are_an_outage() {
    is_an_outage_if_it_hits_three(Fault::Dead, "Connection re").await;
}

#[tokio::test]
async fn three_of_five_that_stand_still_are_an_outage() {
    is_an_outage_if_it_hits_three(Fault::Stopped, "no answer within 500ms").await;
}

#[tokio::test]
async fn three_of_five_that_are_cut_off_are_an_outage() {
    is_an_outage_if_it_hits_three(Fault::Silent, "no answer within 500ms").await;
}

/// Whoever waited to no avail is told as much as who only tried.
#[tokio::test]
async fn who_waited_for_nodes_that_hang_is_told_which() {
    let nodes = Nodes::start(5);
    let client = connect(&nodes.url("restarted=vote")).await;
    nodes.0.iter().take(3).for_each(|node| node.strike(Fault::Silent));
    let outcome = client.lock("x").ttl(LONG).acquire_within(ms(1200)).await;
    fails(outcome, &ErrorKind::Unreachable, &names(&nodes));
}

/// An operator looks, and breaks, when something is wrong: two of three answer at once.
#[tokio::test]
async fn looking_and_breaking_do_not_wait_for_a_node_that_hangs() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    nodes.0[0].strike(Fault::Stopped);
    let asked = now();
    let shown = theirs.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(shown.token, Some(guard.token()));
    assert_eq!(theirs.list().await.unwrap().len(), 1);
    assert!(theirs.break_lock("x").await.unwrap().is_some());
    let took = now().since(asked);
    assert!(took < BOUND, "it took {took:?}");
}

/// P4 and P5 for a holder: a majority that can not be reached is told in time, and one that comes back in
/// time loses nothing.
#[tokio::test]
async fn a_holder_bears_a_short_outage_of_the_majority_and_is_told_of_a_long_one() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("x").ttl(ms(2000)).acquire_within(SOON).await.unwrap();
    let silence = |mode| nodes.0.iter().take(2).for_each(|node| node.proxy.set_mode(mode));
    let failing = async |guard: &fencepost::Guard| {
        let mut changes = guard.changes();
        within(SOON, "renewals fail", async {
            while changes.next().await.0 != fencepost::GuardState::RenewalFailing {}
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
    let cause = within(SOON, "it is told", guard.lost()).await;
    assert_eq!(cause, fencepost::LossCause::StoreUnreachable);
    silence(Mode::Pass);
    drop(guard);
    nothing_is_left(&client, "x").await;
}

/// A client finds its servers one by one: those that are missing when it comes are used when they are back.
#[tokio::test]
async fn a_client_connects_to_a_majority_and_not_to_less() {
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    nodes.0[0].strike(Fault::Dead);
    let client = connect(&url).await;
    nothing_is_left(&client, "x").await;
    nodes.0[1].strike(Fault::Dead);
    let words = [&*nodes.0[0].shown, &nodes.0[1].shown, "1 of 3 nodes answered", "2 are needed"];
    fails(fencepost_testkit::try_connect(&url).await, &ErrorKind::Unreachable, &words);
    // The one that was missing at first carries it now.
    nodes.0[0].heal(Fault::Dead);
    until("it is found", async || client.inspect("x").await.is_ok()).await;
    nothing_is_left(&client, "x").await;
}
