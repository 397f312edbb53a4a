//! `redlock://HOST,HOST,HOST` a majority of several independent Redis servers.
//!
//! The lock is the same key with the same value on each node, as other Redlock clients keep it: npm
//! `redlock`, redlock-py and we exclude each other. A client with one server does not take part.
//!
//! *Why grants exclude:* a grant needs the key on a majority of the nodes, and two majorities share one. A
//! node keeps the key for the TTL, and the guard counts from before the first request of the attempt that
//! was granted, less a margin for clocks that run at different rates. A node that was restarted does not
//! vote until every lease from before is over (`max_ttl`), since it may have forgotten it.
//! *Why tokens rise:* two phases, see attempt.rs, and the model beside it. They do not depend on clocks.
//! *Where that ends:* it stays an efficiency lock. A node whose clock jumps, that is wiped, or that is replaced by a
//! replica gives its key to the next client while the first holder still relies on it; with enough such nodes there are
//! two holders. Nothing on the nodes shows it. Tokens still rise then, as long as the nodes keep the last one, so a fenced
//! resource stays correct. A node forgets it when its clock has passed it by the retention.
//!
//! *Waiting:* each node has a list of waiters, and a release notifies the first of them. The lists can differ, so a
//! position gives no right to the lock: a waiter that is notified, or has waited long enough, retries after a random
//! delay. A failed attempt is undone on every node, by its own number, so that the undo cannot hit a later one.
//!
//! URLs, connections, layout, scripts and errors are those of redis/. There is no queue.rs (polling.rs waits), no
//! values.rs, no records.rs (no records are kept) and no `server_info.rs`. attempt.rs decides, vote.rs and nodes.rs carry
//! its messages.

mod attempt;
mod guarantees;
mod inspect;
mod locks;
#[cfg(test)]
mod model;
mod nodes;
mod vote;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fencepost_base::redis::RedlockConfig;
/// ```no_run
/// # async fn connect(secret: String) -> fencepost::Result<()> {
/// use fencepost::Fencepost;
/// use fencepost::backends::redlock::RedlockOptions;
///
/// let servers = ["redis-1", "redis-2", "redis-3"];
/// let fp = Fencepost::connect(RedlockOptions::new(servers).password(secret)).await?;
/// # Ok(()) }
/// ```
#[doc(inline)]
pub use fencepost_base::redis::RedlockOptions;
use fencepost_core::{LockName, Moment, Token, Ttl};

use self::nodes::Nodes;
use super::polling::{join_by_polling, wait_by_polling};
use super::redis::{Address, POLL_INTERVAL, Prefix, Subscriber};
use super::renew_each;
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::retry::{CALL_TIMEOUT, replied};

/// A store on several Redis servers.
pub struct Redlock {
    nodes: Nodes,
    clock: Arc<dyn Clock>,
    prefix: Prefix,
    /// In milliseconds, as the scripts take it.
    retention: u64,
    max_ttl: Ttl,
    /// How long a node must have been up to vote.
    up_for: Duration,
    subscriber: Arc<Subscriber>,
    /// The number of the last attempt.
    attempts: AtomicU64,
}

impl Redlock {
    pub(crate) async fn open(
        options: RedlockOptions,
        context: &BackendContext,
    ) -> Result<Arc<Self>> {
        let config = RedlockConfig::new(options)?;
        let db = config.addresses.first().map_or(0, Address::db);
        let prefix = Prefix::new(config.prefix)?;
        let subscriber = Subscriber::new(db, &prefix)?;
        let nodes = Nodes::open(config.addresses, context, &subscriber);
        let up_for =
            if config.restarted_vote { Duration::ZERO } else { config.max_ttl.as_duration() };
        let store = Self {
            nodes,
            clock: Arc::clone(&context.clock),
            retention: config.retention.as_millis() as u64,
            prefix,
            max_ttl: config.max_ttl,
            up_for,
            subscriber,
            attempts: AtomicU64::new(0),
        };
        if let Some(warning) = store.even() {
            tracing::warn!("redlock: {warning}");
        }
        store.gather().await?;
        Ok(Arc::new(store))
    }

    /// The warning about an even number of nodes.
    fn even(&self) -> Option<String> {
        let count = self.nodes.count();
        count.is_multiple_of(2).then(|| {
            format!(
                "{count} nodes tolerate no more failures than {} would: use an odd number",
                count - 1
            )
        })
    }

    /// Waits until a majority is connected, or cannot be.
    async fn gather(&self) -> Result<()> {
        let limit = self.clock.now() + CALL_TIMEOUT;
        let connected = self.nodes.connections().map(|connection| connection.connected(limit));
        let (up, node_replies) = self.nodes.most(connected, "connected", limit).await;
        if up.len() < self.nodes.quorum() {
            return Err(node_replies.error("cannot connect").into());
        }
        self.check_that_they_differ()
    }

    /// One server under two names would have two votes.
    fn check_that_they_differ(&self) -> Result<()> {
        let mut known = HashMap::new();
        for node in self.nodes.connections() {
            let Some(run) = node.server_info().and_then(|found| found.run_id().map(str::to_owned))
            else {
                continue;
            };
            if let Some(other) = known.insert(run, node.shown()) {
                return Err(Error::invalid(format!(
                    "{other} and {} of the redlock: store are the same server: its vote would count \
                     twice",
                    node.shown()
                )));
            }
        }
        Ok(())
    }
}

impl Backend for Redlock {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            match queue {
                Queue::Skip => locks::try_acquire(self, &request, limit).await,
                Queue::Join => {
                    let (waiters, met) = (&self.subscriber.waiters, locks::Met::default());
                    let poll = locks::poll(self, &request, queue, &met, limit);
                    join_by_polling(&*self.clock, waiters, request.grant.owner, poll).await
                }
            }
        })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let met = locks::Met::default();
            let poll = |limit| locks::poll_again(self, &request, &met, limit);
            let waiters = &self.subscriber.waiters;
            wait_by_polling(&*self.clock, waiters, &request.grant, limit, poll).await
        })
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(
            async move { renew_each(&batch, |renewal| locks::renew(self, renewal, limit)).await },
        )
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move { locks::release(self, &grant, limit).await })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(async move {
            let broken = locks::break_lock(self, &name, token, confirm_until, limit);
            replied(&*self.clock, broken).await
        })
    }

    fn guarantees(&self) -> Guarantees {
        guarantees::read(self)
    }
}

impl Observe for Redlock {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move {
            let (keys, shown) = (self.prefix.keys(&name)?, LockInfo::SHOWN_WAITERS);
            let look = replied(&*self.clock, inspect::look(self, keys, &name, shown, limit));
            Ok(look.await?.map(|look| look.info))
        })
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(async move { replied(&*self.clock, inspect::list(self, &page, limit)).await })
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, POLL_INTERVAL, name, seen))
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} nodes)", self.nodes.count())
    }
}
