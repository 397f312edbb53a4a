//! The keys are those of a single server (`docs/layouts/redlock.md`); an older layout on a majority is refused.

use fencepost::ErrorKind;
use fencepost_testkit::{connect, fails, ms};

use crate::Nodes;

const PAGE: &str = include_str!("../../../../docs/layouts/redlock.md");
/// The state of a lock in layout 1.
const LAYOUT_1: &str = "1795052632000041 0 - - 0 0 web-1";

#[tokio::test]
async fn older_layout_on_a_majority_is_refused_and_unchanged() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let plant = |node: &crate::Node| {
        node.server.command(&["SET", "fencepost:record:x", LAYOUT_1]).unwrap().text().unwrap();
    };
    nodes.0[..2].iter().for_each(plant);
    let said = ["layout 1", "layout 2", "docs/layouts/redis.md", "above 1795052632000041"];
    fails(client.lock("x").try_acquire().await, ErrorKind::Refused, &said);
    for node in &nodes.0[..2] {
        let keys = node.server.command(&["KEYS", "*"]).unwrap();
        let keys = keys.items().unwrap().iter().map(|key| key.text().unwrap());
        let keys: Vec<_> = keys.filter(|key| !key.contains(":withdrawn:")).collect();
        assert_eq!(keys, ["fencepost:record:x"], "only the withdrawal of the attempt is written");
    }
}

/// A value with OWNER for an owner id and MICROS for a time.
fn masked(value: &str) -> String {
    let mask = |word: &str| match word.len() {
        32 if word.chars().all(|it| it.is_ascii_hexdigit()) => "OWNER".to_owned(),
        16 if word.parse::<u64>().is_ok() => "MICROS".to_owned(),
        _ => word.to_owned(),
    };
    let words: Vec<_> = value
        .split(' ')
        .map(|word| word.split(':').map(mask).collect::<Vec<_>>().join(":"))
        .collect();
    words.join(" ")
}

/// The page, the code and real servers agree.
#[tokio::test]
async fn keys_match_the_page() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let guard = client.lock("orders/7").label("web-1").ttl(ms(30_000)).acquire().await.unwrap();
    for key in ["orders/7", "fencepost:lock:{orders/7}"] {
        let line = PAGE.lines().find_map(|line| line.strip_prefix(&format!("GET {key} "))).unwrap();
        // A majority has it.
        let values = nodes.0.iter().map(|node| node.server.command(&["GET", key]).unwrap());
        let mut values = values.filter_map(|value| value.text().ok());
        let value = values.find(|value| value.contains(&guard.owner().reveal())).unwrap();
        assert_eq!(masked(&value), masked(line.trim().trim_matches('"')), "{key}");
    }
    guard.release().await.unwrap();
}

/// Nodes with the present layout decide without the node that has an older one.
#[tokio::test]
async fn one_node_of_an_older_layout_does_not_stop_the_others() {
    let nodes = Nodes::start(3);
    let client = connect(&nodes.url("restarted=vote")).await;
    let server = &nodes.0[0].server;
    server.command(&["SET", "fencepost:record:x", LAYOUT_1]).unwrap().text().unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!((nodes.with("x"), nodes.with("fencepost:lock:{x}")), (2, 2));
    guard.release().await.unwrap();
}
