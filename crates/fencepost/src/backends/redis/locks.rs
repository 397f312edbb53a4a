//! Acquire, renew, release and break on one server: which script with which arguments.

use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl};

use super::connection::Connection;
use super::error::is_not_ours;
use super::layout::Keys;
use super::reply::{Broke, LockSnapshot};
use super::scripts::OPERATIONS;
use super::{REMEMBER, Redis};
use crate::backend::{
    Acquired, Broken, GrantId, NotHeld, Queue, Renewal, Renewed, Reply, Request, StoreResult,
};
use crate::backends::polling::Polled;
use crate::clock::Clock;
use crate::race::{First, race};

/// How often a break checks for the holder's confirmation.
const CONFIRM_EVERY: Duration = Duration::from_millis(20);

/// Runs `acquire.lua` once. `try_acquire` is this without `poll_after`; `wait` repeats it.
pub(super) async fn poll(
    redis: &Redis,
    request: &Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Polled> {
    let Request { grant: GrantId { name, owner }, ttl, label, value, .. } = request;
    let (id, ttl_ms) = (owner.reveal(), ttl.as_millis());
    let state = format!(" 0 - {id} {ttl_ms} 0 {label}");
    let client = if queue == Queue::Join { &*redis.subscriber.client } else { "" };
    let call = OPERATIONS.acquire.on(redis.prefix.keys(name)?);
    let mut call = call.arg(&id).arg(ttl_ms).arg(state).arg(client).arg(redis.retention);
    if let Some(value) = value {
        call = call.arg("value").arg(value.as_bytes());
    } else if u64::from(ttl_ms) > redis.retention {
        call = call.arg("long");
    }
    // Noted before the request leaves: even if this future is dropped, `release` knows that an acquire may arrive.
    let noted = redis.clock.now();
    let first = redis.unanswered.note(*owner, noted);
    let reply = redis.connection.call(&call, limit).await;
    redis.unanswered.settle(*owner, first, noted, &reply);
    let reply = reply?.try_map(|reply| reply.polled(*ttl))?;
    if let Acquired::Granted(grant) = &reply.value.acquired
        && redis.subscriber.granted(request, grant.token)
    {
        redis.connection.subscribe_to_breaks();
    }
    Ok(reply)
}

pub(super) async fn renew(
    redis: &Redis,
    renewal: &Renewal,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
    let ttl = ttl.map_or(0, Ttl::as_millis);
    let call = OPERATIONS.renew.on(redis.prefix.keys(name)?);
    let mut call = call.arg(owner.reveal()).arg(ttl).arg(redis.retention);
    if let Some(value) = value {
        call = call.arg(value_number(redis.clock.now())).arg(value.as_bytes());
    }
    redis.connection.call(&call, limit).await?.try_map(|reply| reply.renewed())
}

pub(super) async fn release(
    redis: &Redis,
    grant: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    let call = OPERATIONS.release.on(redis.prefix.keys(name)?);
    let mut call = call.arg(owner.reveal()).arg(redis.retention).arg(remember_ms(redis.retention));
    let sent = redis.clock.now();
    redis.subscriber.released(*owner);
    if redis.unanswered.has(*owner, sent) {
        call = call.arg("unanswered");
    }
    match redis.connection.call(&call, limit).await {
        Err(error) if is_not_ours(&error) => Ok(Reply::new(Err(NotHeld(None)), sent)),
        Err(error) => Err(error),
        Ok(reply) => {
            redis.unanswered.clear(*owner);
            Ok(reply.map(|reply| reply.released()))
        }
    }
}

pub(super) async fn break_lock(
    redis: &Redis,
    name: LockName,
    token: Option<Token>,
    confirm_until: Moment,
    limit: Moment,
) -> StoreResult<Option<Broken>> {
    let keys = redis.prefix.keys(&name)?;
    // The holder is looked up first: a retry after a broken connection must not break the next grant.
    let seen = redis.connection.call(&OPERATIONS.inspect.on(keys).arg(0), limit).await?;
    let seen = seen.try_map(|reply| LockSnapshot::read(&reply))?;
    let (nothing, seen) = (Reply::new(None, seen.sent), seen.value);
    let Some(value) = seen.value.clone() else { return Ok(nothing) };
    let Some(holder) = seen.into_info(name.clone()).holder else { return Ok(nothing) };
    if token.is_some() && token != holder.token {
        return Ok(nothing);
    }
    let call = OPERATIONS.break_lock.on(keys).arg(redis.retention).arg(&value);
    let call = call.arg(&redis.subscriber.break_channel);
    let reply = redis.connection.call(&call, limit).await?;
    let after = holder.token.and_then(|token| Token::new(token.get() + 1).ok());
    let floor = match (reply.value.broke()?, after) {
        // The floor that the first request drew is unknown. The broken token plus one was not granted to anybody,
        // so it works as well.
        (Broke::Now(floor), _) | (Broke::Before, Some(floor)) => floor,
        (Broke::Before | Broke::Nothing, _) => return Ok(nothing),
    };
    let (label, token) = (holder.label, holder.token);
    // A third-party client has no token, and sends no confirmation.
    let confirmed = token.is_some()
        && until_confirmed([&redis.connection], keys, &value, &*redis.clock, confirm_until).await;
    Ok(reply.map(|_| Some(Broken { label, token, floor, confirmed })))
}

/// The number of a value that a holder publishes now: it rises, so that an older value that arrives late does not
/// replace a newer one. Scripts count up to 2^53.
pub(in crate::backends) fn value_number(now: Moment) -> u64 {
    now.as_nanos() / 1000
}

/// How long the server remembers an owner that was released before its acquire came, in milliseconds.
pub(in crate::backends) fn remember_ms(retention: u64) -> u64 {
    retention.min(REMEMBER.as_millis() as u64)
}

/// Waits for a broken holder to release, which leaves its key `withdrawn` at one of these servers. An outage meanwhile
/// does not undo the break.
pub(in crate::backends) async fn until_confirmed(
    connections: impl IntoIterator<Item = &Connection>,
    keys: Keys<'_>,
    owner: &[u8],
    clock: &dyn Clock,
    limit: Moment,
) -> bool {
    let Ok(owner) = std::str::from_utf8(owner) else { return false };
    let withdrawn = redis::cmd("EXISTS").arg(keys.withdrawn(owner)).clone();
    let asked = connections.into_iter().map(|connection| {
        let withdrawn = &withdrawn;
        Box::pin(async move {
            loop {
                clock.alarm(clock.now() + CONFIRM_EVERY).await;
                let reply = connection.command(withdrawn, limit).await.map_err(drop)?;
                if reply.value == redis::Value::Int(1) {
                    return Ok::<(), ()>(());
                }
            }
        })
    });
    let confirmed = futures_util::future::select_ok(asked);
    matches!(race(confirmed, clock.alarm(limit)).await, First::Left(Ok(_)))
}
