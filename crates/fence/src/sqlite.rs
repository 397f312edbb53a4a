//! The fence in a SQLite database, for rusqlite.
//!
//! ```
//! use fencepost::fences;
//! # use fencepost::{FencingToken, LockName, Token};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut connection = fencepost::fences::sqlite::rusqlite::Connection::open_in_memory()?;
//! # connection.execute_batch("CREATE TABLE invoice (id INTEGER, sum INTEGER)")?;
//! # let fencing = FencingToken::new(LockName::new("invoice/42")?, Token::new(33)?);
//! // `fencing` is `guard.fencing()`.
//! let tx = fences::sqlite::begin(&mut connection, &fencing)?;
//! tx.execute("UPDATE invoice SET sum = sum + 1 WHERE id = 42", [])?;
//! tx.commit()?; // a later holder enters before `begin` or after this, never in between
//! # Ok(()) }
//! ```
//!
//! The marks are two tables in the `main` database of the connection:
//!
//! ```text
//! fencepost_marks    name, token, set_by, set_at           one row per lock name
//! fencepost_resets   name, from_token, to_token, why, ...  one row per reset, never changed
//! ```
//!
//! `enter` creates them if needed. Data in an attached database is fenced too, but with WAL a commit over several files
//! is not atomic in a crash: keep both in one file.

use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, ffi, params_from_iter};

use super::contract::{Mark, Reset, checked_reset};

/// The driver of this fence. Your transaction must be of this version. A new major version of the driver is a breaking
/// change of this crate.
pub use ::rusqlite;

/// The database checks names and tokens too, because other programs write these tables without this library.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS main.fencepost_marks (
        name TEXT PRIMARY KEY CHECK (
            length(name) BETWEEN 1 AND 512 AND instr(name, char(0)) = 0
            AND name NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
        token INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
        set_by TEXT NOT NULL,
        set_at TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS main.fencepost_resets (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        from_token INTEGER,
        to_token INTEGER,
        by TEXT NOT NULL,
        why TEXT NOT NULL,
        at TEXT NOT NULL
    ) STRICT;
";

/// The upsert writes for an equal token too, so that the transaction has the write lock from here on, whatever it began
/// as. It changes no row for a lower token.
const ENTER: &str = "
    INSERT INTO main.fencepost_marks AS mark (name, token, set_by, set_at)
    VALUES (?1, ?2, ?3, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ON CONFLICT (name) DO UPDATE SET
        set_by = CASE WHEN excluded.token > mark.token THEN excluded.set_by ELSE mark.set_by END,
        set_at = CASE WHEN excluded.token > mark.token THEN excluded.set_at ELSE mark.set_at END,
        token = excluded.token
    WHERE excluded.token >= mark.token";

const MARK: &str = "SELECT name, token, set_by, set_at FROM main.fencepost_marks WHERE name = ?1";

const SHOW: &str = "SELECT name, token, set_by, set_at FROM main.fencepost_marks ORDER BY name";

const AUDIT: &str = "
    SELECT name, from_token, to_token, by, why, at FROM main.fencepost_resets
    WHERE name = ?1 OR ?1 IS NULL ORDER BY number";

/// Creates the tables that do not exist yet.
pub fn install(connection: &Connection) -> Result<()> {
    connection.execute_batch(TABLES).map_err(|error| explain(&error))?;
    // A table of this name may belong to another program.
    let ours = [SHOW, AUDIT].iter().try_for_each(|ask| connection.prepare(ask).map(|_| ()));
    ours.map_err(|error| {
        Error::refused(
            "fencepost_marks or fencepost_resets is a table of another program: rename it",
        )
        .with_source(error)
    })
}

/// Whether the tables exist.
pub fn is_installed(connection: &Connection) -> Result<bool> {
    let ask = "SELECT count(*) = 2 FROM main.sqlite_schema
               WHERE name IN ('fencepost_marks', 'fencepost_resets')";
    connection.query_row(ask, [], |row| row.get(0)).map_err(|error| explain(&error))
}

/// Enters: raises the mark of the lock to the token, or refuses. Call it first in the transaction, and in each
/// transaction of the holder, also in those that only read.
///
/// On an error roll back: the other statements of the transaction are not fenced.
pub fn enter(tx: &Transaction<'_>, fencing: &FencingToken) -> Result<()> {
    enter_as(tx, fencing, &default_label()?)
}

/// [`enter`], with a label that says who entered, for people.
pub fn enter_as(tx: &Transaction<'_>, fencing: &FencingToken, who: &Label) -> Result<()> {
    let name = fencing.name();
    let values = (name.as_str(), number(fencing.token()), who.as_str());
    let raised = match tx.prepare_cached(ENTER).and_then(|mut enter| enter.execute(values)) {
        Err(error) if lacks_tables(&error) => {
            install(tx)?;
            tx.prepare_cached(ENTER).and_then(|mut enter| enter.execute(values))
        }
        done => done,
    };
    if raised.map_err(|error| explain(&error))? == 1 {
        return Ok(());
    }
    match mark(tx, name)? {
        Some(mark) => Err(mark.refuses(fencing)),
        None => Err(Error::unreachable(format!("the mark of \"{name}\" cannot be read back"))),
    }
}

/// Begins a transaction with the write lock, and enters.
pub fn begin<'c>(
    connection: &'c mut Connection,
    fencing: &FencingToken,
) -> Result<Transaction<'c>> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| explain(&error))?;
    enter(&tx, fencing)?;
    Ok(tx)
}

