//! Tables that refuse every write by a transaction that has not entered.

use fencepost_core::LockName;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::explain;
use crate::error::Result;

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
/// again replaces what was said before.
pub async fn protect(client: &impl GenericClient, table: &str, from: NameFrom<'_>) -> Result<()> {
    let (column, name) = match from {
        NameFrom::Column(column) => (Some(column), None),
        NameFrom::Name(name) => (None, Some(name.as_str())),
    };
    client
        .query_typed(
            "SELECT fencepost.protect($1::text::regclass, $2, $3)",
            &[(&table, Type::TEXT), (&column, Type::TEXT), (&name, Type::TEXT)],
        )
        .await
        .map(|_| ())
        .map_err(|error| explain(&error))
}

/// Takes the protection off. False: there was none.
pub async fn unprotect(client: &impl GenericClient, table: &str) -> Result<bool> {
    let rows = client
        .query_typed("SELECT fencepost.unprotect($1::text::regclass)", &[(&table, Type::TEXT)])
        .await
        .map_err(|error| explain(&error))?;
    Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
}
