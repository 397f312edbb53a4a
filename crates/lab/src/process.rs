//! The lab's handles of its workers. Each worker is killed, by its process id, on every path.

use std::fmt::Display;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use fencepost::{Error, ErrorKind, Moment};
use fencepost_process::Process;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::environment::{Environment, STEP_TIMEOUT, alarm, now, within};
use crate::error::{LabError, Result};
use crate::event::{Action, Actor, Event, first};
use crate::worker::{FailureKind, Report, Role, Task, WORKER};

/// A running worker.
pub(crate) struct Worker(Process);

impl Worker {
    /// Starts a worker. Its reports go to `sender` with its `id`; `None` is the end of the process.
    pub(crate) fn start<Id: Copy + Send + 'static>(
        env: &Environment,
        task: &Task,
        id: Id,
        sender: UnboundedSender<(Id, Option<Report>)>,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| LabError::system("start a worker", &error);
        let task = serde_json::to_string(task).map_err(|error| failed(error.into()))?;
        let mut command = Command::new(&env.program);
        // The terminal must not send ^C to the workers: the lab ends them itself.
        command.arg(WORKER).process_group(0);
        let process = Process::start(command, move |line| {
            let report = line.and_then(|line| serde_json::from_str(&line).ok());
            let goes_on = report.is_some();
            sender.send((id, report)).is_ok() && goes_on
        });
        let mut worker = Self(process.map_err(failed)?);
        worker.send(&task)?;
        Ok(worker)
    }

    /// Sends a line. A frozen worker reads it when it wakes.
    pub(crate) fn send(&mut self, order: &str) -> Result<()> {
        self.0.send(order).map_err(|error| LabError::system("write to a worker", &error))
    }

    /// Freezes the worker, and waits until it is frozen.
    pub(crate) async fn freeze(&self) -> Result<()> {
        signalled(self.0.freeze())?;
        within(STEP_TIMEOUT, "a worker to freeze", async {
            while !self.0.is_frozen() {
                if !self.0.is_running() {
                    return Err(LabError::System("a worker ended unexpectedly".into()));
                }
                alarm(now() + Duration::from_millis(1)).await;
            }
            Ok(())
        })
        .await
    }

    pub(crate) fn wake(&self) -> Result<()> {
        signalled(self.0.wake())
    }

    /// Kills the worker, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        signalled(self.0.kill())
    }
}

fn signalled(sent: std::io::Result<()>) -> Result<()> {
    sent.map_err(|error| LabError::system("send a signal to a worker", &error))
}

/// The reports of several workers.
pub(crate) struct Reports<Id>(pub(crate) UnboundedReceiver<(Id, Option<Report>)>);

impl<Id: Copy + Display> Reports<Id> {
    /// The next report. A worker may end only if `may_end` says so.
    pub(crate) async fn next(
        &mut self,
        timeout: Duration,
        may_end: impl Fn(Id) -> bool,
    ) -> Result<(Id, Report)> {
        within(timeout, "a report from a worker", async {
            loop {
                match self.0.recv().await {
                    Some((id, Some(Report::Failed { kind, message }))) => {
                        return Err(failed(id, kind, &message));
                    }
                    Some((id, Some(report))) => return Ok((id, report)),
                    Some((id, None)) if may_end(id) => {}
                    Some((id, None)) => {
                        return Err(LabError::System(format!("worker {id} ended unexpectedly")));
                    }
                    None => return Err(LabError::System("all workers have ended".into())),
                }
            }
        })
        .await
    }

    /// Waits until this many workers are connected.
    pub(crate) async fn all_ready(&mut self, workers: u32) -> Result<()> {
        for _ in 0..workers {
            match self.next(STEP_TIMEOUT, |_| false).await? {
                (_, Report::Ready) => {}
                (id, other) => {
                    return Err(LabError::System(format!("worker {id} began with {other:?}")));
                }
            }
        }
        Ok(())
    }
}

