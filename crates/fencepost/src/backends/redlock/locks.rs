//! Acquire, renew, release and break at several nodes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl};

use super::Redlock;
use super::inspect::look;
use super::nodes::{LOOK, Message, Of, Way};
use super::vote::{Ended, attempt};
use crate::backend::{
    Acquired, Broken, Grant, GrantId, LossCause, NotHeld, Outcome, Queue, Renewal, Renewed, Reply,
    Request, StoreError, StoreResult, short,
};
use crate::backends::polling::Polled;
use crate::backends::redis::{
    Connection, LOOK_AGAIN, LOOK_AT_STRANGERS, STEPS, is_wrong_type, remember_ms, until_confirmed,
    value_number,
};

/// Two who met at the nodes try again after a random part of this, doubled each time they meet again.
const JITTER: Duration = Duration::from_millis(8);
/// How often a caller that does not wait tries again if it met others.
const TRIES: u32 = 3;
/// How often a break that was overtaken by a grant is tried again.
const BREAK_TRIES: usize = 5;

/// How often in a row a caller met others at the nodes.
pub(super) type Met = AtomicU32;

/// Tries until it is decided who has the lock: a caller that does not wait is given a few tries against others who are at
/// it.
pub(super) async fn try_acquire(
    redlock: &Redlock,
    request: &Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Acquired> {
    let met = Met::default();
    loop {
        let reply = poll(redlock, request, queue, &met, limit).await?;
        let again = redlock.clock.now() + reply.value.poll_after;
        match reply.value.acquired {
            Acquired::Held(None) if met.load(Ordering::Relaxed) <= TRIES && again < limit => {
                redlock.clock.alarm(again).await;
            }
            _ => return Ok(reply.map(|polled| polled.acquired)),
        }
    }
}

/// Polls for a waiter. Not at once: the first node notifies it before the others have heard of the release.
pub(super) async fn poll_again(
    redlock: &Redlock,
    request: &Request,
    met: &Met,
    limit: Moment,
) -> StoreResult<Polled> {
    redlock.clock.alarm(redlock.clock.now() + random(JITTER / 4)).await;
    poll(redlock, request, Queue::Join, met, limit).await
}

async fn poll(
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
            let grant = Grant { token, ttl: request.ttl, queued: false, presence: None };
            let acquired = Acquired::Granted(grant);
            return Ok(Reply::new(Polled { acquired, poll_after: Duration::ZERO }, sent));
        }
        Ended::Held(Some(holder)) => {
            met.store(0, Ordering::Relaxed);
            // Nobody notifies us when a third-party client releases.
            let look = if holder.token.is_none() { LOOK_AT_STRANGERS } else { LOOK_AGAIN };
            // Not all at once, and not much later than the lease ends.
            let poll_after = holder.remaining.unwrap_or(look).min(look) + random(JITTER);
            (Some(holder), poll_after)
        }
        Ended::Held(None) | Ended::Outrun => {
            let times = met.fetch_add(1, Ordering::Relaxed) + 1;
            (None, random(JITTER * (1 << times.min(5))))
        }
    };
    let acquired = match queue {
        // The nodes' lists need not agree, so they give no position.
        Queue::Join => Acquired::Queued { ahead: 0 },
        Queue::Skip => Acquired::Held(holder),
    };
    Ok(Reply::new(Polled { acquired, poll_after }, sent))
}

/// A random part of `span`.
fn random(span: Duration) -> Duration {
    let mut bits = [0; 4];
    // Without random numbers nothing was acquired to begin with.
    let _ = getrandom::fill(&mut bits);
    span.mul_f64(f64::from(u32::from_ne_bytes(bits)) / f64::from(u32::MAX))
}

pub(super) async fn renew(
    redlock: &Redlock,
    renewal: &Renewal,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
    if let Some(ttl) = ttl.filter(|ttl| *ttl > redlock.max_ttl) {
        return Err(StoreError::invalid(format!(
            "a TTL of {} is longer than the redlock store takes: give at most {}",
            short(ttl.as_duration()),
            short(redlock.max_ttl.as_duration())
        )));
    }
    let call = STEPS.extend.on(redlock.prefix.keys(name)?);
    let call = call.arg(owner.reveal()).arg(ttl.map_or(0, Ttl::as_millis));
    let mut call = call.arg(redlock.retention);
    let sent = redlock.clock.now();
    if let Some(value) = value {
        call = call.arg(value_number(sent)).arg(value.as_bytes());
    }
    let timeout = (ttl.unwrap_or(redlock.max_ttl).as_duration() / 6).min(LOOK);
    let timeout = timeout.min(limit.since(sent));
    let mut answers = redlock.nodes.ask(call, Way::Vote(Duration::ZERO), timeout);
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    let (count, quorum) = (redlock.nodes.count(), redlock.nodes.quorum());
    let mut words = redlock.nodes.words();
    while let Some((node, answer)) = answers.recv().await {
        match answer.and_then(|reply| reply.value.renewed()) {
            Ok(Ok(renewed)) => {
                words.answered(node, "extended");
                kept.push(renewed);
            }
            Ok(Err(NotHeld(cause))) => {
                words.answered(node, "not held");
                gone.push(cause);
            }
            Err(error) => words.failed(node, error),
        }
        // The token that a majority has accepted; a node may have kept one of a failed attempt.
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
        // Neither can be had any more.
        let open = words.open();
        if kept.len() + open < quorum && gone.len() + open <= count - quorum {
            break;
        }
    }
    Err(words.error(&format!("\"{name}\" can not be renewed")))
}

