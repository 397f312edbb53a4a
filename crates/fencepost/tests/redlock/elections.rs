//! Elections on several nodes: what is shown belongs to the leader that is shown, though not every node has
//! heard its last word.

use fencepost::ErrorKind;
use fencepost_testkit::elections::{
    a_deposed_leader_is_not_heard, campaigns, leads, one_leads_after_the_other,
    renewals_keep_the_words, said,
};
use fencepost_testkit::{LONG, Mode, Proxy, connect, fails, ms, two, until};

use crate::Nodes;

#[tokio::test]
async fn one_leads_after_the_other_and_says_its_own() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    one_leads_after_the_other(&ours, &theirs).await;
    until("nothing of it is left", async || nodes.with("fencepost:value:e") == 0).await;
}

#[tokio::test]
async fn renewals_leave_what_was_said() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    renewals_keep_the_words(&ours, &theirs, ms(3000)).await;
}

#[tokio::test]
async fn a_leader_that_was_deposed_is_not_heard() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    a_deposed_leader_is_not_heard(&ours, &theirs).await;
}

/// Two of three have heard the last word: whichever two are asked, that is what is shown.
#[tokio::test]
async fn the_last_word_of_a_majority_is_shown() {
    let nodes = Nodes::start(3);
    let ours = connect(&nodes.url("restarted=vote")).await;
    let leadership = leads(campaigns(&ours, "e", b"first", LONG)).await;
    until("all have heard of it", async || nodes.with("fencepost:value:e") == 3).await;
    nodes.0[2].proxy.set_mode(Mode::Silent);
    leadership.proclaim("last").await.unwrap();
    let hosts: Vec<_> = nodes.0.iter().map(|node| node.server.address().to_string()).collect();
    // Observers have lines of their own; each knows the silent node and one of the others.
    for pair in [[0, 2], [1, 2]] {
        let url = format!("redlock://{},{}?restarted=vote", hosts[pair[0]], hosts[pair[1]]);
        let observer = connect(&url).await;
        assert_eq!(said(&observer, "e").await.as_deref(), Some(&b"last"[..]), "{pair:?}");
    }
}

/// The same for one that came in vain, though the node that has not heard it answers last.
#[tokio::test]
async fn one_that_is_refused_is_told_the_last_word() {
    let nodes = Nodes::start(3);
    let ours = connect(&nodes.url("restarted=vote")).await;
    let leadership = leads(campaigns(&ours, "e", b"first", LONG)).await;
    until("all have heard of it", async || nodes.with("fencepost:value:e") == 3).await;
    nodes.0[2].proxy.set_mode(Mode::Silent);
    leadership.proclaim("last").await.unwrap();
    let lines = nodes.0.iter().map(|node| Proxy::to(node.server.address()).unwrap());
    let lines: Vec<_> = lines.collect();
    let hosts: Vec<_> = lines.iter().map(|line| line.address().to_string()).collect();
    let theirs = connect(&format!("redlock://{}?restarted=vote", hosts.join(","))).await;
    lines[2].set_mode(Mode::Delay(ms(100)));
    lines[1].set_mode(Mode::Delay(ms(400)));
    let refused = theirs.lock("e").ttl(LONG).acquire_within(ms(0)).await.unwrap_err();
    let ErrorKind::Held(Some(holder)) = refused.kind() else { panic!("{refused}") };
    assert_eq!(holder.value.as_ref().unwrap().as_bytes(), b"last");
    leadership.check().unwrap();
}

#[tokio::test]
async fn records_are_refused_with_a_word_on_where_to_turn() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let words = ["redlock", "no records", "synced redis:"];
    fails(client.once("k").begin().await, &ErrorKind::Refused, &words);
    fails(client.once("k").may_repeat().begin().await, &ErrorKind::Refused, &words);
    fails(client.once_entries().await, &ErrorKind::Refused, &words);
}
