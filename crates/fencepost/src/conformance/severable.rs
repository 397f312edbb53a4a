//! A store whose line can be cut, for stores that have no network to cut.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use fencepost_core::{LockName, Moment, OwnerId, Token};
use tokio::sync::watch;

use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, LockInfo, Observe, Renewal, Renewed, Request,
    Store, Wait,
};
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};
use crate::race::{First, race};

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
        let observe = self.inner.observe.is_some().then(|| Arc::clone(self) as Arc<dyn Observe>);
        let ledger = self.inner.ledger.is_some().then(|| Arc::clone(self) as Arc<dyn Ledger>);
        Store { backend: Arc::clone(self) as Arc<dyn Backend>, observe, ledger }
    }

    fn ledger(&self) -> Result<&dyn Ledger> {
        self.inner.ledger.as_deref().ok_or_else(|| Error::refused("this store keeps no records"))
    }

    async fn through<T>(&self, call: impl Future<Output = T>) -> Result<T> {
        let mut line = self.line.subscribe();
        let mut call = pin!(call);
        loop {
            // The sender is ours, so waiting for its word can not fail.
            let now = line.wait_for(|line| *line != Line::Silent).await.map_or(Line::Whole, |l| *l);
            if now == Line::Refusing {
                return Err(Error::unreachable("the line to the store is cut"));
            }
            // While the line is silent the call is not polled: its answer can not come through.
            let cut = line.wait_for(|line| *line != Line::Whole);
            if let First::Left(answer) = race(&mut call, cut).await {
                return Ok(answer);
            }
        }
    }
}

impl Backend for Severable {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        let call = self.inner.backend.acquire(request, wait);
        Box::pin(async move { self.through(call).await? })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        let count = batch.len();
        let call = self.inner.backend.renew(batch);
        Box::pin(async move {
            let cut = || Err(Error::unreachable("the line to the store is cut"));
            self.through(call).await.unwrap_or_else(|_| (0..count).map(|_| cut()).collect())
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        let call = self.inner.backend.release(name, owner);
        Box::pin(async move { self.through(call).await? })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        let call = self.inner.backend.break_lock(name, token, confirm_until);
        Box::pin(async move { self.through(call).await? })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        let call = self.inner.backend.inspect(name);
        Box::pin(async move { self.through(call).await? })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        let call = self.inner.backend.list();
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
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            match &self.inner.observe {
                Some(observe) => self.through(observe.changed(name, seen)).await?,
                None => Err(Error::refused("this store can not watch")),
            }
        })
    }
}

impl Ledger for Severable {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        Box::pin(async move { self.through(self.ledger()?.claim(claim)).await? })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { self.through(self.ledger()?.finish(finish)).await? })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move { self.through(self.ledger()?.look_up(name)).await? })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.through(self.ledger()?.entries(&prefix)).await? })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { self.through(self.ledger()?.forget(name, token)).await? })
    }
}

impl fmt::Debug for Severable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Severable({:?})", *self.line.borrow())
    }
}
