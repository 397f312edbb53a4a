//! The fence in a PostgreSQL database: what is specific to PostgreSQL. What all fences share is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;
mod enter;
mod exclusion;
mod install;
mod protect;
mod rows;
mod settings;
mod snapshots;
