//! What only ZooKeeper has: sessions, nodes that others see, ensembles. Against real servers.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "zookeeper/addresses.rs"]
mod addresses;
#[path = "zookeeper/common.rs"]
mod common;
#[path = "zookeeper/cuts.rs"]
mod cuts;
#[path = "zookeeper/members.rs"]
mod members;
#[path = "zookeeper/mended.rs"]
mod mended;
#[path = "zookeeper/nodes.rs"]
mod nodes;
#[path = "zookeeper/scripts.rs"]
mod scripts;
#[path = "zookeeper/sessions.rs"]
mod sessions;
