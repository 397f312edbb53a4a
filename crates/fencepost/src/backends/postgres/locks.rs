//! Acquire, renew, release, break: one function of the server each, in a transaction of its own.

use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl, Value};
use futures_util::future::{join, join_all};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::breaks::{BROKEN, CONFIRMED};
use super::listen::NOTIFY;
use super::queue::POLL_INTERVAL;
use super::reply::{self, number, text};
use super::{Postgres, inspect, schema, values};
use crate::backend::{
    Acquired, Broken, Grant, GrantId, LossCause, NotHeld, Outcome, Queue, Renewal, Renewals,
    Renewed, Reply, Request, StoreResult,
};
use crate::backends::polling::{Polled, join_by_polling};
use crate::postgres::{Parameter, Use};
use crate::race::{First, race};
use crate::store_error::StoreError;

/// How long the server remembers an owner that was released before its acquire came, in milliseconds.
const REMEMBER: i64 = 60_000;
/// How many leases are renewed in one transaction: more would lock their rows for too long.
const BATCH: usize = 500;
const ACQUIRE: &str = "SELECT * FROM fencepost.acquire($1, $2::uuid, $3, $4, $5)";
const RELEASE: &str = "SELECT * FROM fencepost.release($1, $2::uuid, $3, $4)";
const IS_RELEASED: &str = "SELECT fencepost.is_released($1, $2::uuid)";
/// It notifies in the transaction that breaks. If it was sent twice, it notifies again.
const BREAK: &str = "SELECT b.*, CASE WHEN b.status OPERATOR(pg_catalog.>) 0 \
                     THEN pg_catalog.pg_notify($3, $2::pg_catalog.text) END \
                     FROM fencepost.break_lock($1, $2) b";
/// How long a break waits until confirmations can be received.
const READY: Duration = Duration::from_millis(500);
const RENEW: &str = "SELECT * FROM fencepost.renew($1, $2, $3, $4)";

/// The result of one renewal.
type Answer = StoreResult<Result<Renewed, NotHeld>>;

