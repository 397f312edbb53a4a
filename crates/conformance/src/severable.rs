//! A store whose connection can be cut, for stores that have no network to cut.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use fencepost::backend::{
    Acquired, Backend, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld, Observe, Page,
    PageRequest, Queue, Renewal, Renewals, Request, Store, StoreCall, StoreError,
};
use fencepost::guarantees::Guarantees;
use fencepost::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName};
use fencepost_base::race::{First, race};
use fencepost_core::{LockName, Moment, Token};
use tokio::sync::watch;

/// Forwards every call to another store, until the connection is cut.
///
/// A call under way when the connection is cut gets no reply either, though the store may have applied it: tests often
/// forget that. Loss signals, which a store in the same process fires directly, are not cut.
pub struct Severable {
    inner: Store,
    line: watch::Sender<Line>,
}

/// The state of the connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Calls go through.
    Whole,
    /// Calls get no reply until the connection is whole again, as if packets were dropped.
    Silent,
    /// Calls fail at once, like a refused connection.
    Refusing,
}

impl Severable {
    /// A whole connection to `inner`.
    #[must_use]
    pub fn new(inner: Store) -> Arc<Self> {
        Arc::new(Self { inner, line: watch::Sender::new(Line::Whole) })
    }

    /// Cuts or restores the connection, for new calls and those under way.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// The store at this end of the connection.
    #[must_use]
    pub fn store(self: &Arc<Self>) -> Store {
        let ledger = self.inner.ledger.is_some().then(|| Arc::clone(self) as Arc<dyn Ledger>);
        Store { backend: self.clone(), observe: self.clone(), ledger }
    }

    fn ledger(&self) -> Result<&dyn Ledger, StoreError> {
        let ledger = self.inner.ledger.as_deref();
        ledger.ok_or_else(|| StoreError::refused("this store keeps no records"))
    }

    async fn through<T>(&self, call: impl Future<Output = T>) -> Result<T, StoreError> {
        let mut line = self.line.subscribe();
        let mut call = pin!(call);
        loop {
            // The sender is ours, so waiting for a change cannot fail.
            let now = line.wait_for(|line| *line != Line::Silent).await.map_or(Line::Whole, |l| *l);
            if now == Line::Refusing {
                return Err(cut());
            }
            // While the connection is silent the call is not polled: its reply cannot come through.
            let cut = line.wait_for(|line| *line != Line::Whole);
            if let First::Left(answer) = race(&mut call, cut).await {
                return Ok(answer);
            }
        }
    }
}

fn cut() -> StoreError {
    StoreError::unavailable("the connection to the store is cut")
}

impl Backend for Severable {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        let call = self.inner.backend.try_acquire(request, queue, limit);
        Box::pin(async move { self.through(call).await? })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        let call = self.inner.backend.wait(request, limit);
        Box::pin(async move { self.through(call).await? })
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        let grants: Vec<_> = batch.iter().map(|renewal| renewal.grant.clone()).collect();
        let call = self.inner.backend.renew(batch, limit);
        Box::pin(async move {
            let failed = |_| grants.into_iter().map(|grant| (grant, Err(cut()))).collect();
            self.through(call).await.unwrap_or_else(failed)
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        let call = self.inner.backend.release(grant, limit);
        Box::pin(async move { self.through(call).await? })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        let call = self.inner.backend.break_lock(name, token, confirm_until, limit);
        Box::pin(async move { self.through(call).await? })
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.backend.guarantees()
    }
}

impl Observe for Severable {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { self.through(self.inner.observe.inspect(name, limit)).await? })
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(async move { self.through(self.inner.observe.list(page, limit)).await? })
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { self.through(self.inner.observe.changed(name, seen)).await? })
    }
}

impl Ledger for Severable {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.through(self.ledger()?.claim(claim, limit)).await? })
    }

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.through(self.ledger()?.finish(finish, limit)).await? })
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        Box::pin(async move { self.through(self.ledger()?.look_up(names, limit)).await? })
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.through(self.ledger()?.list_records(&prefix, limit)).await? })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.through(self.ledger()?.forget(name, token, limit)).await? })
    }
}

impl fmt::Debug for Severable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Severable({:?})", *self.line.borrow())
    }
}
