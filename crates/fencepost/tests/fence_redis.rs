//! The fence in a Redis: what is Redis's own. What all fences have in common is in `fences.rs`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "fence_redis/cluster.rs"]
mod cluster;
#[path = "fence_redis/commands.rs"]
mod commands;
#[path = "fence_redis/common.rs"]
mod common;
#[path = "fence_redis/keeping.rs"]
mod keeping;
#[path = "fence_redis/script.rs"]
mod script;