/// One try. Most locks are free: take a position, and open the listening connection, only if this one is not.
pub(super) async fn try_acquire(
    store: &Postgres,
    request: Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Acquired> {
    let skipped = poll(store, &request, Queue::Skip, limit).await?;
    if queue == Queue::Skip || !matches!(skipped.value.acquired, Acquired::Held(_)) {
        return Ok(skipped.map(|polled| polled.acquired));
    }
    store.listener.start();
    let (owner, joining) = (request.grant.owner, poll(store, &request, Queue::Join, limit));
    let mut reply = join_by_polling(&*store.clock, &store.waiters, owner, joining).await?;
    reply.retried |= skipped.retried;
    Ok(reply)
}

/// Calls `fencepost.acquire` once, which takes or refreshes a position if requested.
pub(super) async fn poll(
    store: &Postgres,
    request: &Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Polled> {
    let Request { grant: GrantId { name, owner }, ttl, label, value, .. } = request;
    if value.is_some() {
        schema::records_ready(store).await?;
    }
    // Until there is a reply, it may still be executed, even if its caller is gone.
    let noted = store.clock.now();
    let first = store.unanswered.note(*owner, noted);
    let (ttl_ms, id) = (i64::from(ttl.as_millis()), owner.reveal());
    let channel = (queue == Queue::Join).then(|| store.listener.channel());
    let (named, called) = (name.as_str(), label.as_str());
    let value = value.as_ref().map(Value::as_bytes);
    let parameters: [Parameter<'_>; 6] = [
        (&named, Type::TEXT),
        (&id, Type::TEXT),
        (&ttl_ms, Type::INT8),
        (&called, Type::TEXT),
        (&channel, Type::TEXT),
        (&value, Type::BYTEA),
    ];
    let reply = match value {
        None => store.pool.call(Use::Asking, ACQUIRE, &parameters[..5], limit).await,
        Some(_) => store.pool.call(Use::Asking, values::CAMPAIGN, &parameters, limit).await,
    };
    store.unanswered.settle(*owner, first, noted, &reply);
    reply?.try_map(|rows| {
        let row = rows.first().ok_or_else(|| reply::unexpected_reply("acquire"))?;
        let mut poll_after = POLL_INTERVAL;
        let acquired = match reply::status(row, "acquire")? {
            1 => {
                let token = reply::token(row, "r_token", "acquire")?;
                let ttl = reply::ttl(row, "r_ttl", "acquire")?;
                store.breaks.grants.insert(*owner, token, request.loss.clone());
                store.listener.start_if_held();
                Acquired::Granted(Grant::new(token, ttl))
            }
            2 => {
                let left = number(row, "r_left").map(Duration::from_millis);
                let ahead = number(row, "r_ahead").unwrap_or(1);
                // Only the first waiter polls at the lease's end: one is enough.
                if ahead == 0 {
                    poll_after = left.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL);
                }
                Acquired::Queued { ahead }
            }
            0 => Acquired::Held(reply::holder(row)),
            // It was released before it arrived.
            _ => Acquired::PositionLost,
        };
        Ok(Polled { acquired, poll_after })
    })
}

/// Renews many leases in few calls.
pub(super) async fn renew(store: &Postgres, batch: Vec<Renewal>, limit: Moment) -> Renewals {
    let mut answers = Renewals::with_capacity(batch.len());
    for some in batch.chunks(BATCH) {
        let grants = some.iter().map(|renewal| renewal.grant.clone());
        match renew_some(store, some, limit).await {
            Ok(renewed) => answers.extend(grants.zip(renewed)),
            Err(error) => answers.extend(grants.map(|grant| (grant, Err(error.clone())))),
        }
    }
    answers
}

/// The answers in the order of the batch.
async fn renew_some(
    store: &Postgres,
    batch: &[Renewal],
    limit: Moment,
) -> Result<Vec<Answer>, StoreError> {
    let mut answers = renew_once(store, batch, limit).await?;
    // A row that another session has locked must not delay the other renewals: it is waited for alone, and not
    // for so long that the others are reported too late.
    let shortest = batch.iter().filter_map(|renewal| renewal.ttl).min().unwrap_or(Ttl::MIN);
    let limit = limit.min(store.clock.now() + shortest.as_duration() / 6);
    let busy = answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none());
    join_all(busy.map(|(answer, renewal)| async move {
        let alone = renew_once(store, std::slice::from_ref(renewal), limit);
        *answer = match race(alone, store.clock.alarm(limit)).await {
            First::Left(Ok(mut alone)) => alone.pop().flatten(),
            First::Left(Err(error)) => Some(Err(error)),
            First::Right(()) => None,
        };
    }))
    .await;
    let kept = |renewal: &Renewal| {
        let (shown, name) = (store.pool.shown(), &renewal.grant.name);
        let message = format!(
            "another session at {shown} keeps the row of \"{name}\" locked: end that session"
        );
        StoreError::unavailable(message)
    };
    let answers = answers.into_iter().zip(batch);
    Ok(answers.map(|(answer, renewal)| answer.unwrap_or_else(|| Err(kept(renewal)))).collect())
}

/// The answers in the order of the batch; `None` for a lease whose row another session has locked, unless there is only one.
async fn renew_once(
    store: &Postgres,
    batch: &[Renewal],
    limit: Moment,
) -> Result<Vec<Option<Answer>>, StoreError> {
    let names: Vec<&str> = batch.iter().map(|renewal| renewal.grant.name.as_str()).collect();
    let owners: Vec<String> = batch.iter().map(|renewal| renewal.grant.owner.reveal()).collect();
    let ttls: Vec<i64> = batch
        .iter()
        .map(|renewal| renewal.ttl.map_or(0, |ttl| i64::from(ttl.as_millis())))
        .collect();
    let tokens: Vec<i64> = batch
        .iter()
        .map(|renewal| renewal.token.map_or(0, |token| token.get().cast_signed()))
        .collect();
    let said: Vec<Option<&[u8]>> =
        batch.iter().map(|renewal| renewal.value.as_ref().map(Value::as_bytes)).collect();
    let parameters: [Parameter<'_>; 5] = [
        (&names, Type::TEXT_ARRAY),
        (&owners, Type::TEXT_ARRAY),
        (&ttls, Type::INT8_ARRAY),
        (&tokens, Type::INT8_ARRAY),
        (&said, Type::BYTEA_ARRAY),
    ];
    let reply = if said.iter().all(Option::is_none) {
        store.pool.call(Use::Renewing, RENEW, &parameters[..4], limit).await?
    } else {
        store.pool.call(Use::Renewing, values::PROCLAIM, &parameters, limit).await?
    };
    let mut answers: Vec<Option<Answer>> = batch.iter().map(|_| None).collect();
    for row in &reply.value {
        let item = number(row, "item").and_then(|item| usize::try_from(item).ok());
        let item = item.and_then(|item| item.checked_sub(1)).filter(|item| *item < batch.len());
        let item = item.ok_or_else(|| reply::unexpected_reply("renew"))?;
        answers[item] = match reply::status(row, "renew")? {
            1 => {
                let token = reply::token(row, "r_token", "renew")?;
                let ttl = reply::ttl(row, "r_ttl", "renew")?;
                Some(Ok(Reply::new(Ok(Renewed { token, ttl }), reply.sent)))
            }
            2 => None,
            _ => Some(Ok(Reply::new(Err(NotHeld(why_not(row))), reply.sent))),
        };
    }
    Ok(answers)
}

