//! Connections to a PostgreSQL server, for everything we keep there: locks, and the marks of fences.
//!
//! What must hold: nothing depends on session state, and nothing is prepared: behind PgBouncer in transaction mode two
//! statements may reach two sessions. A request on a connection that broke may have been applied, or be applied later;
//! callers that retry must handle that.

mod address;
mod environment;
pub mod error;
pub mod install;
mod options;
mod pool;
mod tls;
pub mod trust;

pub use self::address::Server;
pub use self::options::{ChannelBinding, PostgresOptions, SslMode};
pub use self::pool::{Parameter, Pool, Use};
