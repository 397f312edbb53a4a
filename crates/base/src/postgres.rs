//! The way to a PostgreSQL server, for all that we keep there: locks, and the marks of fences.
//!
//! What must hold: nothing depends on the state of a session, and nothing is prepared, since behind a PgBouncer
//! in transaction mode two statements may reach two sessions. What was sent on a connection that broke may
//! have been done, or be done later: whoever sends it again sees to that.

mod address;
mod environment;
pub mod error;
pub mod install;
mod pool;
mod tls;
pub mod trust;

pub use self::address::PostgresUrl;
pub use self::pool::{Parameter, Pool, Use};
