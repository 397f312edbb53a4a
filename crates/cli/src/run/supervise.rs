//! Looks after the command while the lock is held: until nothing of its group runs any more.
//!
//! The watchdog, not this, is what keeps the promise that the group is dead before the lock can move. Here
//! it is fed with deadlines, and everything else happens: signals, the terminal, what the command
//! leaves behind, and the words for the user.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost::backend::short;
use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Changes, Guard, GuardState, LossCause, Moment};
use rustix::process::Signal;
use tokio::signal::unix;

use super::child::{Ended, Spawned};
use super::group::Group;
use super::leash::{Leash, Standing};
use super::terminal::Terminal;
use crate::exit::{Failure, say};
use crate::signals::Signals;
use crate::watchdog_record::Record;

/// How long a process that the command left has to leave the group itself (setsid) before it is ended.
const LEAVE_TIME: Duration = Duration::from_millis(20);

/// How long we trust that we would be told.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When the group is ended, reckoned back from the guard's deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    grace: Duration,
    early: Duration,
}

impl Schedule {
    /// Grace is 5 s, at most a quarter of the time there is. KILL comes a little before the deadline: the
    /// watchdog may have to wait for a processor, and the group for its death.
    pub(crate) fn new(ttl: Duration, max_hold: Option<Duration>) -> Self {
        let span = max_hold.map_or(ttl, |max| max.min(ttl));
        let early = (span / 50).min(Duration::from_millis(50));
        Self { grace: grace(span), early }
    }

    fn term_at(&self, deadline: Moment) -> Moment {
        deadline.back(self.grace)
    }

    /// The same for the watchdog.
    pub(crate) fn record(&self, deadline: Moment) -> Record {
        Record::Deadline { term_at: self.term_at(deadline), kill_at: deadline.back(self.early) }
    }
}

fn grace(span: Duration) -> Duration {
    (span / 4).min(Duration::from_secs(5))
}

/// How long the guard is held for a command that may run for `max`: it gets TERM then, and has its grace after that.
pub(crate) fn hold_for(max: Duration, ttl: Duration) -> Duration {
    max.saturating_add(grace(max.min(ttl)))
}

/// How it came out.
pub(crate) struct Outcome {
    /// How the command ended.
    pub(crate) ended: Ended,
    /// Why the command was ended by us, in words; nothing if it ended by itself.
    pub(crate) lost: Option<String>,
    /// There was no watchdog and none could be started, so we ended the command.
    pub(crate) unwatched: bool,
    /// Somebody sent us, or typed, a signal that asks a program to end.
    pub(crate) told_to_end: bool,
    /// The signal that ended the command, if it was for us as well.
    pub(crate) signal: Option<Signal>,
    /// It was typed at the terminal, which the command had: nobody else of our group got it.
    pub(crate) typed: bool,
}

impl Outcome {
    /// The command's end as our own: its code, or death by the signal that was for both of us.
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
    pub(crate) leash: Option<Leash>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) signals: &'a mut Signals,
    pub(crate) children: &'a mut unix::Signal,
}

/// What has happened so far.
struct Progress {
    group: Group,
    changes: Changes,
    deadline: Moment,
    lost: Option<LossCause>,
    /// When the watchdog asked the group to end.
    asked: Option<Moment>,
    ended: Option<Ended>,
    /// The command is gone, others of its group are not: ask them to end from here on.
    end_rest_at: Option<Moment>,
    /// And kill them from here on.
    kill_rest_at: Option<Moment>,
    unwatched: bool,
    told_to_end: bool,
    /// The signals that were passed on.
    passed_on: BTreeSet<i32>,
    gap: Duration,
}

