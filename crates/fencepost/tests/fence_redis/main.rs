//! The fence in Redis: what is specific to Redis. What all fences share is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod cluster;
mod commands;
mod common;
mod layout;
mod retention;
mod script;
