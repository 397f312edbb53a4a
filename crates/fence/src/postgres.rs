//! The fence in a PostgreSQL database: SQL functions for any language, and helpers for tokio-postgres.
//!
//! In any language, as a statement of its own, first in the transaction:
//!
//! ```sql
//! BEGIN;
//! SELECT fencepost.enter('invoice/42', 33);      -- the lock's name and token
//! UPDATE invoice SET sum = sum + 1 WHERE id = 42;
//! COMMIT;
//! ```
//!
//! In Rust:
//!
//! ```no_run
//! # async fn example(client: &mut fencepost::tokio_postgres::Client, guard: &fencepost::Guard)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost::fences;
//! let tx = fences::postgres::begin(client, guard.name(), guard.token()).await?;
//! tx.execute("UPDATE invoice SET sum = sum + 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! [`install()`] puts the functions into the schema `fencepost`; so does `fencepost fence install`. Then an
//! application needs no more than
//!
//! ```sql
//! GRANT USAGE ON SCHEMA fencepost TO app;
//! GRANT EXECUTE ON FUNCTION fencepost.enter TO app;
//! ```
//!
//! **Why it holds.** `enter` writes the mark's row, for an equal token too, so the transaction has that row's lock
//! until it ends: nobody else enters meanwhile. What it reads after that is fresh. Two things undo this: to call
//! `enter` in the same statement as the read (that statement's snapshot is older than the entry), and to read
//! before it.
//!
//! **A holder that freezes inside a transaction** keeps the next one waiting at `enter`. [`begin`] sets
//! `idle_in_transaction_session_timeout` for its transaction, so that the server ends it.
//!
//! **[`protect()`]** makes a table refuse every write by a transaction that has not entered, whoever makes it: the
//! table's owner, a superuser, a session with `session_replication_role = replica`. It is a trigger that runs after
//! each row, so it sees the names that other triggers have left. It does not stop what is no write of rows: `DROP`,
//! `ALTER TABLE`, the detaching of a partition. A subscription that writes the table is refused as well.

mod install;
mod protect;

use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_base::label::default_label;
use fencepost_base::postgres::{PostgresUrl, error, trust};
use fencepost_base::race::{First, race};
use fencepost_base::store_error::StoreError;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{Label, LockName, Token};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row, Transaction};

use super::contract::{Mark, Reset, checked_reset};

pub use install::{Installed, install};
pub use protect::{NameFrom, protect, unprotect};

/// How long it may take to be connected.
const CONNECT: Duration = Duration::from_secs(10);

/// Connects to a database by its URL, as the lock store does: `sslmode` and the rest mean what they mean there. A schema
/// `fencepost` that is in the hands of somebody else is refused: see [`check_owner`]. The connection is driven by the tokio
/// runtime of the caller.
pub async fn connect(url: &str) -> Result<Client> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("postgres", ""));
    let url = PostgresUrl::parse(scheme, rest)?;
    let open = async {
        let failed = |error| error::explain(error, url.shown(), StoreError::unavailable);
        let (client, connection) = url.open().await.map_err(failed)?;
        tokio::spawn(connection);
        trust::look(&client, url.owner(), url.shown()).await?;
        Ok(client)
    };
    match race(open, BootClock.alarm(BootClock.now() + CONNECT)).await {
        First::Left(opened) => opened,
        First::Right(()) => Err(Error::unreachable(format!("{} does not answer", url.shown()))),
    }
}

/// Refuses a schema `fencepost` that is in the hands of somebody else: one that belongs to, or has anything in it of, a
/// role that is neither this connection's own, nor a superuser, nor the database's owner, nor `owner`; or in which such
/// a role may create. Whoever calls a function there would run its code.
///
/// [`connect`] does so. On a connection of your own, call this once before you first enter: [`enter`] and [`begin`] do not,
/// since it would cost each transaction a round trip. Where there is no such schema it is fine, and there is nothing to
/// enter.
pub async fn check_owner(client: &impl GenericClient, owner: Option<&str>) -> Result<()> {
    trust::look(client, owner, "this database").await?;
    Ok(())
}

/// How long a transaction of [`begin`] may do nothing before the server ends it.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(30);

