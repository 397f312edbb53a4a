//! Work that is done once, for threads.
//!
//! Work that blocks cannot be dropped when its lock is lost, as a future can. It calls [`RunHandle::check`] instead, and
//! after it was overtaken it cannot record the key as done.

use std::time::Duration;

use fencepost_core::{FencingToken, Token};

use super::block_on;
use super::guard::GuardHandle;
use crate::backend::LossCause;
use crate::error::Result;
use crate::ledger::RecordInfo;
use crate::once::{OnFailure, Recorded};
use crate::options::{acquire_options, wait_option};
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
#[must_use = "nothing runs until `run` or `begin` is called"]
pub struct Once(pub(super) crate::Once);

/// The outcome of [`Once::begin`].
#[derive(Debug)]
pub enum Start {
    /// The caller runs it now.
    Claimed(RunGuard),
    /// It is done, or recorded as failed.
    Finished(RecordInfo),
}

acquire_options!(wraps Once);
wait_option!(wraps Once);

impl Once {
    /// See [`crate::Once::retain_for`].
    pub fn retain_for(self, retention: Duration) -> Self {
        Self(self.0.retain_for(retention))
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
    pub fn run<R, E>(&self, work: impl FnOnce(RunHandle) -> Result<R, E>) -> Result<Recorded>
    where
        R: Into<Vec<u8>>,
        E: Into<Source>,
    {
        block_on(self.0.run(|run| async move { work(RunHandle(run)) }))
    }

    /// See [`crate::Once::begin`].
    pub fn begin(&self) -> Result<Start> {
        Ok(match block_on(self.0.begin())? {
            crate::Start::Claimed(run_guard) => Start::Claimed(RunGuard(run_guard)),
            crate::Start::Finished(record) => Start::Finished(record),
        })
    }

    /// See [`crate::Once::record`].
    pub fn record(&self) -> Result<Option<RecordInfo>> {
        block_on(self.0.record())
    }

    /// See [`crate::Once::forget`].
    pub fn forget(&self) -> Result<bool> {
        block_on(self.0.forget())
    }
}

/// [`crate::RunHandle`] for threads.
#[derive(Clone, Debug)]
pub struct RunHandle(crate::RunHandle);

impl RunHandle {
    /// See [`crate::RunHandle::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// See [`crate::RunHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::RunHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// Blocks until the lock of the key is lost. See [`crate::RunHandle::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::RunHandle::progress`].
    pub fn progress(&self) {
        self.0.progress();
    }

    /// See [`crate::RunHandle::handle`].
    #[must_use]
    pub fn handle(&self) -> GuardHandle {
        GuardHandle::of(self.0.handle())
    }

    /// See [`crate::RunHandle::done_in`].
    pub fn done_in(
        &self,
        transaction: &mut impl Transaction,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        block_on(self.0.done_in(transaction, result))
    }

    /// See [`crate::RunHandle::done_in_sqlite`].
    #[cfg(all(feature = "sqlite", unix))]
    pub fn done_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.0.done_in_sqlite(transaction, result)
    }
}

/// [`crate::RunGuard`] for threads.
#[must_use = "dropping the run gives up the key"]
#[derive(Debug)]
pub struct RunGuard(crate::RunGuard);

