//! The contract that Redis, Redlock and etcd still implement: one `acquire` that tries and waits. [`Bridge`]
//! translates it to [`crate::backend`], and goes with the last of them.

use std::sync::Arc;

use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl, Value};

use crate::backend::{
    self, BoxFuture, Broken, Glimpse, GrantId, HolderInfo, Liveness, LockInfo, LossSignal, NotHeld,
    Presence, Queue, Reply, Store, StoreCall, StoreResult,
};
use crate::clock::Clock;
use crate::error::{ErrorKind, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{self, Claim, Claimed, Entry, Finish};

pub(super) trait Backend: Send + Sync + 'static {
    /// Takes the lock in one atomic step, or waits for it in the store's queue as `wait` says.
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>>;

    /// Renews a batch of grants. The answers stand in the order of the batch.
    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>>;

    /// Ends what `owner` has under `name`. `NotHeld` if there was nothing.
    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>>;

    /// Ends the current grant of `name`, and waits until `confirm_until` for the holder to confirm.
    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>>;

    /// Who holds `name` and who waits for it.
    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>>;

    /// Every lock that is held or waited for, ordered by name.
    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>>;

    /// What this store keeps under which fault.
    fn guarantees(&self) -> Guarantees;

    /// Resolves once nothing is under way that a caller left to the backend; soon in any case.
    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

pub(super) trait Observe: Send + Sync + 'static {
    /// Resolves with the state of `name` once it differs from `seen`.
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>>;
}

pub(super) trait Ledger: Send + Sync + 'static {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>>;
    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>>;
    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>>;
    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>>;
    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>>;
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) name: LockName,
    pub(super) owner: OwnerId,
    pub(super) ttl: Ttl,
    pub(super) label: Label,
    pub(super) value: Option<Value>,
    #[expect(dead_code, reason = "none of those that are left asks")]
    pub(super) liveness: Liveness,
    pub(super) loss: LossSignal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    Until(Moment),
    Forever,
}

#[derive(Debug)]
pub(super) enum Acquired {
    Granted(Grant),
    Held(Option<HolderInfo>),
    PlaceLost,
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) ttl: Ttl,
    pub(super) sent: Moment,
    pub(super) queued: bool,
    pub(super) presence: Option<Presence>,
}

#[derive(Clone, Debug)]
pub(super) struct Renewal {
    pub(super) name: LockName,
    pub(super) owner: OwnerId,
    pub(super) ttl: Option<Ttl>,
    pub(super) token: Option<Token>,
    pub(super) value: Option<Value>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Renewed {
    pub(super) token: Token,
    pub(super) ttl: Ttl,
    pub(super) sent: Moment,
}

/// A store of this contract as one of the library's.
pub(super) struct Bridge<B> {
    store: Arc<B>,
    clock: Arc<dyn Clock>,
}

impl<B: Backend + Observe> Bridge<B> {
    /// A store that keeps no records.
    pub(super) fn without_ledger(store: Arc<B>, clock: &Arc<dyn Clock>) -> Store {
        Store::without_ledger(Arc::new(Self { store, clock: Arc::clone(clock) }))
    }
}

impl<B: Backend + Observe + Ledger> Bridge<B> {
    pub(super) fn store(store: Arc<B>, clock: &Arc<dyn Clock>) -> Store {
        Store::from(Arc::new(Self { store, clock: Arc::clone(clock) }))
    }
}

impl<B: Send + Sync + 'static> Bridge<B> {
    async fn reply<T>(&self, call: BoxFuture<'_, Result<T>>) -> StoreResult<T> {
        let sent = self.clock.now();
        Ok(Reply::new(call.await?, sent))
    }
}

