//! Of many who miss the same cache entry, one computes it.
//!
//! The value is a record in the store's ledger, under `flight/KEY`, and the lock of that name is held by whoever
//! computes it. There is no claim: a value is replaced by whoever has the higher token, so one that was paused
//! does not overwrite a later one. In one process callers of one key share one question to the store.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::LockName;
use tokio::sync::OnceCell;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::ledger::{Entry, Finish, Ledger, Outcome, Over, State};
use crate::lock::{DEFAULT_TTL, Lock};
use crate::once::{answered, check_keep, look_up, settled};
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
    ttl: Duration,
}

/// Callers of this process that wait for one value, by the record's name.
pub(crate) type Flights = Mutex<HashMap<LockName, Weak<OnceCell<Vec<u8>>>>>;

impl SingleFlight {
    pub(crate) fn new(client: &Arc<Client>, key: &str) -> Self {
        Self {
            client: Arc::clone(client),
            key: key.to_owned(),
            keep: DEFAULT_FRESH,
            stale_for: Duration::ZERO,
            ttl: DEFAULT_TTL,
        }
    }

    /// How long the value is fresh; a minute unless set.
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

    /// After how long one who computes and is not heard of is taken over: see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The value, or that of `compute` if there is none: then one computes, and all others wait for it. An
    /// error of `compute` makes this one of kind `Failed`, and the next caller tries.
    pub async fn get_or<R, E, F>(&self, compute: impl FnOnce() -> F) -> Result<Vec<u8>>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let ledger = self.client.ledger(true)?;
        let name = LockName::new(&format!("{PREFIX}{}", self.key))?;
        check_keep(self.keep)?;
        check_keep(self.keep + self.stale_for)?;
        let old = match look_up(&self.client, &*ledger, &name).await? {
            Some(entry) if self.is_fresh(&entry) => return Ok(entry.result),
            old => old.filter(|entry| entry.state == State::Done && !self.stale_for.is_zero()),
        };
        if let Some(old) = old {
            return match self.lock(&name).try_acquire().await? {
                None => Ok(old.result),
                Some(guard) => {
                    let computed = self.compute(&*ledger, guard, compute).await;
                    computed.or_else(|error| {
                        tracing::warn!(key = self.key, %error, "the old value is used once more");
                        Ok(old.result)
                    })
                }
            };
        }
        let cell = self.join(&name);
        let value = cell.get_or_try_init(async || {
            let fresh = settled(&self.client, &*ledger, &name, |entry| self.is_fresh(entry));
            match race(fresh, self.lock(&name).acquire()).await {
                First::Left(entry) => Ok(entry.result),
                First::Right(guard) => self.compute(&*ledger, guard?, compute).await,
            }
        });
        value.await.cloned()
    }

    /// The cell that all callers of this process share who want this value now.
    fn join(&self, name: &LockName) -> Arc<OnceCell<Vec<u8>>> {
        let mut flights = self.client.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = flights.get(name).and_then(Weak::upgrade) {
            return cell;
        }
        flights.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::new(OnceCell::new());
        flights.insert(name.clone(), Arc::downgrade(&cell));
        cell
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
        if let Some(entry) = look_up(&self.client, ledger, guard.name()).await?
            && self.is_fresh(&entry)
        {
            return Ok(entry.result);
        }
        let value: Vec<u8> = match guard.run(compute()).await? {
            Ok(value) => value.into(),
            Err(error) => {
                let message =
                    format!("the value of single flight \"{}\" was not computed", self.key);
                return Err(Error::new(ErrorKind::Failed, message).because(error));
            }
        };
        if value.len() > Entry::MAX_RESULT {
            return Err(Error::invalid(format!(
                "the value of single flight \"{}\" has {} bytes, and a record takes {}: keep it \
                 elsewhere, and compute where",
                self.key,
                value.len(),
                Entry::MAX_RESULT
            )));
        }
        let finish = Finish {
            name: guard.name().clone(),
            token: guard.own_token(),
            label: self.client.label.clone(),
            outcome: Outcome::Done(value.clone()),
            keep: self.keep + self.stale_for,
            over: Over::Older,
        };
        // False if a later one was faster: ours is as good, for us.
        answered(&self.client, ledger.finish(finish)).await?;
        if let Err(error) = guard.release().await {
            tracing::debug!(key = self.key, %error, "the lock was gone before the value was there");
        }
        Ok(value)
    }

    fn is_fresh(&self, entry: &Entry) -> bool {
        entry.state == State::Done && entry.since < self.keep
    }

    fn lock(&self, name: &LockName) -> Lock {
        Lock::new(Arc::clone(&self.client), name.as_str()).ttl(self.ttl)
    }
}

impl fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("key", &self.key).finish_non_exhaustive()
    }
}
