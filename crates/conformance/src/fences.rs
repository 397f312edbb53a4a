//! The suite that every fence runs, ours or yours: P8, case by case. [`Resource`] and [`Marks`] are the verbs of the contract
//! as it uses them; what they mean is told in [`fences`](fencepost::fences).
//!
//! You write a [`Fence`], which makes fresh resources with counters in them, and a test target with a main of
//! its own (`harness = false`) that calls [`main`]. Ours is `tests/fences/main.rs`.
//!
//! The main case, `counter_is_exact`, is a read-modify-write under random pauses: workers take a lock that
//! expires, read in one transaction, write in another, and freeze in between, often past their lease. Time is a
//! number there, so a round takes milliseconds. The final value must be the number of acknowledged increments.
//! Beside it run two controls that must lose updates, or the case would show nothing: one without the fence,
//! and one that fences its writes but does not enter before it reads.
//!
//! `cargo test --test fences` runs 50 rounds of it, or 25 where the server is slow;
//! `FENCEPOST_FENCE_ROUNDS=1000 cargo test --test fences -- counter` runs a thousand. Random choices come from a
//! seed that is printed; `FENCEPOST_CONFORMANCE_SEED` gives the same ones again.

mod cases;
mod counter;
mod crowd;

use std::process::ExitCode;
use std::sync::Arc;

use fencepost::Result;
use fencepost::backend::BoxFuture;
use fencepost::fences::{Mark, Reset};
use fencepost_core::{Label, LockName, Token};
use libtest_mimic::{Arguments, Trial};

use super::harness::Unable;
use super::scene::{Stop, Verdict, within};
use super::{CASE_LIMIT, conclude, seed};

const ROUNDS: &str = "FENCEPOST_FENCE_ROUNDS";

/// A kind of fence that the suite can run on. Write one per adapter.
pub trait Fence: Send + Sync + 'static {
    /// The first part of each test's name: `sqlite` gives `sqlite::equal_is_accepted`.
    fn name(&self) -> &str;

    /// How many rounds of the counter are played if nobody says, and so how often the crowd meets. Fewer where the
    /// server takes long to refuse; below 25 the controls may lose nothing by chance.
    fn rounds(&self) -> u64 {
        50
    }

    /// A fresh resource: no marks, all counters 0. [`Unable::Unsupported`] skips the case, visibly.
    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>>;

    /// A fresh resource behind an intermediary (gateway, load balancer, proxy) that answers in its place, if this kind of
    /// resource can be behind one.
    fn behind_intermediary(
        &self,
    ) -> Option<BoxFuture<'_, Result<Box<dyn BehindIntermediary>, Unable>>> {
        None
    }
}

/// A resource behind an intermediary that gives up a write: it answers with an error of its own, such as 504, and the
/// write is still on its way to the resource, or under way there.
pub trait BehindIntermediary: Send + Sync {
    /// The resource. If it keeps a later holder waiting for the end of a write, then for seconds and not until
    /// [`finish`](Self::finish).
    fn resource(&self) -> &dyn Resource;

    /// Writes, through the fence if there is a token; the intermediary gives it up. Returns the error that says so.
    fn write_given_up<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>>;

    /// The write that was given up is applied now, or refused by the resource.
    fn finish(&self) -> BoxFuture<'_, Result<()>>;
}

/// A resource with a counter for each lock name. Each call is one step (a transaction, where there are such), which
/// enters first if it is given a token, and is not fenced if it is given none.
pub trait Resource: Send + Sync {
    /// The same resource through a connection of its own.
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>>;

    /// Reads the counter.
    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>>;

    /// Sets the counter.
    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>>;

    /// Enters, sets the counter, and rolls back, if this resource has transactions.
    fn abandon<'a>(
        &'a self,
        _name: &'a LockName,
        _token: Token,
        _value: i64,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        None
    }

    /// The marks, if this fence keeps them apart from what it protects.
    fn marks(&self) -> Option<&dyn Marks> {
        None
    }
}

/// What a person can see and do at a fence.
pub trait Marks: Send + Sync {
    /// Enters, in a transaction of its own, as `who`.
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>>;

    /// The mark of a name, if anybody has entered.
    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>>;

    /// The marks of a name, or of all.
    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>>;

    /// Sets a mark, or forgets it.
    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>>;

    /// The records of resets.
    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>>;
}

/// One case's surroundings.
struct Scene {
    fence: Arc<dyn Fence>,
    resource: Box<dyn Resource>,
    seed: u64,
    rounds: u64,
}

impl Scene {
    fn marks(&self) -> Verdict<&dyn Marks> {
        let none =
            || Stop::Skipped("this fence keeps its marks in the rows that it protects".into());
        self.resource.marks().ok_or_else(none)
    }

    async fn behind_intermediary(&self) -> Verdict<Box<dyn BehindIntermediary>> {
        let none = || Stop::Skipped("nothing answers in place of this resource".into());
        Ok(self.fence.behind_intermediary().ok_or_else(none)?.await?)
    }
}

/// The whole of a test binary for fences.
#[must_use]
pub fn main(fences: Vec<Box<dyn Fence>>) -> ExitCode {
    let arguments = Arguments::from_args();
    let seed = seed(&arguments);
    let rounds = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok());
    let trials = fences
        .into_iter()
        .flat_map(|fence| {
            let fence: Arc<dyn Fence> = Arc::from(fence);
            let rounds = rounds.unwrap_or(fence.rounds());
            cases::CASES.iter().map(move |case| trial(&fence, case, seed, rounds))
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(fence: &Arc<dyn Fence>, case: &'static cases::Case, seed: u64, rounds: u64) -> Trial {
    let name = format!("{}::{}", fence.name(), case.name);
    let fence = Arc::clone(fence);
    let limit = CASE_LIMIT * u32::try_from(rounds / 100).unwrap_or(u32::MAX).max(1);
    Trial::ignorable_test(name, move || {
        conclude(seed, async {
            let resource = fence.fresh().await?;
            let scene = Scene { fence, resource, seed, rounds };
            within(limit, "the case comes to its end", (case.run)(&scene)).await?
        })
    })
}