impl<B: Backend> Bridge<B> {
    async fn acquire(
        &self,
        request: backend::Request,
        wait: Wait,
    ) -> StoreResult<backend::Acquired> {
        let backend::Request { grant: GrantId { name, owner }, ttl, label, value, liveness, loss } =
            request;
        let request = Request { name, owner, ttl, label, value, liveness, loss };
        Ok(match self.store.acquire(request, wait).await? {
            Acquired::Granted(Grant { token, ttl, sent, queued, presence }) => {
                let grant = backend::Grant { token, ttl, queued, presence };
                Reply::new(backend::Acquired::Granted(grant), sent)
            }
            Acquired::Held(holder) => Reply::new(backend::Acquired::Held(holder), self.clock.now()),
            Acquired::PlaceLost => Reply::new(backend::Acquired::PlaceLost, self.clock.now()),
        })
    }
}

/// An answer about a grant that may not be there.
fn held<T>(answer: Result<T>) -> Result<Result<T, NotHeld>> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(error) => match error.kind() {
            ErrorKind::NotHeld(cause) => Ok(Err(NotHeld(*cause))),
            _ => Err(error),
        },
    }
}

impl<B: Backend> backend::Backend for Bridge<B> {
    /// A store that waits by itself takes its position when it waits.
    fn try_acquire(
        &self,
        request: backend::Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, backend::Acquired> {
        Box::pin(async move {
            if queue == Queue::Join {
                return Ok(Reply::new(backend::Acquired::Queued { ahead: 0 }, self.clock.now()));
            }
            self.acquire(request, Wait::No).await
        })
    }

    fn wait(&self, request: backend::Request, limit: Moment) -> StoreCall<'_, backend::Acquired> {
        let wait = if limit == Moment::NEVER { Wait::Forever } else { Wait::Until(limit) };
        Box::pin(self.acquire(request, wait))
    }

    fn renew(
        &self,
        batch: Vec<backend::Renewal>,
        _limit: Moment,
    ) -> BoxFuture<'_, Vec<StoreResult<Result<backend::Renewed, NotHeld>>>> {
        Box::pin(async move {
            let batch = batch.into_iter().map(|renewal| {
                let backend::Renewal { grant: GrantId { name, owner }, ttl, token, value } =
                    renewal;
                Renewal { name, owner, ttl, token, value }
            });
            let answers = self.store.renew(batch.collect()).await;
            let answer = |answer| match held(answer)? {
                Ok(Renewed { token, ttl, sent }) => {
                    Ok(Reply::new(Ok(backend::Renewed { token, ttl }), sent))
                }
                Err(not_held) => Ok(Reply::new(Err(not_held), self.clock.now())),
            };
            answers.into_iter().map(answer).collect()
        })
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move {
            let sent = self.clock.now();
            Ok(Reply::new(held(self.store.release(grant.name, grant.owner).await)?, sent))
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(self.reply(self.store.break_lock(name, token, confirm_until)))
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        self.store.drained()
    }
}

impl<B: Backend + Observe> backend::Observe for Bridge<B> {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(self.reply(self.store.inspect(name)))
    }

    fn list(&self, _limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(self.reply(self.store.list()))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(self.reply(self.store.changed(name, seen)))
    }
}

impl<B: Ledger> ledger::Ledger for Bridge<B> {
    fn claim(&self, claim: Claim, _limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(self.reply(self.store.claim(claim)))
    }

    fn finish(&self, finish: Finish, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(self.reply(self.store.finish(finish)))
    }

    fn look_up(&self, name: LockName, _limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(self.reply(self.store.look_up(name)))
    }

    fn entries(&self, prefix: &str, _limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.reply(self.store.entries(&prefix)).await })
    }

    fn forget(&self, name: LockName, token: Token, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(self.reply(self.store.forget(name, token)))
    }
}

/// For stores that notify nobody of a change: inspects until there is one.
#[cfg(feature = "redis")]
pub(super) async fn look_until_changed(
    store: &dyn Backend,
    clock: &dyn Clock,
    every: std::time::Duration,
    name: LockName,
    seen: Option<Glimpse>,
) -> Result<LockInfo> {
    loop {
        let info = store.inspect(name.clone()).await?;
        if seen != Some(info.glimpse()) {
            return Ok(info);
        }
        clock.alarm(clock.now() + every).await;
    }
}
