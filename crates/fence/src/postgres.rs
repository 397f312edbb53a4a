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
//! # async fn example(client: &mut fencepost::fences::postgres::tokio_postgres::Client, guard: &fencepost::Guard)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost::fences;
//! let tx = fences::postgres::begin(client, &guard.fencing()).await?;
//! tx.execute("UPDATE invoice SET sum = sum + 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! On a connection from a pool (deadpool, deadpool-postgres, bb8-postgres) it is `begin(&mut client, ..)`. The functions that
//! take any `GenericClient` need it dereferenced: `protect(&*client, ..)`, with deadpool-postgres `&**client`. Let the pool
//! open its connections with [`connect`], or call [`check_owner`] once.
//!
//! [`install()`] creates the functions in the schema `fencepost`; so does `fencepost fence install`. If the lock store is in
//! the same database, it has its tables in that schema too, but it does not create the fence: install it all the same. Then
//! an application needs only
//!
//! ```sql
//! GRANT USAGE ON SCHEMA fencepost TO app;
//! GRANT EXECUTE ON FUNCTION fencepost.enter TO app;
//! ```
//!
//! **Why it holds.** `enter` takes a shared advisory lock of name and token until the transaction ends, and a higher token
//! enters only once it has that lock exclusively: it waits for all open transactions of the holder before it, which
//! do not wait for each other. So no other holder enters meanwhile, and what the transaction reads after that is current.
//! The head of `fences.sql` has the proof. Two mistakes break this: calling `enter` in the same statement as the read
//! (that statement's snapshot is older than the entry), and reading first.
//!
//! **Isolation.** Under `REPEATABLE READ` and `SERIALIZABLE` the first transaction with a new token fails with 40001 if
//! any transaction of the server was committed while it entered: retry it. Where the server is busy, enter once in a
//! `READ COMMITTED` transaction. A `READ ONLY` transaction can enter once another one has raised the mark to its token.
//!
//! **A holder that freezes inside a transaction** keeps the next one waiting at `enter`. [`begin`] sets
//! `idle_in_transaction_session_timeout` for its transaction, so that the server ends it.
//!
//! **[`protect()`]** makes a table refuse every write by a transaction that has not entered, even by the table's owner,
//! a superuser, or a session with `session_replication_role = replica`. It is a trigger that runs after each row, so it
//! sees the names that other triggers have set. It does not stop statements that write no rows: `DROP`, `ALTER TABLE`,
//! detaching a partition. A subscription that writes the table is refused as well.

mod install;
mod protect;

use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_base::label::default_label;
use fencepost_base::postgres::{PostgresOptions, Server, error, trust};
use fencepost_base::race::{First, race};
use fencepost_base::store_error::StoreError;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row, Statement, Transaction};

use super::contract::{Mark, Reset, checked_reset};

pub use install::{Installed, install};
pub use protect::{NameFrom, protect, unprotect};

/// The driver of this fence. Your transaction must be of this version. A new major version of the driver is a breaking
/// change of this crate.
pub use ::tokio_postgres;

const ENTER: &str = "SELECT fencepost.enter($1, $2, $3)";
/// It returns the token, which shows that the server executed this statement and no other of the same name.
const PREPARED_ENTER: &str = "SELECT fencepost.enter($1, $2, $3), $2 AS token";

/// The timeout of [`connect`].
const CONNECT: Duration = Duration::from_secs(10);

/// Connects to a database by a URL with the same options as that of the lock store (`sslmode`, ...). Refuses a schema
/// `fencepost` of an untrusted role: see [`check_owner`]. The connection runs on the caller's tokio runtime.
pub async fn connect(url: &str) -> Result<Client> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("postgres", ""));
    let server = Server::new(PostgresOptions::parse(scheme, rest)?)?;
    let open = async {
        let failed = |error| error::explain(error, server.shown(), StoreError::unavailable);
        let (client, connection) = server.open().await.map_err(failed)?;
        tokio::spawn(connection);
        trust::look(&client, server.owner(), server.shown()).await?;
        Ok(client)
    };
    match race(open, BootClock.alarm(BootClock.now() + CONNECT)).await {
        First::Left(opened) => opened,
        First::Right(()) => Err(Error::unreachable(format!(
            "{} did not answer within {CONNECT:?}: check that it runs, and retry",
            server.shown()
        ))),
    }
}

