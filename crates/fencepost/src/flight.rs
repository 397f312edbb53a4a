//! Of many who miss the same cache entry, one computes it.
//!
//! The value is a record in the store's ledger, under `flight/KEY`, and the lock of that name is held by whoever
//! computes it. There is no claim: a value is replaced by whoever has the higher token, so one that was paused
//! does not overwrite a later one. In one process callers of one key share one question to the store.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::LockName;

use crate::bounded_store::Wait;
use crate::client::{Client, Flight};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::ledger::{Entry, Finish, Ledger, Outcome, Over, State};
use crate::lock::Lock;
use crate::once::{LOOK_AGAIN, check_keep, name_of, settled};
use crate::options::acquire_options;
use crate::race::{First, race};

const PREFIX: &str = "flight/";
/// How long a value is fresh that names no time.
const DEFAULT_FRESH: Duration = Duration::from_mins(1);

/// A value that is computed by one of many who want it. Made by
/// [`Fencepost::single_flight`](crate::Fencepost::single_flight).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let fp = fencepost::Fencepost::connect("memory:flight").await?;
/// let prices = fp.single_flight("prices").keep(Duration::from_mins(1));
/// let value = prices.get_or(|| async { Ok::<_, std::io::Error>("computed") }).await?;
/// assert_eq!(value, b"computed");
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is computed until `get_or` is awaited"]
pub struct SingleFlight {
    client: Arc<Client>,
    key: String,
    keep: Duration,
    stale_for: Duration,
    wait: Duration,
    lock: Lock,
}

acquire_options!(SingleFlight, lock.options);

impl SingleFlight {
    pub(crate) fn new(client: &Arc<Client>, key: &str) -> Self {
        Self {
            client: Arc::clone(client),
            key: key.to_owned(),
            keep: DEFAULT_FRESH,
            stale_for: Duration::ZERO,
            wait: Duration::MAX,
            lock: Lock::new(Arc::clone(client), PREFIX),
        }
    }

    /// How long the value is fresh, from when it was recorded; a minute unless set.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// For how long after that the old value is good enough: one caller computes a new one, and the others
    /// take the old one meanwhile instead of waiting. So does that one, if it fails to compute.
    pub fn stale_for(mut self, span: Duration) -> Self {
        self.stale_for = span;
        self
    }

