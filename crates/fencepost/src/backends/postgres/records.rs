//! Records on the server: running, done or failed (ledger.rs has the rules; `records.sql` the functions).
//!
//! *Why one success is recorded:* each step is one function, which decides under the lock of the record's row, on the
//! row as it is then. `finish` writes only if the record is running with the caller's own token.
//! *Where it ends:* with the server's commits: records are as durable as grants. They expire by the server's clock: if it
//! is set forwards, they end early.
//!
//! `finish_own` does so in the caller's transaction, whose role needs only the right to call it. The record's row is
//! locked until that transaction ends, and a client that would take over waits for it. The server ends a transaction that
//! is idle for 30 s after the call.

use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, Token};
use fencepost_fence::postgres::explain;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use super::inspect::or_empty;
use super::reply::{self, number, text, unexpected_reply};
use super::{Postgres, schema};
use crate::backend::{BoxFuture, StoreResult};
use crate::error::{Error, Result};
use crate::ledger::{
    Claim, Claimed, Completion, Outcome, Precondition, RecordInfo, RecordsByName, State,
};
use crate::postgres::error::if_not_allowed;
use crate::postgres::{Parameter, Use};
use crate::transaction;

const CLAIM: &str = "SELECT * FROM fencepost.claim($1, $2, $3, $4)";
const FINISH: &str = "SELECT fencepost.finish($1, $2, $3, $4, $5, $6, $7) AS status";
const FINISH_OWN: &str = "SELECT fencepost.finish_own($1, $2, $3, $4, $5, $6, $7) AS status";
const LOOK_UP: &str =
    "SELECT r.* FROM pg_catalog.unnest($1) AS asked (name), fencepost.look_up(asked.name) AS r";
const ENTRIES: &str = "SELECT * FROM fencepost.list_records($1)";
const FORGET: &str = "SELECT fencepost.forget($1, $2)";

/// The rights that a role needs, besides those for locks.
const GRANTS: &str = "fencepost.claim, fencepost.finish, fencepost.look_up, fencepost.list_records, \
                      fencepost.forget, fencepost.gc_records";

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn info(row: &Row) -> Option<RecordInfo> {
    let name = LockName::new(&text(row, "r_name")?).ok()?;
    let state = match row.try_get("r_state").ok()? {
        0 => State::Running,
        1 => State::Done,
        2 => State::Failed,
        _ => return None,
    };
    let token = Token::new(number(row, "r_token")?).ok()?;
    let label = Label::new(&text(row, "r_label")?).ok()?;
    let since = Duration::from_millis(number(row, "r_since")?);
    let kept_for = Duration::from_millis(number(row, "r_left")?);
    let record = RecordInfo::new(name, state, token, label).with_times(since, kept_for);
    Some(record.with_result(row.try_get("r_result").ok()?))
}

/// The parameters of a finish, as the function takes them.
struct FinishParameters<'a> {
    name: &'a str,
    token: i64,
    label: &'a str,
    state: i32,
    result: &'a [u8],
    retention: i64,
}

impl<'a> FinishParameters<'a> {
    fn of(finish: &'a Completion) -> Self {
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
            retention: millis(finish.retention),
        }
    }

    /// With the parameter in which the two functions differ.
    fn parameters<'b>(&'b self, last: Parameter<'b>) -> [Parameter<'b>; 7] {
        [
            (&self.name, Type::TEXT),
            (&self.token, Type::INT8),
            (&self.label, Type::TEXT),
            (&self.state, Type::INT4),
            (&self.result, Type::BYTEA),
            (&self.retention, Type::INT8),
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
                "this role may not use the records at {shown} ({cause}): as their owner, GRANT EXECUTE ON FUNCTION \
                {GRANTS} TO this role"
            )
        })
    })
}

pub(super) async fn claim(store: &Postgres, claim: Claim, limit: Moment) -> StoreResult<Claimed> {
    let (token, retention) = (claim.token.get().cast_signed(), millis(claim.retention));
    let (name, label) = (claim.name.as_str(), claim.label.as_str());
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::TEXT), (&token, Type::INT8), (&label, Type::TEXT), (&retention, Type::INT8)];
    let reply = call(store, Use::Asking, CLAIM, &parameters, limit).await?;
    reply.try_map(|rows| {
        let row = rows.first().ok_or_else(|| unexpected_reply("claim"))?;
        *store.store_id.lock() = text(row, "r_store");
        if reply::status(row, "claim")? == 1 {
            return Ok(Claimed::Ours);
        }
        let record = info(row).ok_or_else(|| unexpected_reply("claim"))?;
        Ok(if record.is_finished() { Claimed::Finished(record) } else { Claimed::Overtaken })
    })
}

