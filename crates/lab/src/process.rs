//! The lab's end of its workers. Each is killed, by its id, on every path.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use fencepost::{Error, ErrorKind, Moment};
use fencepost_process::Process;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::event::{Event, What, Who, first};
use crate::fault::{Fault, Result};
use crate::scene::{SOON, Scene, alarm, now, within};
use crate::worker::{Kind, Report, Role, Task, WORKER};

/// A worker that runs.
pub(crate) struct Worker(Process);

impl Worker {
    /// Starts one. What it says comes out of `heard` with `mark` on it; `None` is its end.
    pub(crate) fn start<M: Copy + Send + 'static>(
        scene: &Scene,
        task: &Task,
        mark: M,
        heard: UnboundedSender<(M, Option<Report>)>,
    ) -> Result<Self> {
        let fault = |error: std::io::Error| Fault::system("start a worker", &error);
        let task = serde_json::to_string(task).map_err(|error| fault(error.into()))?;
        let mut command = Command::new(&scene.program);
        // What a terminal sends at ^C is for the lab, which ends its workers itself.
        command.arg(WORKER).process_group(0);
        let process = Process::start(command, move |line| {
            let report = line.and_then(|line| serde_json::from_str(&line).ok());
            let goes_on = report.is_some();
            heard.send((mark, report)).is_ok() && goes_on
        });
        let mut worker = Self(process.map_err(fault)?);
        worker.tell(&task)?;
        Ok(worker)
    }

    /// Sends a line. A frozen worker finds it when it wakes.
    pub(crate) fn tell(&mut self, order: &str) -> Result<()> {
        self.0.tell(order).map_err(|error| Fault::system("talk to a worker", &error))
    }

    /// Freezes the worker, and waits until it stands.
    pub(crate) async fn freeze(&self) -> Result<()> {
        signalled(self.0.freeze())?;
        within(SOON, "a worker stands still", async {
            while !self.0.is_frozen() {
                if !self.0.is_running() {
                    return Err(Fault::System("a worker ended unasked".into()));
                }
                alarm(now() + Duration::from_millis(1)).await;
            }
            Ok(())
        })
        .await
    }

    /// Lets it go on.
    pub(crate) fn wake(&self) -> Result<()> {
        signalled(self.0.wake())
    }

    /// Ends it as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        signalled(self.0.kill())
    }
}

fn signalled(sent: std::io::Result<()>) -> Result<()> {
    sent.map_err(|error| Fault::system("send a signal to a worker", &error))
}

/// The two workers of one lock, what they do, and a clock that began with them.
pub(crate) struct Duo<'a> {
    pub(crate) a: Worker,
    pub(crate) b: Worker,
    heard: UnboundedReceiver<(Who, Option<Report>)>,
    /// What happened so far, in the order in which it was heard.
    pub(crate) events: Vec<Event>,
    /// Until when A's guard is good, as far as A said.
    pub(crate) good_until: Option<Moment>,
    /// Whether the store sees A's process end.
    pub(crate) presence: bool,
    /// The TTL that the store keeps for A; what it was asked for until A has said.
    pub(crate) ttl: Duration,
    began: Moment,
    say: &'a mut dyn FnMut(&Event),
}

impl<'a> Duo<'a> {
    /// Starts both and waits until they are connected.
    pub(crate) async fn start(
        scene: &Scene,
        task: impl Fn(Who) -> (String, Duration, Duration, Role),
        say: &'a mut dyn FnMut(&Event),
    ) -> Result<Self> {
        let (mouth, heard) = unbounded_channel();
        let start = |who: Who| {
            let (name, ttl, patience, role) = task(who);
            let task = Task {
                store: scene.url.clone(),
                name,
                label: format!("worker {who}"),
                ttl_ms: ttl.as_millis() as u64,
                patience_ms: patience.as_millis() as u64,
                role,
            };
            Worker::start(scene, &task, who, mouth.clone())
        };
        let (a, b) = (start(Who::A)?, start(Who::B)?);
        let (events, began, ttl) = (Vec::new(), now(), task(Who::A).1);
        let mut duo =
            Self { a, b, heard, events, good_until: None, presence: false, ttl, began, say };
        for _ in 0..2 {
            match duo.hear(SOON).await? {
                (_, Report::Ready) => {}
                (who, other) => {
                    return Err(Fault::System(format!("worker {who} began with {other:?}")));
                }
            }
        }
        duo.began = now();
        Ok(duo)
    }

    async fn hear(&mut self, limit: Duration) -> Result<(Who, Report)> {
        within(limit, "a worker says something", async {
            loop {
                match self.heard.recv().await {
                    Some((who, Some(Report::Failed { kind, message }))) => {
                        return Err(failed(who, kind, &message));
                    }
                    Some((who, Some(report))) => return Ok((who, report)),
                    Some((who, None)) if self.has_ended(who) => {}
                    Some((who, None)) => {
                        return Err(Fault::System(format!("worker {who} ended unasked")));
                    }
                    None => return Err(Fault::System("both workers are gone".into())),
                }
            }
        })
        .await
    }

    /// Whether `who` has done all it had to do, or was killed.
    fn has_ended(&self, who: Who) -> bool {
        let last =
            |what: &What| matches!(what, What::Released | What::NotHeld { .. } | What::Killed);
        first(&self.events, who, last).is_some()
    }

    /// Waits until something happens to `who` that `is` says it waits for.
    pub(crate) async fn until(
        &mut self,
        who: Who,
        limit: Duration,
        is: impl Fn(&What) -> bool,
    ) -> Result<What> {
        let mut seen = 0;
        let give_up = now() + limit;
        loop {
            while let Some(event) = self.events.get(seen) {
                if event.who == who && is(&event.what) {
                    return Ok(event.what.clone());
                }
                seen += 1;
            }
            match self.hear(give_up.since(now())).await? {
                (who, Report::Happened { at, what }) => {
                    self.note(Moment::from_nanos(at), who, what);
                }
                (Who::A, Report::Good { until, presence, ttl_ms }) => {
                    self.good_until = Some(Moment::from_nanos(until));
                    self.presence = presence;
                    self.ttl = Duration::from_millis(ttl_ms.into());
                }
                // `hear` has told of a failure.
                _ => {}
            }
        }
    }

    /// Something that the lab did, or heard of.
    pub(crate) fn note(&mut self, at: Moment, who: Who, what: What) {
        self.know(at, who, what);
        if let Some(event) = self.events.last() {
            (self.say)(event);
        }
    }

    /// Something that the lab knows afterwards.
    pub(crate) fn know(&mut self, at: Moment, who: Who, what: What) {
        self.events.push(Event { at: at.since(self.began), who, what });
    }

    /// When that happened to `who` first.
    pub(crate) fn first(&self, who: Who, is: impl Fn(&What) -> bool) -> Option<Moment> {
        first(&self.events, who, is).map(|event| self.began + event.at)
    }

    /// What happened, in the order in which it did.
    pub(crate) fn into_events(mut self) -> Vec<Event> {
        self.events.sort_by_key(|event| event.at);
        self.events
    }
}

pub(crate) fn failed(who: impl std::fmt::Display, kind: Kind, message: &str) -> Fault {
    let message = format!("worker {who}: {message}");
    match kind {
        Kind::Held => Error::new(ErrorKind::Held(None), message).into(),
        Kind::Unreachable => Error::unreachable(message).into(),
        Kind::Refused => Error::refused(message).into(),
        Kind::Invalid => Error::invalid(message).into(),
        Kind::System => Fault::System(message),
    }
}
