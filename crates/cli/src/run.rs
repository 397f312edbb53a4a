//! `fencepost run`: holds a lock while a command runs. `elect` and `once` run their commands in the same way.

pub(crate) mod child;
pub(crate) mod group;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod watchdog;
pub(crate) mod watchdog_handle;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fencepost::backend::Presence;
use fencepost::{ErrorKind, Guard, LockName};
use tokio::signal::unix::{self, SignalKind};

use crate::acquire::{self, AcquireOptions};
use crate::args::Run;
use crate::exit::{Failure, say};
use crate::signals::Signals;
use crate::store::{self, Target};
use child::Spawned;
use supervise::{Outcome, Schedule, Supervisor};
use terminal::Terminal;
use watchdog_handle::WatchdogHandle;

/// The signals that arrive while a command runs.
pub(crate) struct Events {
    /// To end this process, or to be forwarded.
    pub(crate) signals: Signals,
    /// A child changed its state.
    children: unix::Signal,
}

impl Events {
    /// Starts to listen. Call it before anything is acquired that a signal would leave behind.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Ok(Self { signals: Signals::listen()?, children: unix::signal(SignalKind::child())? })
    }
}

/// What to run under a lock.
pub(crate) struct Job<'a> {
    /// The command and its arguments.
    pub(crate) command: &'a [OsString],
    /// The store, for `FENCEPOST_URL`.
    pub(crate) url: &'a str,
    /// The key of `once`.
    pub(crate) key: Option<&'a str>,
    pub(crate) max_hold: Option<Duration>,
    /// The command's stdout, if it does not inherit ours.
    pub(crate) stdout: Option<OwnedFd>,
}

/// Acquires the lock, runs the command, releases the lock, and passes on the command's exit code.
pub(crate) async fn run(args: &Run, at: &Target) -> Result<u8, Failure> {
    let mut events = Events::listen()?;
    let fp = at.open_shared().await?;
    let max_hold = args.max_hold.map(|max| supervise::hold_for(max, args.lock.ttl));
    let options =
        AcquireOptions { at, name: &args.name, args: &args.lock, max_hold, lease_only: false };
    let (command, max_hold, url) = (&*args.command, args.max_hold, at.url_for_child());
    let job = Job { command, url: &url, key: None, max_hold, stdout: None };
    let result = match acquire::acquire(&fp, &options, &mut events.signals).await {
        Ok(guard) => run_and_release(guard, job, &mut events).await,
        Err(failure) => Err(failure),
    };
    store::close(&fp).await;
    result
}

async fn run_and_release(guard: Guard, job: Job<'_>, events: &mut Events) -> Result<u8, Failure> {
    let outcome = under(&guard, job, events).await;
    let name = guard.name().clone();
    let released = guard.release().await;
    // A command that could not be started matters more than a failed release.
    exit_code(&name, &outcome?, released).map_err(Failure::off_stdout)
}

/// Runs the command while the guard is held. When this returns, no process of the command's group is left. The caller
/// releases the guard. A failure means that the command was not started.
pub(crate) async fn under(
    guard: &Guard,
    job: Job<'_>,
    events: &mut Events,
) -> Result<Outcome, Failure> {
    let max_hold = job.max_hold;
    let schedule = Schedule::new(guard.ttl().as_duration(), max_hold);
    let terminal = Terminal::find();
    let started = start(guard, job, schedule, terminal.as_ref());
    if let (Err(_), Some(terminal)) = (&started, &terminal) {
        terminal.reclaim();
    }
    let (child, watchdog_handle) = started?;
    let supervisor = Supervisor {
        guard,
        schedule,
        max_hold: max_hold.is_some(),
        child,
        watchdog_handle: Some(watchdog_handle),
        terminal,
        signals: &mut events.signals,
        children: &mut events.children,
    };
    Ok(supervisor.run().await)
}

/// Starts the watchdog before the command, so that the command never runs without one.
fn start(
    guard: &Guard,
    job: Job<'_>,
    schedule: Schedule,
    terminal: Option<&Terminal>,
) -> Result<(Spawned, WatchdogHandle), Failure> {
    let presence = guard.presence().map(Presence::inherit);
    let no_watchdog =
        |error: std::io::Error| Failure::internal(format!("cannot start the watchdog: {error}"));
    let watchdog_handle =
        WatchdogHandle::start(guard.name().as_str(), presence).map_err(no_watchdog)?;
    watchdog_handle.send(schedule.record(guard.deadline())).map_err(no_watchdog)?;
    let child = Spawned::start(guard, job, |parent| {
        Ok(crate::sys::ChildSetup {
            parent,
            watchdog: watchdog_handle.pipe()?,
            presence: presence.map(|file| file.try_clone_to_owned()).transpose()?,
            foreground: terminal.is_some_and(|terminal| terminal.lend),
        })
    });
    match child {
        Ok(child) => Ok((child, watchdog_handle)),
        Err(failure) => {
            watchdog_handle.kill();
            Err(failure)
        }
    }
}

/// The exit code of a command, after its lock was released or could not be.
pub(crate) fn exit_code(
    name: &LockName,
    outcome: &Outcome,
    released: fencepost::Result<()>,
) -> Result<u8, Failure> {
    if let Some(lost) = &outcome.lost {
        return Err(Failure::lost(lost));
    }
    if outcome.unwatched {
        return Err(unwatched());
    }
    match released {
        Ok(()) => {}
        // The command ended, but in its last moments perhaps another holder was active.
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotHeld) => {
            return Err(error.into());
        }
        Err(error) => say(&format!(
            "the command ended, but lock \"{name}\" could not be released; it ends with its lease: {}",
            error.one_line()
        )),
    }
    outcome.passed_on()
}

/// The failure of a command that was killed because no watchdog could be started.
pub(crate) fn unwatched() -> Failure {
    Failure::internal("the command was killed, because no watchdog could be started")
}
