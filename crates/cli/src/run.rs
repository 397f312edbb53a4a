//! `fencepost run`: holds a lock while a command runs. `elect` and `once` run theirs the same way.

pub(crate) mod child;
pub(crate) mod group;
pub(crate) mod leash;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod watchdog;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fencepost::backend::Presence;
use fencepost::{ErrorKind, Guard, LockName};
use tokio::signal::unix::{self, SignalKind};

use crate::args::Run;
use crate::exit::{self, Failure, say};
use crate::signals::Signals;
use crate::store::{self, Target};
use crate::take::{self, Wish};
use child::Spawned;
use leash::Leash;
use supervise::{Outcome, Schedule, Supervisor};
use terminal::Terminal;

/// What comes in from outside while a command runs.
pub(crate) struct Events {
    /// For us, or to be passed on.
    pub(crate) signals: Signals,
    /// A child of ours changed its state.
    children: unix::Signal,
}

impl Events {
    /// Listens from here on. To be called before anything is taken that a signal would leave behind.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Ok(Self { signals: Signals::listen()?, children: unix::signal(SignalKind::child())? })
    }
}

/// What is run under a lock.
pub(crate) struct Job<'a> {
    /// The command and its arguments.
    pub(crate) command: &'a [OsString],
    /// The store, as the command is told of it.
    pub(crate) url: &'a str,
    /// The key of `once`.
    pub(crate) key: Option<&'a str>,
    /// After how long the guard ends in any case.
    pub(crate) max_hold: Option<Duration>,
    /// Where the command writes, if that is not our own stdout.
    pub(crate) stdout: Option<OwnedFd>,
}

/// Takes the lock, runs the command, gives the lock back, passes on how the command ended.
pub(crate) async fn run(args: &Run, at: &Target) -> Result<u8, Failure> {
    let mut events = Events::listen()?;
    let fp = at.open_shared().await?;
    let (name, taking) = (&args.name, &args.taking);
    let max_hold = args.max_hold.map(|max| supervise::hold_for(max, taking.ttl));
    let wish = Wish { at, name, taking, max_hold, lease_only: false };
    let (command, max_hold, url) = (&*args.command, args.max_hold, at.for_the_command());
    let job = Job { command, url: &url, key: None, max_hold, stdout: None };
    let result = match take::take(&fp, &wish, &mut events.signals).await {
        Ok(guard) => hold(guard, job, &mut events).await,
        Err(failure) => Err(failure),
    };
    store::close(&fp).await;
    result
}

async fn hold(guard: Guard, job: Job<'_>, events: &mut Events) -> Result<u8, Failure> {
    let outcome = under(&guard, job, events).await;
    let name = guard.name().clone();
    let released = guard.release().await;
    // If it was not started, that is what the user must hear of; a release that fails goes on in the background.
    verdict(&name, &outcome?, released).map_err(Failure::off_stdout)
}

/// Runs the command for as long as `guard` holds. When this returns, nothing of its group runs; what becomes of
/// the lock is the caller's matter. A failure means that it was not started.
pub(crate) async fn under(
    guard: &Guard,
    job: Job<'_>,
    events: &mut Events,
) -> Result<Outcome, Failure> {
    let max_hold = job.max_hold;
    let schedule = Schedule::new(guard.ttl().as_duration(), max_hold);
    let terminal = Terminal::find();
    let started = start(guard, job, schedule, terminal.as_ref()).await;
    if let (Err(_), Some(terminal)) = (&started, &terminal) {
        terminal.reclaim();
    }
    let (child, leash) = started?;
    let supervisor = Supervisor {
        guard,
        schedule,
        max_hold: max_hold.is_some(),
        child,
        leash: Some(leash),
        terminal,
        signals: &mut events.signals,
        children: &mut events.children,
    };
    Ok(supervisor.see_through().await)
}

/// Starts the watchdog, then the command: nothing of the user's runs unwatched.
async fn start(
    guard: &Guard,
    job: Job<'_>,
    schedule: Schedule,
    terminal: Option<&Terminal>,
) -> Result<(Spawned, Leash), Failure> {
    let presence = guard.presence().map(Presence::inherit);
    let no_watchdog =
        |error: std::io::Error| Failure::internal(format!("can not start the watchdog: {error}"));
    let leash = Leash::start(guard.name().as_str(), presence).map_err(no_watchdog)?;
    leash.tell(schedule.record(guard.deadline())).map_err(no_watchdog)?;
    let child = Spawned::start(guard, job, |parent| {
        Ok(crate::sys::ChildSetup {
            parent,
            leash: leash.pipe()?,
            presence: presence.map(|file| file.try_clone_to_owned()).transpose()?,
            foreground: terminal.is_some_and(|terminal| terminal.lend),
        })
    });
    match child {
        Ok(child) => Ok((child, leash)),
        Err(failure) => {
            leash.done().await;
            Err(failure)
        }
    }
}

/// The exit code, once the lock was given back or could not be.
pub(crate) fn verdict(
    name: &LockName,
    outcome: &Outcome,
    released: fencepost::Result<()>,
) -> Result<u8, Failure> {
    if let Some(lost) = &outcome.lost {
        return Err(Failure::new(exit::LOST, "lost", lost));
    }
    if outcome.unwatched {
        return Err(unwatched());
    }
    match released {
        Ok(()) => {}
        // It ran to its end, but in its last moments perhaps not alone.
        Err(error) if matches!(error.kind(), ErrorKind::Lost(_) | ErrorKind::NotHeld(_)) => {
            return Err(error.into());
        }
        Err(error) => say(&format!(
            "the command ended, but lock \"{name}\" could not be released and ends with its lease: \
             {error}"
        )),
    }
    outcome.passed_on()
}

/// We ended the command, since nobody could have ended it in our stead.
pub(crate) fn unwatched() -> Failure {
    Failure::internal("the command was killed: it can not run without a watchdog")
}
