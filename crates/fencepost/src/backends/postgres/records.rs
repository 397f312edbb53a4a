//! Records on the server: what is running, done or failed (ledger.rs has the rules; `records_1.sql` the steps).
//!
//! *Why one success is recorded:* each step is one function, which decides under the lock of the record's row, on the
//! row as it is then. `finish` writes only where it is running with the caller's own token.
//! *Where it ends:* where the server's commits end: records are kept as well as grants are, and no better. Their time is
//! the server's: a clock that is set forwards ends them early.
//!
//! `finish_own` does so in a transaction of the caller's, which then needs no more than the right to call it. The
//! record's row is locked until that transaction ends, and whoever would take over waits for it. The server ends one
//! that does nothing for 30 s after it.

use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, Token};
use fencepost_fence::postgres::explain;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use super::inspect::or_empty;
use super::reply::{self, number, odd, text};
use super::{Postgres, schema};
use crate::backend::{BoxFuture, StoreResult};
use crate::error::{Error, Result};
use crate::ledger::{Claim, Claimed, Entry, Finish, Outcome, Over, State};
use crate::postgres::error::if_not_allowed;
use crate::postgres::{Parameter, Use};
use crate::transaction;

const CLAIM: &str = "SELECT * FROM fencepost.claim($1, $2, $3, $4)";
const FINISH: &str = "SELECT fencepost.finish($1, $2, $3, $4, $5, $6, $7) AS status";
const FINISH_OWN: &str = "SELECT fencepost.finish_own($1, $2, $3, $4, $5, $6, $7) AS status";
const LOOK_UP: &str = "SELECT * FROM fencepost.look_up($1)";
const ENTRIES: &str = "SELECT * FROM fencepost.list_records($1)";
const FORGET: &str = "SELECT fencepost.forget($1, $2)";

/// What a role has to be given, besides the locks.
const GRANTS: &str = "fencepost.claim, fencepost.finish, fencepost.look_up, fencepost.list_records, \
                      fencepost.forget, fencepost.tidy_records";

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn entry(row: &Row) -> Option<Entry> {
    Some(Entry {
        name: LockName::new(&text(row, "r_name")?).ok()?,
        state: match row.try_get("r_state").ok()? {
            0 => State::Running,
            1 => State::Done,
            2 => State::Failed,
            _ => return None,
        },
        token: Token::new(number(row, "r_token")?).ok()?,
        label: Label::new(&text(row, "r_label")?).ok()?,
        result: row.try_get("r_result").ok()?,
        since: Duration::from_millis(number(row, "r_since")?),
        kept_for: Duration::from_millis(number(row, "r_left")?),
    })
}

/// A finish, as the function takes it.
struct Told<'a> {
    name: &'a str,
    token: i64,
    label: &'a str,
    state: i32,
    result: &'a [u8],
    keep: i64,
}

impl<'a> Told<'a> {
    fn of(finish: &'a Finish) -> Self {
        let (state, result) = match &finish.outcome {
            Outcome::Abandoned => (0, &[][..]),
            Outcome::Done(result) => (1, &**result),
            Outcome::Failed(why) => (2, &**why),
        };
        Self {
            name: finish.name.as_str(),
            token: finish.token.get().cast_signed(),
            label: finish.label.as_str(),
            state,
            result,
            keep: millis(finish.keep),
        }
    }

    /// With the one in which the two functions differ.
    fn parameters<'b>(&'b self, last: Parameter<'b>) -> [Parameter<'b>; 7] {
        [
            (&self.name, Type::TEXT),
            (&self.token, Type::INT8),
            (&self.label, Type::TEXT),
            (&self.state, Type::INT4),
            (&self.result, Type::BYTEA),
            (&self.keep, Type::INT8),
            last,
        ]
    }
}

async fn call(
    store: &Postgres,
    usage: Use,
    sql: &str,
    parameters: &[Parameter<'_>],
    limit: Moment,
) -> StoreResult<Vec<Row>> {
    schema::records_ready(store).await?;
    store.pool.call(usage, sql, parameters, limit).await.map_err(|error| {
        if_not_allowed(error, |cause| {
            let shown = store.pool.shown();
            format!(
                "this role may not use the records at {shown} ({cause}): GRANT EXECUTE ON FUNCTION {GRANTS} TO it, \
                 as their owner"
            )
        })
    })
}

pub(super) async fn claim(store: &Postgres, claim: Claim, limit: Moment) -> StoreResult<Claimed> {
    let (token, keep) = (claim.token.get().cast_signed(), millis(claim.keep));
    let (name, label) = (claim.name.as_str(), claim.label.as_str());
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::TEXT), (&token, Type::INT8), (&label, Type::TEXT), (&keep, Type::INT8)];
    let reply = call(store, Use::Asking, CLAIM, &parameters, limit).await?;
    reply.try_map(|rows| {
        let row = rows.first().ok_or_else(|| odd("claim"))?;
        *store.place.lock() = text(row, "r_store");
        if reply::status(row, "claim")? == 1 {
            return Ok(Claimed::Ours);
        }
        let entry = entry(row).ok_or_else(|| odd("claim"))?;
        Ok(if entry.is_settled() { Claimed::Settled(entry) } else { Claimed::Overtaken })
    })
}

