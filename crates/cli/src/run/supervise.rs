//! Supervises the command while the lock is held, until no process of its group is left.
//!
//! The watchdog ensures that the group is dead before the lock can be granted to another client. The supervisor sends
//! it the deadlines, and does the rest: signals, the terminal, leftover processes, and messages.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost::backend::short;
use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Changes, Guard, GuardStatus, LossCause, Moment};
use rustix::process::Signal;
use tokio::signal::unix;

use super::child::{Ended, Spawned};
use super::group::Group;
use super::terminal::Terminal;
use super::watchdog_handle::{WatchdogHandle, WatchdogStatus};
use crate::exit::{Failure, say};
use crate::signals::Signals;
use crate::watchdog_record::Record;

/// How long a leftover process may take to leave the group (setsid) before it is ended.
const LEAVE_TIME: Duration = Duration::from_millis(20);

/// The longest time without a check: SIGCHLD may be blocked, and a stopped watchdog sends nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// When the group is ended, counted back from the guard's deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    grace: Duration,
    early: Duration,
}

impl Schedule {
    /// The grace is 5 s, at most a quarter of the TTL or of `max_hold`. KILL comes a little before the deadline,
    /// because the watchdog may wait for a processor, and the processes take time to die.
    pub(crate) fn new(ttl: Duration, max_hold: Option<Duration>) -> Self {
        let span = max_hold.map_or(ttl, |max| max.min(ttl));
        let early = (span / 50).min(Duration::from_millis(50));
        Self { grace: grace(span), early }
    }

    fn term_at(&self, deadline: Moment) -> Moment {
        deadline.back(self.grace)
    }

    /// The record for the watchdog.
    pub(crate) fn record(&self, deadline: Moment) -> Record {
        Record::Deadline { term_at: self.term_at(deadline), kill_at: deadline.back(self.early) }
    }
}

fn grace(span: Duration) -> Duration {
    (span / 4).min(Duration::from_secs(5))
}

/// The `max_hold` of the guard for a command that may run for `max`: TERM comes then, and the grace after it.
pub(crate) fn hold_for(max: Duration, ttl: Duration) -> Duration {
    max.saturating_add(grace(max.min(ttl)))
}

/// How the supervised command ended.
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// Why fencepost ended the command; `None` if it ended by itself.
    pub(crate) lost: Option<String>,
    /// The watchdog was gone and no other could be started, so the command was killed.
    pub(crate) unwatched: bool,
    /// A signal that asks a program to end was sent to fencepost, or typed.
    pub(crate) asked_to_end: bool,
    /// The signal that ended the command, if it was meant for fencepost too.
    pub(crate) signal: Option<Signal>,
    /// That signal was typed while the command had the terminal: our own group did not get it.
    pub(crate) typed: bool,
}

impl Outcome {
    /// Passes on the command's end: its exit code, or death by a signal that was meant for fencepost too.
    pub(crate) fn passed_on(&self) -> Result<u8, Failure> {
        match self.signal {
            Some(signal) => Err(Failure { to_group: self.typed, ..Failure::signal(signal, None) }),
            None => Ok(self.ended.code()),
        }
    }
}

/// The command under its lock.
pub(crate) struct Supervisor<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) schedule: Schedule,
    pub(crate) max_hold: bool,
    pub(crate) child: Spawned,
    pub(crate) watchdog_handle: Option<WatchdogHandle>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) signals: &'a mut Signals,
    pub(crate) children: &'a mut unix::Signal,
}

/// The state of a supervision.
struct Progress {
    group: Group,
    changes: Changes,
    deadline: Moment,
    lost: Option<LossCause>,
    /// When the watchdog sent TERM to the group.
    asked: Option<Moment>,
    ended: Option<Ended>,
    /// The command has ended, other processes of its group have not: send them TERM from then on.
    term_rest_at: Option<Moment>,
    /// And KILL from then on.
    kill_rest_at: Option<Moment>,
    unwatched: bool,
    asked_to_end: bool,
    /// The signals that were forwarded.
    forwarded: BTreeSet<i32>,
    /// The pause between checks of a group that is ending.
    check_delay: Duration,
}