/// Enters with `token`: raises the mark of `name`, or refuses. Call it first in the transaction, and call it in
/// each transaction of the holder, those that only read included. One statement, one round trip.
///
/// The round trip can be saved: poll it together with the transaction's first statement (`futures::join!(enter(..),
/// tx.execute(..))`). The server takes them in that order, and refuses the second when it has refused the first.
///
/// On an error the server has given the transaction up.
pub async fn enter(tx: &Transaction<'_>, name: &LockName, token: Token) -> Result<()> {
    enter_as(tx, name, token, &default_label()?).await
}

/// [`enter`], with what a person shall read as the one who entered.
pub async fn enter_as(
    tx: &Transaction<'_>,
    name: &LockName,
    token: Token,
    who: &Label,
) -> Result<()> {
    let (name, number, who) = (name.as_str(), number(token), who.as_str());
    let enter = "SELECT fencepost.enter($1, $2, $3)";
    ask(tx, enter, &[(&name, Type::TEXT), (&number, Type::INT8), (&who, Type::TEXT)]).await?;
    Ok(())
}

/// A transaction that has entered, and that the server ends when it does nothing for [`DEFAULT_IDLE`].
pub async fn begin<'c>(
    client: &'c mut Client,
    name: &LockName,
    token: Token,
) -> Result<Transaction<'c>> {
    begin_within(client, name, token, DEFAULT_IDLE).await
}

/// [`begin`], with another time for doing nothing. A shorter one that the session has is kept.
pub async fn begin_within<'c>(
    client: &'c mut Client,
    name: &LockName,
    token: Token,
    idle: Duration,
) -> Result<Transaction<'c>> {
    let tx = client.transaction().await.map_err(|error| explain(&error))?;
    let (name, number, who) = (name.as_str(), number(token), default_label()?);
    let (who, idle) = (who.as_str(), idle.as_millis().clamp(1, i32::MAX as u128) as i64);
    // The time is set in the same statement, for the round trip it saves. It reads nothing, so that is safe.
    ask(
        &tx,
        "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', CASE
             WHEN was OPERATOR(pg_catalog.>) interval '0'
              AND was OPERATOR(pg_catalog.<) ($4 OPERATOR(pg_catalog.*) interval '1 ms') THEN was_text
             ELSE pg_catalog.concat($4, 'ms') END, true),
           fencepost.enter($1, $2, $3)
         FROM (SELECT text, text::pg_catalog.interval FROM
             pg_catalog.current_setting('idle_in_transaction_session_timeout') AS text)
           AS setting (was_text, was)",
        &[(&name, Type::TEXT), (&number, Type::INT8), (&who, Type::TEXT), (&idle, Type::INT8)],
    )
    .await?;
    Ok(tx)
}

/// The mark of `name`, if anybody has entered.
pub async fn mark(client: &impl GenericClient, name: &LockName) -> Result<Option<Mark>> {
    Ok(show(client, Some(name)).await?.pop())
}

/// The mark of `name`, or all of them.
pub async fn show(client: &impl GenericClient, name: Option<&LockName>) -> Result<Vec<Mark>> {
    let name = name.map(LockName::as_str);
    let show = "SELECT lock, token, set_by, set_at FROM fencepost.show($1)";
    ask(client, show, &[(&name, Type::TEXT)]).await?.iter().map(mark_in).collect()
}

/// Sets the mark of `name` to `to`, or forgets it, and keeps a record of it. Returns the mark that was there.
///
/// A mark that is lowered or forgotten lets holders in that it had kept out: see that none is left. It is for
/// those who have `EXECUTE` of `fencepost.reset`; the record also has the role that called it.
pub async fn reset(
    client: &impl GenericClient,
    name: &LockName,
    to: Option<Token>,
    by: &str,
    why: &str,
) -> Result<Option<Mark>> {
    checked_reset(by, why)?;
    let (name, to) = (name.as_str(), to.map(number));
    let old = ask(
        client,
        "SELECT lock, old_token, set_by, set_at FROM fencepost.reset($1, $2, $3, $4)",
        &[(&name, Type::TEXT), (&to, Type::INT8), (&by, Type::TEXT), (&why, Type::TEXT)],
    )
    .await?;
    old.first().map(mark_in).transpose()
}

