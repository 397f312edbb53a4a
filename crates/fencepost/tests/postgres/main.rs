//! Faults of a PostgreSQL server: crashes, freezes, terminated sessions, missing rights, failovers. Against a real
//! one.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod addresses;
mod breaks;
mod common;
mod connect_existing;
mod correctness;
mod crashes;
mod delayed_requests;
mod done_in;
mod elections;
mod layout;
mod limits;
mod planted_objects;
mod records;
mod schema;
mod sessions;
mod token_order;
mod versions;
