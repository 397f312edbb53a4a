//! The fence in a PostgreSQL database: what is PostgreSQL's own. What all fences have in common is in `fences.rs`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "fence_postgres/common.rs"]
mod common;
#[path = "fence_postgres/entering.rs"]
mod entering;
#[path = "fence_postgres/installing.rs"]
mod installing;
#[path = "fence_postgres/protected.rs"]
mod protected;
#[path = "fence_postgres/rows.rs"]
mod rows;