impl RunGuard {
    /// See [`crate::RunGuard::key`].
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.key()
    }

    /// See [`crate::RunHandle::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// See [`crate::RunHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::RunHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// Blocks until the lock of the key is lost. See [`crate::RunHandle::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::RunHandle::progress`].
    pub fn progress(&self) {
        self.0.progress();
    }

    /// A view of this run for the work in it.
    #[must_use]
    pub fn handle(&self) -> RunHandle {
        RunHandle(self.0.handle())
    }

    /// See [`crate::RunHandle::done_in`].
    pub fn done_in(
        &self,
        transaction: &mut impl Transaction,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        block_on(self.0.done_in(transaction, result))
    }

    /// See [`crate::RunHandle::done_in_sqlite`].
    #[cfg(all(feature = "sqlite", unix))]
    pub fn done_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.0.done_in_sqlite(transaction, result)
    }

    /// See [`crate::RunGuard::done`].
    pub fn done(self, result: impl Into<Vec<u8>>) -> Result<()> {
        block_on(self.0.done(result))
    }

    /// See [`crate::RunGuard::failed`].
    pub fn failed(self, message: &str) -> Result<()> {
        block_on(self.0.failed(message))
    }

    /// See [`crate::RunGuard::give_up`].
    pub fn give_up(self) -> Result<()> {
        block_on(self.0.give_up())
    }

    /// See [`crate::RunGuard::committed`].
    pub fn committed(self) -> Result<RecordInfo> {
        block_on(self.0.committed())
    }
}

/// [`crate::Claims`] for threads.
#[derive(Clone, Debug)]
#[must_use = "nothing is claimed until `take` is called"]
pub struct Claims(pub(super) crate::Claims);

acquire_options!(wraps Claims);

impl Claims {
    /// See [`crate::Claims::retain_for`].
    pub fn retain_for(self, retention: Duration) -> Self {
        Self(self.0.retain_for(retention))
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
    pub fn take(&self) -> Result<Option<RunGuard>> {
        Ok(block_on(self.0.take())?.map(RunGuard))
    }
}

/// [`crate::SingleFlight`] for threads.
#[derive(Clone, Debug)]
#[must_use = "nothing is computed until `get_or` is called"]
pub struct SingleFlight(pub(super) crate::SingleFlight);

acquire_options!(wraps SingleFlight);
wait_option!(wraps SingleFlight);

impl SingleFlight {
    /// See [`crate::SingleFlight::retain_for`].
    pub fn retain_for(self, retention: Duration) -> Self {
        Self(self.0.retain_for(retention))
    }

    /// See [`crate::SingleFlight::stale_for`].
    pub fn stale_for(self, span: Duration) -> Self {
        Self(self.0.stale_for(span))
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
    use crate::blocking::{Fencepost, Start};
    use crate::clock::{BootClock, Clock as _};

    type Failure = std::io::Error;

    /// The work blocks its thread: the other threads wait, and the heartbeat continues.
    #[test]
    fn one_of_many_threads_runs() {
        let fp = Fencepost::connect("memory:blocking-threads").unwrap();
        let (ran, computed, meeting) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    meeting.wait();
                    let recorded = fp.once("a").may_repeat().run(|run| {
                        ran.fetch_add(1, Ordering::SeqCst);
                        // Blocking work may call the library.
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
        assert_eq!(fp.once_records().unwrap().len(), 2);
        // A thread that found the record may still be releasing its lock.
        let end = BootClock.now() + Duration::from_secs(30);
        let forgotten = loop {
            match fp.once("a").forget() {
                Err(error) if error.kind() == ErrorKind::Held => {
                    assert!(BootClock.now() < end, "{error}");
                    std::thread::yield_now();
                }
                forgotten => break forgotten.unwrap(),
            }
        };
        assert!(forgotten);
        assert!(fp.once("a").record().unwrap().is_none());
    }

    #[test]
    fn items_are_claimed_and_finished() {
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
        assert_eq!(failed.kind(), ErrorKind::Failed, "{failed}");
        assert!(matches!(fp.once("a").may_repeat().begin().unwrap(), Start::Finished(_)));
    }

    #[test]
    fn leader_is_observed() {
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
        let held = election.clone().wait_timeout(Duration::from_millis(50)).campaign("late");
        assert_eq!(held.unwrap_err().kind(), ErrorKind::Held);
        fp.break_lock("a").unwrap();
        let _ = first.wait_lost();
        let second = election.campaign("three").unwrap();
        assert!(second.term() > first.term());
        assert_eq!(election.leader().unwrap().unwrap().term, Some(second.term()));
        second.resign().unwrap();
    }
}
