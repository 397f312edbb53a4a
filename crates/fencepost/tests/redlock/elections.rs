//! Elections on several nodes: the shown value belongs to the shown leader, though not every node has its newest
//! value.

use fencepost::backend::{Acquired, GrantId, Request};
use fencepost::bounded_store::Wait;
use fencepost::{ErrorKind, Label, LockName, OwnerId, Ttl};
use fencepost_testkit::elections::{
    campaigns, leads, lost_leader_cannot_change_the_value, one_leads_after_the_other,
    renewals_keep_the_value, value_of_leader,
};
use fencepost_testkit::{LONG, Mode, Proxy, connect, fails, ms, two, until};

use crate::Nodes;

#[tokio::test]
async fn leaders_follow_each_other_with_their_own_values() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    one_leads_after_the_other(&ours, &theirs).await;
    until("nothing of it is left", async || nodes.with("fencepost:value:{e}") == 0).await;
}

#[tokio::test]
async fn renewal_keeps_the_value() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    renewals_keep_the_value(&ours, &theirs, ms(3000)).await;
}

#[tokio::test]
async fn deposed_leader_has_no_value() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    lost_leader_cannot_change_the_value(&ours, &theirs).await;
}

/// Two of three nodes have the newest value: any two nodes show it.
#[tokio::test]
async fn newest_value_of_a_majority_is_shown() {
    let nodes = Nodes::start(3);
    let ours = connect(&nodes.url("restarted=vote")).await;
    let leadership = leads(campaigns(&ours, "e", b"first", LONG)).await;
    until("every node has it", async || nodes.with("fencepost:value:{e}") == 3).await;
    nodes.0[2].proxy.set_mode(Mode::Silent);
    leadership.proclaim("last").await.unwrap();
    let hosts: Vec<_> = nodes.0.iter().map(|node| node.server.address().to_string()).collect();
    // Observers have connections of their own; each reaches the silent node and one of the others.
    for pair in [[0, 2], [1, 2]] {
        let url = format!("redlock://{},{}?restarted=vote", hosts[pair[0]], hosts[pair[1]]);
        let observer = connect(&url).await;
        assert_eq!(
            value_of_leader(&observer, "e").await.as_deref(),
            Some(&b"last"[..]),
            "{pair:?}"
        );
    }
}

/// The same for a refused candidate, though the node with the older value replies last.
#[tokio::test]
async fn refused_candidate_sees_the_newest_value() {
    let nodes = Nodes::start(3);
    let ours = connect(&nodes.url("restarted=vote")).await;
    let leadership = leads(campaigns(&ours, "e", b"first", LONG)).await;
    until("every node has it", async || nodes.with("fencepost:value:{e}") == 3).await;
    nodes.0[2].proxy.set_mode(Mode::Silent);
    leadership.proclaim("last").await.unwrap();
    let lines = nodes.0.iter().map(|node| Proxy::to(node.server.address()).unwrap());
    let lines: Vec<_> = lines.collect();
    let hosts: Vec<_> = lines.iter().map(|line| line.address().to_string()).collect();
    let theirs = connect(&format!("redlock://{}?restarted=vote", hosts.join(","))).await;
    lines[2].set_mode(Mode::Delay(ms(100)));
    lines[1].set_mode(Mode::Delay(ms(400)));
    // Through the store: the one try of a lock has less time, and a busy machine needs more.
    let grant = GrantId { name: LockName::new("e").unwrap(), owner: OwnerId::from_bits(1) };
    let request = Request::new(grant, Ttl::new(LONG).unwrap(), Label::new("late").unwrap());
    let refused = theirs.store().acquire(&request, Wait::No).await.unwrap().value;
    let Acquired::Held(Some(holder)) = refused else { panic!("{refused:?}") };
    assert_eq!(holder.value.as_ref().unwrap().as_bytes(), b"last");
    leadership.check().unwrap();
}

#[tokio::test]
async fn records_are_refused_with_the_alternative() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let words = ["redlock", "no records", "synced redis:"];
    fails(client.once("k").begin().await, ErrorKind::Refused, &words);
    fails(client.once("k").may_repeat().begin().await, ErrorKind::Refused, &words);
    fails(client.once_records().await, ErrorKind::Refused, &words);
}
