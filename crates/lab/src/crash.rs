//! The holder is killed: when is the next waiter granted the lock?
//!
//! If the store detects the end of the holder's process (`sqlite:`, by a presence file that the kernel unlocks), at once.
//! Other stores cannot tell a dead holder from a slow one, so the next waiter waits for the end of the lease, or of the
//! session that carries it.

use std::time::Duration;

use fencepost::ErrorKind;

use crate::environment::{Environment, STEP_TIMEOUT, alarm, now, within};
use crate::error::{LabError, Result};
use crate::event::{Action, Actor, Event, millis, token};
use crate::process::WorkerPair;
use crate::timeline::Picture;
use crate::verdict::Verdict;
use crate::worker::Role;

/// The options of the lab.
#[derive(Clone, Debug)]
pub struct Options {
    /// The requested TTL.
    pub ttl: Duration,
    /// The number of rounds.
    pub rounds: u32,
    /// Whether A is killed. If not, the lock stays held, and the lab fails.
    pub kill: bool,
}

/// How long the next waiter waits at least if nobody is killed: longer than any store's minimum TTL.
const MIN_WAIT: Duration = Duration::from_secs(5);

/// What the lab reports while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A round starts.
    Round(u32),
    /// Something happened.
    Event(&'a Event),
}

/// The result of the lab.
#[derive(Debug)]
pub struct Outcome {
    /// The lock store.
    pub store: String,
    /// Whether the store detects the end of the holder's process.
    pub presence: bool,
    /// When the lock of a dead holder is free on this store.
    pub frees: &'static str,
    /// The TTL that the store granted.
    pub ttl: Duration,
    /// The options of this run.
    pub options: Options,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Whether the lab shows what it should.
    pub verdict: Verdict,
}

/// One round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The time from the kill to the next grant, if there was one.
    pub free_after: Option<Duration>,
    /// How long the next waiter waited.
    pub waited: Duration,
    /// How long the holder's lease still ran when it was killed, as far as it had reported.
    pub lease_left: Duration,
    /// The tokens of A and B, if they were granted.
    pub tokens: [Option<u64>; 2],
    /// The events.
    pub events: Vec<Event>,
    killed: bool,
    presence: bool,
    ttl: Duration,
}

/// Runs the lab.
pub async fn crash(
    env: &Environment,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Outcome> {
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        progress(Progress::Round(number));
        let mut event = |event: &Event| progress(Progress::Event(event));
        rounds.push(round(env, options, number, &mut event).await?);
    }
    let presence = rounds.iter().any(|round| round.presence);
    let verdict = judge(&rounds, env.frees_late());
    let (store, frees, options) = (env.store_name(), env.frees(), options.clone());
    let ttl = rounds.first().map_or(options.ttl, |round| round.ttl);
    Ok(Outcome { store, presence, frees, ttl, options, rounds, verdict })
}

