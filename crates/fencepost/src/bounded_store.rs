//! The only way from the library to a store. Every call gets a limit, a span, and one error if no reply comes; only
//! `changed` has no limit, since it waits for other clients.
//! It is public only for the conformance suite, which makes calls that the library does not offer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use tracing::Instrument as _;

use crate::backend::{
    Acquired, Broken, GrantId, HolderInfo, LockInfo, LockVersion, LossCause, NotHeld, Page,
    PageRequest, Queue, Renewal, Renewals, Renewed, Reply, Request, Store, StoreError, StoreResult,
    short,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Completion, Ledger, Outcome, RecordInfo, RecordsByName};
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
        // A wait whose limit has passed is one try: nobody would use the position.
        let skip = wait == Wait::No || wait.limit() <= now;
        let queue = if skip { Queue::Skip } else { Queue::Join };
        // However short the wait, the first try has time for a reply.
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
        let (grant, limit) = (renewal.grant.clone(), self.call_limit());
        let renew = async {
            let answers = self.store.backend.renew(vec![renewal], limit).await;
            RenewalAnswers::of(answers).to(&grant)
        };
        self.call(Verb("renew", Some(&grant.name)), limit, renew).await
    }

    /// Renews the grants of a heartbeat.
    pub async fn renew_batch(&self, batch: Vec<Renewal>, timeout: Duration) -> RenewalAnswers {
        let limit = self.clock.now() + timeout;
        let renew = self.store.backend.renew(batch, limit);
        match race(renew, self.clock.alarm(limit)).await {
            First::Left(answers) => RenewalAnswers::of(answers),
            First::Right(()) => {
                RenewalAnswers::none("the store did not answer the renewal in time")
            }
        }
    }

    /// Releases within the usual limit, or by an earlier one.
    ///
    /// If the request was sent twice, the first one may have released: then `NotHeld` is not an error.
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

    pub(crate) async fn list(&self, page: PageRequest) -> Result<Page> {
        let limit = self.call_limit();
        let call = self.store.observe.list(page, limit);
        self.call(Verb("list the locks", None), limit, call).await.map(value)
    }

    /// Resolves once `name` differs from what was seen, however long that takes.
    pub(crate) async fn changed(
        &self,
        name: LockName,
        seen: Option<LockVersion>,
    ) -> Result<LockInfo> {
        Ok(self.store.observe.changed(name, seen).await?.value)
    }

    pub async fn claim(&self, ledger: &dyn Ledger, claim: Claim) -> Result<Claimed> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.claim(claim, limit)).await.map(value)
    }

    /// Finishes a record. If the request was sent twice, the first one may have given it up.
    pub async fn finish(&self, ledger: &dyn Ledger, finish: Completion) -> Result<Reply<bool>> {
        let (limit, abandoned) = (self.call_limit(), finish.outcome == Outcome::Abandoned);
        let mut reply = self.call(RECORDS, limit, ledger.finish(finish, limit)).await?;
        reply.value |= abandoned && reply.retried;
        Ok(reply)
    }

    pub async fn look_up(
        &self,
        ledger: &dyn Ledger,
        name: &LockName,
    ) -> Result<Option<RecordInfo>> {
        Ok(self.look_up_all(ledger, vec![name.clone()]).await?.remove(name))
    }

    /// The records under names, of which there are at most [`LOOK_UP_BATCH`](crate::ledger::LOOK_UP_BATCH).
    pub async fn look_up_all(
        &self,
        ledger: &dyn Ledger,
        names: Vec<LockName>,
    ) -> Result<RecordsByName> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.look_up(names, limit)).await.map(value)
    }

    pub async fn list_records(&self, ledger: &dyn Ledger, prefix: &str) -> Result<Vec<RecordInfo>> {
        let limit = self.call_limit();
        let verb = Verb("list the records", None);
        self.call(verb, limit, ledger.list_records(prefix, limit)).await.map(value)
    }

    pub async fn forget(&self, ledger: &dyn Ledger, name: LockName, token: Token) -> Result<bool> {
        let limit = self.call_limit();
        self.call(RECORDS, limit, ledger.forget(name, token, limit)).await.map(value)
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
            // There was no reply before the limit; the last error is only a part of the reason.
            First::Left(Err(error)) if error.is_transient() && self.clock.now() >= limit => {
                Err(late(limit).with_source(error))
            }
            First::Left(reply) => Ok(reply?),
            First::Right(()) => Err(late(limit + GRACE)),
        }
    }
}

const RECORDS: Verb<'static> = Verb("use the records", None);

/// The request in an error, and the lock that it is about.
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

/// What a backend answered to a batch of renewals.
pub struct RenewalAnswers {
    answers: Renewals,
    /// Why others have no answer. They may have been renewed.
    missing: StoreError,
}

impl RenewalAnswers {
    fn of(answers: Renewals) -> Self {
        Self { answers, ..Self::none("the backend left out the answer to the renewal") }
    }

    /// No grant got an answer, and why.
    pub(crate) fn none(why: &str) -> Self {
        Self { answers: Renewals::new(), missing: StoreError::no_reply(why) }
    }

    /// The answer to one renewal. A missing one counts as a failed renewal.
    pub fn to(&self, grant: &GrantId) -> StoreResult<Result<Renewed, NotHeld>> {
        self.answers.get(grant).cloned().unwrap_or_else(|| Err(self.missing.clone()))
    }

    /// How many grants were answered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.answers.len()
    }
}

fn value<T>(reply: Reply<T>) -> T {
    reply.value
}
