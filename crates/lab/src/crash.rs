//! The holder is killed: when does the lock come free for the next?
//!
//! Where the store sees the holder's process (`sqlite:`, by a file that the kernel unlocks with the process), at
//! once. Elsewhere nobody can tell a dead holder from a slow one, and the next one waits for the lease's end, or for that
//! of the session which carries it.

use std::time::Duration;

use fencepost::ErrorKind;

use crate::event::{Event, What, Who, millis, token};
use crate::fault::{Fault, Result};
use crate::lanes::Picture;
use crate::process::Duo;
use crate::scene::{SOON, Scene, alarm, now, within};
use crate::verdict::Verdict;
use crate::worker::Role;

/// How the lab is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lease.
    pub ttl: Duration,
    /// How often.
    pub rounds: u32,
    /// Kill A. Without it nothing comes free, and the lab says so.
    pub kill: bool,
}

/// How long the next one waits at least where nobody is killed: longer than any store makes a short TTL.
const IN_VAIN: Duration = Duration::from_secs(5);

/// What the lab tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A round begins.
    Round(u32),
    /// Something happened.
    Event(&'a Event),
}

/// What happened, as a whole.
#[derive(Debug)]
pub struct Account {
    /// The lock store.
    pub store: String,
    /// Whether the store sees the holder's process end.
    pub presence: bool,
    /// When the lock of a dead holder is free on this store.
    pub frees: &'static str,
    /// The TTL that the store kept.
    pub ttl: Duration,
    /// How it was carried out.
    pub options: Options,
    /// Each time.
    pub rounds: Vec<Round>,
    /// Whether it shows what it should.
    pub verdict: Verdict,
}

/// One time.
#[derive(Clone, Debug)]
pub struct Round {
    /// From the kill to the grant of the next one, if that came.
    pub free_after: Option<Duration>,
    /// How long the next one waited for it.
    pub waited: Duration,
    /// How long the dead holder's lease had still to run when it was killed, as far as it had said.
    pub lease_left: Duration,
    /// The tokens of the two, of those who were granted.
    pub tokens: [Option<u64>; 2],
    /// What happened.
    pub events: Vec<Event>,
    killed: bool,
    presence: bool,
    ttl: Duration,
}

/// Carries it out.
pub async fn crash(
    scene: &Scene,
    options: &Options,
    say: &mut dyn FnMut(Progress<'_>),
) -> Result<Account> {
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        say(Progress::Round(number));
        let mut event = |event: &Event| say(Progress::Event(event));
        rounds.push(round(scene, options, number, &mut event).await?);
    }
    let presence = rounds.iter().any(|round| round.presence);
    let verdict = judge(&rounds, scene.frees_late());
    let (store, frees, options) = (scene.store_name(), scene.frees(), options.clone());
    let ttl = rounds.first().map_or(options.ttl, |round| round.ttl);
    Ok(Account { store, presence, frees, ttl, options, rounds, verdict })
}

async fn round(
    scene: &Scene,
    options: &Options,
    number: u32,
    say: &mut dyn FnMut(&Event),
) -> Result<Round> {
    let name = format!("{}/{number}", scene.name("crash"));
    // A store may keep a lease longer than it was asked to. Without the kill we wait only long enough to see that
    // the lock does not come free by itself.
    let patience = options.ttl * 2;
    let patience = if options.kill { patience + SOON } else { patience.max(IN_VAIN) };
    let task = |_| (name.clone(), options.ttl, patience, Role::Hold);
    let mut duo = Duo::start(scene, task, say).await?;
    let granted = |what: &What| matches!(what, What::Granted { .. });
    duo.a.tell("begin")?;
    duo.until(Who::A, SOON, granted).await?;
    duo.b.tell("begin")?;
    // B is in the queue, as the store has it: so what is measured is the hand-off and not B's start.
    duo.until(Who::B, SOON, |what| *what == What::Asked).await?;
    if scene.store.guarantees().fifo {
        in_line(scene, &name).await?;
    }
    let killed = now();
    if options.kill {
        duo.note(killed, Who::A, What::Killed);
        duo.a.kill()?;
    }
    let lease_left = duo.good_until.map_or(Duration::ZERO, |until| until.since(killed));
    match duo.until(Who::B, patience + SOON, granted).await {
        Ok(_) => {
            duo.b.tell("release")?;
            duo.until(Who::B, SOON, |what| matches!(what, What::Released)).await?;
        }
        // It did not come free: for the verdict to say.
        Err(Fault::Lock(error)) if matches!(error.kind(), ErrorKind::Held(_)) => {}
        Err(fault) => return Err(fault),
    }
    let (presence, until) = (duo.presence, duo.good_until);
    let freed = duo.first(Who::B, granted);
    if let (Some(until), Some(freed)) = (until, freed)
        && until < freed
    {
        duo.know(until, Who::A, What::LeaseOver { session_goes_on: scene.frees_late() });
    }
    let free_after = freed.map(|freed| freed.since(killed));
    let waited = free_after.unwrap_or_else(|| now().since(killed));
    let ttl = duo.ttl;
    let events = duo.into_events();
    let tokens = [token(&events, Who::A), token(&events, Who::B)];
    let killed = options.kill;
    Ok(Round { free_after, waited, lease_left, tokens, events, killed, presence, ttl })
}

/// Waits until somebody waits for `name` at the store.
async fn in_line(scene: &Scene, name: &str) -> Result<()> {
    within(SOON, "B stands in the store's queue", async {
        while scene.store.inspect(name).await?.waiting == 0 {
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
        "the lock comes free for the next by itself, with a higher token",
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
            None => format!("not free after {:.0} ms, held by one who lives", millis(round.waited)),
        }
    });
    let free = |fits: fn(Duration, Duration) -> bool| {
        rounds.iter().all(|round| round.free_after.is_some_and(|free| fits(free, round.lease_left)))
    };
    if rounds.iter().any(|round| round.presence) {
        let before = free(|free, left| free < left);
        verdict.check("the next does not wait for the lease's end", before, times);
    } else {
        let after = free(|free, left| free >= left);
        let session = if late { ", and for the session's" } else { "" };
        verdict.check(format!("the next waits for the lease's end{session}"), after, times);
    }
    verdict
}

impl Round {
    /// The lanes of this round.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let title = if self.killed { "The holder is killed" } else { "The holder lives" };
        Picture::of(title, None, &self.events, self.ttl)
    }
}

impl Account {
    /// All of it, for programs.
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