/// Refuses a schema `fencepost` that an untrusted role owns, has an object in, or may create objects in: a call of a
/// function there would run that role's code. Trusted are this connection's role, superusers, the database's owner, and
/// `owner`.
///
/// [`connect`] calls it. On a connection of your own, call it once before you first enter: [`enter`] and [`begin`] do
/// not, because it would cost each transaction a round trip. Succeeds if there is no such schema.
pub async fn check_owner(client: &impl GenericClient, owner: Option<&str>) -> Result<()> {
    trust::look(client, owner, "this database").await?;
    Ok(())
}

/// How long a transaction of [`begin`] may be idle before the server ends it.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(30);

/// Enters: raises the mark of the lock to the token, or refuses. Call it first in the transaction, and in each
/// transaction of the holder, also in those that only read. One statement, one round trip.
///
/// To save the round trip, poll it together with the transaction's first statement (`futures::join!(enter(..),
/// tx.execute(..))`). The server executes them in that order, and refuses the second if it refused the first. They must
/// stay two statements. A busy server also saves time with [`PreparedEnter`].
///
/// On an error the server has aborted the transaction.
pub async fn enter(tx: &Transaction<'_>, fencing: &FencingToken) -> Result<()> {
    enter_as(tx, fencing, &default_label()?).await
}

/// [`enter`], with a label that says who entered, for people.
pub async fn enter_as(tx: &Transaction<'_>, fencing: &FencingToken, who: &Label) -> Result<()> {
    let (name, token) = values_of(fencing);
    let who = who.as_str();
    ask(tx, ENTER, &[(&name, Type::TEXT), (&token, Type::INT8), (&who, Type::TEXT)]).await?;
    Ok(())
}

/// [`enter`], prepared on one connection: the server need not parse it again in each transaction. Behind a pooler only if
/// that keeps prepared statements.
#[derive(Clone)]
pub struct PreparedEnter {
    statement: Statement,
    label: Label,
}

impl PreparedEnter {
    /// Prepares it, in one round trip. The fence must be installed.
    pub async fn new(client: &Client) -> Result<Self> {
        let types = [Type::TEXT, Type::INT8, Type::TEXT];
        let prepared = client.prepare_typed(PREPARED_ENTER, &types).await;
        let statement = prepared.map_err(|error| explain(&error))?;
        Ok(Self { statement, label: default_label()? })
    }

    /// The same as [`enter`]. `tx` must be of the connection on which this was prepared.
    pub async fn enter(&self, tx: &Transaction<'_>, fencing: &FencingToken) -> Result<()> {
        let (name, token) = values_of(fencing);
        let entered = tx.query(&self.statement, &[&name, &token, &self.label.as_str()]).await;
        let entered = entered.map_err(|error| explain(&error))?;
        if entered.first().and_then(|row| row.try_get(1).ok()) == Some(token) {
            return Ok(());
        }
        Err(Error::refused(
            "the server executed another prepared statement than `enter`: use a pooler that keeps prepared statements, or \
             `enter` instead of `PreparedEnter`",
        ))
    }
}

/// Begins a transaction and enters. The server ends the transaction when it is idle for [`DEFAULT_IDLE`].
pub async fn begin<'c>(client: &'c mut Client, fencing: &FencingToken) -> Result<Transaction<'c>> {
    begin_within(client, fencing, DEFAULT_IDLE).await
}

/// [`begin`], with another idle timeout. A shorter one of the session is kept.
pub async fn begin_within<'c>(
    client: &'c mut Client,
    fencing: &FencingToken,
    idle: Duration,
) -> Result<Transaction<'c>> {
    let tx = client.transaction().await.map_err(|error| explain(&error))?;
    let (name, token) = values_of(fencing);
    let who = default_label()?;
    let (who, idle) = (who.as_str(), idle.as_millis().clamp(1, i32::MAX as u128) as i64);
    // The timeout is set in the same statement, to save a round trip. That is safe, because the statement reads no data.
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
        &[(&name, Type::TEXT), (&token, Type::INT8), (&who, Type::TEXT), (&idle, Type::INT8)],
    )
    .await?;
    Ok(tx)
}

