//! What only an etcd cluster can do to us: lose its leader, a member, its quorum, our lease, our login. Against
//! real ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod breaks;
mod common;
mod elections;
mod frozen;
mod hands;
mod history;
mod lines;
mod login;
mod members;
mod names;
mod outages;
mod records;
mod stubs;
mod superseded;