pub(super) async fn finish(
    store: &Postgres,
    finish: Completion,
    limit: Moment,
) -> StoreResult<bool> {
    let (finish_parameters, older) =
        (FinishParameters::of(&finish), finish.precondition == Precondition::Older);
    let parameters = finish_parameters.parameters((&older, Type::BOOL));
    let reply = call(store, Use::Releasing, FINISH, &parameters, limit).await?;
    reply.try_map(|rows| {
        let row = rows.first().ok_or_else(|| unexpected_reply("finish"))?;
        Ok(reply::status(row, "finish")? == 1)
    })
}

pub(super) async fn look_up(
    store: &Postgres,
    names: Vec<LockName>,
    limit: Moment,
) -> StoreResult<RecordsByName> {
    let names: Vec<&str> = names.iter().map(LockName::as_str).collect();
    let found = read(store, LOOK_UP, (&names, Type::TEXT_ARRAY), limit).await?;
    Ok(found.map(|found| found.into_iter().map(|record| (record.name.clone(), record)).collect()))
}

pub(super) async fn list_records(
    store: &Postgres,
    prefix: String,
    limit: Moment,
) -> StoreResult<Vec<RecordInfo>> {
    read(store, ENTRIES, (&prefix, Type::TEXT), limit).await
}

async fn read(
    store: &Postgres,
    sql: &str,
    asked: Parameter<'_>,
    limit: Moment,
) -> StoreResult<Vec<RecordInfo>> {
    let reply = call(store, Use::Asking, sql, &[asked], limit).await;
    or_empty(store, reply)?.try_map(|rows| {
        rows.iter().map(|row| info(row).ok_or_else(|| unexpected_reply("look up"))).collect()
    })
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
        // A retry may find that the first request was executed.
        Ok(gone.ok_or_else(|| unexpected_reply("forget"))? || retried)
    })
}

impl transaction::Transaction for Transaction<'_> {
    fn finish(&mut self, finish: Completion, store_id: String) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let finish_parameters = FinishParameters::of(&finish);
            match self
                .query_typed_one(FINISH_OWN, &finish_parameters.parameters((&store_id, Type::TEXT)))
                .await
            {
                Ok(row) => match row.try_get("status") {
                    Ok(1) => Ok(true),
                    Ok(0) => Ok(false),
                    Ok(4) => Err(elsewhere(&finish.name)),
                    Ok(5) => Err(transaction::recorded_already(&finish.name)),
                    Ok(6) => Err(transaction::unseen(&finish.name)),
                    Ok(7) => Err(transaction::recorded_twice(&finish.name)),
                    _ => Err(unexpected_reply("finish").into()),
                },
                Err(error) => Err(not_recorded(&finish.name, &error)),
            }
        })
    }
}

fn elsewhere(name: &LockName) -> Error {
    Error::refused(format!(
        "the transaction is in another database than the store: \"{name}\" can only be recorded in the \
        store's database, where the effect must be too"
    ))
}

/// Why the caller's transaction cannot finish a record.
fn not_recorded(name: &LockName, error: &tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else { return explain(error) };
    match *said.code() {
        SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => elsewhere(name),
        SqlState::INSUFFICIENT_PRIVILEGE => Error::refused(
            "the role of this transaction may not finish records: GRANT USAGE ON SCHEMA fencepost, and \
            EXECUTE ON FUNCTION fencepost.finish_own, TO this role",
        ),
        // Only above READ COMMITTED: the record's row is newer than this transaction's snapshot.
        SqlState::T_R_SERIALIZATION_FAILURE => Error::unreachable(format!(
            "the record of \"{name}\" has changed since this transaction began: roll back, and begin it \
             inside the work"
        )),
        _ => return explain(error),
    }
    // The message alone: the whole error has several lines.
    .with_source(said.message())
}