/// The records of resets, oldest first: those of `name`, or all.
pub async fn audit(client: &impl GenericClient, name: Option<&LockName>) -> Result<Vec<Reset>> {
    let name = name.map(LockName::as_str);
    let audit = "SELECT lock, from_token, to_token, by, why, at FROM fencepost.audit($1)";
    let token = |number: Option<i64>| number.map(token_of).transpose();
    let reset_in = |row: &Row| {
        Ok(Reset {
            name: LockName::new(get(row, 0)?)?,
            from: token(get(row, 1)?)?,
            to: token(get(row, 2)?)?,
            by: get(row, 3)?,
            why: get(row, 4)?,
            at: get(row, 5)?,
        })
    };
    ask(client, audit, &[(&name, Type::TEXT)]).await?.iter().map(reset_in).collect()
}

/// What the database answers to one statement.
async fn ask(
    client: &impl GenericClient,
    statement: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>> {
    client.query_typed(statement, values).await.map_err(|error| explain(&error))
}

fn mark_in(row: &Row) -> Result<Mark> {
    Ok(Mark {
        name: LockName::new(get(row, 0)?)?,
        token: token_of(get(row, 1)?)?,
        set_by: get(row, 2)?,
        set_at: get(row, 3)?,
    })
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(|error| {
        Error::refused("the fence's functions in this database are not fencepost's").because(error)
    })
}

fn number(token: Token) -> i64 {
    token.get().cast_signed()
}

fn token_of(number: i64) -> Result<Token> {
    Ok(Token::new(number.max(0).cast_unsigned())?)
}

/// What an error of PostgreSQL means to the user of a fence. For your own statements too: it knows the refusal of
/// a protected table.
#[must_use]
pub fn explain(error: &tokio_postgres::Error) -> Error {
    let Some(found) = error.as_db_error() else {
        return Error::unreachable("the database can not be reached").because(chain(error));
    };
    let (code, message) = (found.code(), found.message());
    match code.code() {
        // Its text names the mark.
        "FP001" => return Error::new(ErrorKind::Stale, message),
        "FP002" => return Error::invalid(message),
        "FP003" => return Error::refused(message),
        _ => {}
    }
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME];
    let explained = if *code == SqlState::UNDEFINED_FUNCTION && message.contains(", numeric) ") {
        // A literal above 2^63, or with a fraction.
        Error::invalid("the token is no whole number from 1 to 2^53 - 1: pass the grant's own")
    } else if missing.contains(code) && message.contains("fencepost") {
        Error::refused(
            "the fence is not in this database: run `fencepost fence install --resource URL` as a \
             role that may create a schema",
        )
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        not_allowed(message)
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        Error::refused(
            "to enter is to write, and this transaction or server only reads: use a read-write \
             transaction on the primary",
        )
    } else if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
    {
        Error::unreachable("another holder was inside meanwhile: try the transaction again")
    } else if [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) {
        Error::unreachable(
            "another holder is inside and did not come to its end in time: try again",
        )
    } else if ["08", "25", "53", "57", "58", "XX"]
        .iter()
        .any(|class| code.code().starts_with(class))
    {
        Error::unreachable("the database can not be used now")
    } else {
        Error::invalid("the database does not take this statement")
    };
    explained.because(message.to_owned())
}

/// What to grant to a role that may not.
fn not_allowed(message: &str) -> Error {
    let function = ["enter", "show", "audit", "reset"]
        .into_iter()
        .find(|function| message.ends_with(&format!("function {function}")));
    Error::refused(match function {
        Some(function) => format!(
            "this role may not: GRANT EXECUTE ON FUNCTION fencepost.{function} to it, if it shall"
        ),
        None if message.contains("schema fencepost") => {
            "this role may not: GRANT USAGE ON SCHEMA fencepost to it, if it shall".to_owned()
        }
        None => "this role may not: use another, or grant it the right".to_owned(),
    })
}

/// An error of the client with its causes: by itself it only says "error connecting to server".
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
