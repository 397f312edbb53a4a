//! Carries the messages of one attempt to the nodes and back; attempt.rs decides what they mean.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fencepost_core::{LockName, Moment, Token};

use super::Redlock;
use super::attempt::{Attempt, Failure, Next, Vote};
use super::nodes::{Delivery, Message, NodeReplies, Of};
use crate::backend::{GrantId, HolderInfo, Outcome, Queue, Request, StoreError};
use crate::backends::redis::{Ballot, KeyHolder, OPERATIONS, remember_ms};
use crate::clock::wall;

/// How an attempt ended.
pub(super) enum Ended {
    /// With the token, and when the attempt began.
    Granted(Token, Moment),
    /// Other owners have it, or several attempts collided.
    Held(Option<HolderInfo>),
    /// The attempt was overtaken, or took too long.
    Outrun,
}

/// One attempt, both phases.
pub(super) async fn attempt(
    redlock: &Redlock,
    request: &Request,
    queue: Queue,
    limit: Moment,
) -> Result<Ended, StoreError> {
    let Request { grant: GrantId { name, owner }, ttl, label, value, .. } = request;
    let (keys, start, number) = (redlock.prefix.keys(name)?, redlock.clock.now(), number(redlock));
    let (id, delivery) = (owner.reveal(), Delivery::Vote(redlock.up_for));
    let count = redlock.nodes.count();
    let mut attempt = Attempt::new(count);
    let mut node_replies = redlock.nodes.node_replies();
    let mut holders = Vec::new();
    // Whether a node may have a key of this attempt.
    let mut touched = vec![true; count];

    let client = if queue == Queue::Join { &*redlock.subscriber.client } else { "" };
    let call = OPERATIONS.vote.on(keys).arg(&id).arg(number).arg(ttl.as_millis());
    let call = call.arg(label.as_str()).arg(client);
    let message = Message { call, of: Of::Acquire(*owner) };
    let mut answers = redlock.nodes.ask(message, delivery, redlock.nodes.vote_timeout(*ttl, limit));
    let token = loop {
        let Some((node, answer)) = answers.recv().await else {
            break Err(Failure::Unreachable);
        };
        let next = match answer.and_then(|reply| reply.value.ballot()) {
            Ok(Ballot::Ours { last, time, mine }) => {
                node_replies.answered(node, "free");
                attempt.voted(node, Vote::Ours { last, time, mine })
            }
            Ok(Ballot::Theirs(holder)) => {
                node_replies.answered(node, "held by another client");
                touched[node] = false;
                holders.extend(holder);
                attempt.voted(node, Vote::Theirs)
            }
            Err(error) => {
                touched[node] = error.outcome() == Outcome::Unknown;
                node_replies.failed(node, error);
                attempt.silent(node)
            }
        };
        match next {
            Next::Propose(token) => break Ok(token),
            Next::Failed(failure) => break Err(failure),
            Next::Wait | Next::Granted(_) => {}
        }
    };
    let failure = match token {
        Ok(token) => {
            let call = OPERATIONS.accept.on(keys).arg(&id).arg(number);
            let call = call.arg(token.get()).arg(ttl.as_millis());
            let mut call = call.arg(label.as_str()).arg(redlock.retention);
            if let Some(value) = value {
                call = call.arg(value.as_bytes());
            }
            let timeout = redlock.nodes.vote_timeout(*ttl, limit);
            let mut answers = redlock.nodes.ask(call, delivery, timeout);
            loop {
                let next = match answers.recv().await {
                    Some((node, Ok(reply))) => attempt.answered(node, reply.value.is_done()),
                    Some((node, Err(error))) => {
                        node_replies.failed(node, error);
                        attempt.silent(node)
                    }
                    None => Next::Failed(Failure::Unreachable),
                };
                match next {
                    // The margin of the guard covers clocks that run at different rates.
                    Next::Granted(token) if redlock.clock.now() < start + ttl.as_duration() => {
                        return Ok(Ended::Granted(token, start));
                    }
                    Next::Granted(_) => break Failure::Outrun,
                    Next::Failed(failure) => break failure,
                    Next::Wait | Next::Propose(_) => {}
                }
            }
        }
        Err(failure) => failure,
    };
    let undo = OPERATIONS.undo.on(keys).arg(&id).arg(number).arg(remember_ms(redlock.retention));
    let undo = Arc::new(undo.into());
    for node in (0..count).filter(|node| touched[*node]) {
        redlock.nodes.send_to(node, &undo, start + ttl.as_duration());
    }
    failed(redlock, failure, &node_replies, &holders, name)
}

/// Distinguishes the attempts of an owner: it rises. From the wall clock, so that it also rises when the owner retries
/// from another process; if that clock is wrong, the attempt fails.
fn number(redlock: &Redlock) -> u64 {
    redlock.attempts.fetch_max(wall().as_micros() as u64, Ordering::Relaxed);
    redlock.attempts.fetch_add(1, Ordering::Relaxed) + 1
}

fn failed(
    redlock: &Redlock,
    failure: Failure,
    node_replies: &NodeReplies,
    holders: &[KeyHolder],
    name: &LockName,
) -> Result<Ended, StoreError> {
    match failure {
        Failure::Held => {
            // An owner with enough keys to prevent our majority is the holder; otherwise several attempts collided.
            let enough = redlock.nodes.count() - redlock.nodes.quorum() + 1;
            let holder = holders.iter().filter(|one| same(holders, one).count() >= enough);
            let holder = holder.max_by_key(|holder| holder.info.token);
            Ok(Ended::Held(holder.map(|holder| {
                // Not every node has its latest value.
                let last = same(holders, holder).max_by_key(|holder| holder.value_number);
                let value = last.and_then(|last| last.info.value.clone());
                holder.info.clone().with_value(value)
            })))
        }
        Failure::Outrun => Ok(Ended::Outrun),
        Failure::Unreachable => Err(node_replies.error(&format!("\"{name}\" cannot be locked"))),
        Failure::Exhausted => Err(StoreError::refused(format!("\"{name}\" has no tokens left"))),
    }
}

/// The nodes' replies about this name.
fn same<'a>(holders: &'a [KeyHolder], one: &'a KeyHolder) -> impl Iterator<Item = &'a KeyHolder> {
    holders.iter().filter(|other| other.key == one.key)
}
