//! Work that is done once, for threads.
//!
//! Work that blocks can not be dropped when its lock is lost, as a future can. It has its [`Run`] to ask, and
//! whatever it does after it was overtaken is not recorded as done.

use std::ops::Deref;
use std::time::Duration;

use super::block_on;
use crate::error::Result;
use crate::ledger::Entry;
use crate::once::{OnFailure, Recorded};
use crate::options::acquire_options;
use crate::transaction::Transaction;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// [`crate::Once`] for threads.
///
/// ```
/// let fp = fencepost::blocking::Fencepost::connect("memory:blocking-once")?;
/// let billing = fp.once("billing/2026-11-16");
/// # let billing = billing.may_repeat();
/// let first = billing.run(|run| {
///     run.check()?; // before each step that needs the lock
///     Ok::<_, fencepost::Error>("412 invoices")
/// })?;
/// assert!(first.ran);
/// # Ok::<(), fencepost::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is run until `run` or `begin` is called"]
pub struct Once(pub(super) crate::Once);

/// What comes of [`Once::begin`].
#[derive(Debug)]
pub enum Begun {
    /// It is ours to do.
    Ours(Turn),
    /// It is done, or has failed for good.
    Settled(Entry),
}

acquire_options!(wraps Once);

impl Once {
    /// See [`crate::Once::keep`].
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// See [`crate::Once::wait_at_most`].
    pub fn wait_at_most(self, limit: Duration) -> Self {
        Self(self.0.wait_at_most(limit))
    }

    /// See [`crate::Once::on_failure`].
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self(self.0.on_failure(on_failure))
    }

    /// See [`crate::Once::may_repeat`].
    pub fn may_repeat(self) -> Self {
        Self(self.0.may_repeat())
    }

    /// Runs `work`, which may block, unless it is done. See [`crate::Once::run`].
    pub fn run<R, E>(&self, work: impl FnOnce(Run) -> Result<R, E>) -> Result<Recorded>
    where
        R: Into<Vec<u8>>,
        E: Into<Source>,
    {
        block_on(self.0.run(|run| async move { work(Run(run)) }))
    }

    /// See [`crate::Once::begin`].
    pub fn begin(&self) -> Result<Begun> {
        Ok(match block_on(self.0.begin())? {
            crate::Begun::Ours(turn) => Begun::Ours(Turn(turn)),
            crate::Begun::Settled(entry) => Begun::Settled(entry),
        })
    }

    /// See [`crate::Once::entry`].
    pub fn entry(&self) -> Result<Option<Entry>> {
        block_on(self.0.entry())
    }

    /// See [`crate::Once::forget`].
    pub fn forget(&self) -> Result<bool> {
        block_on(self.0.forget())
    }
}

/// [`crate::Run`] for threads: what does not wait, such as [`check`](crate::Standing::check), is the same.
#[derive(Clone, Debug)]
pub struct Run(crate::Run);

impl Run {
    /// See [`crate::Run::done_in`].
    pub fn done_in(
        &self,
        transaction: &mut impl Transaction,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        block_on(self.0.done_in(transaction, result))
    }
}

impl Deref for Run {
    type Target = crate::Run;

    fn deref(&self) -> &crate::Run {
        &self.0
    }
}

/// [`crate::Turn`] for threads: what does not wait, such as [`key`](crate::Turn::key), is the same.
#[must_use = "a turn that is dropped at once is given up at once"]
#[derive(Debug)]
pub struct Turn(crate::Turn);

impl Turn {
    /// What the work can take with it.
    #[must_use]
    pub fn handle(&self) -> Run {
        Run(self.0.handle())
    }

    /// See [`crate::Turn::done`].
    pub fn done(self, result: impl Into<Vec<u8>>) -> Result<()> {
        block_on(self.0.done(result))
    }

    /// See [`crate::Turn::failed`].
    pub fn failed(self, message: &str) -> Result<()> {
        block_on(self.0.failed(message))
    }

    /// See [`crate::Turn::give_up`].
    pub fn give_up(self) -> Result<()> {
        block_on(self.0.give_up())
    }

    /// See [`crate::Turn::committed`].
    pub fn committed(self) -> Result<Entry> {
        block_on(self.0.committed())
    }
}

impl Deref for Turn {
    type Target = crate::Turn;

    fn deref(&self) -> &crate::Turn {
        &self.0
    }
}

/// [`crate::Claims`] for threads.
#[derive(Clone, Debug)]
#[must_use = "nothing is claimed until `take` is called"]
pub struct Claims(pub(super) crate::Claims);

acquire_options!(wraps Claims);

impl Claims {
    /// See [`crate::Claims::keep`].
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// See [`crate::Claims::may_repeat`].
    pub fn may_repeat(self) -> Self {
        Self(self.0.may_repeat())
    }

    /// See [`crate::Claims::left`].
    pub fn left(&self) -> Result<usize> {
        block_on(self.0.left())
    }

