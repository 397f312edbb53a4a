//! Faults of an etcd cluster: a lost leader, member, quorum, lease or login. Against real servers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod breaks;
mod common;
mod compaction;
mod elections;
mod frozen;
mod layout;
mod login;
mod lost_connections;
mod manual_intervention;
mod members;
mod names;
mod outages;
mod records;
mod stubs;
mod superseded_leader;
mod waiting;
