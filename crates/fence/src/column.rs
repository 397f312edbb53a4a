//! A row with a fence of its own: a column keeps the highest token, and each write is conditional on it.
//!
//! ```sql
//! UPDATE invoice SET sum = $3, fence = $2 WHERE id = $1 AND fence <= $2
//! ```
//!
//! It fits where one row is all that a lock protects. `enter` raises the row's fence and writes nothing else. Call it
//! before you read, or a read-modify-write can still lose an update (see [`fences`](super)).
//!
//! The column is the mark: a number, which you read and set with SQL. It has no room for a label, a time, a record of
//! resets, or the lock's name. So the name in a [`FencingToken`] is not checked here: the row stands for it. Write one
//! row under one lock only, because the tokens of two locks do not compare.

use fencepost_base::{Error, Result};
use fencepost_core::FencingToken;

use super::contract::stale;
use super::rows::{Condition, Outcome, Row};

/// The condition that the row's fence is not above the token.
fn unless_above(fencing: &FencingToken) -> (Condition, i64) {
    (Condition::NotAbove, fencing.token().get().cast_signed())
}

/// Whether the row exists; it was written then. `key` is shown in the error.
fn written(
    outcome: Outcome,
    row: &Row<'_>,
    key: impl FnOnce() -> String,
    fencing: &FencingToken,
) -> Result<bool> {
    let token = fencing.token();
    let mark = match outcome {
        Outcome::Written(_) => return Ok(true),
        Outcome::NoRow => return Ok(false),
        Outcome::Kept(mark) => mark.unwrap_or(0),
    };
    let row = format!("row {} of {}", key(), row.table);
    Err(if mark > token.get().cast_signed() {
        stale(token, row, mark, "")
    } else {
        Error::unreachable(format!("the fence of {row} was lowered during the write: try again"))
    })
}

/// On rusqlite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    use fencepost_base::Result;
    use fencepost_core::FencingToken;
    use rusqlite::types::{ToSqlOutput, ValueRef};
    use rusqlite::{Connection, ToSql};

    use crate::rows::{self, Row};

    /// Raises the fence of the row with this `key` to the token, or refuses. Returns `false` if there is no such row.
    pub fn enter(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        fencing: &FencingToken,
    ) -> Result<bool> {
        write(connection, row, key, fencing, &[])
    }

    /// Writes the columns `set` of the row with this `key`, unless a higher token has entered. Returns `false` if there
    /// is no such row.
    pub fn write(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        fencing: &FencingToken,
        set: &[(&str, &dyn ToSql)],
    ) -> Result<bool> {
        let outcome = rows::sqlite::write(connection, row, key, super::unless_above(fencing), set)?;
        super::written(outcome, row, || shown(key), fencing)
    }

    fn shown(key: &dyn ToSql) -> String {
        let value = key.to_sql();
        let value = match &value {
            Ok(ToSqlOutput::Borrowed(value)) => *value,
            Ok(ToSqlOutput::Owned(value)) => value.into(),
            _ => ValueRef::Null,
        };
        match value {
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
            other => format!("{:?}", other.data_type()),
        }
    }
}

/// On tokio-postgres. The statement is prepared, because the server must determine the types of its parameters:
/// PgBouncer in transaction mode must support prepared statements (1.21 or later).
#[cfg(feature = "postgres")]
pub mod postgres {
    use fencepost_base::Result;
    use fencepost_core::FencingToken;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use crate::rows::{self, Row};

    /// Raises the fence of the row with this `key` to the token, or refuses. Returns `false` if there is no such row.
    pub async fn enter(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        fencing: &FencingToken,
    ) -> Result<bool> {
        write(client, row, key, fencing, &[]).await
    }

    /// Writes the columns `set` of the row with this `key`, unless a higher token has entered. Returns `false` if there
    /// is no such row.
    pub async fn write(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        fencing: &FencingToken,
        set: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<bool> {
        let outcome = rows::postgres::write(client, row, key, super::unless_above(fencing), set);
        super::written(outcome.await?, row, || format!("{key:?}"), fencing)
    }
}
