//! What only a Redis server can do to us: crash, forget, stand still, leap in time, refuse. Against a real one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "redis/addresses.rs"]
mod addresses;
#[path = "redis/breaks.rs"]
mod breaks;
#[path = "redis/clocks.rs"]
mod clocks;
#[path = "redis/common.rs"]
mod common;
#[path = "redis/correctness.rs"]
mod correctness;
#[path = "redis/crashes.rs"]
mod crashes;
#[path = "redis/cuts.rs"]
mod cuts;
#[path = "redis/elections.rs"]
mod elections;
#[path = "redis/errors.rs"]
mod errors;
#[path = "redis/failover.rs"]
mod failover;
#[path = "redis/fork.rs"]
mod fork;
#[path = "redis/late.rs"]
mod late;
#[path = "redis/leftovers.rs"]
mod leftovers;
#[path = "redis/limits.rs"]
mod limits;
#[path = "redis/mended.rs"]
mod mended;
#[path = "support/records.rs"]
mod once;
#[path = "redis/records.rs"]
mod records;
#[path = "redis/reordered.rs"]
mod reordered;
#[path = "redis/valve.rs"]
mod valve;
#[path = "support/elections.rs"]
mod vote;
#[path = "redis/waiting.rs"]
mod waiting;
