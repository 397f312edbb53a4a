//! Acquiring at several nodes: attempts, one after the other, until one is granted or the caller's time is up.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};

use super::attempt::{Attempt, Failure, Next, Vote};
use super::nodes::{Nodes, Way, Words};
use super::{LOOK, Redlock};
use crate::backend::HolderInfo;
use crate::backends::bridge::{Acquired, Grant, Request};
use crate::backends::redis::{
    Answer, BREATH, Fault, FaultKind, Keys, LOOK_AGAIN, LOOK_AT_STRANGERS, OUTAGE, STEPS, refuses,
    remember,
};
use crate::clock::wall;
use crate::error::{Error, Result};
use crate::race::race;

/// Two who met at the nodes try again after a random part of this, doubled each time they meet again.
const JITTER: Duration = Duration::from_millis(8);

/// How an attempt ended.
enum Outcome {
    Granted(Token, Moment),
    /// Others have it, or were at it at the same time; with what is left of the holder's lease.
    Held(Option<HolderInfo>),
    /// The attempt was overtaken, or took too long.
    Outrun,
    Failed(Error),
}

/// One of an acquire's attempts.
#[derive(Clone, Copy)]
struct Try {
    number: u64,
    /// Whether to stand on the nodes' lists if it is held.
    waits: bool,
}

