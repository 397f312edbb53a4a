//! Of many callers that miss the same cache entry, one computes it.
//!
//! The value is a record in the store's ledger, under `flight/KEY`, and the caller that computes it holds the lock of that
//! name. There is no claim: a value is replaced only under a higher token, so a caller that was paused does not overwrite
//! a newer value. The callers of one key in one process share one request to the store.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{LockName, Moment};

use crate::bounded_store::Wait;
use crate::client::{Client, Flight};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::ledger::{Completion, Ledger, Outcome, Precondition, RecordInfo, State};
use crate::lock::Lock;
use crate::once::{LOOK_UP_EVERY, check_retention, name_of, until_recorded};
use crate::options::{acquire_options, wait_option};
use crate::race::{First, race};

const PREFIX: &str = "flight/";
/// How long a value is fresh by default.
const DEFAULT_FRESH: Duration = Duration::from_mins(1);

/// A value that one of many callers computes for all. Made by
/// [`Fencepost::single_flight`](crate::Fencepost::single_flight).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let fp = fencepost::Fencepost::connect("memory:flight").await?;
/// let prices = fp.single_flight("prices").retain_for(Duration::from_mins(1));
/// let value = prices.get_or(|| async { Ok::<_, std::io::Error>("computed") }).await?;
/// assert_eq!(value, b"computed");
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is computed until `get_or` is awaited"]
pub struct SingleFlight {
    client: Arc<Client>,
    key: String,
    retention: Duration,
    stale_for: Duration,
    lock: Lock,
}

acquire_options!(SingleFlight, lock.options);
wait_option!(SingleFlight, lock.options);

impl SingleFlight {
    pub(crate) fn new(client: &Arc<Client>, key: &str) -> Self {
        Self {
            client: Arc::clone(client),
            key: key.to_owned(),
            retention: DEFAULT_FRESH,
            stale_for: Duration::ZERO,
            lock: Lock::new(Arc::clone(client), PREFIX),
        }
    }

    /// How long the value is fresh, from when it was recorded; a minute by default.
    pub fn retain_for(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// For how long after that the old value is good enough: one caller computes a new value, and the others use the old
    /// one instead of waiting. So does that one, if it fails to compute.
    pub fn stale_for(mut self, span: Duration) -> Self {
        self.stale_for = span;
        self
    }

    /// The value, or that of `compute` if there is none: then one caller computes, and all others wait for it, for as long
    /// as [`wait_timeout`](Self::wait_timeout) allows.
    ///
    /// If `compute` fails, the error's kind is `Failed`, for all callers of this process that waited for it; those of
    /// other processes try in turn. A value of more than 64 KiB is returned to the same callers, and not recorded.
    pub async fn get_or<R, E, F>(&self, compute: impl FnOnce() -> F) -> Result<Vec<u8>>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        check_retention(self.retention)?;
        check_retention(self.retention.saturating_add(self.stale_for))?;
        let old = match self.client.store.look_up(&*ledger, &name).await? {
            Some(record) if self.is_fresh(&record) => return Ok(record.result),
            old => old.filter(|record| self.will_do(record)),
        };
        if let Some(old) = old {
            let acquired = self.lock.clone().named(&name).try_acquire().await;
            let computed = match acquired {
                Ok(Some(guard)) => Box::pin(self.compute(&*ledger, guard, compute)).await,
                Ok(None) => return Ok(old.result),
                Err(error) => Err(error),
            };
            return computed.or_else(|error| {
                let error = error.one_line();
                tracing::warn!(key = self.key, %error, "cannot compute the value; using the old one");
                Ok(old.result)
            });
        }
        let timeout = self.lock.options.wait_timeout.unwrap_or(Duration::MAX);
        let limit = self.client.clock.now() + timeout;
        let mut compute = Some(compute);
        loop {
            let (value, led) = self.fly(&*ledger, &name, limit, &mut compute).await;
            match value {
                // The wait of another caller is over, and ours is not: take its place, or follow another one.
                Err(error) if !led && ended_a_wait(&error) && self.client.clock.now() < limit => {}
                value => return value,
            }
        }
    }

