//! A row with a fence of its own: a column keeps the highest token, and each write is conditional on it.
//!
//! ```sql
//! UPDATE invoice SET sum = $3, fence = $2 WHERE id = $1 AND fence <= $2
//! ```
//!
//! It fits where all that a lock protects is one row. `enter` raises the row's fence and writes nothing else. Do that
//! before you read, or a read-modify-write is still lost (see [`fences`](super)).
//!
//! The tokens in a column are those of one lock: two locks whose holders write the same row would be compared. A column
//! keeps no label, no time and no record of resets; what it holds is the mark, to be read and set by SQL.

use fencepost_base::{Error, Result};
use fencepost_core::Token;

use super::contract::stale;
use super::rows::{Condition, Outcome, Row};

/// The token as the database compares it: unless the row's fence is above it.
fn unless_above(token: Token) -> (Condition, i64) {
    (Condition::NotAbove, token.get().cast_signed())
}

/// Whether there was a row, and it was written. `key` is what finds it, for the error.
fn written(
    outcome: Outcome,
    row: &Row<'_>,
    key: impl FnOnce() -> String,
    token: Token,
) -> Result<bool> {
    let mark = match outcome {
        Outcome::Written(_) => return Ok(true),
        Outcome::NoRow => return Ok(false),
        Outcome::Kept(mark) => mark.unwrap_or(0),
    };
    let row = format!("row {} of {}", key(), row.table);
    Err(if mark > token.get().cast_signed() {
        stale(token, row, mark, "")
    } else {
        Error::unreachable(format!("{row} was changed by hand meanwhile: try again"))
    })
}

/// On rusqlite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    use fencepost_base::Result;
    use fencepost_core::Token;
    use rusqlite::types::{ToSqlOutput, ValueRef};
    use rusqlite::{Connection, ToSql};

    use crate::rows::{self, Row};

    /// Raises the fence of the row that has `key` to `token`, or refuses. False: there is no such row.
    pub fn enter(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        token: Token,
    ) -> Result<bool> {
        write(connection, row, key, token, &[])
    }

    /// Writes the columns `set` of the row that has `key`, unless a higher token has entered. False: there
    /// is no such row.
    pub fn write(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        token: Token,
        set: &[(&str, &dyn ToSql)],
    ) -> Result<bool> {
        let outcome = rows::sqlite::write(connection, row, key, super::unless_above(token), set)?;
        super::written(outcome, row, || shown(key), token)
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

/// On tokio-postgres. The statement is prepared, so that the server says what types its parameters have: a
/// PgBouncer in transaction mode must be one that keeps prepared statements (1.21).
#[cfg(feature = "postgres")]
pub mod postgres {
    use fencepost_base::Result;
    use fencepost_core::Token;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use crate::rows::{self, Row};

    /// Raises the fence of the row that has `key` to `token`, or refuses. False: there is no such row.
    pub async fn enter(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        token: Token,
    ) -> Result<bool> {
        write(client, row, key, token, &[]).await
    }

    /// Writes the columns `set` of the row that has `key`, unless a higher token has entered. False: there
    /// is no such row.
    pub async fn write(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        token: Token,
        set: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<bool> {
        let outcome = rows::postgres::write(client, row, key, super::unless_above(token), set);
        super::written(outcome.await?, row, || format!("{key:?}"), token)
    }
}
