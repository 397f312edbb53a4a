//! A store whose line can be cut, for stores that have no network to cut.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use fencepost::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Request, Store, StoreCall, StoreError,
};
use fencepost::guarantees::Guarantees;
use fencepost::ledger::{Claim, Claimed, Entry, Finish, Ledger};
use fencepost_base::race::{First, race};
use fencepost_core::{LockName, Moment, Token};
use tokio::sync::watch;

/// Passes every call on to another store, until it is cut off from it.
///
/// A call that is under way when the line is cut gets no answer either, though the store may have carried
/// it out: that is the half of a cut that is easily forgotten. Loss signals, which a store in the same
/// process fires directly, are not cut.
pub struct Severable {
    inner: Store,
    line: watch::Sender<Line>,
}

/// How the line to the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Calls go through.
    Whole,
    /// Calls get no answer until it is whole again, like packets that are dropped.
    Silent,
    /// Calls fail at once, like a refused connection.
    Refusing,
}

impl Severable {
    /// A line to `inner`, whole.
    #[must_use]
    pub fn new(inner: Store) -> Arc<Self> {
        Arc::new(Self { inner, line: watch::Sender::new(Line::Whole) })
    }

    /// Cuts or mends the line, for new calls and for those under way.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// The store at this end of the line.
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
            // The sender is ours, so waiting for its word can not fail.
            let now = line.wait_for(|line| *line != Line::Silent).await.map_or(Line::Whole, |l| *l);
            if now == Line::Refusing {
                return Err(cut());
            }
            // While the line is silent the call is not polled: its answer can not come through.
            let cut = line.wait_for(|line| *line != Line::Whole);
            if let First::Left(answer) = race(&mut call, cut).await {
                return Ok(answer);
            }
        }
    }
}

fn cut() -> StoreError {
    StoreError::unavailable("the line to the store is cut")
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
        let count = batch.len();
        let call = self.inner.backend.renew(batch, limit);
        Box::pin(async move {
            self.through(call).await.unwrap_or_else(|_| (0..count).map(|_| Err(cut())).collect())
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

    fn drained(&self) -> BoxFuture<'_, ()> {
        self.inner.backend.drained()
    }
}

impl Observe for Severable {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { self.through(self.inner.observe.inspect(name, limit)).await? })
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(async move { self.through(self.inner.observe.list(limit)).await? })
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { self.through(self.inner.observe.changed(name, seen)).await? })
    }
}

impl Ledger for Severable {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.through(self.ledger()?.claim(claim, limit)).await? })
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.through(self.ledger()?.finish(finish, limit)).await? })
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(async move { self.through(self.ledger()?.look_up(name, limit)).await? })
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.through(self.ledger()?.entries(&prefix, limit)).await? })
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