    /// Takes part in the flight of this key. Also returns whether this caller acted for the others: then it took `compute`.
    async fn fly<R, E, F>(
        &self,
        ledger: &dyn Ledger,
        name: &LockName,
        limit: Moment,
        compute: &mut Option<impl FnOnce() -> F>,
    ) -> (Result<Vec<u8>>, bool)
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let flight = self.join(name);
        // What this caller does for the others has limits of its own: the wait for the lock, and then none.
        let leads = AtomicBool::new(false);
        // Boxed: it would be a part of every caller's future, and one of them needs it.
        let shared = Box::pin(flight.get_or_init(async || {
            leads.store(true, Ordering::Relaxed);
            let fresh = until_recorded(&self.client, ledger, name, LOOK_UP_EVERY, |record| {
                self.is_fresh(record)
            });
            let lock = self.lock.clone().named(name);
            match race(fresh, lock.take(Wait::Until(limit))).await {
                First::Left(record) => Ok(record.result),
                First::Right(Ok(guard)) => {
                    let compute = compute.take().expect("the leader computes at most once");
                    self.compute(ledger, guard, compute).await
                }
                First::Right(Err(error)) => Err(error),
            }
        }));
        // The caller that computes for this process may not be polled any more: another process may have the value.
        let fresh =
            until_recorded(&self.client, ledger, name, self.lock.options.ttl / 3, |record| {
                self.is_fresh(record)
            });
        let late = async {
            self.client.clock.alarm(limit).await;
            if leads.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let value = match race(shared, race(fresh, late)).await {
            First::Left(value) => value.clone(),
            First::Right(First::Left(record)) => Ok(record.result),
            First::Right(First::Right(())) => Err(Error::held(name, None)),
        };
        (value, leads.load(Ordering::Relaxed))
    }

    /// Removes the value, so that the next caller computes it. False if there was none.
    pub async fn forget(&self) -> Result<bool> {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        match self.client.store.look_up(&*ledger, &name).await? {
            Some(record) => self.client.store.forget(&*ledger, name, record.token).await,
            None => Ok(false),
        }
    }

    /// What all callers of this key in this process share.
    fn join(&self, name: &LockName) -> Arc<Flight> {
        let mut flights = self.client.flights.lock();
        // The result of a flight is for those who waited for it: a later caller starts its own.
        let in_flight = |flight: &Arc<Flight>| !flight.initialized();
        if let Some(flight) = flights.get(name).and_then(Weak::upgrade).filter(in_flight) {
            return flight;
        }
        flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = Arc::new(Flight::new());
        flights.insert(name.clone(), Arc::downgrade(&flight));
        flight
    }

    async fn compute<R, E, F>(
        &self,
        ledger: &dyn Ledger,
        guard: Guard,
        compute: impl FnOnce() -> F,
    ) -> Result<Vec<u8>>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Another caller may have computed it before we got the lock.
        if let Some(record) = self.client.store.look_up(ledger, guard.name()).await?
            && self.is_fresh(&record)
        {
            return Ok(record.result);
        }
        let value: Vec<u8> = match guard.run(async { compute().await }).await? {
            Ok(value) => value.into(),
            Err(error) => {
                let message =
                    format!("the value of single flight \"{}\" was not computed", self.key);
                return Err(Error::new(ErrorKind::Failed, message).with_source(error));
            }
        };
        // Even if it cannot be recorded, we have the value.
        if let Err(error) = self.record(ledger, guard, &value).await {
            let error = error.one_line();
            tracing::warn!(key = self.key, %error, "the value is not recorded for other callers");
        }
        Ok(value)
    }

    async fn record(&self, ledger: &dyn Ledger, guard: Guard, value: &[u8]) -> Result<()> {
        if value.len() > RecordInfo::MAX_RESULT {
            return Err(Error::invalid(format!(
                "it has {} bytes, and a record takes {}: keep it elsewhere, and compute where",
                value.len(),
                RecordInfo::MAX_RESULT
            )));
        }
        // If we were overtaken, our value may be older than one that was recorded and has expired.
        guard.trusted()?;
        let (name, label) = (guard.name().clone(), self.lock.shown_label()?);
        let retention = self.retention.saturating_add(self.stale_for);
        let outcome = Outcome::Done(value.to_vec());
        let finish = Completion::new(name, guard.token(), label, outcome, retention)
            .with_precondition(Precondition::Older);
        // False if there is a newer value: ours is as good, for us.
        self.client.store.finish(ledger, finish).await?;
        guard.release().await
    }

    fn is_fresh(&self, record: &RecordInfo) -> bool {
        record.state == State::Done && record.since < self.retention
    }

    /// Whether it is fresh, or old but good enough.
    fn will_do(&self, record: &RecordInfo) -> bool {
        record.state == State::Done && record.since < self.retention.saturating_add(self.stale_for)
    }

    fn name(&self) -> Result<LockName> {
        name_of(PREFIX, &self.key)
    }
}

/// Whether the caller that acted for the others stopped waiting: that says nothing about the value.
fn ended_a_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Held | ErrorKind::Unreachable)
}

impl fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("key", &self.key).finish_non_exhaustive()
    }
}