impl Supervisor<'_> {
    /// Returns when no process of the group is left, the watchdog has ended, and the terminal is taken back.
    pub(crate) async fn run(mut self) -> Outcome {
        let mut progress = Progress {
            group: Group::led_by(self.child.id()),
            changes: self.guard.changes(),
            deadline: self.guard.deadline(),
            lost: None,
            asked: None,
            ended: None,
            term_rest_at: None,
            kill_rest_at: None,
            unwatched: false,
            asked_to_end: false,
            forwarded: BTreeSet::new(),
            check_delay: Duration::from_millis(1),
        };
        // The deadline may have moved since the watchdog was started.
        self.on_change(&mut progress, self.guard.status(), self.guard.deadline());
        let ended = loop {
            self.check(&mut progress);
            if let Some(ended) = progress.ended {
                if progress.group.is_gone() {
                    break ended;
                }
                self.end_the_rest(&mut progress);
            } else if progress.lost.is_some() || progress.unwatched {
                progress.group.signal(Signal::KILL);
            }
            let wake_at = progress.wake_at(&self.schedule);
            tokio::select! {
                _ = self.children.recv() => {}
                signal = self.signals.next() => self.forward(&mut progress, signal),
                (state, deadline) = progress.changes.next() => {
                    self.on_change(&mut progress, state, deadline);
                }
                () = BootClock.alarm(wake_at) => {}
            }
        };
        self.finish(&progress, ended)
    }

    /// Checks the clock and the processes.
    fn check(&mut self, progress: &mut Progress) {
        if progress.lost.is_none() {
            // The guard reads the clock, so this detects a loss right after a freeze.
            self.on_change(progress, self.guard.status(), self.guard.deadline());
        }
        let now = BootClock.now();
        let due = now >= self.schedule.term_at(progress.deadline);
        if due && progress.lost.is_none() && progress.asked.is_none() && progress.ended.is_none() {
            progress.asked = Some(now);
            say(&format!(
                "lock \"{}\" ends in {}: {}; sent TERM to the command",
                self.guard.name(),
                short(progress.deadline.since(now)),
                self.why_it_ends()
            ));
        }
        if progress.ended.is_none() {
            progress.ended = self.child.ended();
        }
        if progress.ended.is_none()
            && let Some(signal) = self.child.stopped()
        {
            self.stopped(progress, signal);
        }
        self.check_watchdog(progress);
    }

    /// Handles a new status or deadline of the guard.
    fn on_change(&mut self, progress: &mut Progress, state: GuardStatus, deadline: Moment) {
        if deadline != progress.deadline {
            progress.deadline = deadline;
            // After a late renewal, a command that has survived its grace goes on.
            progress.asked =
                progress.asked.filter(|asked| BootClock.now() < *asked + self.schedule.grace);
            self.update_watchdog(self.schedule.record(deadline));
        }
        if let (GuardStatus::Lost(cause), None) = (state, &progress.lost) {
            // Another client may hold the lock already.
            let now = BootClock.now();
            self.update_watchdog(Record::Deadline { term_at: now, kill_at: now });
            progress.group.signal(Signal::KILL);
            progress.lost = Some(cause);
        }
    }

    fn update_watchdog(&mut self, record: Record) {
        let Some(watchdog_handle) = &mut self.watchdog_handle else { return };
        // Kill a watchdog that is alive but does not read. `check_watchdog` replaces one that is gone.
        if watchdog_handle.send(record).is_err()
            && watchdog_handle.status() == WatchdogStatus::Watching
            && let Some(stuck) = self.watchdog_handle.take()
        {
            stuck.kill();
        }
    }

    /// Replaces a watchdog that was killed. If that fails, kills the command.
    fn check_watchdog(&mut self, progress: &mut Progress) {
        let status =
            self.watchdog_handle.as_mut().map_or(WatchdogStatus::Gone, WatchdogHandle::status);
        if status == WatchdogStatus::Watching
            && let Some(watchdog_handle) = &self.watchdog_handle
        {
            watchdog_handle.wake();
        }
        if status != WatchdogStatus::Gone || progress.lost.is_some() || progress.unwatched {
            return;
        }
        let presence = self.guard.presence().map(fencepost::backend::Presence::inherit);
        let again = WatchdogHandle::start(self.guard.name().as_str(), presence).and_then(
            |watchdog_handle| {
                watchdog_handle.send(self.schedule.record(progress.deadline))?;
                watchdog_handle.send(Record::Group(progress.group.id()))?;
                Ok(watchdog_handle)
            },
        );
        match again {
            Ok(watchdog_handle) => {
                self.watchdog_handle = Some(watchdog_handle);
                say("the watchdog was killed; started another one");
            }
            Err(error) => {
                say(&format!(
                    "the watchdog was killed, and another one cannot be started: {error}"
                ));
                progress.group.signal(Signal::KILL);
                progress.unwatched = true;
            }
        }
    }

    fn forward(&self, progress: &mut Progress, signal: Signal) {
        // Not HUP: many programs reload their settings on it.
        progress.asked_to_end |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal);
        if signal == Signal::CONT {
            self.resume(progress);
        } else {
            progress.forwarded.insert(signal.as_raw());
            progress.group.signal(signal);
        }
    }

    /// Handles a stop of the command, by ^Z or because it reads the terminal.
    fn stopped(&self, progress: &Progress, signal: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && terminal.is_ours() {
            Terminal::lend_to(&progress.group);
            progress.group.signal(Signal::CONT);
            return;
        }
        if !wants_terminal && !Terminal::is_with(&progress.group) {
            return; // stopped by another process, which can continue it
        }
        terminal.take_back(&progress.group);
        say(&format!(
            "stopped: lock \"{}\" is lost and the command killed in {} unless you continue it",
            self.guard.name(),
            short(self.guard.remaining())
        ));
        Terminal::stop_self(signal);
        // Continued, or not stopped at all. A command that reads the terminal is resumed on our SIGCONT: before that
        // it would be stopped again at once.
        if !wants_terminal {
            self.resume(progress);
        }
    }

    fn resume(&self, progress: &Progress) {
        if !matches!(self.guard.status(), GuardStatus::Held | GuardStatus::RenewalFailing) {
            return;
        }
        if let Some(terminal) = &self.terminal
            && terminal.lend
            && terminal.is_ours()
        {
            Terminal::lend_to(&progress.group);
        }
        progress.group.signal(Signal::CONT);
    }

    /// Ends the processes that the command left running: they must not run without the lock.
    fn end_the_rest(&self, progress: &mut Progress) {
        let now = BootClock.now();
        let term_at = *progress.term_rest_at.get_or_insert(now + LEAVE_TIME);
        let count = progress.group.count_running().unwrap_or(1);
        match progress.kill_rest_at {
            // None is left, or they still have time to leave the group.
            None if count == 0 || now < term_at => {}
            None => {
                progress.kill_rest_at = Some(now + self.schedule.grace);
                if progress.lost.is_none() {
                    say(&format!(
                        "the command ended and left {count} process{} running in its group; \
                         ending {}",
                        if count == 1 { "" } else { "es" },
                        if count == 1 { "it" } else { "them" },
                    ));
                    progress.group.terminate();
                }
            }
            Some(at) if now >= at => progress.group.signal(Signal::KILL),
            Some(_) => {}
        }
        if progress.lost.is_some() || progress.unwatched {
            progress.group.signal(Signal::KILL);
        }
        progress.check_delay = (progress.check_delay * 2).min(Duration::from_millis(50));
    }

    fn why_it_ends(&self) -> String {
        match (self.guard.renewal_error(), self.max_hold) {
            (Some(error), _) => format!("it could not be renewed: {error}"),
            (None, true) => "it has reached --max-hold".to_owned(),
            (None, false) => "it could not be renewed in time".to_owned(),
        }
    }

    fn finish(mut self, progress: &Progress, ended: Ended) -> Outcome {
        let (signal, typed) = self.ended_by(progress, ended);
        if let Some(terminal) = &self.terminal {
            match ended {
                Ended::Exited(_) => terminal.take_back(&progress.group),
                Ended::Killed(_) => terminal.take_back_and_restore(&progress.group),
            }
        }
        // End the watchdog before reaping: while it can signal the group, the zombie must reserve the group's id.
        if let Some(watchdog_handle) = self.watchdog_handle.take() {
            watchdog_handle.kill();
        }
        let name = self.guard.name().clone();
        // A command that ended within its grace was ended by the watchdog's TERM, whatever its exit code.
        let grace = self.schedule.grace;
        let asked = progress.asked.filter(|asked| BootClock.now() <= *asked + grace + grace);
        let lost = match (&progress.lost, asked) {
            (Some(cause), _) => {
                let error = self.guard.renewal_error().map(|error| format!(" ({error})"));
                let why = error.unwrap_or_default();
                Some(format!("lock \"{name}\" was lost: {cause}{why}; the command was ended"))
            }
            (None, Some(_)) => {
                let end = match ended {
                    Ended::Killed(by) if by == Signal::KILL.as_raw() => "the command was killed",
                    _ => "the command ended on TERM",
                };
                Some(format!("lock \"{name}\" could not be kept: {}; {end}", self.why_it_ends()))
            }
            (None, None) => None,
        };
        self.child.reap();
        let Progress { unwatched, asked_to_end, .. } = *progress;
        Outcome { ended, lost, unwatched, asked_to_end: asked_to_end || typed, signal, typed }
    }

    /// The signal that ended the command, if it was meant for fencepost too, and whether it was typed. The terminal
    /// sends ^C only to its foreground group.
    fn ended_by(&self, progress: &Progress, ended: Ended) -> (Option<Signal>, bool) {
        let Ended::Killed(number) = ended else { return (None, false) };
        let Some(signal) = Signal::from_named_raw(number) else { return (None, false) };
        if progress.forwarded.contains(&number) {
            return (Some(signal), false);
        }
        let had_terminal = self.terminal.is_some() && Terminal::is_with(&progress.group);
        let typed = had_terminal && [Signal::INT, Signal::QUIT].contains(&signal);
        (typed.then_some(signal), typed)
    }
}

impl Progress {
    /// When to check again if no event comes.
    fn wake_at(&self, schedule: &Schedule) -> Moment {
        let now = BootClock.now();
        if self.ended.is_some() || self.lost.is_some() || self.unwatched {
            return now + self.check_delay;
        }
        let term_at = schedule.term_at(self.deadline);
        let next =
            if now < term_at { term_at } else { self.deadline.max(now + Duration::from_millis(1)) };
        next.min(now + CHECK_INTERVAL)
    }
}
