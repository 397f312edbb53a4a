//! What only a PostgreSQL server can do to us: crash, stand still, end our sessions, refuse, follow another.
//! Against a real one.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod addresses;
mod broken;
mod common;
mod correctness;
mod crashes;
mod done_in;
mod elections;
mod hammer;
mod late;
mod limits;
mod looking;
mod planted;
mod records;
mod schema;
mod sessions;
mod versions;
