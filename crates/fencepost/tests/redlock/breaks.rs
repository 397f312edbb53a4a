//! A break on several nodes: each notifies the holder, and its renewal on a majority decides.

use fencepost::guarantees::{Fault, Holds};
use fencepost::{Fencepost, Guard, LossCause};
use fencepost_testkit::{LONG, Mode, Redis, SOON, connect, has, two, until, within};

use crate::{Node, Nodes};

const CHANNEL: &str = "fencepost:wake:broken:0:";

impl Nodes {
    /// The number of nodes on which a client listens to breaks.
    fn listening(&self) -> usize {
        let listens = |node: &&Node| {
            let reply = node.server.command(&["PUBSUB", "NUMSUB", CHANNEL]).unwrap();
            reply.items().unwrap()[1].int().unwrap() > 0
        };
        self.0.iter().filter(listens).count()
    }
}

/// A guard that is on every node, and whose client listens on all of them.
async fn held(client: &Fencepost, nodes: &Nodes) -> Guard {
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    until("its client listens", async || nodes.listening() == nodes.0.len()).await;
    until("every node has it", async || nodes.with("x") == nodes.0.len()).await;
    guard
}

#[tokio::test]
async fn broken_holder_is_notified_by_a_majority_and_confirms() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    for away in [None, Some(0), Some(2)] {
        let guard = held(&ours, &nodes).await;
        if let Some(away) = away {
            nodes.0[away].proxy.set_mode(Mode::Silent);
        }
        let broken = theirs.break_lock("x").await.unwrap().expect("it was held");
        assert_eq!((broken.token, broken.confirmed), (Some(guard.token()), true), "{away:?}");
        assert_eq!(within(SOON, "it is lost", guard.lost()).await, LossCause::Broken);
        if let Some(away) = away {
            nodes.0[away].proxy.set_mode(Mode::Pass);
        }
        drop(guard);
        until("no node has it", async || nodes.with("x") == 0).await;
    }
}

/// One node reports a break wrongly: the majority decides.
#[tokio::test]
async fn notification_of_one_node_only_renews() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = held(&client, &nodes).await;
    let before = guard.deadline();
    nodes.0[1].server.command(&["DEL", "x"]).unwrap();
    let message = format!("{} x", guard.token());
    nodes.0[1].server.command(&["PUBLISH", CHANNEL, &message]).unwrap().int().unwrap();
    until("it is renewed", async || guard.deadline() > before).await;
    guard.check().unwrap();
}

/// A node forgets its last token when its clock has passed it by the retention. If that clock is then set back, the
/// time does not help either; the table declares it.
#[tokio::test]
async fn clocks_ahead_past_the_retention_lower_tokens_as_declared() {
    const HOUR: i64 = 3600;
    let nodes = Nodes((0..3).map(|_| Node::start(&Redis::builder().faketime())).collect());
    let client = connect(&nodes.url("restarted=vote&retention=1s")).await;
    let set =
        |seconds| nodes.0.iter().for_each(|node| node.server.set_clock_offset(seconds).unwrap());
    set(2 * HOUR);
    let guard = client.lock("x").wait_timeout(SOON).acquire().await.unwrap();
    let ahead = guard.token();
    guard.release().await.unwrap();
    until("the last tokens are over", async || {
        nodes.0.iter().all(|node| !has(&node.server, "fencepost:lock:{x}"))
    })
    .await;
    set(0);
    let fallen = client.lock("x").wait_timeout(SOON).acquire().await.unwrap().token();
    assert!(fallen < ahead, "{fallen} after {ahead}: then the table is too modest");
    let rows = client.guarantees();
    for fault in [Fault::ClockJump, Fault::Failover] {
        let (_, kept) = rows.rows().find(|(under, _)| *under == fault).unwrap();
        assert_eq!(kept.tokens, Holds::No, "the table says that tokens rise");
    }
}