pub(super) async fn finish(store: &Postgres, finish: Finish, limit: Moment) -> StoreResult<bool> {
    let (told, older) = (Told::of(&finish), finish.over == Over::Older);
    let parameters = told.parameters((&older, Type::BOOL));
    let reply = call(store, Use::Releasing, FINISH, &parameters, limit).await?;
    reply.try_map(|rows| {
        let row = rows.first().ok_or_else(|| odd("finish"))?;
        Ok(reply::status(row, "finish")? == 1)
    })
}

pub(super) async fn look_up(
    store: &Postgres,
    name: LockName,
    limit: Moment,
) -> StoreResult<Option<Entry>> {
    Ok(read(store, LOOK_UP, name.as_str(), limit).await?.map(|mut entries| entries.pop()))
}

pub(super) async fn entries(
    store: &Postgres,
    prefix: String,
    limit: Moment,
) -> StoreResult<Vec<Entry>> {
    read(store, ENTRIES, &prefix, limit).await
}

async fn read(store: &Postgres, sql: &str, name: &str, limit: Moment) -> StoreResult<Vec<Entry>> {
    let reply = call(store, Use::Asking, sql, &[(&name, Type::TEXT)], limit).await;
    or_empty(store, reply)?
        .try_map(|rows| rows.iter().map(|row| entry(row).ok_or_else(|| odd("look up"))).collect())
}

pub(super) async fn forget(
    store: &Postgres,
    name: LockName,
    token: Token,
    limit: Moment,
) -> StoreResult<bool> {
    let (name, token) = (name.as_str(), token.get().cast_signed());
    let parameters: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&token, Type::INT8)];
    let reply = call(store, Use::Asking, FORGET, &parameters, limit).await?;
    let retried = reply.retried;
    reply.try_map(|rows| {
        let gone: Option<bool> = rows.first().and_then(|row| row.try_get(0).ok());
        // Sent again, it may find that the first one was carried out.
        Ok(gone.ok_or_else(|| odd("forget"))? || retried)
    })
}

impl transaction::Transaction for Transaction<'_> {
    fn finish(&mut self, finish: Finish, place: String) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let told = Told::of(&finish);
            match self.query_typed_one(FINISH_OWN, &told.parameters((&place, Type::TEXT))).await {
                Ok(row) => match row.try_get("status") {
                    Ok(1) => Ok(true),
                    Ok(0) => Ok(false),
                    Ok(4) => Err(elsewhere(&finish.name)),
                    Ok(5) => Err(transaction::marked_already(&finish.name)),
                    Ok(6) => Err(transaction::unseen(&finish.name)),
                    Ok(7) => Err(transaction::marked_twice(&finish.name)),
                    _ => Err(odd("finish").into()),
                },
                Err(error) => Err(not_marked(&finish.name, &error)),
            }
        })
    }
}

fn elsewhere(name: &LockName) -> Error {
    Error::refused(format!(
        "the transaction is one of another database than the store: \"{name}\" can only be marked in the \
         database that the store is in, where the effect must be too"
    ))
}

/// Why a transaction of the caller's could not be marked in.
fn not_marked(name: &LockName, error: &tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else { return explain(error) };
    match *said.code() {
        SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => elsewhere(name),
        SqlState::INSUFFICIENT_PRIVILEGE => Error::refused(
            "the role of this transaction may not mark what is done: GRANT USAGE ON SCHEMA fencepost, and \
             EXECUTE ON FUNCTION fencepost.finish_own, TO it",
        ),
        // Only above READ COMMITTED: the record's row is younger than what this transaction sees.
        SqlState::T_R_SERIALIZATION_FAILURE => Error::unreachable(format!(
            "the record of \"{name}\" has changed since this transaction began: roll back, and begin it \
             inside the work"
        )),
        _ => return explain(error),
    }
    .because(said.message())
}
