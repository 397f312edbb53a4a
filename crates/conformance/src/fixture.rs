//! What a case works with: a fresh store, clients, workers, a seed, and ways to wait.
//!
//! Cases do not sleep and hope. They wait for a condition with [`until`] or for a future with [`within`]. A timeout fails
//! with the name of the condition.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost::backend::{Broken, GrantId, Liveness, Request};
use fencepost::clock::{BootClock, Clock};
use fencepost::ledger::Ledger;
use fencepost::{ErrorKind, Fencepost, Guard, RunGuard, Start};
use fencepost_base::race::{First, race};
use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::task::{JoinHandle, JoinSet};

use super::harness::{Harness, Site, Unable};
use super::process::Worker;

/// A TTL that does not run out during a case: what ends earlier was ended.
pub(super) const LONG: Duration = Duration::from_mins(1);
/// A TTL that runs out during a case. A store may extend it, so cases ask the guard.
pub(super) const SHORT: Duration = Duration::from_millis(500);
/// How long something immediate may take; far below [`LONG`].
pub(super) const SOON: Duration = Duration::from_secs(4);

/// Why a case stops early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The backend or the library broke a promise.
    Failed(String),
    /// The case does not apply to this store.
    Skipped(String),
}

/// The result of a case, or of a step of one.
pub(super) type Verdict<T = ()> = Result<T, Stop>;

impl<E: std::error::Error + 'static> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(one_line(&error))
    }
}

/// What an error says, with its cause if it is one of the library.
pub(crate) fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<fencepost::Error>() {
        Some(error) => error.one_line(),
        None => error.to_string(),
    }
}

impl From<Unable> for Stop {
    fn from(unable: Unable) -> Self {
        match unable {
            Unable::Unsupported(why) => Self::Skipped(why),
            Unable::Failed(_) => Self::Failed(unable.to_string()),
        }
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::fixture::Stop::Failed(format!($($what)+)));
        }
    };
}
pub(super) use ensure;

/// Fails the case unless the result is an error of this kind. Returns the error.
macro_rules! ensure_kind {
    ($result:expr, $kind:pat, $what:expr) => {
        match $result {
            Err(error) if matches!(error.kind(), $kind) => error,
            other => {
                let wanted = stringify!($kind);
                let what = $what;
                return Err($crate::fixture::Stop::Failed(format!(
                    "{what}: wanted an error {wanted}, got {other:?}"
                )));
            }
        }
    };
}
pub(super) use ensure_kind;

/// What one case works with.
pub(super) struct Fixture {
    harness: Arc<dyn Harness>,
    pub(super) site: Box<dyn Site>,
    scratch: tempfile::TempDir,
    seed: u64,
}

impl Fixture {
    pub(super) async fn new(
        harness: Arc<dyn Harness>,
        own_server: bool,
        seed: u64,
    ) -> Verdict<Self> {
        let fresh = if own_server { harness.fresh_server() } else { harness.fresh() };
        let site = fresh.await?;
        Ok(Self { harness, site, scratch: tempfile::tempdir()?, seed })
    }

    /// Another client on the store.
    pub(super) async fn client(&self) -> Verdict<Fencepost> {
        within(SOON, "a client connects", self.site.connect()).await?.map_err(Stop::from)
    }

    /// Two clients that do not share anything.
    pub(super) async fn two_clients(&self) -> Verdict<(Fencepost, Fencepost)> {
        Ok((self.client().await?, self.client().await?))
    }

    /// A file in the case's scratch directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts a worker process in this role.
    pub(super) fn worker(&self, role: &str, arguments: &[&str]) -> Verdict<Worker> {
        let url = self.site.url()?;
        Worker::start(&*self.harness, role, &url, arguments)
    }

    /// Prints a figure that does not decide the case.
    pub(super) fn report(&self, what: &str) {
        eprintln!("{}: {what}", self.harness.name());
    }

    /// Random numbers, repeatable by the seed of the run.
    pub(super) const fn rng(&self) -> Rng {
        Rng::new(self.seed)
    }
}

/// `SplitMix64`: small, and good enough to draw delays with.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub(super) fn below(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.next() % limit)
    }

    /// A fresh owner.
    pub(super) fn owner(&mut self) -> OwnerId {
        OwnerId::from_bits(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}

pub(super) fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where the case is about time.
pub(super) async fn pass(span: Duration) {
    BootClock.alarm(now() + span).await;
}

/// The output of the future, unless it takes longer than `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> Verdict<T> {
    match race(future, BootClock.alarm(now() + limit)).await {
        First::Left(value) => Ok(value),
        First::Right(()) => Err(Stop::Failed(format!("not within {limit:?}: {what}"))),
    }
}

