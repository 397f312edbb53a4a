//! A holder freezes past its lease, wakes, and writes: first without the fence, then with it.
//!
//! A acquires the lock and reads a balance. The lab freezes A's process. The lease ends, and B is granted the lock with
//! a higher token, reads, works, writes and releases. The lab wakes A, which writes a sum based on the old balance.
//! Without the fence B's addition is lost. With it A's write is refused, because B has entered with a higher token.

mod outcome;

use std::time::Duration;

use fencepost::{ErrorKind, OwnerId};

pub use outcome::{Half, Outcome};

use crate::environment::{Environment, STEP_TIMEOUT, alarm, now};
use crate::error::Result;
use crate::event::{Action, Actor, Event, first};
use crate::process::WorkerPair;
use crate::resource::Session;
use crate::verdict::Verdict;
use crate::worker::Role;

/// The balance at the start. Each worker adds its amount.
const START: i64 = 100;
const fn amount(who: Actor) -> i64 {
    match who {
        Actor::A => 30,
        Actor::B => 50,
    }
}

/// How often to freeze A again if it was in a transaction at the store.
const FREEZE_ATTEMPTS: usize = 20;
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The options of the lab.
#[derive(Clone, Debug)]
pub struct Options {
    /// The requested TTL.
    pub ttl: Duration,
    /// How long a worker works between its read and its write.
    pub work: Duration,
    /// Whether A is frozen. If not, nothing is lost, and the lab fails.
    pub freeze: bool,
    /// Which halves use the fence: the second one, except in tests that the lab can fail.
    pub fenced: [bool; 2],
}

/// What the lab reports while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The lab has installed the fence in the user's database.
    Installed,
    /// A half starts.
    Half {
        /// Whether the workers use the fence.
        fence: bool,
    },
    /// Something happened.
    Event(&'a Event),
}

/// Runs the lab.
pub async fn pause(
    env: &Environment,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Outcome> {
    // Before any progress: the resource may be unreachable.
    let installed = env.install_fence().await?;
    if installed {
        progress(Progress::Installed);
    }
    let mut session = env.open(false).await?;
    session.set_balance(START).await?;
    let mut halves = Vec::new();
    for fence in options.fenced {
        progress(Progress::Half { fence });
        let mut event = |event: &Event| progress(Progress::Event(event));
        halves.push(half(env, &mut session, options, fence, &mut event).await?);
    }
    let [first, second]: [Half; 2] =
        halves.try_into().map_err(|_| crate::LabError::System("a half is missing".into()))?;
    let mut verdict = Verdict::default();
    first.judge(false, &mut verdict);
    second.judge(true, &mut verdict);
    let (store, resource) = (env.store_name(), env.resource()?.kind());
    let frees_late = env.frees_late().then(|| env.frees());
    let (options, ttl, halves) = (options.clone(), first.ttl, [first, second]);
    Ok(Outcome { store, resource, installed, ttl, frees_late, options, halves, verdict })
}

async fn half(
    env: &Environment,
    session: &mut Session,
    options: &Options,
    fence: bool,
    progress: &mut dyn FnMut(&Event),
) -> Result<Half> {
    session.set_balance(START).await?;
    let resource = env.resource()?;
    let name = env.name("pause");
    if fence {
        env.will_enter(&name)?;
    }
    // A store can raise the TTL.
    let wait_timeout = options.ttl * 2 + options.work + STEP_TIMEOUT;
    let work_ms = options.work.as_millis() as u64;
    let task = |who| {
        let resource = resource.clone();
        let role = Role::Add { resource, amount: amount(who), work_ms, fence };
        (name.clone(), options.ttl, wait_timeout, role)
    };
    let mut pair = WorkerPair::start(env, task, progress).await?;
    let ended = |what: &Action| matches!(what, Action::Released | Action::NotHeld { .. });
    pair.a.send("begin")?;
    pair.wait_for(Actor::A, STEP_TIMEOUT, |what| matches!(what, Action::Read { .. })).await?;
    if options.freeze {
        freeze(env, &mut pair).await?;
    }
    // A reads this when it wakes. The order exists to stop A before its write until it is frozen; B does not wait.
    pair.a.send("write")?;
    pair.b.send("begin")?;
    pair.b.send("write")?;
    if options.freeze {
        pair.wait_for(Actor::B, wait_timeout, |what| matches!(what, Action::Granted { .. }))
            .await?;
        if let Some(until) = pair.deadline {
            pair.record(
                until,
                Actor::A,
                Action::LeaseEnded { session_continues: env.frees_late() },
            );
        }
        pair.wait_for(Actor::B, wait_timeout, ended).await?;
        pair.report(now(), Actor::A, Action::Woken);
        pair.a.wake()?;
        pair.wait_for(Actor::A, wait_timeout, ended).await?;
    } else {
        pair.wait_for(Actor::A, wait_timeout, ended).await?;
        pair.wait_for(Actor::B, wait_timeout, ended).await?;
    }
    let end = session.read(None).await?;
    let ttl = pair.ttl;
    let events = pair.into_events();
    let accepted = |who| first(&events, who, |what| matches!(what, Action::Wrote { .. })).is_some();
    let sum: i64 = [Actor::A, Actor::B].into_iter().filter(|who| accepted(*who)).map(amount).sum();
    Ok(Half { fence, start: START, expected: START + sum, end, events, ttl })
}

/// Freezes A where it blocks nobody. A process that is frozen inside a transaction blocks an embedded store for the
/// others. That is not what this lab shows, so then A is woken for a moment and frozen again.
async fn freeze(env: &Environment, pair: &mut WorkerPair<'_>) -> Result<()> {
    for attempt in 1.. {
        pair.a.freeze().await?;
        let at = now();
        // Probes whether the store can be written: a release by an unknown owner changes nothing.
        let nobody = OwnerId::from_bits(at.as_nanos().into());
        let name = env.name("probe");
        let free = tokio::select! {
            answer = env.store.release(&name, nobody) => {
                !answer.is_err_and(|error| error.kind() == ErrorKind::Unreachable)
            }
            () = alarm(at + PROBE_TIMEOUT) => false,
        };
        if free || attempt == FREEZE_ATTEMPTS {
            pair.report(at, Actor::A, Action::Frozen);
            break;
        }
        pair.a.wake()?;
    }
    Ok(())
}
