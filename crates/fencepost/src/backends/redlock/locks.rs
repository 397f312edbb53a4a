//! Acquire, renew, release and break at several nodes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl};

use super::Redlock;
use super::inspect::look;
use super::nodes::{Delivery, LOOK, Message, Of};
use super::vote::{Ended, attempt};
use crate::backend::{
    Acquired, Broken, Grant, GrantId, LossCause, NotHeld, Outcome, Queue, Renewal, Renewed, Reply,
    Request, StoreError, StoreResult, short,
};
use crate::backends::polling::Polled;
use crate::backends::redis::{
    Connection, OPERATIONS, POLL_INTERVAL, THIRD_PARTY_POLL_INTERVAL, is_not_ours, remember_ms,
    until_confirmed, value_number,
};
use crate::random::part_of;

/// Two callers that collided at the nodes retry after a random part of this, doubled with each collision.
const JITTER: Duration = Duration::from_millis(8);
/// How often a caller that does not wait retries after a collision.
const TRIES: u32 = 3;
/// How often a break that was overtaken by a grant is retried.
const BREAK_TRIES: usize = 5;

/// How many times in a row a caller collided with others.
pub(super) type Met = AtomicU32;

/// Tries until it is decided who has the lock: a caller that does not wait makes a few attempts against concurrent
/// callers.
pub(super) async fn try_acquire(
    redlock: &Redlock,
    request: &Request,
    limit: Moment,
) -> StoreResult<Acquired> {
    let met = Met::default();
    loop {
        let reply = poll(redlock, request, Queue::Skip, &met, limit).await?;
        let again = redlock.clock.now() + reply.value.poll_after;
        match reply.value.acquired {
            Acquired::Held(None) if met.load(Ordering::Relaxed) <= TRIES && again < limit => {
                redlock.clock.alarm(again).await;
            }
            _ => return Ok(reply.map(|polled| polled.acquired)),
        }
    }
}

/// Polls for a waiter. Not at once: the first node notifies it before the other nodes have the release.
pub(super) async fn poll_again(
    redlock: &Redlock,
    request: &Request,
    met: &Met,
    limit: Moment,
) -> StoreResult<Polled> {
    redlock.clock.alarm(redlock.clock.now() + part_of(JITTER / 4)).await;
    poll(redlock, request, Queue::Join, met, limit).await
}

pub(super) async fn poll(
    redlock: &Redlock,
    request: &Request,
    queue: Queue,
    met: &Met,
    limit: Moment,
) -> StoreResult<Polled> {
    let sent = redlock.clock.now();
    let (holder, poll_after) = match attempt(redlock, request, queue, limit).await? {
        Ended::Granted(token, sent) => {
            if redlock.subscriber.granted(request, token) {
                redlock.nodes.connections().for_each(Connection::subscribe_to_breaks);
            }
            let acquired = Acquired::Granted(Grant::new(token, request.ttl));
            return Ok(Reply::new(Polled { acquired, poll_after: Duration::ZERO }, sent));
        }
        Ended::Held(Some(holder)) => {
            met.store(0, Ordering::Relaxed);
            // Nobody notifies us when a third-party client releases.
            let look =
                if holder.token.is_none() { THIRD_PARTY_POLL_INTERVAL } else { POLL_INTERVAL };
            // Not all at once, and not much later than the lease ends.
            let poll_after = holder.remaining.unwrap_or(look).min(look) + part_of(JITTER);
            (Some(holder), poll_after)
        }
        Ended::Held(None) | Ended::Outrun => {
            let times = met.fetch_add(1, Ordering::Relaxed) + 1;
            (None, part_of(JITTER * (1 << times.min(5))))
        }
    };
    let acquired = match queue {
        // The nodes' lists can differ, so they give no position.
        Queue::Join => Acquired::Queued { ahead: 0 },
        Queue::Skip => Acquired::Held(holder),
    };
    Ok(Reply::new(Polled { acquired, poll_after }, sent))
}

pub(super) async fn renew(
    redlock: &Redlock,
    renewal: &Renewal,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
    if let Some(ttl) = ttl.filter(|ttl| *ttl > redlock.max_ttl) {
        return Err(StoreError::invalid(format!(
            "a TTL of {} is longer than the redlock store allows: give at most {}",
            short(ttl.as_duration()),
            short(redlock.max_ttl.as_duration())
        )));
    }
    let call = OPERATIONS.extend.on(redlock.prefix.keys(name)?);
    let call = call.arg(owner.reveal()).arg(ttl.map_or(0, Ttl::as_millis));
    let mut call = call.arg(redlock.retention);
    let sent = redlock.clock.now();
    if let Some(value) = value {
        call = call.arg(value_number(sent)).arg(value.as_bytes());
    }
    let timeout = (ttl.unwrap_or(redlock.max_ttl).as_duration() / 6).min(LOOK);
    let timeout = timeout.min(limit.since(sent));
    let mut answers = redlock.nodes.ask(call, Delivery::Vote(Duration::ZERO), timeout);
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    let (count, quorum) = (redlock.nodes.count(), redlock.nodes.quorum());
    let mut node_replies = redlock.nodes.node_replies();
    while let Some((node, answer)) = answers.recv().await {
        match answer.and_then(|reply| reply.value.renewed()) {
            Ok(Ok(renewed)) => {
                node_replies.answered(node, "extended");
                kept.push(renewed);
            }
            Ok(Err(NotHeld(cause))) => {
                node_replies.answered(node, "not held");
                gone.push(cause);
            }
            Err(error) => node_replies.failed(node, error),
        }
        // The token that a majority has accepted; a node may have one of a failed attempt.
        for Renewed { token, .. } in &kept {
            let same: Vec<_> = kept.iter().filter(|other| other.token == *token).collect();
            if let Some(ttl) = same.iter().map(|renewed| renewed.ttl).min()
                && same.len() >= quorum
            {
                return Ok(Reply::new(Ok(Renewed { token: *token, ttl }), sent));
            }
        }
        if gone.len() > count - quorum {
            let cause = [LossCause::Broken, LossCause::TakenOver];
            let cause = cause.into_iter().find(|cause| gone.contains(&Some(*cause)));
            return Ok(Reply::new(Err(NotHeld(cause)), sent));
        }
        // Neither a majority for nor one against is possible any more.
        let open = node_replies.open();
        if kept.len() + open < quorum && gone.len() + open <= count - quorum {
            break;
        }
    }
    Err(node_replies.error(&format!("\"{name}\" cannot be renewed")))
}

