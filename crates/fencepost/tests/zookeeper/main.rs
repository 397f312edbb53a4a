//! What is specific to ZooKeeper: sessions, nodes that other clients see, ensembles. Against real servers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod addresses;
mod breaks;
mod common;
mod elections;
mod ensemble;
mod frozen;
mod layout;
mod lease_only;
mod leftovers;
mod lost_connections;
mod lost_replies;
mod manual_intervention;
mod members;
mod nodes;
mod outages;
mod raw_client;
mod records;
mod regressions;
mod sessions;
mod short_sessions;
mod timely_loss;
mod waiting;
