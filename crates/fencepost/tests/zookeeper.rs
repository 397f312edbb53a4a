//! What only ZooKeeper has: sessions, nodes that others see, ensembles. Against real servers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "zookeeper/addresses.rs"]
mod addresses;
#[path = "zookeeper/breaks.rs"]
mod breaks;
#[path = "zookeeper/common.rs"]
mod common;
#[path = "zookeeper/cuts.rs"]
mod cuts;
#[path = "zookeeper/drains.rs"]
mod drains;
#[path = "zookeeper/elections.rs"]
mod elections;
#[path = "zookeeper/ensemble.rs"]
mod ensemble;
#[path = "zookeeper/frozen.rs"]
mod frozen;
#[path = "zookeeper/hands.rs"]
mod hands;
#[path = "zookeeper/lines.rs"]
mod lines;
#[path = "zookeeper/members.rs"]
mod members;
#[path = "zookeeper/mended.rs"]
mod mended;
#[path = "zookeeper/nodes.rs"]
mod nodes;
#[path = "zookeeper/outages.rs"]
mod outages;
#[path = "zookeeper/raw.rs"]
mod raw;
#[path = "zookeeper/records.rs"]
mod records;
#[path = "zookeeper/scripts.rs"]
mod scripts;
#[path = "zookeeper/sessions.rs"]
mod sessions;
#[path = "zookeeper/told_in_time.rs"]
mod told_in_time;
#[path = "zookeeper/ttls.rs"]
mod ttls;
