//! What a case has to work with: a fresh store, clients, workers, a seed, and ways to wait for things.
//!
//! Cases do not sleep and hope. They wait for a condition with [`until`] or for a future with [`within`],
//! and what does not happen in time fails with the name of what was waited for.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost::backend::{GrantId, Liveness, LossSignal, Request};
use fencepost::bounded_store::BoundedStore;
use fencepost::clock::{BootClock, Clock};
use fencepost::ledger::Ledger;
use fencepost::{Begun, ErrorKind, Fencepost, Guard, Turn};
use fencepost_base::race::{First, race};
use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::task::JoinHandle;

use super::harness::{Harness, Site, Unable};
use super::process::Worker;

/// A TTL that does not run out during a case: what ends before it did not end by expiry.
pub(super) const LONG: Duration = Duration::from_mins(1);
/// A TTL for cases that need it to run out. A store may make it longer: they ask the guard.
pub(super) const SHORT: Duration = Duration::from_millis(500);
/// How long a thing may take that should happen at once; far below [`LONG`].
pub(super) const SOON: Duration = Duration::from_secs(4);

/// How a case ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The backend, or the library, did not keep a promise.
    Failed(String),
    /// The case says nothing about this store.
    Skipped(String),
}

/// How a case, or a step of one, ends.
pub(super) type Verdict<T = ()> = Result<T, Stop>;

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
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
            return Err($crate::scene::Stop::Failed(format!($($what)+)));
        }
    };
}
pub(super) use ensure;

/// Fails the case unless the result is an error of this kind; gives the error.
macro_rules! ensure_kind {
    ($result:expr, $kind:pat, $what:expr) => {
        match $result {
            Err(error) if matches!(error.kind(), $kind) => error,
            other => {
                let wanted = stringify!($kind);
                let what = $what;
                return Err($crate::scene::Stop::Failed(format!(
                    "{what}: wanted an error {wanted}, got {other:?}"
                )));
            }
        }
    };
}
pub(super) use ensure_kind;

/// One case's surroundings.
pub(super) struct Scene {
    harness: Arc<dyn Harness>,
    pub(super) site: Box<dyn Site>,
    scratch: tempfile::TempDir,
    seed: u64,
}

impl Scene {
    pub(super) async fn set(
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

    /// Two clients that know nothing of each other.
    pub(super) async fn two_clients(&self) -> Verdict<(Fencepost, Fencepost)> {
        Ok((self.client().await?, self.client().await?))
    }

    /// A file for the case's own use.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts a worker process in this role.
    pub(super) fn worker(&self, role: &str, arguments: &[&str]) -> Verdict<Worker> {
        let url = self.site.url()?;
        Worker::start(&*self.harness, role, &url, arguments)
    }

    /// Tells something that no case decides by: how long a thing took.
    pub(super) fn report(&self, what: &str) {
        eprintln!("{}: {what}", self.harness.name());
    }

    /// Random numbers that the run's seed gives again.
    pub(super) const fn dice(&self) -> Dice {
        Dice::new(self.seed)
    }
}

/// `SplitMix64`: small, and good enough to draw delays with.
pub(super) struct Dice(u64);

impl Dice {
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

    /// An owner that nobody else has.
    pub(super) fn owner(&mut self) -> OwnerId {
        OwnerId::from_bits(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}

pub(super) fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where that is what the case is about.
pub(super) async fn pass(span: Duration) {
    BootClock.alarm(now() + span).await;
}

/// What the future gives, unless it takes longer than `limit`.
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

/// Waits until this many wait for the lock.
pub(super) async fn until_waiting(client: &Fencepost, name: &str, count: usize) -> Verdict {
    until(SOON, &format!("{count} wait for \"{name}\""), async || {
        Ok(client.inspect(name).await?.waiting == count)
    })
    .await
}

/// Queues for the lock on a task of its own and waits until the store has seen it.
pub(super) async fn queue_up(
    client: &Fencepost,
    name: &'static str,
    ttl: Duration,
    place: usize,
) -> Verdict<JoinHandle<fencepost::Result<Guard>>> {
    let waiter = client.clone();
    let waiting = tokio::spawn(async move { waiter.lock(name).ttl(ttl).acquire().await });
    until_waiting(client, name, place).await?;
    Ok(waiting)
}

/// Polls the acquire of a held lock until the store shows that one waits.
pub(super) async fn until_queued<T: Debug>(
    acquire: impl Future<Output = T>,
    client: &Fencepost,
    name: &str,
) -> Verdict {
    match race(acquire, until_waiting(client, name, 1)).await {
        First::Left(answer) => {
            Err(Stop::Failed(format!("a held lock was answered with {answer:?}")))
        }
        First::Right(seen) => seen,
    }
}

/// Waits until nobody holds the lock or waits for it.
pub(super) async fn until_free(client: &Fencepost, name: &str) -> Verdict {
    until(SOON, &format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await?;
        Ok(info.holder.is_none() && info.waiting == 0)
    })
    .await
}

/// Why a future did not come to its end.
pub(super) enum Cancelled {
    /// It was dropped after the last poll.
    Dropped,
    /// It was dropped because it stood still before the last poll.
    Stalled,
}

/// Polls `future` as often as it is woken, but at most `polls` times, and drops it there: with 0, 1, 2 ...
/// this stops it at every await.
pub(super) async fn cancel_after<T>(
    polls: usize,
    patience: Duration,
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
    match race(polled, BootClock.alarm(now() + patience)).await {
        First::Left(end) => end,
        First::Right(()) => Err(Cancelled::Stalled),
    }
}

/// The store behind a client, for what the library does not offer: a retry with the same owner.
pub(super) fn store(client: &Fencepost) -> &BoundedStore {
    client.store()
}

/// What the store gives. A case about what this store refuses is skipped, with the reason.
pub(super) fn unless_refused<T>(answer: fencepost::Result<T>) -> Verdict<T> {
    answer.map_err(|error| match error.kind() {
        ErrorKind::Refused => Stop::Skipped(error.to_string()),
        _ => error.into(),
    })
}

/// Where the store of a client keeps records.
pub(super) fn ledger(client: &Fencepost) -> Verdict<Arc<dyn Ledger>> {
    unless_refused(client.ledger())
}

/// The turn of a run that is ours; none has settled its key before.
pub(super) fn ours(begun: Begun) -> Verdict<Turn> {
    match begun {
        Begun::Ours(turn) => Ok(turn),
        Begun::Settled(entry) => Err(Stop::Failed(format!("settled: {entry:?}"))),
    }
}

/// A request as the library would make it, by this owner.
pub(super) fn request(name: &str, owner: OwnerId, ttl: Duration) -> Verdict<Request> {
    Ok(Request {
        grant: GrantId { name: LockName::new(name)?, owner },
        ttl: Ttl::new(ttl)?,
        label: fencepost_core::Label::new("conformance")?,
        value: None,
        liveness: Liveness::LeaseOnly,
        loss: LossSignal::unheard(),
    })
}

/// The token that the store shows for the present holder.
pub(super) async fn shown_token(client: &Fencepost, name: &str) -> Verdict<Option<Token>> {
    Ok(client.inspect(name).await?.holder.and_then(|holder| holder.token))
}

/// When the store may give the lock of this guard away, if no renewal comes: the guard's own deadline and
/// the margin that it keeps.
pub(super) fn lease_end(guard: &Guard) -> Moment {
    guard.deadline() + guard.ttl().as_duration() / 100 + Duration::from_millis(2)
}
