//! The suite that every backend runs, ours or yours: the same cases, by the same rules.
//!
//! Write a [`Harness`], which creates fresh stores and, where it can, breaks them, and a test target with its own main. In
//! `Cargo.toml`:
//!
//! ```toml
//! [dev-dependencies]
//! fencepost-conformance = "0.1"
//!
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! and in `tests/conformance.rs`, here for a store that lives in the process:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use std::sync::Arc;
//! use fencepost::backend::BoxFuture;
//! use fencepost::backends::memory::Memory; // your backend
//! use fencepost::clock::BootClock;
//! use fencepost::{Fencepost, Result};
//! use fencepost_conformance::{Harness, Line, Severable, Site, Unable};
//!
//! struct Mine;
//!
//! impl Harness for Mine {
//!     fn name(&self) -> &str {
//!         "mine"
//!     }
//!     fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Site>, Unable>> {
//!         let store = Severable::new(Memory::new(Arc::new(BootClock)).into());
//!         Box::pin(async move { Ok(Box::new(MySite(store)) as Box<dyn Site>) })
//!     }
//! }
//!
//! struct MySite(Arc<Severable>);
//!
//! impl Site for MySite {
//!     fn connect(&self) -> BoxFuture<'_, Result<Fencepost>> {
//!         let store = self.0.store();
//!         Box::pin(Fencepost::with_backend(Arc::new(BootClock), move |_| async move { Ok(store) }))
//!     }
//!     fn url(&self) -> Result<String, Unable> {
//!         Err(Unable::Unsupported("the store is in this process".into()))
//!     }
//!     fn cut(&self) -> BoxFuture<'_, Result<(), Unable>> {
//!         self.0.set(Line::Silent);
//!         Box::pin(async { Ok(()) })
//!     }
//!     fn heal(&self) -> BoxFuture<'_, Result<(), Unable>> {
//!         self.0.set(Line::Whole);
//!         Box::pin(async { Ok(()) })
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     fencepost_conformance::main(vec![Box::new(Mine)])
//! }
//! ```
//!
//! `cargo test --test conformance` runs all cases, `cargo test --test conformance -- mine::fifo` those whose names start
//! with that. A case that a store cannot run is shown as ignored, with the reason. So is a case for something that the
//! backend's [`guarantees`](fencepost::guarantees) do not promise.
//!
//! Some cases need other processes: the test binary starts itself again as a worker. Random choices come from a seed that
//! is printed; `FENCEPOST_CONFORMANCE_SEED` repeats them. At the end the suite prints how long the cases of each store
//! took in total.

mod cases;
pub mod fences;
mod fixture;
mod harness;
mod history;
mod process;
mod severable;
mod worker;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use parking_lot::{Mutex, RwLock};

use cases::Case;
use fixture::{Fixture, Stop, Verdict, within};
pub use harness::{Harness, Site, Unable, no};
pub use severable::{Line, Severable};
pub use worker::worker_main;

/// A case that takes longer hangs.
const CASE_LIMIT: Duration = Duration::from_mins(1);
const SEED: &str = "FENCEPOST_CONFORMANCE_SEED";

/// The main function of a conformance test binary: runs the selected cases on each harness, or acts as a worker if the
/// suite started it as one.
#[must_use]
pub fn main(harnesses: Vec<Box<dyn Harness>>) -> ExitCode {
    let mut harnesses = harnesses.into_iter();
    if let Ok(name) = std::env::var(worker::WORKER) {
        return match harnesses.find(|harness| harness.name() == name) {
            Some(harness) => worker_main(async |url| harness.connect(&url).await),
            None => worker_main(async |_| {
                Err(fencepost::Error::invalid(format!("this binary has no harness \"{name}\"")))
            }),
        };
    }
    let mut arguments = Arguments::from_args();
    // Cases mostly wait for leases to end, so more of them than cores can run at once.
    arguments.test_threads.get_or_insert(4);
    let seed = seed(&arguments);
    let spent = Arc::<Spent>::default();
    let trials = harnesses
        .flat_map(|harness| {
            let harness: Arc<dyn Harness> = Arc::from(harness);
            let spent = Arc::clone(&spent);
            cases::all().map(move |case| trial(&harness, case, seed, &spent))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    for (name, span) in spent.lock().iter() {
        eprintln!("{name}: its cases took {:.1} s, taken together", span.as_secs_f64());
    }
    conclusion.exit_code()
}

/// The total time of each harness's cases.
type Spent = Mutex<BTreeMap<String, Duration>>;

fn trial(harness: &Arc<dyn Harness>, case: &'static Case, seed: u64, spent: &Arc<Spent>) -> Trial {
    let name = format!("{}::{}", harness.name(), case.name);
    let (harness, spent) = (Arc::clone(harness), Arc::clone(spent));
    Trial::ignorable_test(name, move || {
        let (from, of) = (fixture::now(), harness.name().to_owned());
        let ended = run(harness, case, seed);
        let took = fixture::now().since(from);
        *spent.lock().entry(of).or_default() += took;
        ended
    })
}

/// Locked shared by most cases, exclusively by one that runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

fn run(harness: Arc<dyn Harness>, case: &Case, seed: u64) -> Result<Completion, Failed> {
    // The lock guards no data, so a panic cannot have left any half done.
    let (_alone, _beside) =
        if case.alone { (Some(MACHINE.write()), None) } else { (None, Some(MACHINE.read())) };
    conclude(seed, async {
        let fixture = Fixture::new(harness, case.own_server, seed).await?;
        within(CASE_LIMIT, "the case ends", (case.run)(&fixture)).await?
    })
}

/// Runs a case and reports how it ended.
fn conclude(seed: u64, case: impl Future<Output = Verdict>) -> Result<Completion, Failed> {
    // One thread: the library must bring its own if it needs more.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let verdict = runtime.block_on(case);
    // A thread that waits for ever must not block the next case.
    runtime.shutdown_background();
    match verdict {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::Skipped(why)) => Ok(Completion::ignored_with(why)),
        Err(Stop::Failed(why)) => Err(Failed::from(format!("{why} (seed {seed})"))),
    }
}

/// The seed of this run. It is printed unless the cases are only listed.
fn seed(arguments: &Arguments) -> u64 {
    let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    // Without random numbers no lock can be granted, and the cases will report that.
    let drawn = || fencepost_base::random::bytes().map_or(0, u64::from_ne_bytes) >> 1;
    let seed = given.unwrap_or_else(drawn);
    if !arguments.list {
        eprintln!("seed {seed}: {SEED}={seed} makes the same random choices again");
    }
    seed
}
