//! What only an etcd cluster can do to us: lose its leader, a member, its quorum, our lease, our login. Against
//! real ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "etcd/common.rs"]
mod common;
#[path = "etcd/hands.rs"]
mod hands;
#[path = "etcd/members.rs"]
mod members;
#[path = "etcd/outages.rs"]
mod outages;
#[path = "etcd/superseded.rs"]
mod superseded;
