//! The fence in a PostgreSQL database: what is PostgreSQL's own. What all fences have in common is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;
mod entering;
mod installing;
mod protected;
mod rows;
