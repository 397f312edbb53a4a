//! The suite that every fence runs, ours or yours: P8, case by case. [`Resource`] and [`Marks`] are the contract as the
//! suite uses it; [`fences`](fencepost::fences) says what it means.
//!
//! Write a [`Fence`], which creates fresh resources with counters in them, and a test target with its own main
//! (`harness = false`) that calls [`main`]. Ours is `tests/fences/main.rs`.
//!
//! The main case, `counter_is_exact`, is a read-modify-write under random pauses. Workers take a lock that expires, read in
//! one transaction, write in another, and freeze in between, often past their lease. Time is simulated, so a round takes
//! milliseconds. The final value must be the number of acknowledged increments. Two controls must lose updates, or the
//! case would show nothing: one without the fence, and one that fences its writes but does not enter before it reads.
//!
//! `cargo test --test fences` runs 50 rounds, or 25 where the server is slow;
//! `FENCEPOST_FENCE_ROUNDS=1000 cargo test --test fences -- counter` runs a thousand. Random choices come from a seed that
//! is printed; `FENCEPOST_CONFORMANCE_SEED` repeats them.

mod cases;
mod concurrent;
mod counter;

use std::process::ExitCode;
use std::sync::Arc;

use fencepost::Result;
use fencepost::backend::BoxFuture;
use fencepost::fences::{Mark, Reset};
use fencepost_core::{Label, LockName, Token};
use libtest_mimic::{Arguments, Trial};

use super::cases::Case;
use super::fixture::{Stop, Verdict, within};
use super::harness::Unable;
use super::{CASE_LIMIT, conclude, seed};

const ROUNDS: &str = "FENCEPOST_FENCE_ROUNDS";

/// A kind of fence that the suite can run on. Write one per adapter.
pub trait Fence: Send + Sync + 'static {
    /// The first part of each test's name: `sqlite` gives `sqlite::equal_token_is_accepted`.
    fn name(&self) -> &str;

    /// The default number of rounds of the counter, which also decides how often the concurrent connections collide. Lower it
    /// for a slow server; below 25 the controls may lose nothing by chance.
    fn rounds(&self) -> u64 {
        50
    }

    /// A fresh resource: no marks, all counters 0. [`Unable::Unsupported`] skips the case, visibly.
    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>>;

    /// A fresh resource behind an intermediary (gateway, load balancer, proxy) that can respond in its place, if this kind of
    /// resource can be behind one.
    fn behind_intermediary(
        &self,
    ) -> Option<BoxFuture<'_, Result<Box<dyn BehindIntermediary>, Unable>>> {
        None
    }
}

/// A resource behind an intermediary that gives up on a write: it responds with its own error, such as 504, while the write
/// is still on its way to the resource or being applied.
pub trait BehindIntermediary: Send + Sync {
    /// The resource. It may make a later holder wait for the end of the write, but for seconds, not until
    /// [`finish`](Self::finish).
    fn resource(&self) -> &dyn Resource;

    /// Writes, through the fence if there is a token. The intermediary gives up. Returns its error.
    fn write_given_up<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>>;

    /// Lets the resource apply or refuse the write now.
    fn finish(&self) -> BoxFuture<'_, Result<()>>;
}

/// A resource with a counter for each lock name. Each call is one step (a transaction, if the resource has them). It enters
/// first if it gets a token; without a token it is not fenced.
pub trait Resource: Send + Sync {
    /// The same resource through another connection.
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

    /// The marks, if this fence keeps them apart from the data.
    fn marks(&self) -> Option<&dyn Marks> {
        None
    }
}

/// What an operator can see and do at a fence.
pub trait Marks: Send + Sync {
    /// Enters as `who`, in its own transaction.
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>>;

    /// The mark of a name, if a token has entered.
    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>>;

    /// The marks of one name, or of all.
    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>>;

    /// Sets or removes a mark.
    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>>;

    /// The logged resets.
    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>>;
}

/// What one case works with.
struct Fixture {
    fence: Arc<dyn Fence>,
    resource: Box<dyn Resource>,
    seed: u64,
    rounds: u64,
}

impl Fixture {
    fn marks(&self) -> Verdict<&dyn Marks> {
        let none =
            || Stop::Skipped("this fence keeps its marks in the rows that it protects".into());
        self.resource.marks().ok_or_else(none)
    }

    async fn behind_intermediary(&self) -> Verdict<Box<dyn BehindIntermediary>> {
        let none = || Stop::Skipped("no intermediary can respond in place of this resource".into());
        Ok(self.fence.behind_intermediary().ok_or_else(none)?.await?)
    }
}

/// The main function of a test binary for fences.
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

fn trial(fence: &Arc<dyn Fence>, case: &'static Case<Fixture>, seed: u64, rounds: u64) -> Trial {
    let name = format!("{}::{}", fence.name(), case.name);
    let fence = Arc::clone(fence);
    let limit = CASE_LIMIT * u32::try_from(rounds / 100).unwrap_or(u32::MAX).max(1);
    Trial::ignorable_test(name, move || {
        conclude(seed, async {
            let resource = fence.fresh().await?;
            let fixture = Fixture { fence, resource, seed, rounds };
            within(limit, "the case ends", (case.run)(&fixture)).await?
        })
    })
}