impl Redlock {
    /// One attempt, both phases.
    async fn attempt(&self, request: &Request, keys: Keys<'_>, this: Try) -> Outcome {
        let start = self.now();
        let Request { owner, ttl, label, value, .. } = request;
        let patience = Nodes::patience(*ttl);
        let way = Way::Vote(self.up_for);
        let count = self.nodes.count();
        let mut attempt = Attempt::new(count);
        let mut words = self.nodes.words();
        let mut holders = Vec::new();
        // Whether a node may have something of this attempt.
        let mut touched = vec![true; count];

        let client = if this.waits { &*self.client } else { "" };
        let call = STEPS.vote.on(keys).acquires(*owner);
        let call = call.arg(owner.reveal()).arg(this.number).arg(ttl.as_millis());
        let call = call.arg(label.as_str()).arg(client);
        let mut answers = self.nodes.ask(call, way, patience);
        let token = loop {
            let Some((node, answer)) = answers.next().await else {
                break Err(Failure::Unreachable);
            };
            let next = match answer.and_then(|answer| read_vote(&answer)) {
                Ok((vote, holder)) => {
                    words.answered(node, if holder.is_some() { "held by another" } else { "free" });
                    touched[node] = holder.is_none();
                    holders.extend(holder);
                    attempt.voted(node, vote)
                }
                Err(fault) => {
                    touched[node] = matches!(fault.kind, FaultKind::Cut | FaultKind::NotNow);
                    words.failed(node, fault);
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
                let call = STEPS.accept.on(keys).arg(owner.reveal()).arg(this.number);
                let call = call.arg(token.get()).arg(ttl.as_millis());
                let mut call = call.arg(label.as_str()).arg(self.retention);
                if let Some(value) = value {
                    call = call.arg(value.as_bytes());
                }
                let mut answers = self.nodes.ask(call, way, patience);
                loop {
                    let next = match answers.next().await {
                        Some((node, Ok(answer))) => attempt.answered(node, answer.status == 1),
                        Some((node, Err(fault))) => {
                            words.failed(node, fault);
                            attempt.silent(node)
                        }
                        None => Next::Failed(Failure::Unreachable),
                    };
                    match next {
                        // The margin of the guard covers clocks that run at different rates.
                        Next::Granted(token) if self.now() < start + ttl.as_duration() => {
                            return Outcome::Granted(token, start);
                        }
                        Next::Granted(_) => break Failure::Outrun,
                        Next::Failed(failure) => break failure,
                        Next::Wait | Next::Propose(_) => {}
                    }
                }
            }
            Err(failure) => failure,
        };
        let undo = STEPS.undo.on(keys).arg(owner.reveal()).arg(this.number);
        let undo = Arc::new(undo.arg(remember(self.retention)));
        for node in (0..count).filter(|node| touched[*node]) {
            self.nodes.tell(node, &undo, start + ttl.as_duration());
        }
        self.failed(failure, &words, &holders, &request.name)
    }

    fn failed(
        &self,
        failure: Failure,
        words: &Words,
        holders: &[KeyHolder],
        name: &LockName,
    ) -> Outcome {
        match failure {
            Failure::Held => {
                // One who keeps enough of them from us is the holder; else several met.
                let enough = self.nodes.count() - self.nodes.quorum() + 1;
                let holder = holders.iter().filter(|one| same(holders, one).count() >= enough);
                let holder = holder.max_by_key(|holder| holder.info.token);
                Outcome::Held(holder.map(|holder| {
                    // Not every node has heard its last word.
                    let last = same(holders, holder).max_by_key(|holder| holder.word);
                    let value = last.and_then(|last| last.info.value.clone());
                    HolderInfo { value, ..holder.info.clone() }
                }))
            }
            Failure::Outrun => Outcome::Outrun,
            Failure::Unreachable => {
                Outcome::Failed(words.error(&format!("\"{name}\" can not be locked")))
            }
            Failure::Exhausted => {
                Outcome::Failed(Error::refused(format!("\"{name}\" has no tokens left")))
            }
        }
    }

    pub(super) async fn take(&self, request: &Request, until: Option<Moment>) -> Result<Acquired> {
        let keys = self.prefix.keys(&request.name)?;
        let ear = self.ears.open(request.owner);
        let mut out_since: Option<Moment> = None;
        let mut met = 0;
        // It tells one attempt of an owner from the next, and rises. From the wall clock, so that it does
        // so for an owner that tries again from another process; if that clock is wrong, the attempt fails.
        let mut number = wall().as_micros() as u64;
        loop {
            number += 1;
            let waits = until.is_some_and(|until| self.now() < until);
            let outcome = self.attempt(request, keys, Try { number, waits }).await;
            let nap = match outcome {
                Outcome::Granted(token, sent) => {
                    let (ttl, queued, presence) = (request.ttl, false, None);
                    return Ok(Acquired::Granted(Grant { token, ttl, sent, queued, presence }));
                }
                Outcome::Held(Some(holder)) if !waits => {
                    return Ok(self.leave(request, keys, until, Some(holder)));
                }
                Outcome::Held(Some(holder)) => {
                    (out_since, met) = (None, 0);
                    // Nobody tells us when another make of client lets go.
                    let stranger = holder.token.is_none();
                    let look = if stranger { LOOK_AT_STRANGERS } else { LOOK_AGAIN };
                    // Not all at once, and not much later than the lease ends.
                    holder.remaining.unwrap_or(look).min(look) + random(JITTER)
                }
                // Who does not wait is given a few tries against others who are at it.
                Outcome::Held(None) | Outcome::Outrun if !waits && met >= 3 => {
                    return Ok(self.leave(request, keys, until, None));
                }
                Outcome::Held(None) | Outcome::Outrun => {
                    (out_since, met) = (None, met + 1);
                    random(JITTER * (1 << met.min(5)))
                }
                Outcome::Failed(error) => {
                    let since = *out_since.get_or_insert(self.now());
                    let nap = BREATH + random(BREATH);
                    // The next attempt would end after the caller's time: this is the answer.
                    let too_late = until.is_none_or(|until| {
                        self.now() + nap + Nodes::patience(request.ttl) >= until
                    });
                    if refuses(&error) || too_late || self.now().since(since) >= OUTAGE {
                        return Err(error);
                    }
                    nap
                }
            };
            let alarm = self.now() + nap;
            let alarm = until.map_or(alarm, |until| alarm.min(until));
            race(ear.called(), self.around.clock.alarm(alarm)).await;
            // The first node's word comes before the others have heard of the release.
            self.around.clock.alarm(self.now() + random(JITTER / 4)).await;
        }
    }

    /// Takes one who has waited in vain off the nodes' lists.
    fn leave(
        &self,
        request: &Request,
        keys: Keys<'_>,
        until: Option<Moment>,
        holder: Option<HolderInfo>,
    ) -> Acquired {
        if until.is_some() {
            let call = Arc::new(self.farewell(keys, request.owner));
            for node in 0..self.nodes.count() {
                self.nodes.tell(node, &call, self.now() + LOOK);
            }
        }
        Acquired::Held(holder)
    }
}

/// A random part of `span`.
fn random(span: Duration) -> Duration {
    let mut bits = [0; 4];
    // Without random numbers nothing was acquired to begin with.
    let _ = getrandom::fill(&mut bits);
    span.mul_f64(f64::from(u32::from_ne_bytes(bits)) / f64::from(u32::MAX))
}

/// Who has the key at a node.
struct KeyHolder {
    /// The key's value.
    key: Vec<u8>,
    info: HolderInfo,
    /// The number of its last word that this node has heard, if it is a candidate.
    word: Option<u64>,
}

/// What each node says of this one.
fn same<'a>(holders: &'a [KeyHolder], one: &'a KeyHolder) -> impl Iterator<Item = &'a KeyHolder> {
    holders.iter().filter(|other| other.key == one.key)
}

/// A vote, and whoever has the key if it is not ours.
fn read_vote(answer: &Answer) -> Result<(Vote, Option<KeyHolder>), Fault> {
    match answer.status {
        1 => {
            let (mark, mine): (u64, u8) = (answer.get(0)?, answer.get(1)?);
            Ok((Vote::Ours { mark, time: answer.time, mine: mine == 1 }, None))
        }
        0 => {
            let key = answer.value()?.unwrap_or_default();
            let word = answer.said()?.map(|said| said.number);
            Ok((Vote::Theirs, answer.holder()?.map(|info| KeyHolder { key, info, word })))
        }
        _ => Err(Fault::cut("the acquire was withdrawn before it arrived")),
    }
}
