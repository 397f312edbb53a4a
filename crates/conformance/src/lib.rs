//! The suite that every backend runs, ours or yours: the same cases, by the same rules.
//!
//! You write a [`Harness`], which makes fresh stores and, where it can, breaks them; and a test target
//! with a main of its own. In `Cargo.toml`:
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
//!         Box::pin(Fencepost::over(Arc::new(BootClock), move |_| async move { Ok(store) }))
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
//! `cargo test --test conformance` runs all of it, `cargo test --test conformance -- mine::fifo` what
//! starts so. A case that a store can not run is shown as ignored, with the reason; one that would test
//! what the backend's [`guarantees`](fencepost::guarantees) do not promise says so too.
//!
//! Some cases need other processes: the test binary starts itself again as a worker. Random choices come
//! from a seed that is printed; `FENCEPOST_CONFORMANCE_SEED` gives the same ones again. At the end stands how
//! long the cases of each store took, taken together.

mod cases;
mod diary;
pub mod fences;
mod harness;
mod process;
mod scene;
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
pub use harness::{Harness, Site, Unable, no};
use scene::{Scene, Stop, Verdict, within};
pub use severable::{Line, Severable};
pub use worker::worker_main;

/// No case needs as long; one that takes longer hangs.
const CASE_LIMIT: Duration = Duration::from_mins(1);
const SEED: &str = "FENCEPOST_CONFORMANCE_SEED";

/// The whole of a conformance test binary: runs the cases that the command line asks for on each harness,
/// or is a worker when the suite started it as one.
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

/// How long the cases of each harness took, taken together.
type Spent = Mutex<BTreeMap<String, Duration>>;

fn trial(harness: &Arc<dyn Harness>, case: &'static Case, seed: u64, spent: &Arc<Spent>) -> Trial {
    let name = format!("{}::{}", harness.name(), case.name);
    let (harness, spent) = (Arc::clone(harness), Arc::clone(spent));
    Trial::ignorable_test(name, move || {
        let (from, of) = (scene::now(), harness.name().to_owned());
        let ended = run(harness, case, seed);
        let took = scene::now().since(from);
        *spent.lock().entry(of).or_default() += took;
        ended
    })
}

/// Held by all cases together, or by one that runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

fn run(harness: Arc<dyn Harness>, case: &Case, seed: u64) -> Result<Completion, Failed> {
    // Nothing is behind it that a panic could have left half done.
    let (_alone, _beside) =
        if case.alone { (Some(MACHINE.write()), None) } else { (None, Some(MACHINE.read())) };
    conclude(seed, async {
        let scene = Scene::set(harness, case.own_server, seed).await?;
        within(CASE_LIMIT, "the case comes to its end", (case.run)(&scene)).await?
    })
}

/// Runs a case, and says how it ended to those who run the tests.
fn conclude(seed: u64, case: impl Future<Output = Verdict>) -> Result<Completion, Failed> {
    // One thread: what the library needs beside the caller's it must bring itself.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let verdict = runtime.block_on(case);
    // A thread that waits for a lock it will never get must not keep the next case from running.
    runtime.shutdown_background();
    match verdict {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::Skipped(why)) => Ok(Completion::ignored_with(why)),
        Err(Stop::Failed(why)) => Err(Failed::from(format!("{why} (seed {seed})"))),
    }
}

/// The seed of this run, told unless the cases are only listed.
fn seed(arguments: &Arguments) -> u64 {
    let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let mut bits = [0; 8];
        // A system without random numbers can grant nothing; the cases will say so.
        let _ = getrandom::fill(&mut bits);
        u64::from_ne_bytes(bits) >> 1
    });
    if !arguments.list {
        eprintln!("seed {seed}: {SEED}={seed} makes the same random choices again");
    }
    seed
}
