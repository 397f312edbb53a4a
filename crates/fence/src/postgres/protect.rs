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

/// Makes `table` refuse INSERT, UPDATE, DELETE and TRUNCATE by a transaction that has not entered with the lock
/// of the row: of the old row and of the new one. With [`NameFrom::Column`] TRUNCATE is always refused, and so is a
/// row without a name.
///
/// `table` is written as in SQL: `orders`, `shop.orders`, `"Shop"."Orders"`. It must be the caller's own. A
/// partitioned table is protected partition by partition; views and foreign tables can not be. Protecting a table
/// again replaces what was said before; true: it was protected.
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

/// Takes the protection off. False: there was none.
pub async fn unprotect(client: &impl GenericClient, table: &str) -> Result<bool> {
    let rows = client
        .query_typed("SELECT fencepost.unprotect($1::text::regclass)", &[(&table, Type::TEXT)])
        .await;
    Ok(says_true(&rows.map_err(|error| explain_table(&error, table))?))
}

fn says_true(rows: &[Row]) -> bool {
    rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false))
}

/// What is wrong with the name of a table, or with its owner.
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
        .because(found.message().to_owned());
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE && !found.message().contains("schema fencepost") {
        return Error::refused(format!("{table} is its owner's to protect: do it as that role"))
            .because(found.message().to_owned());
    }
    explain(error)
}