    /// Waits at most this long for the value, or for the turn to compute it; then the error's kind is `Held`.
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// The value, or that of `compute` if there is none: then one computes, and all others wait for it.
    ///
    /// An error of `compute` makes this one of kind `Failed`, for all callers of this process that waited with
    /// it; those of other processes try in turn. A value of more than 64 KiB is given to the same ones, and
    /// not kept.
    pub async fn get_or<R, E, F>(&self, compute: impl FnOnce() -> F) -> Result<Vec<u8>>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        check_keep(self.keep)?;
        check_keep(self.keep.saturating_add(self.stale_for))?;
        let old = match self.client.store.look_up(&*ledger, &name).await? {
            Some(entry) if self.is_fresh(&entry) => return Ok(entry.result),
            old => old.filter(|entry| self.will_do(entry)),
        };
        if let Some(old) = old {
            let turn = self.lock.clone().named(&name).try_acquire().await;
            let computed = match turn {
                Ok(Some(guard)) => Box::pin(self.compute(&*ledger, guard, compute)).await,
                Ok(None) => return Ok(old.result),
                Err(error) => Err(error),
            };
            return computed.or_else(|error| {
                tracing::warn!(key = self.key, %error, "the old value is used once more");
                Ok(old.result)
            });
        }
        let flight = self.join(&name);
        let until = self.client.clock.now() + self.wait;
        // Boxed, as all of it is in the future of every caller, and one of them needs it.
        let shared = Box::pin(flight.get_or_init(async || {
            let fresh =
                settled(&self.client, &*ledger, &name, LOOK_AGAIN, |entry| self.is_fresh(entry));
            let turn = self.lock.clone().named(&name).take(Wait::Until(until));
            let found = match race(fresh, turn).await {
                First::Left(entry) => Ok(entry.result),
                First::Right(Ok(guard)) => self.compute(&*ledger, guard, compute).await,
                First::Right(Err(error)) => Err(error),
            };
            found.map_err(|error| (error.kind().clone(), error.to_string()))
        }));
        // Whoever computes for all of this process may not be polled any more: others may have the value.
        let fresh = settled(&self.client, &*ledger, &name, self.lock.options.ttl / 3, |entry| {
            self.is_fresh(entry)
        });
        let found = race(shared, race(fresh, self.client.clock.alarm(until))).await;
        match found {
            First::Left(Ok(value)) => Ok(value.clone()),
            First::Left(Err((kind, message))) => Err(Error::new(kind.clone(), message.clone())),
            First::Right(First::Left(entry)) => Ok(entry.result),
            First::Right(First::Right(())) => Err(Error::held(&name, None)),
        }
    }

    /// Removes the value, so that the next caller computes it. False if there was none.
    pub async fn forget(&self) -> Result<bool> {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        match self.client.store.look_up(&*ledger, &name).await? {
            Some(entry) => self.client.store.forget(&*ledger, name, entry.token).await,
            None => Ok(false),
        }
    }

    /// What all callers of this process share who want this value now.
    fn join(&self, name: &LockName) -> Arc<Flight> {
        let mut flights = self.client.flights.lock();
        // One that has come to its end is of its time: a caller that comes now wants its own.
        let under_way = |flight: &Arc<Flight>| !flight.initialized();
        if let Some(flight) = flights.get(name).and_then(Weak::upgrade).filter(under_way) {
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
        // Somebody may have been faster between our look and our lock.
        if let Some(entry) = self.client.store.look_up(ledger, guard.name()).await?
            && self.is_fresh(&entry)
        {
            return Ok(entry.result);
        }
        let value: Vec<u8> = match guard.run(async { compute().await }).await? {
            Ok(value) => value.into(),
            Err(error) => {
                let message =
                    format!("the value of single flight \"{}\" was not computed", self.key);
                return Err(Error::new(ErrorKind::Failed, message).because(error));
            }
        };
        // Whatever becomes of the record, we have the value.
        if let Err(error) = self.record(ledger, guard, &value).await {
            tracing::warn!(key = self.key, %error, "the value is not kept for others");
        }
        Ok(value)
    }

    async fn record(&self, ledger: &dyn Ledger, guard: Guard, value: &[u8]) -> Result<()> {
        if value.len() > Entry::MAX_RESULT {
            return Err(Error::invalid(format!(
                "it has {} bytes, and a record takes {}: keep it elsewhere, and compute where",
                value.len(),
                Entry::MAX_RESULT
            )));
        }
        // One that was overtaken may be older than what there was and is over by now.
        guard.trusted()?;
        let finish = Finish {
            name: guard.name().clone(),
            token: guard.own_token(),
            label: self.lock.shown_label()?,
            outcome: Outcome::Done(value.to_vec()),
            keep: self.keep.saturating_add(self.stale_for),
            over: Over::Older,
        };
        // False if a later one was faster: ours is as good, for us.
        self.client.store.finish(ledger, finish).await?;
        guard.release().await
    }

    fn is_fresh(&self, entry: &Entry) -> bool {
        entry.state == State::Done && entry.since < self.keep
    }

    /// Whether it is old, but good enough for this caller.
    fn will_do(&self, entry: &Entry) -> bool {
        entry.state == State::Done && entry.since < self.keep.saturating_add(self.stale_for)
    }

    fn name(&self) -> Result<LockName> {
        name_of(PREFIX, &self.key)
    }
}

impl fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("key", &self.key).finish_non_exhaustive()
    }
}
