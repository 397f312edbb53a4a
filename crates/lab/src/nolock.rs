//! The same job on many copies, by insert-if-absent alone, measured against the lock (R31).
//!
//! Twelve instances start the nightly job at the same time, and it shall run once. With a key that is unique per
//! run one statement does it: whoever inserts the key runs the job. A lock does it too, with more steps, and
//! not alone: one who comes after the release has to look whether the job is done.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::event::millis;
use crate::fault::{Fault, Result};
use crate::process::{Worker, failed};
use crate::scene::{SOON, Scene, now, within};
use crate::verdict::Verdict;
use crate::worker::{Report, Role, Task, Way};

/// How the lab is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many copies of the job.
    pub copies: u32,
    /// How many ticks of the clock.
    pub ticks: u32,
    /// Whether the key is unique. Without that every copy runs the job, and the lab says so.
    pub unique: bool,
    /// Whether the lock is taken. Without it two copies find at once that the job is not done, and the lab says so.
    pub lock: bool,
}

/// What happened, as a whole.
#[derive(Debug)]
pub struct Account {
    /// The lock store.
    pub store: String,
    /// The resource.
    pub resource: &'static str,
    /// How it was carried out.
    pub options: Options,
    /// By the key alone.
    pub key: Measured,
    /// By the lock.
    pub lock: Measured,
    /// Whether it shows what it should.
    pub verdict: Verdict,
}

/// One way to run the job once.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// How often the job ran, per tick.
    pub runs: Vec<u64>,
    /// How many copies said that it was they who ran it, per tick.
    pub claims: Vec<u64>,
    /// Until all copies were done, per tick.
    pub ticks: Vec<Duration>,
    /// What each copy took, sorted.
    pub copies: Vec<Duration>,
    /// The calls of all copies to store and resource, per tick.
    pub steps: Vec<u64>,
}

/// Carries it out. `say` hears which way is on: by the lock, or by the key.
pub async fn nolock(
    scene: &Scene,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Account> {
    let mut session = scene.make(true).await?;
    session.make_ledger(options.unique).await?;
    let (mut measured, mut verdict) = (Vec::new(), Verdict::default());
    let lock = if options.lock { Way::Lock } else { Way::Look };
    for (way, words) in [(Way::Key, "insert-if-absent alone"), (lock, "the lock")] {
        say(words);
        let mut crew = Crew::start(scene, options.copies, way).await?;
        // The first tick is not counted: connections and files are opened there.
        crew.tick(&format!("{words}, tick 0"), &mut Measured::default()).await?;
        let mut way = Measured::default();
        for number in 1..=options.ticks {
            let tick = format!("{words}, tick {number}");
            crew.tick(&tick, &mut way).await?;
            way.runs.push(session.runs(&tick).await?);
        }
        way.copies.sort();
        let once = way.runs.iter().chain(&way.claims).all(|runs| *runs == 1);
        let runs: Vec<String> = way.runs.iter().map(u64::to_string).collect();
        let seen = format!("runs per tick: {}", runs.join(" "));
        verdict.check(format!("by {words} the job runs once per tick"), once, seen);
        measured.push(way);
    }
    let lock = measured.pop().unwrap_or_default();
    let key = measured.pop().unwrap_or_default();
    let (store, resource) = (scene.store_name(), scene.resource()?.kind());
    Ok(Account { store, resource, options: options.clone(), key, lock, verdict })
}

/// All copies of the job.
struct Crew {
    workers: Vec<Worker>,
    heard: UnboundedReceiver<(u32, Option<Report>)>,
}

impl Crew {
    async fn start(scene: &Scene, copies: u32, way: Way) -> Result<Self> {
        let (mouth, heard) = unbounded_channel();
        let resource = scene.resource()?;
        let start = |number: u32| {
            let task = Task {
                store: scene.url.clone(),
                name: scene.name("nolock"),
                label: format!("copy {number}"),
                ttl_ms: 30_000,
                patience_ms: SOON.as_millis() as u64,
                role: Role::Job { resource: resource.clone(), way },
            };
            Worker::start(scene, &task, number, mouth.clone())
        };
        let workers = (1..=copies).map(start).collect::<Result<Vec<_>>>()?;
        let mut crew = Self { workers, heard };
        for _ in 0..copies {
            match crew.hear().await? {
                Report::Ready => {}
                other => return Err(Fault::System(format!("a copy began with {other:?}"))),
            }
        }
        Ok(crew)
    }

    async fn hear(&mut self) -> Result<Report> {
        let heard = &mut self.heard;
        let next = within(SOON, "a copy says something", async { Ok(heard.recv().await) }).await?;
        match next {
            Some((copy, Some(Report::Failed { kind, message }))) => {
                Err(failed(copy, kind, &message))
            }
            Some((_, Some(report))) => Ok(report),
            Some((copy, None)) => Err(Fault::System(format!("copy {copy} ended unasked"))),
            None => Err(Fault::System("all copies are gone".into())),
        }
    }

    /// The clock strikes: all copies start, and all have ended.
    async fn tick(&mut self, tick: &str, way: &mut Measured) -> Result<()> {
        let began = now();
        for worker in &mut self.workers {
            worker.tell(tick)?;
        }
        let (mut claims, mut all_steps) = (0, 0);
        for _ in 0..self.workers.len() {
            match self.hear().await? {
                Report::Ticked { ran, steps, micros } => {
                    claims += u64::from(ran);
                    all_steps += steps;
                    way.copies.push(Duration::from_micros(micros));
                }
                other => return Err(Fault::System(format!("a copy said {other:?}"))),
            }
        }
        way.claims.push(claims);
        way.steps.push(all_steps);
        way.ticks.push(now().since(began));
        Ok(())
    }
}

impl Measured {
    /// The median and the longest time of a copy.
    #[must_use]
    pub fn copy_times(&self) -> (Duration, Duration) {
        (middle(&self.copies), self.copies.last().copied().unwrap_or_default())
    }

    /// The median time until all copies were done.
    #[must_use]
    pub fn tick_time(&self) -> Duration {
        let mut ticks = self.ticks.clone();
        ticks.sort();
        middle(&ticks)
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

fn middle(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

impl Account {
    /// All of it, for programs.
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
