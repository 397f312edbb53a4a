//! `fencepost run`: holds a lock while a command runs.

pub(crate) mod child;
pub(crate) mod group;
pub(crate) mod leash;
pub(crate) mod record;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod watchdog;

use fencepost::backend::Presence;
use fencepost::{ErrorKind, Guard};
use tokio::signal::unix::{self, SignalKind};

use crate::args::Run;
use crate::exit::{self, Failure, say};
use crate::signals::Signals;
use crate::store;
use crate::take::{self, Wish};
use child::{Environment, Spawned};
use leash::Leash;
use supervise::{Outcome, Schedule, Supervisor};
use terminal::Terminal;

/// Takes the lock, runs the command, gives the lock back, passes on how the command ended.
pub(crate) async fn run(args: &Run, on: Option<&str>) -> Result<u8, Failure> {
    let url = store::url(on)?;
    // Before anything can be taken that a signal would leave behind.
    let mut signals = Signals::listen()?;
    let mut children = unix::signal(SignalKind::child())?;
    let fp = store::open_shared(Some(&url)).await?;
    let url = store::url_for_the_command(&url);
    let wish =
        Wish { name: &args.name, taking: &args.taking, max_hold: args.max_hold, lease_only: false };
    let result = match take::take(&fp, &wish, &mut signals).await {
        Ok(guard) => hold(guard, args, &url, &mut signals, &mut children).await,
        Err(failure) => Err(failure),
    };
    store::close(&fp).await;
    result
}

async fn hold(
    guard: Guard,
    args: &Run,
    url: &str,
    signals: &mut Signals,
    children: &mut unix::Signal,
) -> Result<u8, Failure> {
    let schedule = Schedule::new(guard.ttl().as_duration(), args.max_hold);
    let terminal = Terminal::find();
    let (child, leash) = match start(&guard, args, url, schedule, terminal.as_ref()).await {
        Ok(started) => started,
        Err(failure) => {
            if let Some(terminal) = &terminal {
                terminal.reclaim();
            }
            // The failure is what the user must hear of; a release that fails goes on in the background.
            let _ = guard.release().await;
            return Err(failure);
        }
    };
    let supervisor = Supervisor {
        guard: &guard,
        schedule,
        max_hold: args.max_hold.is_some(),
        child,
        leash: Some(leash),
        terminal,
        signals,
        children,
    };
    let outcome = supervisor.see_through().await;
    settle(guard, outcome).await.map_err(Failure::after_the_child_started)
}

/// Starts the watchdog, then the command: nothing of the user's runs unwatched.
async fn start(
    guard: &Guard,
    args: &Run,
    url: &str,
    schedule: Schedule,
    terminal: Option<&Terminal>,
) -> Result<(Spawned, Leash), Failure> {
    let presence = guard.presence().map(Presence::inherit);
    let no_watchdog =
        |error: std::io::Error| Failure::internal(format!("can not start the watchdog: {error}"));
    let leash = Leash::start(guard.name().as_str(), presence).map_err(no_watchdog)?;
    leash.tell(schedule.record(guard.deadline())).map_err(no_watchdog)?;
    let environment = Environment { name: guard.name().as_str(), token: guard.token(), url };
    let child = Spawned::start(&args.command, &environment, |parent| {
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

/// Gives the lock back and finds the exit code.
async fn settle(guard: Guard, outcome: Outcome) -> Result<u8, Failure> {
    let name = guard.name().clone();
    let released = guard.release().await;
    if let Some(lost) = outcome.lost {
        return Err(Failure::new(exit::LOST, "lost", lost));
    }
    if outcome.unwatched {
        return Err(Failure::internal("the command was killed: it can not run without a watchdog"));
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
    Ok(outcome.ended.code())
}