/// The mark of `name`, if any holder has entered.
pub fn mark(connection: &Connection, name: &LockName) -> Result<Option<Mark>> {
    Ok(show(connection, Some(name))?.pop())
}

/// The mark of `name`, or all marks.
pub fn show(connection: &Connection, name: Option<&LockName>) -> Result<Vec<Mark>> {
    read(connection, name).or_else(|error| nothing_without_tables(&error))
}

/// Sets the mark of `name` to `to`, or deletes it, and logs the reset. Returns the previous mark.
///
/// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left.
pub fn reset(
    connection: &mut Connection,
    name: &LockName,
    to: Option<Token>,
    by: &str,
    why: &str,
) -> Result<Option<Mark>> {
    checked_reset(by, why)?;
    (|| {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(TABLES)?;
        let old = read(&tx, Some(name))?.pop();
        if old.is_none() && to.is_none() {
            return Ok(None);
        }
        tx.execute("DELETE FROM main.fencepost_marks WHERE name = ?", [name.as_str()])?;
        if let Some(to) = to {
            tx.execute(ENTER, (name.as_str(), number(to), by))?;
        }
        tx.execute(
            "INSERT INTO main.fencepost_resets (name, from_token, to_token, by, why, at)
             VALUES (?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
            (name.as_str(), old.as_ref().map(|mark| number(mark.token)), to.map(number), by, why),
        )?;
        tx.commit()?;
        Ok(old)
    })()
    .map_err(|error| explain(&error))
}

/// The logged resets, oldest first: those of `name`, or all.
pub fn audit(connection: &Connection, name: Option<&LockName>) -> Result<Vec<Reset>> {
    let read = || -> rusqlite::Result<Vec<Reset>> {
        connection
            .prepare(AUDIT)?
            .query_map([name.map(LockName::as_str)], |row| {
                let token = |column, number: Option<i64>| {
                    number.map(|number| token_in(column, number)).transpose()
                };
                Ok(Reset {
                    name: name_in(row)?,
                    from: token(1, row.get(1)?)?,
                    to: token(2, row.get(2)?)?,
                    by: row.get(3)?,
                    why: row.get(4)?,
                    at: row.get(5)?,
                })
            })?
            .collect()
    };
    read().or_else(|error| nothing_without_tables(&error))
}

fn read(connection: &Connection, name: Option<&LockName>) -> rusqlite::Result<Vec<Mark>> {
    // One statement each, so that a single mark is found by the primary key.
    let mut select = connection.prepare_cached(if name.is_some() { MARK } else { SHOW })?;
    let rows = select.query(params_from_iter(name.map(LockName::as_str)))?;
    rows.mapped(|row| {
        Ok(Mark {
            name: name_in(row)?,
            token: token_in(1, row.get(1)?)?,
            set_by: row.get(2)?,
            set_at: row.get(3)?,
        })
    })
    .collect()
}

fn number(token: Token) -> i64 {
    token.get().cast_signed()
}

fn name_in(row: &rusqlite::Row<'_>) -> rusqlite::Result<LockName> {
    let text: String = row.get(0)?;
    LockName::new(&text)
        .map_err(|bad| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(bad)))
}

fn token_in(column: usize, number: i64) -> rusqlite::Result<Token> {
    Token::new(number.max(0).cast_unsigned()).map_err(|bad| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, Box::new(bad))
    })
}

fn lacks_tables(error: &rusqlite::Error) -> bool {
    // SQLite has no error code for it.
    error.to_string().contains("no such table: main.fencepost_")
}

fn nothing_without_tables<T>(error: &rusqlite::Error) -> Result<Vec<T>> {
    if lacks_tables(error) { Ok(Vec::new()) } else { Err(explain(error)) }
}

/// Explains an error of SQLite to the user of a fence.
#[must_use]
pub fn explain(error: &rusqlite::Error) -> Error {
    let (failure, text) = match error {
        rusqlite::Error::SqliteFailure(failure, Some(text)) => (Some(failure), text.clone()),
        rusqlite::Error::SqliteFailure(failure, None) => (Some(failure), failure.to_string()),
        // Its `Display` repeats the whole statement.
        rusqlite::Error::SqlInputError { error, msg, .. } => (Some(error), msg.clone()),
        other => (None, other.to_string()),
    };
    let found = match failure {
        Some(found) if found.extended_code == ffi::SQLITE_BUSY_SNAPSHOT => Error::invalid(
            "this transaction read before it entered, and another one has written since: roll back, \
             and enter first in the transaction",
        ),
        Some(found) => match found.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::unreachable(
                "the database is busy: another connection is writing; set a busy_timeout, or retry \
                 the transaction",
            ),
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => {
                Error::refused(
                    "the database cannot be written, and `enter` writes: open it for \
                     writing, and check its permissions",
                )
            }
            ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => {
                Error::refused("the database is damaged, or is not a SQLite file: restore it")
            }
            ErrorCode::DiskFull => {
                Error::unreachable("the database cannot grow: free some disk space")
            }
            ErrorCode::Unknown => Error::invalid("the database rejected the statement"),
            _ => Error::unreachable("the database cannot be used"),
        },
        None => Error::refused(
            "the tables of the fence contain values that fencepost did not write: see its source, and reset the mark",
        ),
    };
    found.with_source(text)
}