pub(super) async fn release(
    redlock: &Redlock,
    grant: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    let call = OPERATIONS.release.on(redlock.prefix.keys(name)?).arg(owner.reveal());
    let call = call.arg(redlock.retention).arg(remember_ms(redlock.retention));
    let sent = redlock.clock.now();
    redlock.subscriber.released(*owner);
    // Retry at nodes that cannot be reached now, until the lease must have ended.
    let delivery = Delivery::Surely(sent + redlock.max_ttl.as_duration());
    let message = Message { call, of: Of::Release(*owner) };
    let mut answers = redlock.nodes.ask(message, delivery, LOOK.min(limit.since(sent)));
    let mut node_replies = redlock.nodes.node_replies();
    let (mut ended, mut gone, mut why) = (0, 0, None);
    let (count, quorum) = (redlock.nodes.count(), redlock.nodes.quorum());
    while let Some((node, answer)) = answers.recv().await {
        match answer.map(|reply| (reply.retried, reply.value.released())) {
            Ok((_, Ok(()))) => {
                node_replies.answered(node, "released");
                ended += 1;
            }
            // The connection broke after the node had executed it; another owner may have the key by now.
            Ok((true, Err(NotHeld(cause)))) if cause != Some(LossCause::Broken) => {
                node_replies.answered(node, "released");
                ended += 1;
            }
            Ok((_, Err(NotHeld(cause)))) => {
                node_replies.answered(node, "not held");
                why = why.or(cause);
                gone += 1;
            }
            Err(error) if is_not_ours(&error) => {
                node_replies.answered(node, "not a lock of ours");
                gone += 1;
            }
            Err(error) => node_replies.failed(node, error),
        }
        if ended >= quorum || gone > count - quorum || node_replies.open() == 0 {
            break;
        }
    }
    let released = match (ended, gone) {
        (ended, _) if ended >= quorum => Ok(()),
        // A majority has given it to another owner, or an operator broke it there.
        (_, gone) if gone > count - quorum && why.is_some() => Err(NotHeld(why)),
        // Less than a majority is no grant; but a position, or a vote, is something to give up.
        (ended, gone) if ended > 0 && ended + gone >= quorum => Ok(()),
        (_, gone) if gone > count - quorum => Err(NotHeld(why)),
        _ => {
            return Err(node_replies.error(&format!("\"{name}\" cannot be released on a majority")));
        }
    };
    Ok(Reply::new(released, sent))
}

/// Ends the grant on every node, and raises the last token of a majority above it.
pub(super) async fn break_lock(
    redlock: &Redlock,
    name: &LockName,
    token: Option<Token>,
    confirm_until: Moment,
    limit: Moment,
) -> Result<Option<Broken>, StoreError> {
    let keys = redlock.prefix.keys(name)?;
    for _ in 0..BREAK_TRIES {
        let seen = look(redlock, keys, name, 0, limit).await?;
        let (Some(value), Some(holder)) = (seen.value, seen.info.holder) else {
            return Ok(None);
        };
        if token.is_some() && token != holder.token {
            return Ok(None);
        }
        let floor = Token::new(seen.floor)
            .map_err(|_| StoreError::refused(format!("\"{name}\" has no tokens left")))?;
        let call = OPERATIONS.floor.on(keys).arg(&value).arg(floor.get()).arg(redlock.retention);
        let call = call.arg(&redlock.subscriber.break_channel);
        // Retry at a node that is down, for as long as the lease may last there.
        let now = redlock.clock.now();
        let delivery = Delivery::Surely(now + redlock.max_ttl.as_duration());
        let mut answers = redlock.nodes.ask(call, delivery, LOOK.min(limit.since(now)));
        let (mut raised, mut received, mut node_replies) = (0, 0, redlock.nodes.node_replies());
        while node_replies.open() > 0
            && let Some((node, answer)) = answers.recv().await
        {
            match answer {
                Ok(reply) => {
                    node_replies.answered(node, "answered");
                    received += 1;
                    raised += usize::from(reply.value.is_done());
                }
                Err(error) => node_replies.failed(node, error),
            }
            if raised >= redlock.nodes.quorum() {
                let (label, token, nodes) = (holder.label, holder.token, &redlock.nodes);
                // The note of any node is enough: only the holder's release creates it.
                let confirmed = token.is_some()
                    && until_confirmed(
                        nodes.connections(),
                        keys,
                        &value,
                        &*redlock.clock,
                        confirm_until,
                    )
                    .await;
                return Ok(Some(Broken { label, token, floor, confirmed }));
            }
        }
        if received < redlock.nodes.quorum() {
            return Err(node_replies.error(&format!("\"{name}\" cannot be broken")));
        }
        // A token above the floor was accepted meanwhile: read again, and propose a higher floor.
    }
    let error =
        StoreError::unavailable(format!("\"{name}\" changes hands too fast to be broken: retry"));
    Err(error.with_outcome(Outcome::Unknown))
}