pub(super) async fn release(
    store: &Postgres,
    grant: GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    store.waiters.forget(owner);
    let late = store.unanswered.has(owner, store.clock.now());
    let (name, id) = (name.as_str(), owner.reveal());
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::TEXT), (&id, Type::TEXT), (&REMEMBER, Type::INT8), (&late, Type::BOOL)];
    let mut reply = store.pool.call(Use::Releasing, RELEASE, &parameters, limit).await?;
    // It woke a waiter before it was on disk. The answer waits until it is (P10).
    while reply.value.first().and_then(|row| row.try_get("r_unsynced").ok()) == Some(true) {
        let synced = store.pool.call(Use::Releasing, IS_RELEASED, &parameters[..2], limit).await;
        let synced = synced.map_err(|error| error.with_outcome(Outcome::Unknown))?;
        if synced.value.first().and_then(|row| row.try_get(0).ok()) == Some(true) {
            break;
        }
        reply = store.pool.call(Use::Releasing, RELEASE, &parameters, limit).await?;
        reply.retried = true;
    }
    if late {
        store.unanswered.clear(owner);
    }
    let token = store.breaks.grants.remove(owner);
    let row = reply.value.first().ok_or_else(|| reply::unexpected_reply("release"))?;
    let why = why_not(row);
    if let (Some(LossCause::Broken), Some(token)) = (why, token) {
        confirm(store, token).await;
    }
    let ended = reply::status(row, "release")? == 1;
    Ok(reply.map(|_| if ended { Ok(()) } else { Err(NotHeld(why)) }))
}

/// Confirms a break to its operator.
async fn confirm(store: &Postgres, token: Token) {
    let token = token.get().to_string();
    let parameters: [Parameter<'_>; 2] = [(&CONFIRMED, Type::TEXT), (&token, Type::TEXT)];
    if let Err(error) = store.pool.call_outside(NOTIFY, &parameters).await {
        tracing::debug!(server = %store.pool.shown(), why = %error, "cannot confirm a break");
    }
}

pub(super) async fn break_lock(
    store: &Postgres,
    name: LockName,
    token: Option<Token>,
    confirm_until: Moment,
    limit: Moment,
) -> StoreResult<Option<Broken>> {
    let sent = store.clock.now();
    let ready = store.listener.is_ready(confirm_until.min(sent + READY));
    // The holder is looked up first: a retry after a broken connection must not break the next grant.
    let (info, ready) = join(inspect::inspect(store, name.clone(), limit), ready).await;
    let nothing = Reply::new(None, sent);
    let Some(holder) = info?.value.holder else { return Ok(nothing) };
    let Some(seen) = holder.token.filter(|seen| token.is_none_or(|token| token == *seen)) else {
        return Ok(nothing);
    };
    let confirmation = store.breaks.await_confirmation(seen);
    let token = seen.get().cast_signed();
    let parameters: [Parameter<'_>; 3] =
        [(&name.as_str(), Type::TEXT), (&token, Type::INT8), (&BROKEN, Type::TEXT)];
    let reply = store.pool.call(Use::Asking, BREAK, &parameters, limit).await?;
    let row = reply.value.first().ok_or_else(|| reply::unexpected_reply("break"))?;
    let floor = match reply::status(row, "break")? {
        1 => reply::token(row, "r_floor", "break")?,
        // The floor that the first request drew is unknown. The broken token plus one was not granted to
        // anybody, so it works as well.
        5 => Token::new(seen.get() + 1).map_err(|_| reply::unexpected_reply("break"))?,
        _ => return Ok(nothing),
    };
    let notified = race(confirmation.notified(), store.clock.alarm(confirm_until));
    let confirmed = ready && matches!(notified.await, First::Left(()));
    let broken = Broken { label: holder.label, token: Some(seen), floor, confirmed };
    Ok(Reply::new(Some(broken), sent))
}

fn why_not(row: &Row) -> Option<LossCause> {
    match text(row, "r_why").as_deref() {
        Some("broken") => Some(LossCause::Broken),
        Some("taken") => Some(LossCause::TakenOver),
        _ => None,
    }
}