/// The mark of `name`, if any holder has entered.
pub async fn mark(client: &impl GenericClient, name: &LockName) -> Result<Option<Mark>> {
    Ok(show(client, Some(name)).await?.pop())
}

/// The mark of `name`, or all marks.
pub async fn show(client: &impl GenericClient, name: Option<&LockName>) -> Result<Vec<Mark>> {
    let name = name.map(LockName::as_str);
    let show = "SELECT lock, token, set_by, set_at FROM fencepost.show($1)";
    ask(client, show, &[(&name, Type::TEXT)]).await?.iter().map(mark_in).collect()
}

/// Sets the mark of `name` to `to`, or deletes it, and records the reset. Returns the previous mark.
///
/// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left. Needs `EXECUTE`
/// on `fencepost.reset`; the record also has the role of the caller.
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

/// The rows that one statement returns.
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
        Error::refused("the functions in the schema fencepost were not created by fencepost: check their owner")
            .with_source(error)
    })
}

/// Name and token, as parameters of a statement.
fn values_of(fencing: &FencingToken) -> (&str, i64) {
    (fencing.name().as_str(), number(fencing.token()))
}

fn number(token: Token) -> i64 {
    token.get().cast_signed()
}

fn token_of(number: i64) -> Result<Token> {
    Ok(Token::new(number.max(0).cast_unsigned())?)
}

/// Explains an error of PostgreSQL to the user of a fence. Use it for your own statements too: it knows the refusal of a
/// protected table. An error of `commit` that is `Unreachable` leaves open whether the transaction was committed.
#[must_use]
pub fn explain(error: &tokio_postgres::Error) -> Error {
    let Some(found) = error.as_db_error() else {
        return Error::unreachable("the connection to the database failed: check the server, and retry on a new connection").with_source(chain(error));
    };
    let (code, message) = (found.code(), found.message());
    match code.code() {
        // The message names the mark.
        "FP001" => return Error::new(ErrorKind::Stale, message),
        "FP002" => return Error::invalid(message),
        "FP003" => return Error::refused(message),
        _ => {}
    }
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME];
    let explained = if *code == SqlState::UNDEFINED_FUNCTION && message.contains(", numeric) ") {
        // A literal above 2^63, or with a fraction.
        Error::invalid("the token is not an integer from 1 to 2^53 - 1: pass that of the grant")
    } else if missing.contains(code) && message.contains("fencepost") {
        Error::refused(
            "the fence is not in this database: run `fencepost fence install --resource URL` as a \
             role that may create a schema",
        )
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        not_allowed(message)
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        Error::refused(
            "`enter` writes the mark of a new token, and this transaction or server is read-only: enter first in a \
             read-write transaction, on the primary",
        )
    } else if *code == SqlState::INVALID_SQL_STATEMENT_NAME {
        Error::invalid(
            "the server does not know this prepared statement: prepare it again on this connection",
        )
    } else if *code == SqlState::OUT_OF_MEMORY && message.contains("shared memory") {
        Error::unreachable(
            "the server's lock table is full: enter fewer names in one transaction, or raise max_locks_per_transaction",
        )
    } else if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
    {
        Error::unreachable(
            "another transaction was committed or entered at the same time: retry the transaction",
        )
    } else if [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) {
        Error::unreachable(
            "another holder has entered, and its transaction did not end in time: retry",
        )
    } else if ["08", "25", "53", "57", "58", "XX"]
        .iter()
        .any(|class| code.code().starts_with(class))
    {
        Error::unreachable("the database failed: retry when it is available")
    } else {
        Error::invalid("the database rejected the statement")
    };
    explained.with_source(message.to_owned())
}

/// Which grant the role lacks.
fn not_allowed(message: &str) -> Error {
    let function = ["enter", "show", "audit", "reset"]
        .into_iter()
        .find(|function| message.ends_with(&format!("function {function}")));
    Error::refused(match function {
        Some(function) => format!(
            "permission denied: GRANT EXECUTE ON FUNCTION fencepost.{function} to this role"
        ),
        None if message.contains("schema fencepost") => {
            "permission denied: GRANT USAGE ON SCHEMA fencepost to this role".to_owned()
        }
        None => "permission denied: use another role, or grant this one the right".to_owned(),
    })
}

/// An error of the client with its causes: alone it only says "error connecting to server".
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