/// Waits until the condition holds, at most `limit`.
pub(super) async fn until(
    limit: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Verdict<bool>,
) -> Verdict {
    let end = now() + limit;
    while !condition().await? {
        ensure!(now() < end, "not within {limit:?}: {what}");
        pass(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Waits until the lock has this many waiters.
pub(super) async fn until_waiting(client: &Fencepost, name: &str, count: usize) -> Verdict {
    until(SOON, &format!("{count} wait for \"{name}\""), async || {
        Ok(client.inspect(name).await?.waiting == count)
    })
    .await
}

/// Queues for the lock on a task, and waits until the store shows the waiter.
pub(super) async fn queue_up(
    client: &Fencepost,
    name: &'static str,
    ttl: Duration,
    position: usize,
) -> Verdict<JoinHandle<fencepost::Result<Guard>>> {
    let waiter = client.clone();
    let waiting = tokio::spawn(async move { waiter.lock(name).ttl(ttl).acquire().await });
    until_waiting(client, name, position).await?;
    Ok(waiting)
}

/// Polls the acquire of a held lock until the store shows one waiter.
pub(super) async fn until_queued<T: Debug>(
    acquire: impl Future<Output = T>,
    client: &Fencepost,
    name: &str,
) -> Verdict {
    match race(acquire, until_waiting(client, name, 1)).await {
        First::Left(answer) => Err(Stop::Failed(format!("a held lock returned {answer:?}"))),
        First::Right(seen) => seen,
    }
}

/// Waits until the lock has neither a holder nor waiters.
pub(super) async fn until_free(client: &Fencepost, name: &str) -> Verdict {
    until(SOON, &format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await?;
        Ok(info.holder.is_none() && info.waiting == 0)
    })
    .await
}

/// Why a future did not complete.
pub(super) enum Cancelled {
    /// It was dropped after the last poll.
    Dropped,
    /// It was dropped because it stalled before the last poll.
    Stalled,
}

/// Polls `future` whenever it is woken, at most `polls` times, and then drops it. With 0, 1, 2, ... this cancels it at
/// every await.
pub(super) async fn cancel_after<T>(
    polls: usize,
    timeout: Duration,
    future: impl Future<Output = T>,
) -> Result<T, Cancelled> {
    let mut left = polls;
    let mut future = pin!(future);
    let polled = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Err(Cancelled::Dropped));
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left == 0 => Poll::Ready(Err(Cancelled::Dropped)),
            polled => polled.map(Ok),
        }
    });
    match race(polled, BootClock.alarm(now() + timeout)).await {
        First::Left(end) => end,
        First::Right(()) => Err(Cancelled::Stalled),
    }
}

/// Breaks a held lock.
pub(super) async fn break_held(client: &Fencepost, name: &str) -> Verdict<Broken> {
    let broken = client.break_lock(name).await?;
    broken.ok_or_else(|| Stop::Failed(format!("the held lock \"{name}\" was not broken")))
}

/// Waits until all tasks have succeeded.
pub(super) async fn join_all(limit: Duration, tasks: JoinSet<fencepost::Result<()>>) -> Verdict {
    let results = within(limit, "the tasks end", tasks.join_all()).await?;
    Ok(results.into_iter().collect::<fencepost::Result<()>>()?)
}

/// Skips the case if the store refuses, with the store's reason.
pub(super) fn unless_refused<T>(answer: fencepost::Result<T>) -> Verdict<T> {
    answer.map_err(|error| match error.kind() {
        ErrorKind::Refused => Stop::Skipped(error.one_line()),
        _ => error.into(),
    })
}

/// Where a client's store keeps records.
pub(super) fn ledger(client: &Fencepost) -> Verdict<Arc<dyn Ledger>> {
    unless_refused(client.ledger())
}

/// The guard of a run that has claimed its key; fails if the key is finished.
pub(super) fn claimed(begun: Start) -> Verdict<RunGuard> {
    match begun {
        Start::Claimed(run_guard) => Ok(run_guard),
        Start::Finished(record) => Err(Stop::Failed(format!("finished already: {record:?}"))),
    }
}

/// A request by this owner, as the library would make it.
pub(super) fn request(name: &str, owner: OwnerId, ttl: Duration) -> Verdict<Request> {
    let grant = GrantId { name: LockName::new(name)?, owner };
    let label = fencepost_core::Label::new("conformance")?;
    Ok(Request::new(grant, Ttl::new(ttl)?, label).with_liveness(Liveness::LeaseOnly))
}

/// The token of the current holder, as the store shows it.
pub(super) async fn shown_token(client: &Fencepost, name: &str) -> Verdict<Option<Token>> {
    Ok(client.inspect(name).await?.holder.and_then(|holder| holder.token))
}

/// When the store may grant this guard's lock to another, if no renewal comes: the guard's deadline plus its safety
/// margin.
pub(super) fn lease_end(guard: &Guard) -> Moment {
    guard.deadline() + guard.ttl().as_duration() / 100 + Duration::from_millis(2)
}
