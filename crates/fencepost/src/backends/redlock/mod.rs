//! `redlock://HOST,HOST,HOST` several Redis servers that know nothing of each other, and a majority of them.
//!
//! The lock is the same key with the same value on each node, as other Redlock clients keep it: npm
//! `redlock`, redlock-py and we exclude each other. A client with one server does not take part.
//!
//! *Why grants exclude:* a grant needs the key on a majority of the nodes, and two majorities share one. A
//! node keeps the key for the TTL, and the guard counts from before the first request of the attempt that
//! was granted, less a margin for clocks that run at different rates. A node that was restarted does not
//! vote until every lease from before is over (`max_ttl`), since it may have forgotten it.
//! *Why tokens rise:* two phases, see attempt.rs, and the model beside it. No clock has a part in it.
//! *Where that ends:* it stays an efficiency lock. A node whose clock leaps, that is wiped, or that is
//! replaced by a replica gives its key to the next while the first holder still counts its time; with
//! enough of them there are two holders. Nothing on the nodes can tell. The tokens still rise then, as
//! long as the nodes keep their marks, so a fenced resource stays right. A node forgets a mark when its clock
//! has passed it by the retention.
//!
//! *Waiting:* each node has a list of who waits, and a release tells the first on it. The lists need not
//! agree, so they give no right: whoever is told, or has waited its time, tries again after a random
//! moment. A failed attempt is taken back on every node, by its own number, so that it can not take back
//! a later one.
//!
//! URLs, connections, layout, scripts and errors are those of redis/. There is no queue.rs (polling.rs waits), no
//! values.rs and no records.rs (no records are kept). attempt.rs decides, vote.rs and nodes.rs carry its messages.

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

use fencepost_base::redis::RedlockUrl;
use fencepost_core::{LockName, Moment, Token, Ttl};
use futures_util::future::join_all;

use self::nodes::Nodes;
use super::polling::wait_by_polling;
use super::redis::{Address, LOOK_AGAIN, Prefix, Subscriber};
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Reply, Request, StoreCall, Surroundings,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::retry::CALL_TIMEOUT;

/// A store on several Redis servers.
pub struct Redlock {
    nodes: Nodes,
    clock: Arc<dyn Clock>,
    prefix: Prefix,
    /// In milliseconds, as the scripts are told.
    retention: u64,
    max_ttl: Ttl,
    /// How long a node must have been up to vote.
    up_for: Duration,
    subscriber: Arc<Subscriber>,
    /// The number of the last attempt.
    attempts: AtomicU64,
}

impl Redlock {
    pub(crate) async fn open(url: RedlockUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let options = url.options;
        let db = url.addresses.first().map_or(0, Address::db);
        let prefix = Prefix::new(options.prefix.clone())?;
        let subscriber = Subscriber::new(db, &prefix)?;
        let nodes = Nodes::open(url.addresses, around, &subscriber);
        let up_for =
            if options.restarted_vote { Duration::ZERO } else { options.max_ttl.as_duration() };
        let store = Self {
            nodes,
            clock: Arc::clone(&around.clock),
            retention: options.token_retention().as_millis() as u64,
            prefix,
            max_ttl: options.max_ttl,
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

    /// What to say of an even number of nodes.
    fn even(&self) -> Option<String> {
        let count = self.nodes.count();
        count.is_multiple_of(2).then(|| {
            format!(
                "{count} nodes bear the loss of no more than {} would: take an odd number",
                count - 1
            )
        })
    }

    /// Waits until a majority is connected, or it is clear that none will be.
    async fn gather(&self) -> Result<()> {
        let limit = self.clock.now() + CALL_TIMEOUT;
        let connected = self.nodes.connections().map(|connection| connection.connected(limit));
        let (up, words) = self.nodes.most(connected, "connected", limit).await;
        if up.len() < self.nodes.quorum() {
            return Err(words.error("can not connect").into());
        }
        self.check_that_they_differ()
    }

    /// One server under two names would have two votes.
    fn check_that_they_differ(&self) -> Result<()> {
        let mut known = HashMap::new();
        for node in self.nodes.connections() {
            let Some(run) = node.found().and_then(|found| found.run_id().map(str::to_owned)) else {
                continue;
            };
            if let Some(other) = known.insert(run, node.shown()) {
                return Err(Error::invalid(format!(
                    "{other} and {} in the redlock: URL are the same server: its vote would count \
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
        Box::pin(async move { locks::try_acquire(self, &request, queue, limit).await })
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
        Box::pin(async move {
            join_all(batch.iter().map(|renewal| locks::renew(self, renewal, limit))).await
        })
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
            let sent = self.clock.now();
            let broken = locks::break_lock(self, &name, token, confirm_until, limit).await?;
            Ok(Reply::new(broken, sent))
        })
    }

    fn guarantees(&self) -> Guarantees {
        guarantees::read(self)
    }
}

impl Observe for Redlock {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move {
            let sent = self.clock.now();
            let (keys, shown) = (self.prefix.keys(&name)?, LockInfo::SHOWN_WAITERS);
            let look = inspect::look(self, keys, &name, shown, limit).await?;
            Ok(Reply::new(look.info, sent))
        })
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(async move {
            let sent = self.clock.now();
            Ok(Reply::new(inspect::list(self, limit).await?, sent))
        })
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} nodes)", self.nodes.count())
    }
}
