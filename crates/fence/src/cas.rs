//! No lock at all: a conditional write on a version.
//!
//! When everything that must stay consistent is in one row, the row's version does what a lock and a fence would do:
//! read the row with its version, work for as long as it takes, and write on the condition that the version is still
//! the same. A second writer learns that it lost the race and starts again from a fresh read. Nothing is held while the
//! work runs, so nothing expires, and a process may freeze for any length of time. There is no lock, so there is no
//! [`FencingToken`](crate::FencingToken) to pass.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost::fences::{Row, cas};
//! # let connection = fencepost::fences::sqlite::rusqlite::Connection::open_in_memory()?;
//! # connection.execute_batch("CREATE TABLE seat (id TEXT, taken_by TEXT, version INTEGER);
//! #     INSERT INTO seat VALUES ('12A', NULL, 7)")?;
//!
//! let seat = Row { table: "seat", key: "id", guard: "version" };
//! let seen = 7; // read together with the rest of the row
//! match cas::sqlite::swap(&connection, &seat, &"12A", seen, &[("taken_by", &"ada")])? {
//!     cas::Swap::Written { version } => assert_eq!(version, 8),
//!     cas::Swap::Changed { version } => println!("another writer was faster: the version is {version} now"),
//!     cas::Swap::Gone => println!("there is no such seat"),
//! }
//! # Ok(()) }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```
//!
//! Use a lock instead when the work touches more than the row (another row, a mail, a file), or when it is too
//! expensive to do twice.

use fencepost_base::Result;

use super::rows::{Outcome, Row};

/// The outcome of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write that was not made is not an error: check the outcome"]
pub enum Swap {
    /// The row was written, and has this version now.
    Written {
        /// The version to pass to the next write.
        version: i64,
    },
    /// Nothing was written: another writer changed the row since it was read. Start again from a fresh read.
    Changed {
        /// The version of the row just after the attempt.
        version: i64,
    },
    /// Nothing was written: there is no such row.
    Gone,
}

/// Turns the outcome into that of a row with a version.
fn swapped(outcome: Outcome, row: &Row<'_>) -> Result<Swap> {
    match outcome {
        Outcome::Written(version) => Ok(Swap::Written { version }),
        Outcome::Kept(Some(version)) => Ok(Swap::Changed { version }),
        Outcome::Kept(None) => Err(row.has_null()),
        Outcome::NoRow => Ok(Swap::Gone),
    }
}

/// On rusqlite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    use fencepost_base::Result;
    use rusqlite::{Connection, ToSql};

    use super::{Swap, swapped};
    use crate::rows::{self, Condition, Row};

    /// Writes the columns `set` of the row with this `key`, if its version is still `seen`, and raises the version by
    /// one.
    pub fn swap(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        seen: i64,
        set: &[(&str, &dyn ToSql)],
    ) -> Result<Swap> {
        let condition = (Condition::SameVersion, seen);
        swapped(rows::sqlite::write(connection, row, key, condition, set)?, row)
    }
}

/// On tokio-postgres. The statement is prepared, because the server must determine the types of its parameters:
/// PgBouncer in transaction mode must support prepared statements (1.21 or later).
#[cfg(feature = "postgres")]
pub mod postgres {
    use fencepost_base::Result;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use super::{Swap, swapped};
    use crate::rows::{self, Condition, Row};

    /// Writes the columns `set` of the row with this `key`, if its version is still `seen`, and raises the version by
    /// one.
    pub async fn swap(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        seen: i64,
        set: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<Swap> {
        let condition = (Condition::SameVersion, seen);
        swapped(rows::postgres::write(client, row, key, condition, set).await?, row)
    }
}
