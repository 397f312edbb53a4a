//! The only way from the library to a store. Every call gets a limit, a span, and one error if no answer comes.
//! It is public for the conformance suite alone, which asks what the library does not offer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use tracing::Instrument as _;

use crate::backend::{
    Acquired, Broken, Glimpse, GrantId, HolderInfo, LockInfo, LossCause, NotHeld, Queue, Renewal,
    Renewed, Reply, Request, Store, StoreError, StoreResult, short,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How far a backend may overrun its limit before we answer for it.
const GRACE: Duration = Duration::from_millis(250);
/// What the first try of a wait may take beyond the wait's end.
const FIRST_TRY: Duration = Duration::from_millis(100);
/// How long `break` waits for the holder to confirm.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a waiter whose time is over waits until its position is given up, and to learn who holds the lock.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(120);

/// How long an acquire waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until this moment.
    Until(Moment),
    /// Without limit.
    Forever,
}

impl Wait {
    /// When the wait ends. A try that does not wait has no such moment.
    pub(crate) const fn limit(self) -> Moment {
        match self {
            Self::Until(limit) => limit,
            Self::No | Self::Forever => Moment::NEVER,
        }
    }
}

pub struct BoundedStore {
    store: Store,
    clock: Arc<dyn Clock>,
}

impl BoundedStore {
    pub(crate) const fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    pub(crate) fn guarantees(&self) -> Guarantees {
        self.store.backend.guarantees()
    }

    /// Tries once, then waits in the queue for as long as the caller allows. `Queued` if that was not long enough: the
    /// position is the caller's to give up.
    pub async fn acquire(&self, request: &Request, wait: Wait) -> Result<Reply<Acquired>> {
        let (name, now) = (&request.grant.name, self.clock.now());
        // A wait that is over already is one try: nobody would use the position.
        let skip = wait == Wait::No || wait.limit() <= now;
        let queue = if skip { Queue::Skip } else { Queue::Join };
        // However short the wait, the first try has time for an answer.
        let limit = self.call_limit().min(wait.limit().max(now) + FIRST_TRY);
        let call = self.store.backend.try_acquire(request.clone(), queue, limit);
        let reply = self.call(Verb("acquire", Some(name)), limit, call).await?;
        if !matches!(reply.value, Acquired::Queued { .. }) || self.clock.now() >= wait.limit() {
            return Ok(reply);
        }
        let call = self.store.backend.wait(request.clone(), wait.limit());
        self.call(Verb("wait for", Some(name)), wait.limit(), call).await
    }

    /// Ends a wait whose time is over: gives up the position, and says who holds the lock. `Err` if the position may
    /// still be there.
    pub(crate) async fn withdraw(&self, grant: &GrantId) -> Result<Option<HolderInfo>> {
        let limit = self.clock.now() + WITHDRAW_TIMEOUT;
        let release = self.store.backend.release(grant.clone(), limit);
        let inspect = self.store.observe.inspect(grant.name.clone(), limit);
        // One after the other: what is shown must not be our own position.
        let withdraw = async {
            let released = release.await?;
            let info = inspect.await;
            Ok(released.map(|_| info.ok().and_then(|reply| reply.value.holder)))
        };
        self.call(Verb("leave the queue of", Some(&grant.name)), limit, withdraw).await.map(value)
    }

    /// Renews one grant.
    pub(crate) async fn renew(&self, renewal: Renewal) -> Result<Reply<Result<Renewed, NotHeld>>> {
        let (name, limit) = (renewal.grant.name.clone(), self.call_limit());
        let renew = async {
            let mut answers = self.store.backend.renew(vec![renewal], limit).await;
            answers.pop().unwrap_or_else(left_out)
        };
        self.call(Verb("renew", Some(&name)), limit, renew).await
    }

    /// Renews the grants of a heartbeat. A missing answer counts as a failed renewal.
    pub async fn renew_batch(
        &self,
        batch: Vec<Renewal>,
        timeout: Duration,
    ) -> Vec<Result<Reply<Result<Renewed, NotHeld>>>> {
        let (count, limit) = (batch.len(), self.clock.now() + timeout);
        let renew = self.store.backend.renew(batch, limit);
        let mut answers: Vec<_> = match race(renew, self.clock.alarm(limit)).await {
            First::Left(answers) => answers.into_iter().map(|answer| Ok(answer?)).collect(),
            First::Right(()) => Vec::new(),
        };
        let late = "the store did not answer the renewal in time";
        answers.resize_with(count, || Err(Error::unreachable(late)));
        answers
    }

