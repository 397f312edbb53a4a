//! What only a Redis server can do to us: crash, forget, stand still, leap in time, refuse. Against a real one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod addresses;
mod breaks;
mod clocks;
mod correctness;
mod crashes;
mod cuts;
mod elections;
mod errors;
mod failover;
mod late;
mod leftovers;
mod limits;
mod mended;
mod records;
mod reordered;
mod waiting;
