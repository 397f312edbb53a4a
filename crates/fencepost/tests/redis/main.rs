//! Faults of a Redis server: crashes, data loss, freezes, clock jumps, refusals. Against a real one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod addresses;
mod breaks;
mod clocks;
mod correctness;
mod crashes;
mod delayed_requests;
mod elections;
mod errors;
mod failover;
mod layout;
mod leftovers;
mod limits;
mod lost_connections;
mod records;
mod regressions;
mod reordered_requests;
mod waiting;
