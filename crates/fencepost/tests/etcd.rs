//! What only an etcd cluster can do to us: lose its leader, a member, its quorum, our lease, our login. Against
//! real ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "etcd/breaks.rs"]
mod breaks;
#[path = "etcd/common.rs"]
mod common;
#[path = "etcd/elections.rs"]
mod elections;
#[path = "etcd/frozen.rs"]
mod frozen;
#[path = "etcd/hands.rs"]
mod hands;
#[path = "etcd/history.rs"]
mod history;
#[path = "etcd/lines.rs"]
mod lines;
#[path = "etcd/login.rs"]
mod login;
#[path = "etcd/members.rs"]
mod members;
#[path = "etcd/names.rs"]
mod names;
#[path = "support/records.rs"]
mod once;
#[path = "etcd/outages.rs"]
mod outages;
#[path = "etcd/records.rs"]
mod records;
#[path = "etcd/superseded.rs"]
mod superseded;
#[path = "support/elections.rs"]
mod vote;
