//! A row with a column that guards it: the names of table and columns, and the conditional UPDATE. Names go into the
//! SQL text, so they are quoted; values are parameters. [`cas`](super::cas) and [`column`](super::column) interpret the
//! outcome.

use fencepost_base::{Error, Result};

use super::contract::without_control_characters;

/// The table of a row, the column that finds the row, and the column that is compared before a write.
///
/// Names are case-sensitive. A table in a schema is `Row { table: "shop.orders", .. }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The table.
    pub table: &'a str,
    /// The column that finds the row: the primary key or another unique column.
    pub key: &'a str,
    /// The column that is compared: the version, or the fence.
    pub guard: &'a str,
}

/// How a database writes a numbered parameter.
#[derive(Clone, Copy)]
struct Dialect {
    /// What comes before the number: `?1` or `$1`.
    sign: char,
    /// The cast of an integer parameter.
    whole: &'static str,
}

/// The condition on the guard column, and its new value.
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    /// Equal to the second parameter; raised by one.
    SameVersion,
    /// Not above the second parameter, and set to it. NULL is below every number.
    NotAbove,
}

/// The outcome of a conditional write.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    /// The row was written; the new value of the guard column.
    Written(i64),
    /// The condition did not hold; the value of the guard column.
    Kept(Option<i64>),
    /// There is no such row.
    NoRow,
}

impl Row<'_> {
    /// The UPDATE of the columns `set`, on the condition. Parameters: the key, the value to compare with, then the
    /// values to write. It returns the guard column of the row that it wrote.
    fn update(&self, set: &[&str], condition: Condition, dialect: Dialect) -> Result<String> {
        let table = quoted_table(self.table)?;
        let (key, guard) = (quoted("column", self.key)?, quoted("column", self.guard)?);
        let Dialect { sign, whole } = dialect;
        let seen = format!("{sign}2{whole}");
        // Qualified, because SQLite reads an unknown quoted column as a string.
        let (becomes, holds) = match condition {
            Condition::SameVersion => {
                (format!("guarded.{guard} + 1"), format!("guarded.{guard} = {seen}"))
            }
            Condition::NotAbove => {
                (seen.clone(), format!("coalesce(guarded.{guard}, 0) <= {seen}"))
            }
        };
        let mut changes = vec![format!("{guard} = {becomes}")];
        for (position, name) in set.iter().enumerate() {
            // SQLite's column names are not case-sensitive.
            if name.eq_ignore_ascii_case(self.guard) {
                return Err(Error::invalid(format!(
                    "column \"{name}\" guards the row and is written with it: leave it out"
                )));
            }
            changes.push(format!("{} = {sign}{}", quoted("column", name)?, position + 3));
        }
        let changes = changes.join(", ");
        Ok(format!(
            "UPDATE {table} AS guarded SET {changes} WHERE guarded.{key} = {sign}1 AND {holds} \
             RETURNING CAST({guard} AS bigint)"
        ))
    }

    /// Reads the guard column. Parameter: the key.
    fn select(&self, Dialect { sign, .. }: Dialect) -> Result<String> {
        let table = quoted_table(self.table)?;
        let (key, guard) = (quoted("column", self.key)?, quoted("column", self.guard)?);
        Ok(format!(
            "SELECT CAST(guarded.{guard} AS bigint) FROM {table} AS guarded WHERE guarded.{key} = {sign}1"
        ))
    }

    /// The error of a row whose guard column is NULL.
    pub(crate) fn has_null(&self) -> Error {
        let Self { table, guard, .. } = self;
        Error::invalid(format!(
            "the row's column \"{guard}\" in {table} is NULL, and NULL cannot be compared: declare it \
             NOT NULL DEFAULT 0"
        ))
    }
}

/// Quotes a table's name, with its schema if given.
pub(crate) fn quoted_table(name: &str) -> Result<String> {
    let parts: Result<Vec<_>> = name.split('.').map(|part| quoted("table", part)).collect();
    match parts?.as_slice() {
        [table] => Ok(table.clone()),
        [schema, table] => Ok(format!("{schema}.{table}")),
        _ => Err(Error::invalid(format!(
            "the table \"{}\" has more than one dot: write TABLE or SCHEMA.TABLE",
            name.escape_debug()
        ))),
    }
}

fn quoted(what: &str, name: &str) -> Result<String> {
    if name.is_empty() {
        return Err(Error::invalid(format!("the name of the {what} is empty")));
    }
    without_control_characters(what, name)?;
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// On rusqlite.
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite {
    use fencepost_base::Result;
    use rusqlite::{Connection, OptionalExtension as _, Rows, ToSql};

    use super::{Condition, Dialect, Outcome, Row};
    use crate::sqlite::explain;

    const DIALECT: Dialect = Dialect { sign: '?', whole: "" };

    /// Writes the columns `set` of the row with this `key`, on the condition, which compares with `seen`.
    pub(crate) fn write(
        connection: &Connection,
        row: &Row<'_>,
        key: &dyn ToSql,
        (condition, seen): (Condition, i64),
        set: &[(&str, &dyn ToSql)],
    ) -> Result<Outcome> {
        let columns: Vec<&str> = set.iter().map(|(column, _)| *column).collect();
        let update = row.update(&columns, condition, DIALECT)?;
        let mut values: Vec<&dyn ToSql> = vec![key, &seen];
        values.extend(set.iter().map(|(_, value)| *value));
        let written = connection
            .prepare_cached(&update)
            .and_then(|mut update| first_of_all(update.query(&*values)?))
            .map_err(|error| explain(&error))?;
        if let Some(guard) = written {
            return Ok(Outcome::Written(guard));
        }
        let found = connection
            .prepare_cached(&row.select(DIALECT)?)
            .and_then(|mut select| select.query_row([key], |row| row.get(0)).optional())
            .map_err(|error| explain(&error))?;
        Ok(found.map_or(Outcome::NoRow, Outcome::Kept))
    }

    /// The number in the first row. Steps through all rows: in autocommit mode the step after the last row commits, and
    /// reports a failed commit.
    fn first_of_all(mut rows: Rows<'_>) -> rusqlite::Result<Option<i64>> {
        let first = rows.next()?.map(|row| row.get(0)).transpose()?;
        while rows.next()?.is_some() {}
        Ok(first)
    }
}

/// On tokio-postgres.
#[cfg(feature = "postgres")]
pub(crate) mod postgres {
    use fencepost_base::Result;
    use tokio_postgres::GenericClient;
    use tokio_postgres::types::ToSql;

    use super::{Condition, Dialect, Outcome, Row};
    use crate::postgres::explain;

    const DIALECT: Dialect = Dialect { sign: '$', whole: "::bigint" };

    /// Writes the columns `set` of the row with this `key`, on the condition, which compares with `seen`.
    pub(crate) async fn write(
        client: &impl GenericClient,
        row: &Row<'_>,
        key: &(dyn ToSql + Sync),
        (condition, seen): (Condition, i64),
        set: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<Outcome> {
        let columns: Vec<&str> = set.iter().map(|(column, _)| *column).collect();
        let update = row.update(&columns, condition, DIALECT)?;
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![key, &seen];
        values.extend(set.iter().map(|(_, value)| *value));
        let written = client.query_opt(&update, &values).await.map_err(|error| explain(&error))?;
        if let Some(written) = written {
            return Ok(Outcome::Written(written.get(0)));
        }
        let select = row.select(DIALECT)?;
        let found = client.query_opt(&select, &[key]).await.map_err(|error| explain(&error))?;
        Ok(found.map_or(Outcome::NoRow, |found| Outcome::Kept(found.get(0))))
    }
}