/// The two workers of one lock, their events, and a clock that started with them.
pub(crate) struct WorkerPair<'a> {
    pub(crate) a: Worker,
    pub(crate) b: Worker,
    reports: Reports<Actor>,
    /// The events so far, in the order of their reports.
    pub(crate) events: Vec<Event>,
    /// The deadline of A's guard, as A last reported it.
    pub(crate) deadline: Option<Moment>,
    /// Whether the store detects the end of A's process.
    pub(crate) presence: bool,
    /// The TTL that the store granted A; the requested one until A has reported it.
    pub(crate) ttl: Duration,
    start: Moment,
    progress: &'a mut dyn FnMut(&Event),
}

impl<'a> WorkerPair<'a> {
    /// Starts both workers, and waits until they are connected.
    pub(crate) async fn start(
        env: &Environment,
        task: impl Fn(Actor) -> (String, Duration, Duration, Role),
        progress: &'a mut dyn FnMut(&Event),
    ) -> Result<Self> {
        let (sender, reports) = unbounded_channel();
        let start = |who: Actor| {
            let (name, ttl, wait_timeout, role) = task(who);
            let task = Task {
                store: env.url.clone(),
                name,
                label: format!("worker {who}"),
                ttl_ms: ttl.as_millis() as u64,
                wait_timeout_ms: wait_timeout.as_millis() as u64,
                role,
            };
            Worker::start(env, &task, who, sender.clone())
        };
        let (a, b) = (start(Actor::A)?, start(Actor::B)?);
        let mut reports = Reports(reports);
        reports.all_ready(2).await?;
        let (events, ttl, start) = (Vec::new(), task(Actor::A).1, now());
        Ok(Self { a, b, reports, events, deadline: None, presence: false, ttl, start, progress })
    }

    /// Waits for the first event of `who` that `is` accepts, counting past events too.
    pub(crate) async fn wait_for(
        &mut self,
        who: Actor,
        timeout: Duration,
        is: impl Fn(&Action) -> bool,
    ) -> Result<Action> {
        let mut seen = 0;
        let limit = now() + timeout;
        loop {
            while let Some(event) = self.events.get(seen) {
                if event.who == who && is(&event.what) {
                    return Ok(event.what.clone());
                }
                seen += 1;
            }
            let events = &self.events;
            let next = self.reports.next(limit.since(now()), |who| has_ended(events, who));
            match next.await? {
                (who, Report::Happened { at, what }) => {
                    self.report(Moment::from_nanos(at), who, what);
                }
                (Actor::A, Report::Deadline { at, presence, ttl_ms }) => {
                    self.deadline = Some(Moment::from_nanos(at));
                    self.presence = presence;
                    self.ttl = Duration::from_millis(ttl_ms.into());
                }
                _ => {}
            }
        }
    }

    /// Records an event, and shows it.
    pub(crate) fn report(&mut self, at: Moment, who: Actor, what: Action) {
        self.record(at, who, what);
        if let Some(event) = self.events.last() {
            (self.progress)(event);
        }
    }

    /// Records an event that is only known later.
    pub(crate) fn record(&mut self, at: Moment, who: Actor, what: Action) {
        self.events.push(Event { at: at.since(self.start), who, what });
    }

    /// When the first such event of `who` happened.
    pub(crate) fn first(&self, who: Actor, is: impl Fn(&Action) -> bool) -> Option<Moment> {
        first(&self.events, who, is).map(|event| self.start + event.at)
    }

    /// The events in the order in which they happened.
    pub(crate) fn into_events(mut self) -> Vec<Event> {
        self.events.sort_by_key(|event| event.at);
        self.events
    }
}

/// Whether `who` has finished its task, or was killed.
fn has_ended(events: &[Event], who: Actor) -> bool {
    let last =
        |what: &Action| matches!(what, Action::Released | Action::NotHeld { .. } | Action::Killed);
    first(events, who, last).is_some()
}

fn failed(who: impl Display, kind: FailureKind, message: &str) -> LabError {
    let message = format!("worker {who}: {message}");
    match kind {
        FailureKind::Held => Error::new(ErrorKind::Held, message).into(),
        FailureKind::Unreachable => Error::unreachable(message).into(),
        FailureKind::Refused => Error::refused(message).into(),
        FailureKind::Invalid => Error::invalid(message).into(),
        FailureKind::System => LabError::System(message),
    }
}
