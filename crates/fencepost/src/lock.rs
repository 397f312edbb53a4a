//! Describes a lock and takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Invalid, Label, LockName, Ttl, Value};
use tracing::Instrument as _;

use crate::backend::{Acquired, Grant, Liveness, Request, short};
use crate::bounded_store::Wait;
use crate::client::Client;
use crate::counts::{RAILS, up};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::options::{AcquireOptions, acquire_options};
use crate::outage::Outage;
use crate::race::{First, race};

/// How often a waiter asks whether a store is back.
const OUTAGE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A lock that is not taken yet. Made by [`Fencepost::lock`](crate::Fencepost::lock).
#[derive(Clone)]
#[must_use = "nothing is locked until an acquire is awaited"]
pub struct Lock {
    client: Arc<Client>,
    name: Result<LockName, Invalid>,
    pub(crate) options: AcquireOptions,
}

acquire_options!(Lock, options);

/// What came of one owner's pass.
enum Pass {
    Granted,
    /// The position ended while we waited. A fresh owner gets a fresh one.
    PositionLost,
    /// The grant ended before it could be trusted.
    GrantedTooLate,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: &str) -> Self {
        Self { client, name: LockName::new(name), options: AcquireOptions::default() }
    }

    /// The grant does not end with this process, only with its lease or a release. For scripts that
    /// acquire in one process and release in another.
    pub fn lease_only(mut self) -> Self {
        self.options.liveness = Liveness::LeaseOnly;
        self
    }

    /// The same lock on another name.
    pub(crate) fn named(mut self, name: &LockName) -> Self {
        self.name = Ok(name.clone());
        self
    }

    /// What a person will read as the holder.
    pub(crate) fn shown_label(&self) -> Result<Label> {
        match &self.options.label {
            Some(label) => Ok(Label::new(label)?),
            None => Ok(self.client.label.clone()),
        }
    }

    /// Stands as a candidate that says this of itself.
    pub(crate) fn value(mut self, value: Value) -> Self {
        self.options.value = Some(value);
        self
    }

    /// Waits for the lock without limit. Dropping the future gives up the place in the queue.
    pub async fn acquire(self) -> Result<Guard> {
        self.take(Wait::Forever).await
    }

    /// Waits for the lock at most this long; then the error's kind is `Held` and says who has it.
    pub async fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let until = self.client.clock.now() + limit;
        self.take(Wait::Until(until)).await
    }

    /// Takes the lock if it is free; `None` if somebody else has it.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.take(Wait::No).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if matches!(error.kind(), ErrorKind::Held(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks the options once, then makes one pass per owner until the lock is granted or the wait is over.
    pub(crate) async fn take(self, wait: Wait) -> Result<Guard> {
        let name = self.name.clone()?;
        let label = self.shown_label()?;
        let ttl = self.options.check(&self.client.store, self.client.longest)?;
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
            // A wait may outlast the client.
            self.client.check_open()?;
            let mut guard = Guard::pending(&self.client, name, ttl, self.options.bounds)?;
            match self.pass(&mut guard, ttl, label, wait).await {
                Ok(Pass::Granted) => return Ok(guard),
                Ok(_) if self.may_go_on(wait) => {}
                Ok(Pass::PositionLost) => return Err(Error::held(name, None)),
                Ok(Pass::GrantedTooLate) => {
                    return Err(Error::unreachable(format!(
                        "the store granted \"{name}\" later than its TTL of {} allows: use a \
                         longer TTL, or see why the store is slow",
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
        let request = Request {
            grant: guard.id().clone(),
            ttl,
            label: label.clone(),
            value: self.options.value.clone(),
            liveness: self.options.liveness,
            loss: guard.loss_signal(),
        };
        let name = &request.grant.name;
        let reply = self.client.store.acquire(&request, wait).await?;
        match reply.value {
            Acquired::Granted(grant) => self.start(guard, grant, reply.sent).await,
            Acquired::PlaceLost => Ok(Pass::PositionLost),
            // The wait is over.
            Acquired::Queued { .. } => Err(Error::held(name, guard.withdraw().await)),
            Acquired::Held(holder) => {
                if !reply.retried {
                    guard.forget();
                } else if let Err(error) = guard.undo().await {
                    // The first request may still arrive. The guard's drop goes on to release it.
                    return Err(Error::unreachable(format!(
                        "\"{name}\" is held by another, and an earlier acquire of it that was not answered \
                         cannot be withdrawn: {error}"
                    )));
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
        let Some((sent, ttl)) = guard.confirm(&grant, sent).await? else {
            return Ok(Pass::GrantedTooLate);
        };
        let (name, token) = (guard.id().name.clone(), grant.token);
        if let Some(warning) = self.options.check_granted(&self.client.store, &name, ttl)?
            && !self.client.ttl_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(target: RAILS, %name, "{warning}");
        }
        if !guard.start(grant, sent, ttl) {
            return Ok(Pass::GrantedTooLate);
        }
        up(&self.client.tally.grants);
        tracing::debug!(%name, %token, ?ttl, "granted");
        Ok(Pass::Granted)
    }

    /// Waits until the store answers again: it is asked to release what the failed acquire may have left, so that
    /// nothing of it is in the way of the next one. Returns the error if the caller's wait ends first.
    async fn sit_out(
        &self,
        outage: &mut Outage,
        mut guard: Guard,
        wait: Wait,
        mut error: Error,
    ) -> Result<()> {
        let (clock, limit) = (&self.client.clock, wait.limit());
        loop {
            outage.log(clock.now(), &guard.id().name, &error);
            clock.alarm((clock.now() + OUTAGE_RETRY_DELAY).min(limit)).await;
            if !self.may_go_on(wait) {
                return Err(error);
            }
            match race(guard.undo(), clock.alarm(limit)).await {
                First::Left(Err(failed)) if failed.is_outage() => error = failed,
                // Refused too: the next acquire says why.
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
