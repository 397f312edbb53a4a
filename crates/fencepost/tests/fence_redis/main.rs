//! The fence in a Redis: what is Redis's own. What all fences have in common is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod cluster;
mod commands;
mod common;
mod keeping;
mod script;
