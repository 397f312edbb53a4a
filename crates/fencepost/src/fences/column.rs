//! A row with a fence of its own: a column keeps the highest token, and each write is conditional on it.
//!
//! ```sql
//! UPDATE invoice SET sum = $3, fence = $2 WHERE id = $1 AND fence <= $2
//! ```
//!
//! It fits where all that a lock protects is one row. An update without columns is the holder's `enter`: it
//! raises the row's fence and writes nothing else. Do that before you read, or a read-modify-write is still lost
//! (see [`fences`](super)).
//!
//! The tokens in a column are those of one lock: two locks whose holders write the same row would be compared.

use fencepost_core::Token;

use super::rows::Row;
use crate::error::{Error, ErrorKind};

/// Why a row was not written: `found` is its fence, `key` what it is found by.
fn refused(row: &Row<'_>, key: &str, token: Token, found: i64) -> Error {
    let table = row.table;
    if found > token.get().cast_signed() {
        return Error::new(
            ErrorKind::Stale,
            format!("token {token} for row {key} of {table} is stale: {found} has entered"),
        );
    }
    Error::unreachable(format!("row {key} of {table} was changed by hand meanwhile: try again"))
}

/// On rusqlite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    use fencepost_core::Token;
    use rusqlite::types::{ToSqlOutput, ValueRef};
    use rusqlite::{Connection, OptionalExtension as _, ToSql};

    use crate::error::Result;
    use crate::fences::rows::{Condition, Dialect, Row};
    use crate::fences::sqlite::{explain, first_of_all};

    /// Writes the columns `set` of the row that has `key`, unless a higher token has entered. False: there
    /// is no such row.
    pub fn update(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        token: Token,
        set: &[(&str, &dyn ToSql)],
    ) -> Result<bool> {
        let columns: Vec<&str> = set.iter().map(|(column, _)| *column).collect();
        let update = row.update(&columns, Condition::NotAbove, Dialect::Sqlite)?;
        let number = token.get().cast_signed();
        let mut values: Vec<&dyn ToSql> = vec![key, &number];
        values.extend(set.iter().map(|(_, value)| *value));
        let written = connection
            .prepare_cached(&update)
            .and_then(|mut update| first_of_all(update.query(&*values)?))
            .map_err(|error| explain(&error))?;
        if written.is_some() {
            return Ok(true);
        }
        let found: Option<Option<i64>> = connection
            .prepare_cached(&row.select(Dialect::Sqlite)?)
            .and_then(|mut select| select.query_row([key], |row| row.get(0)).optional())
            .map_err(|error| explain(&error))?;
        match found {
            Some(found) => Err(super::refused(row, &shown(key), token, found.unwrap_or(0))),
            None => Ok(false),
        }
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
    use fencepost_core::Token;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use crate::error::Result;
    use crate::fences::postgres::explain;
    use crate::fences::rows::{Condition, Dialect, Row};

    /// Writes the columns `set` of the row that has `key`, unless a higher token has entered. False: there
    /// is no such row.
    pub async fn update(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        token: Token,
        set: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<bool> {
        let columns: Vec<&str> = set.iter().map(|(column, _)| *column).collect();
        let update = row.update(&columns, Condition::NotAbove, Dialect::Postgres)?;
        let number = token.get().cast_signed();
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![key, &number];
        values.extend(set.iter().map(|(_, value)| *value));
        let written = client.query_opt(&update, &values).await.map_err(|error| explain(&error))?;
        if written.is_some() {
            return Ok(true);
        }
        let select = row.select(Dialect::Postgres)?;
        let found = client.query_opt(&select, &[key]).await.map_err(|error| explain(&error))?;
        match found.map(|found| found.get::<_, Option<i64>>(0)) {
            Some(found) => Err(super::refused(row, &format!("{key:?}"), token, found.unwrap_or(0))),
            None => Ok(false),
        }
    }
}