    /// See [`crate::Claims::take`].
    pub fn take(&self) -> Result<Option<Turn>> {
        Ok(block_on(self.0.take())?.map(Turn))
    }
}

/// [`crate::SingleFlight`] for threads.
#[derive(Clone, Debug)]
#[must_use = "nothing is computed until `get_or` is called"]
pub struct SingleFlight(pub(super) crate::SingleFlight);

acquire_options!(wraps SingleFlight);

impl SingleFlight {
    /// See [`crate::SingleFlight::keep`].
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// See [`crate::SingleFlight::stale_for`].
    pub fn stale_for(self, span: Duration) -> Self {
        Self(self.0.stale_for(span))
    }

    /// See [`crate::SingleFlight::wait_at_most`].
    pub fn wait_at_most(self, limit: Duration) -> Self {
        Self(self.0.wait_at_most(limit))
    }

    /// See [`crate::SingleFlight::forget`].
    pub fn forget(&self) -> Result<bool> {
        block_on(self.0.forget())
    }

    /// The value, or that of `compute`, which may block. See [`crate::SingleFlight::get_or`].
    pub fn get_or<R, E>(&self, compute: impl FnOnce() -> Result<R, E>) -> Result<Vec<u8>>
    where
        R: Into<Vec<u8>>,
        E: Into<Source>,
    {
        block_on(self.0.get_or(|| async move { compute() }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use crate::ErrorKind;
    use crate::blocking::{Begun, Fencepost};
    use crate::clock::{BootClock, Clock as _};

    type Failure = std::io::Error;

    /// Work that blocks its thread all the while: the others wait, and the heartbeat does not.
    #[test]
    fn of_many_threads_one_works() {
        let fp = Fencepost::connect("memory:blocking-threads").unwrap();
        let (ran, computed, meeting) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    meeting.wait();
                    let recorded = fp.once("a").may_repeat().run(|run| {
                        ran.fetch_add(1, Ordering::SeqCst);
                        // Whatever blocks, and calls us again meanwhile.
                        let inner = fp.once("inner").may_repeat().run(|_| Ok::<_, Failure>("in"));
                        assert_eq!(inner.unwrap().result, b"in");
                        run.check().map(|_| "done")
                    });
                    assert_eq!(recorded.unwrap().result, b"done");
                    let value = fp.single_flight("a").get_or(|| {
                        computed.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, Failure>("value")
                    });
                    assert_eq!(value.unwrap(), b"value");
                });
            }
        });
        assert_eq!((ran.into_inner(), computed.into_inner()), (1, 1));
        assert_eq!(fp.once_entries().unwrap().len(), 2);
        // One of those that found the record may still be releasing its lock.
        let end = BootClock.now() + Duration::from_secs(30);
        let forgotten = loop {
            match fp.once("a").forget() {
                Err(error) if matches!(error.kind(), ErrorKind::Held(_)) => {
                    assert!(BootClock.now() < end, "{error}");
                    std::thread::yield_now();
                }
                forgotten => break forgotten.unwrap(),
            }
        };
        assert!(forgotten);
        assert!(fp.once("a").entry().unwrap().is_none());
    }

    #[test]
    fn items_are_claimed_and_settled() {
        let fp = Fencepost::connect("memory:blocking-claims").unwrap();
        let claims = fp.claim(["a", "b"]).may_repeat();
        let first = claims.take().unwrap().unwrap();
        let second = claims.take().unwrap().unwrap();
        assert_eq!((first.key(), second.key()), ("a", "b"));
        assert!(claims.take().unwrap().is_none());
        first.done("").unwrap();
        second.give_up().unwrap();
        claims.take().unwrap().unwrap().failed("broken").unwrap();
        assert!(claims.take().unwrap().is_none());
        let failed = fp.once("b").may_repeat().run(|_| Ok::<_, Failure>("")).unwrap_err();
        assert_eq!(*failed.kind(), ErrorKind::Failed, "{failed}");
        assert!(matches!(fp.once("a").may_repeat().begin().unwrap(), Begun::Settled(_)));
    }

    #[test]
    fn a_leader_is_followed() {
        let fp = Fencepost::connect("memory:blocking-leader").unwrap();
        let election = fp.election("a");
        let mut observer = election.observe().unwrap();
        assert!(observer.wait_next().unwrap().is_none());
        let first = election.campaign("one").unwrap();
        let seen = observer.wait_next().unwrap().unwrap();
        assert_eq!(seen.term, Some(first.term()));
        first.proclaim("two").unwrap();
        let seen = observer.wait_next().unwrap().unwrap();
        assert_eq!(seen.value.unwrap().text(), "two");
        let held = election.campaign_within("late", Duration::from_millis(50));
        assert!(matches!(held.unwrap_err().kind(), ErrorKind::Held(_)));
        fp.break_lock("a").unwrap();
        let _ = first.wait_lost();
        let second = election.campaign("three").unwrap();
        assert!(second.term() > first.term());
        assert_eq!(election.leader().unwrap().unwrap().term, Some(second.term()));
        second.resign().unwrap();
    }
}
