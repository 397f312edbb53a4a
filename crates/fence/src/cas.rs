//! No lock at all: a conditional write on a version.
//!
//! When everything that must stay whole is in one row, the row's version does what a lock and a fence would do:
//! read the row with its version, work as long as it takes, write on the condition that the version is still
//! the same. Who comes second learns it and begins again from a fresh read. Nothing is held while the work
//! runs, so nothing expires, and a process may freeze for as long as it likes.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost::fences::{Row, cas};
//! # let connection = fencepost::rusqlite::Connection::open_in_memory()?;
//! # connection.execute_batch("CREATE TABLE seat (id TEXT, taken_by TEXT, version INTEGER);
//! #     INSERT INTO seat VALUES ('12A', NULL, 7)")?;
//!
//! let seat = Row { table: "seat", key: "id", guard: "version" };
//! let seen = 7; // read together with the rest of the row
//! match cas::sqlite::swap(&connection, &seat, &"12A", seen, &[("taken_by", &"ada")])? {
//!     cas::Swap::Written { version } => assert_eq!(version, 8),
//!     cas::Swap::Changed { version } => println!("somebody was faster: it is {version} now"),
//!     cas::Swap::Gone => println!("there is no such seat"),
//! }
//! # Ok(()) }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```
//!
//! Take a lock instead when the work touches more than the row (another row, a mail, a file), or when it is too
//! dear to be done twice.

use fencepost_base::Result;

use super::rows::{Outcome, Row};

/// What became of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write that was not made is no error: look"]
pub enum Swap {
    /// It was made. The row has this version now.
    Written {
        /// The version that the next write must name.
        version: i64,
    },
    /// It was not made: somebody wrote since. Read again, and begin again.
    Changed {
        /// The version that the row had a moment ago.
        version: i64,
    },
    /// It was not made: there is no such row.
    Gone,
}

/// What the outcome means for a row with a version.
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

    /// Writes the columns `set` of the row that has `key`, if its version is still `seen`. The version
    /// goes up by one.
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

/// On tokio-postgres. The statement is prepared, so that the server says what types its parameters have: a
/// PgBouncer in transaction mode must be one that keeps prepared statements (1.21).
#[cfg(feature = "postgres")]
pub mod postgres {
    use fencepost_base::Result;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use super::{Swap, swapped};
    use crate::rows::{self, Condition, Row};

    /// Writes the columns `set` of the row that has `key`, if its version is still `seen`. The version
    /// goes up by one.
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