pub(super) async fn release(
    redlock: &Redlock,
    grant: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    let call = STEPS.release.on(redlock.prefix.keys(name)?).arg(owner.reveal());
    let call = call.arg(redlock.retention).arg(remember_ms(redlock.retention));
    let sent = redlock.clock.now();
    redlock.subscriber.released(*owner);
    // Whoever can not hear it now is told until its lease must be over.
    let way = Way::Surely(sent + redlock.max_ttl.as_duration());
    let message = Message { call, of: Of::Release(*owner) };
    let mut answers = redlock.nodes.ask(message, way, LOOK.min(limit.since(sent)));
    let mut words = redlock.nodes.words();
    let (mut ended, mut gone, mut why) = (0, 0, None);
    let (count, quorum) = (redlock.nodes.count(), redlock.nodes.quorum());
    while let Some((node, answer)) = answers.recv().await {
        match answer.map(|reply| (reply.retried, reply.value.released())) {
            Ok((_, Ok(()))) => {
                words.answered(node, "released");
                ended += 1;
            }
            // The connection broke after the node had done it; somebody may have the key by now.
            Ok((true, Err(NotHeld(cause)))) if cause != Some(LossCause::Broken) => {
                words.answered(node, "released");
                ended += 1;
            }
            Ok((_, Err(NotHeld(cause)))) => {
                words.answered(node, "not held");
                why = why.or(cause);
                gone += 1;
            }
            Err(error) if is_wrong_type(&error) => {
                words.answered(node, "not a lock");
                gone += 1;
            }
            Err(error) => words.failed(node, error),
        }
        if ended >= quorum || gone > count - quorum || words.open() == 0 {
            break;
        }
    }
    let released = match (ended, gone) {
        (ended, _) if ended >= quorum => Ok(()),
        // A majority has given it to somebody else, or an operator broke it there.
        (_, gone) if gone > count - quorum && why.is_some() => Err(NotHeld(why)),
        // Less than a majority is no grant; but a place in line, or a vote, is something to give up.
        (ended, gone) if ended > 0 && ended + gone >= quorum => Ok(()),
        (_, gone) if gone > count - quorum => Err(NotHeld(why)),
        _ => return Err(words.error(&format!("\"{name}\" can not be released on a majority"))),
    };
    Ok(Reply::new(released, sent))
}

/// Ends the grant on every node, and raises the mark of a majority above it.
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
        let call = STEPS.floor.on(keys).arg(&value).arg(floor.get()).arg(redlock.retention);
        let call = call.arg(&redlock.subscriber.break_channel);
        // A node that is away is told when it is back, as long as the lease may last there.
        let now = redlock.clock.now();
        let way = Way::Surely(now + redlock.max_ttl.as_duration());
        let mut answers = redlock.nodes.ask(call, way, LOOK.min(limit.since(now)));
        let (mut raised, mut heard, mut words) = (0, 0, redlock.nodes.words());
        while words.open() > 0
            && let Some((node, answer)) = answers.recv().await
        {
            match answer {
                Ok(reply) => {
                    words.answered(node, "answered");
                    heard += 1;
                    raised += usize::from(reply.value.is_done());
                }
                Err(error) => words.failed(node, error),
            }
            if raised >= redlock.nodes.quorum() {
                let (label, token, nodes) = (holder.label, holder.token, &redlock.nodes);
                // The note of any node will do: nobody but the holder's release makes it.
                let confirmed = token.is_some()
                    && until_confirmed(nodes.connections(), &value, &*redlock.clock, confirm_until)
                        .await;
                return Ok(Some(Broken { label, token, floor, confirmed }));
            }
        }
        if heard < redlock.nodes.quorum() {
            return Err(words.error(&format!("\"{name}\" can not be broken")));
        }
        // A token above the floor was accepted meanwhile: look again, and higher.
    }
    let error = StoreError::unavailable(format!(
        "\"{name}\" changes hands too fast to be broken: try again"
    ));
    Err(error.with_outcome(Outcome::Unknown))
}