async fn round(
    env: &Environment,
    options: &Options,
    number: u32,
    progress: &mut dyn FnMut(&Event),
) -> Result<Round> {
    let name = format!("{}/{number}", env.name("crash"));
    // A store can raise the TTL. Without the kill, wait only long enough to see that the lock stays held.
    let wait_timeout = options.ttl * 2;
    let wait_timeout =
        if options.kill { wait_timeout + STEP_TIMEOUT } else { wait_timeout.max(MIN_WAIT) };
    let task = |_| (name.clone(), options.ttl, wait_timeout, Role::Hold);
    let mut pair = WorkerPair::start(env, task, progress).await?;
    let granted = |what: &Action| matches!(what, Action::Granted { .. });
    pair.a.send("begin")?;
    pair.wait_for(Actor::A, STEP_TIMEOUT, granted).await?;
    pair.b.send("begin")?;
    // B is in the store's queue before the kill, so that the handoff is measured and not B's start.
    pair.wait_for(Actor::B, STEP_TIMEOUT, |what| *what == Action::Asked).await?;
    if env.store.guarantees().fifo {
        wait_until_queued(env, &name).await?;
    }
    let killed = now();
    if options.kill {
        pair.report(killed, Actor::A, Action::Killed);
        pair.a.kill()?;
    }
    let lease_left = pair.deadline.map_or(Duration::ZERO, |until| until.since(killed));
    match pair.wait_for(Actor::B, wait_timeout + STEP_TIMEOUT, granted).await {
        Ok(_) => {
            pair.b.send("release")?;
            pair.wait_for(Actor::B, STEP_TIMEOUT, |what| matches!(what, Action::Released)).await?;
        }
        // The lock was not freed: the verdict reports that.
        Err(LabError::Lock(error)) if matches!(error.kind(), ErrorKind::Held) => {}
        Err(error) => return Err(error),
    }
    let (presence, until) = (pair.presence, pair.deadline);
    let freed = pair.first(Actor::B, granted);
    if let (Some(until), Some(freed)) = (until, freed)
        && until < freed
    {
        pair.record(until, Actor::A, Action::LeaseEnded { session_continues: env.frees_late() });
    }
    let free_after = freed.map(|freed| freed.since(killed));
    let waited = free_after.unwrap_or_else(|| now().since(killed));
    let ttl = pair.ttl;
    let events = pair.into_events();
    let tokens = [token(&events, Actor::A), token(&events, Actor::B)];
    let killed = options.kill;
    Ok(Round { free_after, waited, lease_left, tokens, events, killed, presence, ttl })
}

/// Waits until `name` has a waiter at the store.
async fn wait_until_queued(env: &Environment, name: &str) -> Result<()> {
    within(STEP_TIMEOUT, "B to join the store's queue", async {
        while env.store.inspect(name).await?.waiting == 0 {
            alarm(now() + Duration::from_millis(5)).await;
        }
        Ok(())
    })
    .await
}

fn judge(rounds: &[Round], late: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let each =
        |figure: fn(&Round) -> String| rounds.iter().map(figure).collect::<Vec<_>>().join(", ");
    verdict.check(
        "the next waiter is granted the lock without help, with a higher token",
        rounds.iter().all(|round| round.tokens[1].is_some() && round.tokens[0] < round.tokens[1]),
        each(|round| {
            let [a, b] = round
                .tokens
                .map(|token| token.map_or_else(|| "nobody".to_owned(), |token| token.to_string()));
            format!("{a} then {b}")
        }),
    );
    let times = each(|round| {
        let left = millis(round.lease_left);
        match round.free_after {
            Some(free) => format!("{:.0} ms, lease {left:.0} ms left", millis(free)),
            None => format!("not free after {:.0} ms, the holder is alive", millis(round.waited)),
        }
    });
    let free = |fits: fn(Duration, Duration) -> bool| {
        rounds.iter().all(|round| round.free_after.is_some_and(|free| fits(free, round.lease_left)))
    };
    if rounds.iter().any(|round| round.presence) {
        let before = free(|free, left| free < left);
        verdict.check("the next waiter does not wait for the end of the lease", before, times);
    } else {
        let after = free(|free, left| free >= left);
        let session = if late { ", and of the session" } else { "" };
        let what = format!("the next waiter waits for the end of the lease{session}");
        verdict.check(what, after, times);
    }
    verdict
}

impl Round {
    /// The timeline of this round.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let title = if self.killed { "The holder is killed" } else { "The holder lives" };
        Picture::of(title, None, &self.events, self.ttl)
    }
}

impl Outcome {
    /// The result for programs.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let rounds: Vec<serde_json::Value> = self
            .rounds
            .iter()
            .map(|round| {
                serde_json::json!({
                    "free_after_ms": round.free_after.map(millis),
                    "lease_left_ms": millis(round.lease_left),
                    "tokens": { "A": round.tokens[0], "B": round.tokens[1] },
                    "events": round.events,
                })
            })
            .collect();
        serde_json::json!({
            "lab": "crash",
            "shown": self.verdict.holds(),
            "store": self.store,
            "sees_the_process_end": self.presence,
            "ttl_ms": self.ttl.as_millis() as u64,
            "ttl_asked_ms": self.options.ttl.as_millis() as u64,
            "frees": self.frees,
            "killed": self.options.kill,
            "rounds": rounds,
            "checks": self.verdict,
        })
    }
}