    /// Releases within the usual limit, or by an earlier one.
    ///
    /// If the request was sent twice, the first one may have done it: then it is no error that nothing is held.
    pub(crate) async fn release(
        &self,
        grant: &GrantId,
        limit: Option<Moment>,
    ) -> Result<Result<(), NotHeld>> {
        let limit = self.call_limit().min(limit.unwrap_or(Moment::NEVER));
        let call = self.store.backend.release(grant.clone(), limit);
        let reply = self.call(Verb("release", Some(&grant.name)), limit, call).await?;
        Ok(match reply.value {
            Err(NotHeld(cause)) if reply.retried && cause != Some(LossCause::Broken) => Ok(()),
            released => released,
        })
    }

    pub(crate) async fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
    ) -> Result<Option<Broken>> {
        let confirm_until = self.clock.now() + CONFIRM_TIMEOUT;
        let limit = confirm_until + CALL_TIMEOUT;
        let call = self.store.backend.break_lock(name.clone(), token, confirm_until, limit);
        self.call(Verb("break", Some(&name)), limit, call).await.map(value)
    }

    pub(crate) async fn inspect(&self, name: LockName) -> Result<LockInfo> {
        let limit = self.call_limit();
        let call = self.store.observe.inspect(name.clone(), limit);
        self.call(Verb("inspect", Some(&name)), limit, call).await.map(value)
    }

    pub(crate) async fn list(&self) -> Result<Vec<LockInfo>> {
        let limit = self.call_limit();
        self.call(Verb("list the locks", None), limit, self.store.observe.list(limit))
            .await
            .map(value)
    }

    /// Resolves once `name` differs from what was seen, however long that takes.
    pub(crate) async fn changed(&self, name: LockName, seen: Option<Glimpse>) -> Result<LockInfo> {
        Ok(self.store.observe.changed(name, seen).await?.value)
    }

    pub async fn claim(&self, ledger: &dyn Ledger, claim: Claim) -> Result<Claimed> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.claim(claim, limit)).await.map(value)
    }

    pub async fn finish(&self, ledger: &dyn Ledger, finish: Finish) -> Result<bool> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.finish(finish, limit)).await.map(value)
    }

    pub async fn look_up(&self, ledger: &dyn Ledger, name: &LockName) -> Result<Option<Entry>> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.look_up(name.clone(), limit)).await.map(value)
    }

    pub async fn entries(&self, ledger: &dyn Ledger, prefix: &str) -> Result<Vec<Entry>> {
        let limit = self.call_limit();
        let verb = Verb("list the records", None);
        self.call(verb, limit, ledger.entries(prefix, limit)).await.map(value)
    }

    pub async fn forget(&self, ledger: &dyn Ledger, name: LockName, token: Token) -> Result<bool> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.forget(name, token, limit)).await.map(value)
    }

    /// Resolves once the backend has nothing left to do.
    pub(crate) async fn drained(&self) {
        self.store.backend.drained().await;
    }

    fn call_limit(&self) -> Moment {
        self.clock.now() + CALL_TIMEOUT
    }

    async fn call<T>(
        &self,
        verb: Verb<'_>,
        limit: Moment,
        call: impl Future<Output = StoreResult<T>>,
    ) -> Result<Reply<T>> {
        let start = self.clock.now();
        let call = call.instrument(tracing::debug_span!("store", %verb));
        if limit == Moment::NEVER {
            return Ok(call.await?);
        }
        let late = |limit: Moment| {
            Error::unreachable(format!(
                "cannot {verb}: the {} store did not answer within {}; check that it is up and reachable",
                self.guarantees().backend,
                short(limit.since(start)),
            ))
        };
        match race(call, self.clock.alarm(limit + GRACE)).await {
            // It had no answer until the limit came: what failed last is only a part of that.
            First::Left(Err(error)) if error.is_transient() && self.clock.now() >= limit => {
                Err(late(limit).because(error))
            }
            First::Left(reply) => Ok(reply?),
            First::Right(()) => Err(late(limit + GRACE)),
        }
    }
}

const RECORDS: Verb<'static> = Verb("use the records", None);

/// What is asked of the store, and of which lock.
#[derive(Clone, Copy)]
struct Verb<'a>(&'static str, Option<&'a LockName>);

impl fmt::Display for Verb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(verb, Some(name)) => write!(f, "{verb} \"{name}\""),
            Self(verb, None) => f.write_str(verb),
        }
    }
}

fn left_out<T>() -> StoreResult<T> {
    Err(StoreError::unavailable("the backend left out an answer"))
}

fn value<T>(reply: Reply<T>) -> T {
    reply.value
}
