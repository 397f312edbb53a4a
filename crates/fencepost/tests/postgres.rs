//! What only a PostgreSQL server can do to us: crash, stand still, end our sessions, refuse, follow another.
//! Against a real one.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

#[path = "postgres/addresses.rs"]
mod addresses;
#[path = "postgres/broken.rs"]
mod broken;
#[path = "postgres/common.rs"]
mod common;
#[path = "postgres/correctness.rs"]
mod correctness;
#[path = "postgres/crashes.rs"]
mod crashes;
#[path = "postgres/done_in.rs"]
mod done_in;
#[path = "postgres/elections.rs"]
mod elections;
#[path = "postgres/hammer.rs"]
mod hammer;
#[path = "postgres/late.rs"]
mod late;
#[path = "postgres/limits.rs"]
mod limits;
#[path = "postgres/looking.rs"]
mod looking;
#[path = "postgres/planted.rs"]
mod planted;
#[path = "postgres/records.rs"]
mod records;
#[path = "postgres/schema.rs"]
mod schema;
#[path = "postgres/sessions.rs"]
mod sessions;
#[path = "postgres/versions.rs"]
mod versions;
