//! Acquire, renew, release, break: one function of the server each, in a transaction of its own.

use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl, Value};
use futures_util::future::{join, join_all};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::breaks::{BROKEN, CONFIRMED};
use super::listen::NOTIFY;
use super::queue::LOOK_AGAIN;
use super::reply::{self, number, text};
use super::{Postgres, inspect, schema, values};
use crate::backend::{
    Acquired, Broken, Grant, GrantId, LossCause, NotHeld, Queue, Renewal, Renewals, Renewed, Reply,
    Request, StoreResult,
};
use crate::backends::polling::Polled;
use crate::postgres::{Parameter, Use};
use crate::race::{First, race};
use crate::store_error::StoreError;

/// How long an owner is remembered that was released before it came, in milliseconds.
const REMEMBER: i64 = 60_000;
/// How many leases are renewed in one transaction: more would keep their rows from others for too long.
const BATCH: usize = 500;
const ACQUIRE: &str = "SELECT * FROM fencepost.acquire($1, $2::uuid, $3, $4, $5)";
const RELEASE: &str = "SELECT * FROM fencepost.release($1, $2::uuid, $3, $4)";
/// It notifies in the transaction that breaks. If it was sent twice, it notifies again.
const BREAK: &str = "SELECT b.*, CASE WHEN b.status OPERATOR(pg_catalog.>) 0 \
                     THEN pg_catalog.pg_notify($3, $2::pg_catalog.text) END \
                     FROM fencepost.break_lock($1, $2) b";
/// How long a break waits until it could hear a confirmation.
const READY: Duration = Duration::from_millis(500);
const RENEW: &str = "SELECT * FROM fencepost.renew($1, $2, $3, $4)";

/// The answer to one renewal.
type Answer = StoreResult<Result<Renewed, NotHeld>>;

/// One try. Most locks are free: a position, and the connection that listens, only if this one is not.
pub(super) async fn try_acquire(
    store: &Postgres,
    request: Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Acquired> {
    let mut reply = poll(store, &request, Queue::Skip, limit).await?;
    if queue == Queue::Join && matches!(reply.value.acquired, Acquired::Held(_)) {
        let first = reply.retried;
        store.listener.start();
        reply = poll(store, &request, Queue::Join, limit).await?;
        reply.retried |= first;
    }
    Ok(reply.map(|polled| polled.acquired))
}

/// Calls `fencepost.acquire` once, which takes or refreshes a position if it is to.
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
    // Until there is an answer, it may yet be carried out: also if nobody waits for it any more.
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
        let row = rows.first().ok_or_else(|| reply::odd("acquire"))?;
        let mut poll_after = LOOK_AGAIN;
        let acquired = match reply::status(row, "acquire")? {
            1 => {
                let token = reply::token(row, "r_token", "acquire")?;
                let ttl = reply::ttl(row, "r_ttl", "acquire")?;
                store.breaks.granted(*owner, token, request.loss.clone());
                store.listener.start_if_held();
                Acquired::Granted(Grant { token, ttl, queued: false, presence: None })
            }
            2 => {
                let left = number(row, "r_left").map(Duration::from_millis);
                let ahead = number(row, "r_ahead").unwrap_or(1);
                // Only the first in the queue counts on the lease's end: one is enough to see it.
                if ahead == 0 {
                    poll_after = left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
                }
                Acquired::Queued { ahead }
            }
            0 => Acquired::Held(reply::holder(row)),
            // It was released before it arrived.
            _ => Acquired::PlaceLost,
        };
        Ok(Polled { acquired, poll_after })
    })
}

/// Renews many leases in few calls.
pub(super) async fn renew(store: &Postgres, batch: Vec<Renewal>, limit: Moment) -> Renewals {
    let mut answers = Vec::with_capacity(batch.len());
    for some in batch.chunks(BATCH) {
        match renew_some(store, some, limit).await {
            Ok(renewed) => answers.extend(renewed),
            Err(error) => answers.extend(some.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

async fn renew_some(
    store: &Postgres,
    batch: &[Renewal],
    limit: Moment,
) -> Result<Renewals, StoreError> {
    let mut answers = renew_once(store, batch, limit).await?;
    // A row that another has locked must not keep the rest from being renewed: it is waited for alone, and
    // not for so long that those who are renewed hear of it too late.
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
        let message = format!("a session at {shown} keeps the row of \"{name}\" from us");
        StoreError::unavailable(message)
    };
    let answers = answers.into_iter().zip(batch);
    Ok(answers.map(|(answer, renewal)| answer.unwrap_or_else(|| Err(kept(renewal)))).collect())
}

/// `None` for those whose row is locked by another, unless there is only one.
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
        let place = number(row, "place").and_then(|place| usize::try_from(place).ok());
        let place =
            place.and_then(|place| place.checked_sub(1)).filter(|place| *place < batch.len());
        let place = place.ok_or_else(|| reply::odd("renew"))?;
        answers[place] = match reply::status(row, "renew")? {
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
    let late = store.unanswered.has(owner, store.clock.now());
    let (name, id) = (name.as_str(), owner.reveal());
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::TEXT), (&id, Type::TEXT), (&REMEMBER, Type::INT8), (&late, Type::BOOL)];
    let reply = store.pool.call(Use::Releasing, RELEASE, &parameters, limit).await?;
    if late {
        store.unanswered.clear(owner);
    }
    let token = store.breaks.released(owner);
    let row = reply.value.first().ok_or_else(|| reply::odd("release"))?;
    let why = why_not(row);
    if let (Some(LossCause::Broken), Some(token)) = (why, token) {
        confirm(store, token).await;
    }
    let ended = reply::status(row, "release")? == 1;
    Ok(reply.map(|_| if ended { Ok(()) } else { Err(NotHeld(why)) }))
}

/// Tells whoever broke the grant that its holder knows.
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
    // Whom it is to hit is looked up first: sent again after a cut, it must not hit the next one.
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
    let row = reply.value.first().ok_or_else(|| reply::odd("break"))?;
    let floor = match reply::status(row, "break")? {
        1 => reply::token(row, "r_floor", "break")?,
        // What the first of two drew is not known any more. Next to the broken token nothing was granted,
        // so that does as well.
        5 => Token::new(seen.get() + 1).map_err(|_| reply::odd("break"))?,
        _ => return Ok(nothing),
    };
    let heard = race(confirmation.called(), store.clock.alarm(confirm_until));
    let confirmed = ready && matches!(heard.await, First::Left(()));
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
