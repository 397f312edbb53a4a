//! Tables that refuse every write by a transaction that has not entered.

use fencepost_base::{Error, Result};
use fencepost_core::LockName;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::explain;

/// Which lock a table's rows belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFrom<'a> {
    /// Each row names its lock in this column, as text.
    Column(&'a str),
    /// All rows belong to this lock.
    Name(&'a LockName),
}

/// Makes `table` refuse INSERT, UPDATE, DELETE and TRUNCATE by a transaction that has not entered with the lock of the
/// row: of the old row and of the new one. With [`NameFrom::Column`], TRUNCATE and a row without a name are always
/// refused.
///
/// `table` is written as in SQL: `orders`, `shop.orders`, `"Shop"."Orders"`. The caller must own it. Protect a
/// partitioned table partition by partition; views and foreign tables cannot be protected. Protecting a table again
/// replaces its protection. Returns whether it was protected before.
pub async fn protect(client: &impl GenericClient, table: &str, from: NameFrom<'_>) -> Result<bool> {
    let (column, name) = match from {
        NameFrom::Column(column) => (Some(column), None),
        NameFrom::Name(name) => (None, Some(name.as_str())),
    };
    let rows = client
        .query_typed(
            "SELECT fencepost.protect($1::text::regclass, $2, $3)",
            &[(&table, Type::TEXT), (&column, Type::TEXT), (&name, Type::TEXT)],
        )
        .await;
    Ok(says_true(&rows.map_err(|error| explain_table(&error, table))?))
}

/// Removes the protection. Returns whether there was any.
pub async fn unprotect(client: &impl GenericClient, table: &str) -> Result<bool> {
    let rows = client
        .query_typed("SELECT fencepost.unprotect($1::text::regclass)", &[(&table, Type::TEXT)])
        .await;
    Ok(says_true(&rows.map_err(|error| explain_table(&error, table))?))
}

fn says_true(rows: &[Row]) -> bool {
    rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false))
}

/// Explains an error about the table's name or owner.
fn explain_table(error: &tokio_postgres::Error, table: &str) -> Error {
    let Some(found) = error.as_db_error() else { return explain(error) };
    let (code, table) = (found.code(), table.escape_debug());
    let wrong = [
        SqlState::UNDEFINED_TABLE,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::INVALID_NAME,
        SqlState::SYNTAX_ERROR,
        SqlState::FEATURE_NOT_SUPPORTED,
    ];
    if wrong.contains(code) && !found.message().contains("fencepost") {
        return Error::invalid(format!(
            "there is no table \"{table}\" in this database: write it as SQL does, like orders, shop.orders or \
             '\"Shop\".\"Orders\"'"
        ))
        .with_source(found.message().to_owned());
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE && !found.message().contains("schema fencepost") {
        return Error::refused(format!(
            "only the owner of {table} can protect it: connect as that role"
        ))
        .with_source(found.message().to_owned());
    }
    explain(error)
}
