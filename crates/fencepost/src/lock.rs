//! Describes a lock and acquires it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Invalid, Label, LockName, Ttl, Value};
use tracing::Instrument as _;

use crate::backend::{Acquired, Grant, Liveness, Request, short};
use crate::bounded_store::Wait;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::metrics::{NEAR_MISS, increment};
use crate::options::{AcquireOptions, acquire_options, wait_option};
use crate::outage::Outage;
use crate::race::{First, race};

/// How often a waiter checks whether the store is back.
const OUTAGE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A lock to acquire, once or many times. Made by [`Fencepost::lock`](crate::Fencepost::lock).
///
/// Each acquire is a new owner: two guards of one `Lock` exclude each other like those of two processes.
#[derive(Clone)]
#[must_use = "nothing is locked until an acquire is awaited"]
pub struct Lock {
    client: Arc<Client>,
    name: Result<LockName, Invalid>,
    pub(crate) options: AcquireOptions,
}

acquire_options!(Lock, options);
wait_option!(Lock, options);

/// What came of one owner's pass.
enum Pass {
    Granted,
    /// The position ended while we waited. A new owner gets a new one.
    PositionLost,
    /// The grant ended before it could be trusted.
    GrantedTooLate,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: &str) -> Self {
        Self { client, name: LockName::new(name), options: AcquireOptions::default() }
    }

    /// The grant does not end with this process, only with its lease or a release: for scripts that acquire in one
    /// process and release in another.
    pub fn lease_only(mut self) -> Self {
        self.options.liveness = Liveness::LeaseOnly;
        self
    }

    /// The same lock on another name.
    pub(crate) fn named(mut self, name: &LockName) -> Self {
        self.name = Ok(name.clone());
        self
    }

    /// What a person reads as the holder.
    pub(crate) fn shown_label(&self) -> Result<Label> {
        match &self.options.label {
            Some(label) => Ok(Label::new(label)?),
            None => Ok(self.client.label.clone()),
        }
    }

    /// Acquires as a candidate that publishes this value.
    pub(crate) fn value(mut self, value: Value) -> Self {
        self.options.value = Some(value);
        self
    }

    /// Waits for the lock, for as long as [`wait_timeout`](Self::wait_timeout) allows. Dropping the future gives up the
    /// position in the queue. The future does not borrow the lock, so that it can be spawned.
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> + Send + use<> {
        let lock = self.clone();
        async move { lock.take(lock.options.wait(lock.client.clock.now())).await }
    }

    /// Acquires the lock if it is free; `None` if another client holds it. Does not wait, whatever
    /// [`wait_timeout`](Self::wait_timeout) says.
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>>> + Send + use<> {
        let lock = self.clone();
        async move {
            match lock.take(Wait::No).await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if error.kind() == ErrorKind::Held => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Checks the options once, then makes one pass per owner until the lock is granted or the wait is over.
    pub(crate) async fn take(&self, wait: Wait) -> Result<Guard> {
        let name = self.name.clone()?;
        let label = self.shown_label()?;
        let ttl = self.options.check(&self.client.store, self.client.max_ttl)?;
        let span = tracing::debug_span!("acquire", %name, ?wait);
        self.make_passes(&name, ttl, &label, wait).instrument(span).await
    }

    async fn make_passes(
        &self,
        name: &LockName,
        ttl: Ttl,
        label: &Label,
        wait: Wait,
    ) -> Result<Guard> {
        let mut outage = Outage::default();
        loop {
            // The client may be closed during the wait.
            self.client.check_open()?;
            let mut guard = Guard::pending(&self.client, name, ttl, self.options.bounds)?;
            match self.pass(&mut guard, ttl, label, wait).await {
                Ok(Pass::Granted) => return Ok(guard),
                Ok(_) if self.may_go_on(wait) => {}
                Ok(Pass::PositionLost) => return Err(Error::held(name, None)),
                Ok(Pass::GrantedTooLate) => {
                    return Err(Error::unreachable(format!(
                        "the store granted \"{name}\" later than its TTL of {} allows: use a \
                         longer TTL, or find out why the store is slow",
                        short(ttl.as_duration())
                    )));
                }
                Err(error) if error.is_outage() && self.may_go_on(wait) => {
                    self.sit_out(&mut outage, guard, wait, error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn pass(&self, guard: &mut Guard, ttl: Ttl, label: &Label, wait: Wait) -> Result<Pass> {
        let request = Request::new(guard.id().clone(), ttl, label.clone())
            .with_value(self.options.value.clone())
            .with_liveness(self.options.liveness)
            .with_loss(guard.loss_signal());
        let name = &request.grant.name;
        let reply = self.client.store.acquire(&request, wait).await?;
        match reply.value {
            Acquired::Granted(grant) => self.start(guard, grant, reply.sent).await,
            Acquired::PositionLost => Ok(Pass::PositionLost),
            // The wait is over.
            Acquired::Queued { .. } => Err(Error::held(name, guard.withdraw().await)),
            Acquired::Held(holder) => {
                if !reply.retried {
                    guard.forget();
                } else if let Err(error) = guard.undo().await {
                    // The first request may still arrive. The guard's drop continues to release it.
                    return Err(Error::unreachable(format!(
                        "\"{name}\" is held by another client, and an earlier acquire that was not answered \
                         cannot be withdrawn"
                    ))
                    .with_source(error));
                }
                Err(Error::held(name, holder))
            }
        }
    }

    /// Makes a guard of a grant, unless the grant is over before it can be trusted.
    async fn start(
        &self,
        guard: &mut Guard,
        grant: Grant,
        sent: fencepost_core::Moment,
    ) -> Result<Pass> {
        let age = self.client.clock.now().since(sent);
        let grant =
            if self.options.liveness == Liveness::LeaseOnly && age > grant.ttl.as_duration() / 50 {
                // Nobody renews for a script, which counts the TTL from when it learns of the grant.
                grant.with_needs_confirmation(true)
            } else {
                grant
            };
        let Some((sent, ttl)) = guard.confirm(&grant, sent).await? else {
            return Ok(Pass::GrantedTooLate);
        };
        let (name, token) = (guard.id().name.clone(), grant.token);
        if let Some(warning) = self.options.check_granted(&self.client.store, &name, ttl)?
            && !self.client.ttl_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(target: NEAR_MISS, %name, "{warning}");
        }
        if !guard.start(grant, sent, ttl) {
            return Ok(Pass::GrantedTooLate);
        }
        increment(&self.client.counters.grants);
        tracing::debug!(%name, %token, ?ttl, "granted");
        Ok(Pass::Granted)
    }

    /// Waits until the store answers again: retries the release of what the failed acquire may have left, so that this
    /// does not block the next acquire. Returns the error if the caller's wait ends first.
    async fn sit_out(
        &self,
        outage: &mut Outage,
        mut guard: Guard,
        wait: Wait,
        mut error: Error,
    ) -> Result<()> {
        let (clock, limit) = (&self.client.clock, wait.limit());
        loop {
            outage.log(clock.now(), &guard.id().name, &error.one_line());
            clock.alarm((clock.now() + OUTAGE_RETRY_DELAY).min(limit)).await;
            if !self.may_go_on(wait) {
                return Err(error);
            }
            match race(guard.undo(), clock.alarm(limit)).await {
                First::Left(Err(failed)) if failed.is_outage() => error = failed,
                // A refusal is an answer too: the next acquire reports it.
                First::Left(_) => {
                    outage.end();
                    return Ok(());
                }
                // What is left is released in the background.
                First::Right(()) => return Err(error),
            }
        }
    }

    fn may_go_on(&self, wait: Wait) -> bool {
        wait != Wait::No && self.client.clock.now() < wait.limit()
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("ttl", &self.options.ttl)
            .finish_non_exhaustive()
    }
}
