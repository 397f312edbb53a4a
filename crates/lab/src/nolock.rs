//! The same job on many copies: by insert-if-absent alone, and with the lock, measured (R31).
//!
//! Twelve instances start the nightly job at the same time, and it must run once. With a key that is unique per tick,
//! one statement is enough: the copy that inserts the key runs the job. A lock needs more steps, and a check: a copy
//! that acquires the lock later must find that the job is done.

use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;

use crate::environment::{Environment, STEP_TIMEOUT, now};
use crate::error::{LabError, Result};
use crate::event::millis;
use crate::process::{Reports, Worker};
use crate::verdict::Verdict;
use crate::worker::{Method, Report, Role, Task};

/// The options of the lab.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of copies of the job.
    pub copies: u32,
    /// The number of ticks at which the job is due.
    pub ticks: u32,
    /// Whether the key is unique. If not, every copy runs the job, and the lab fails.
    pub unique: bool,
    /// Whether the lock is used. If not, two copies can both find that the job is not done, and the lab fails.
    pub lock: bool,
}

/// The result of the lab.
#[derive(Debug)]
pub struct Outcome {
    /// The lock store.
    pub store: String,
    /// The resource.
    pub resource: &'static str,
    /// The options of this run.
    pub options: Options,
    /// With the key alone.
    pub key: Measured,
    /// With the lock.
    pub lock: Measured,
    /// Whether the lab shows what it should.
    pub verdict: Verdict,
}

/// The measurements of one method to run the job once.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// How often the job ran, per tick.
    pub runs: Vec<u64>,
    /// How many copies reported that they ran it, per tick.
    pub claims: Vec<u64>,
    /// The time until all copies were done, per tick.
    pub ticks: Vec<Duration>,
    /// The time of each copy, sorted.
    pub copies: Vec<Duration>,
    /// The calls of all copies to store and resource, per tick.
    pub steps: Vec<u64>,
}

/// Runs the lab. `progress` gets the name of each method when it starts.
pub async fn nolock(
    env: &Environment,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mut session = env.open(true).await?;
    session.create_ledger(options.unique).await?;
    let (mut measured, mut verdict) = (Vec::new(), Verdict::default());
    let lock = if options.lock { Method::Lock } else { Method::CheckOnly };
    for (method, name) in [(Method::Key, "insert-if-absent alone"), (lock, "the lock")] {
        progress(name);
        let mut copies = Copies::start(env, options.copies, method).await?;
        // The first tick opens connections and files, so it is not counted.
        copies.tick(&format!("{name}, tick 0"), &mut Measured::default()).await?;
        let mut series = Measured::default();
        for number in 1..=options.ticks {
            let tick = format!("{name}, tick {number}");
            copies.tick(&tick, &mut series).await?;
            series.runs.push(session.runs(&tick).await?);
        }
        series.copies.sort();
        let once = series.runs.iter().chain(&series.claims).all(|runs| *runs == 1);
        let runs: Vec<String> = series.runs.iter().map(u64::to_string).collect();
        let seen = format!("runs per tick: {}", runs.join(" "));
        verdict.check(format!("by {name} the job runs once per tick"), once, seen);
        measured.push(series);
    }
    let lock = measured.pop().unwrap_or_default();
    let key = measured.pop().unwrap_or_default();
    let (store, resource) = (env.store_name(), env.resource()?.kind());
    Ok(Outcome { store, resource, options: options.clone(), key, lock, verdict })
}

/// All copies of the job.
struct Copies {
    workers: Vec<Worker>,
    reports: Reports<u32>,
}

impl Copies {
    async fn start(env: &Environment, copies: u32, method: Method) -> Result<Self> {
        let (sender, reports) = unbounded_channel();
        let resource = env.resource()?;
        let start = |number: u32| {
            let task = Task {
                store: env.url.clone(),
                name: env.name("nolock"),
                label: format!("copy {number}"),
                ttl_ms: 30_000,
                wait_timeout_ms: STEP_TIMEOUT.as_millis() as u64,
                role: Role::Job { resource: resource.clone(), method },
            };
            Worker::start(env, &task, number, sender.clone())
        };
        let workers = (1..=copies).map(start).collect::<Result<Vec<_>>>()?;
        let mut reports = Reports(reports);
        reports.all_ready(copies).await?;
        Ok(Self { workers, reports })
    }

    /// Starts all copies, and waits until all are done.
    async fn tick(&mut self, tick: &str, series: &mut Measured) -> Result<()> {
        let start = now();
        for worker in &mut self.workers {
            worker.send(tick)?;
        }
        let (mut claims, mut all_steps) = (0, 0);
        for _ in 0..self.workers.len() {
            match self.reports.next(STEP_TIMEOUT, |_| false).await? {
                (_, Report::Ticked { ran, steps, micros }) => {
                    claims += u64::from(ran);
                    all_steps += steps;
                    series.copies.push(Duration::from_micros(micros));
                }
                (id, other) => {
                    return Err(LabError::System(format!("worker {id} reported {other:?}")));
                }
            }
        }
        series.claims.push(claims);
        series.steps.push(all_steps);
        series.ticks.push(now().since(start));
        Ok(())
    }
}

impl Measured {
    /// The median and the longest time of a copy.
    #[must_use]
    pub fn copy_times(&self) -> (Duration, Duration) {
        (median(&self.copies), self.copies.last().copied().unwrap_or_default())
    }

    /// The median time until all copies were done.
    #[must_use]
    pub fn tick_time(&self) -> Duration {
        let mut ticks = self.ticks.clone();
        ticks.sort();
        median(&ticks)
    }

    /// The calls to store and resource per tick, of all copies together.
    #[must_use]
    pub fn steps_per_tick(&self) -> f64 {
        let sum: u64 = self.steps.iter().sum();
        let (sum, ticks) = (u32::try_from(sum), u32::try_from(self.steps.len().max(1)));
        f64::from(sum.unwrap_or(u32::MAX)) / f64::from(ticks.unwrap_or(u32::MAX))
    }

    fn as_json(&self) -> serde_json::Value {
        let (p50, max) = self.copy_times();
        serde_json::json!({
            "runs": self.runs,
            "claims": self.claims,
            "steps": self.steps,
            "tick_p50_ms": millis(self.tick_time()),
            "copy_p50_ms": millis(p50),
            "copy_max_ms": millis(max),
        })
    }
}

fn median(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

impl Outcome {
    /// The result for programs.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "lab": "nolock",
            "shown": self.verdict.holds(),
            "store": self.store,
            "resource": self.resource,
            "copies": self.options.copies,
            "ticks": self.options.ticks,
            "key": self.key.as_json(),
            "lock": self.lock.as_json(),
            "checks": self.verdict,
        })
    }
}