impl Supervisor<'_> {
    /// Returns when nothing of the group runs, the watchdog has ended, and the terminal is ours again.
    pub(crate) async fn see_through(mut self) -> Outcome {
        let mut progress = Progress {
            group: Group::led_by(self.child.id()),
            changes: self.guard.changes(),
            deadline: self.guard.deadline(),
            lost: None,
            asked: None,
            ended: None,
            end_rest_at: None,
            kill_rest_at: None,
            unwatched: false,
            told_to_end: false,
            passed_on: BTreeSet::new(),
            gap: Duration::from_millis(1),
        };
        // It may have moved between the watchdog's start and ours.
        self.told(&mut progress, self.guard.state(), self.guard.deadline());
        let ended = loop {
            self.look(&mut progress);
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
                signal = self.signals.next() => self.pass_on(&mut progress, signal),
                (state, deadline) = progress.changes.next() => {
                    self.told(&mut progress, state, deadline);
                }
                () = BootClock.alarm(wake_at) => {}
            }
        };
        self.wind_up(progress, ended).await
    }

    /// Takes in what a look at the clock and at our processes shows.
    fn look(&mut self, progress: &mut Progress) {
        if progress.lost.is_none() {
            // Reads the clock: after a freeze this is the first to know.
            self.told(progress, self.guard.state(), self.guard.deadline());
        }
        let now = BootClock.now();
        let due = now >= self.schedule.term_at(progress.deadline);
        if due && progress.lost.is_none() && progress.asked.is_none() && progress.ended.is_none() {
            progress.asked = Some(now);
            say(&format!(
                "lock \"{}\" ends in {}: {}; asked the command to end",
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
        self.keep_watched(progress);
    }

    /// A new state or deadline of the guard.
    fn told(&mut self, progress: &mut Progress, state: GuardState, deadline: Moment) {
        if deadline != progress.deadline {
            progress.deadline = deadline;
            // A command that outlived its grace, because a renewal came through after all, goes on.
            progress.asked =
                progress.asked.filter(|asked| BootClock.now() < *asked + self.schedule.grace);
            self.tell_watchdog(self.schedule.record(deadline));
        }
        if let (GuardState::Lost(cause), None) = (state, &progress.lost) {
            // The next holder may be there already.
            let now = BootClock.now();
            self.tell_watchdog(Record::Deadline { term_at: now, kill_at: now });
            progress.group.signal(Signal::KILL);
            progress.lost = Some(cause);
        }
    }

    fn tell_watchdog(&mut self, record: Record) {
        let Some(leash) = &mut self.leash else { return };
        // One that lives but does not read is of no use to anybody. One that is gone is noticed soon.
        if leash.tell(record).is_err()
            && leash.standing() == Standing::Watching
            && let Some(stuck) = self.leash.take()
        {
            stuck.put_down();
        }
    }

    /// A watchdog that was killed is replaced, or the command may not go on.
    fn keep_watched(&mut self, progress: &mut Progress) {
        let standing = self.leash.as_mut().map_or(Standing::Gone, Leash::standing);
        if standing == Standing::Watching
            && let Some(leash) = &self.leash
        {
            leash.wake();
        }
        if standing != Standing::Gone || progress.lost.is_some() || progress.unwatched {
            return;
        }
        let presence = self.guard.presence().map(fencepost::backend::Presence::inherit);
        let again = Leash::start(self.guard.name().as_str(), presence).and_then(|leash| {
            leash.tell(self.schedule.record(progress.deadline))?;
            leash.tell(Record::Group(progress.group.id()))?;
            Ok(leash)
        });
        match again {
            Ok(leash) => {
                self.leash = Some(leash);
                say("the watchdog was killed; started another");
            }
            Err(error) => {
                say(&format!("the watchdog was killed and none can be started: {error}"));
                progress.group.signal(Signal::KILL);
                progress.unwatched = true;
            }
        }
    }

    fn pass_on(&self, progress: &mut Progress, signal: Signal) {
        // Not HUP: many take it for "read your settings again".
        progress.told_to_end |= [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal);
        if signal == Signal::CONT {
            self.go_on(progress);
        } else {
            progress.passed_on.insert(signal.as_raw());
            progress.group.signal(signal);
        }
    }

    /// The command was stopped, by ^Z or because it wants the terminal.
    fn stopped(&self, progress: &Progress, signal: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && terminal.is_ours() {
            Terminal::give(&progress.group);
            progress.group.signal(Signal::CONT);
            return;
        }
        if !wants_terminal && !Terminal::is_with(&progress.group) {
            return; // stopped in the background, by somebody who knows what for
        }
        terminal.take_back(&progress.group);
        say(&format!(
            "stopped; lock \"{}\" is lost and the command killed in {} unless it is continued",
            self.guard.name(),
            short(self.guard.remaining())
        ));
        Terminal::stop_ourselves(signal);
        // Here we have been continued, or nobody looks after us. What waits for the terminal waits for
        // our SIGCONT, or it would be stopped again at once.
        if !wants_terminal {
            self.go_on(progress);
        }
    }

    fn go_on(&self, progress: &Progress) {
        if !matches!(self.guard.state(), GuardState::Held | GuardState::RenewalFailing) {
            return;
        }
        if let Some(terminal) = &self.terminal
            && terminal.lend
            && terminal.is_ours()
        {
            Terminal::give(&progress.group);
        }
        progress.group.signal(Signal::CONT);
    }

    /// What the command left running must not go on without the lock.
    fn end_the_rest(&self, progress: &mut Progress) {
        let now = BootClock.now();
        let end_at = *progress.end_rest_at.get_or_insert(now + LEAVE_TIME);
        let count = progress.group.count_running().unwrap_or(1);
        match progress.kill_rest_at {
            // It ended, or left the group, since we looked; or it may be about to.
            None if count == 0 || now < end_at => {}
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
        progress.gap = (progress.gap * 2).min(Duration::from_millis(50));
    }

    fn why_it_ends(&self) -> String {
        match (self.guard.renewal_error(), self.max_hold) {
            (Some(error), _) => format!("it could not be renewed: {error}"),
            (None, true) => "it was held as long as --max-hold allows".to_owned(),
            (None, false) => "it could not be renewed in time".to_owned(),
        }
    }

    async fn wind_up(mut self, progress: Progress, ended: Ended) -> Outcome {
        let (signal, typed) = self.ended_by(&progress, ended);
        if let Some(terminal) = &self.terminal {
            match ended {
                Ended::Exited(_) => terminal.take_back(&progress.group),
                Ended::Killed(_) => terminal.take_back_and_tidy(&progress.group),
            }
        }
        // In this order: while the watchdog could still signal the group, the zombie reserves its number.
        if let Some(leash) = self.leash.take() {
            leash.done().await;
        }
        let name = self.guard.name().clone();
        // Ended within the grace that we gave it: by us, however it took it.
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
                    _ => "the command was asked to end, and did",
                };
                Some(format!("lock \"{name}\" could not be kept: {}; {end}", self.why_it_ends()))
            }
            (None, None) => None,
        };
        self.child.reap();
        let Progress { unwatched, told_to_end, .. } = progress;
        Outcome { ended, lost, unwatched, told_to_end: told_to_end || typed, signal, typed }
    }

    /// The signal that ended the command and was for us as well, and whether it was typed: the terminal sends ^C to
    /// the command alone while that has it.
    fn ended_by(&self, progress: &Progress, ended: Ended) -> (Option<Signal>, bool) {
        let Ended::Killed(number) = ended else { return (None, false) };
        let Some(signal) = Signal::from_named_raw(number) else { return (None, false) };
        if progress.passed_on.contains(&number) {
            return (Some(signal), false);
        }
        let had_terminal = self.terminal.is_some() && Terminal::is_with(&progress.group);
        let typed = had_terminal && [Signal::INT, Signal::QUIT].contains(&signal);
        (typed.then_some(signal), typed)
    }
}

impl Progress {
    /// When to look again if nothing happens.
    fn wake_at(&self, schedule: &Schedule) -> Moment {
        let now = BootClock.now();
        if self.ended.is_some() || self.lost.is_some() || self.unwatched {
            return now + self.gap;
        }
        let term_at = schedule.term_at(self.deadline);
        let next =
            if now < term_at { term_at } else { self.deadline.max(now + Duration::from_millis(1)) };
        // Whoever started us may have blocked SIGCHLD, and a stopped watchdog sends nothing.
        next.min(now + LOOK_AGAIN)
    }
}
