//! `redis://HOST:PORT/DB` an existing Redis. `rediss://` for TLS, `redis+unix:///PATH` for a socket.
//!
//! The lock is the key that every Redis lock client uses: its name, a string with the owner id, set only
//! if absent, with an expiry, deleted only by compare (layout.rs). So redis-py's `Lock`, npm `redlock` and
//! others exclude us, and we exclude them.
//!
//! *Why grants exclude:* each step is one script, and the server runs one script at a time. A grant is made
//! only where the key is absent, and the key stays for the TTL from then on. A guard counts its deadline
//! from before its request, so it is lost before the key is.
//! *Why tokens rise:* the grant's script draws `max(last + 1, microseconds now)`, where `last` is kept
//! beside the lock until the server's clock has passed it by the retention. If it is lost before, with
//! all the data or by a failover, the time alone is higher than any token drawn so far.
//! *Where that ends:* exclusion ends with the key: a server that restarts or fails over without its last
//! writes, FLUSHALL, an eviction, a jump of the server's clock. Tokens fall only if the state is lost and
//! the clock is behind where it was: that of a replica that took over, or one that was ahead for longer than the
//! retention and was then set back. So a lock here is for correctness only on a server that syncs every
//! write, has no replicas, evicts nothing, and has a clock like ours (`server_info.rs`).
//!
//! *Waiting:* waiters are in a queue beside the lock, by arrival, and each poll, every 250 ms, keeps a position alive. A
//! release notifies the first waiter only; while its position is kept, no other Fencepost client gets the free lock.
//! Third-party clients see neither the queue nor the notifications: they poll, and may overtake. They publish nothing
//! either, which is one reason to poll every 250 ms.
//! *Elections:* a candidate's value is beside the lock, with its owner's id, and expires with the lease. The script that
//! grants or renews writes it, so it is never another leader's.
//! *Late requests:* a request may arrive after the one that should undo it, if it was sent on a connection that broke,
//! on another one, or behind it in a batch. A release that finds nothing, or that undoes an acquire whose outcome is
//! unknown (unanswered.rs), leaves a note for its owner, and a late acquire finds it.
//! *Breaking:* a break publishes (name, token). The holder renews at once and learns the rest from the reply. Its
//! release leaves the same note, which confirms the break.
//!
//! config.rs (with options.rs and address.rs), error.rs and `server_info.rs` are in `fencepost_base::redis`: the fence uses
//! them too. There is no queue.rs (polling.rs waits) and no values.rs (the script that grants or renews writes the value).
//! Beyond the files that every backend has: reply.rs reads what scripts answer; pipeline.rs, socket.rs,
//! `caller_socket.rs` and maintenance.rs are below the connection; subscriber.rs is what the server publishes to us,
//! `clock_skew.rs` its clock.

mod caller_socket;
mod clock_skew;
mod connection;
mod guarantees;
mod inspect;
mod layout;
mod locks;
mod maintenance;
mod pipeline;
mod records;
mod reply;
mod scripts;
mod socket;
mod subscriber;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// ```no_run
/// # async fn connect(secret: String) -> fencepost::Result<()> {
/// use fencepost::Fencepost;
/// use fencepost::backends::redis::RedisOptions;
///
/// let options = RedisOptions::new("cache.internal").password(secret).prefix("shop:").tls(true);
/// let fp = Fencepost::connect(options).await?;
/// # Ok(()) }
/// ```
#[doc(inline)]
pub use fencepost_base::redis::RedisOptions;
use fencepost_base::redis::{RedisConfig, address, error, server_info};
use fencepost_core::{LockName, Moment, Token};

pub(in crate::backends) use self::{
    address::Address,
    connection::Connection,
    error::{LAYOUT, is_not_ours},
    inspect::{by_shown_name, listed, lock_names},
    layout::{Keys, Prefix},
    locks::{remember_ms, until_confirmed, value_number},
    reply::{Ballot, KeyHolder, Listed, LockSnapshot, ScriptReply},
    scripts::{Call, OPERATIONS},
    subscriber::Subscriber,
};
use super::polling::{join_by_polling, wait_by_polling};
use super::renew_each;
use super::unanswered::Unanswered;
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::retry::CALL_TIMEOUT;

/// How often a waiter or an observer polls.
pub(in crate::backends) const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the first waiter polls while a third-party client holds, which notifies nobody when it releases.
pub(in crate::backends) const THIRD_PARTY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// For how long after it left an acquire may arrive: as long as a server keeps its note, and the time to send it.
pub(in crate::backends) const LATE: Duration = REMEMBER.saturating_mul(2);
/// The longest time that the server remembers an owner that was released before its acquire came.
const REMEMBER: Duration = Duration::from_mins(1);

/// A store on one Redis server.
pub struct Redis {
    connection: Connection,
    clock: Arc<dyn Clock>,
    prefix: Prefix,
    /// In milliseconds, as the scripts take it.
    retention: u64,
    subscriber: Arc<Subscriber>,
    unanswered: Unanswered,
}

impl Redis {
    pub(crate) async fn open(options: RedisOptions, context: &BackendContext) -> Result<Arc<Self>> {
        let RedisConfig { address, prefix, retention } = RedisConfig::new(options)?;
        let (clock, prefix) = (Arc::clone(&context.clock), Prefix::new(prefix)?);
        let subscriber = Subscriber::new(address.db(), &prefix)?;
        let connection = Connection::open(address, context, &subscriber);
        connection.connected(clock.now() + CALL_TIMEOUT).await?;
        let retention = retention.as_millis() as u64;
        let unanswered = Unanswered::new(LATE);
        Ok(Arc::new(Self { connection, clock, prefix, retention, subscriber, unanswered }))
    }
}

impl Backend for Redis {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let poll = locks::poll(self, &request, queue, limit);
            match queue {
                Queue::Skip => Ok(poll.await?.map(|polled| polled.acquired)),
                Queue::Join => {
                    let waiters = &self.subscriber.waiters;
                    join_by_polling(&*self.clock, waiters, request.grant.owner, poll).await
                }
            }
        })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let poll = |limit| locks::poll(self, &request, Queue::Join, limit);
            let waiters = &self.subscriber.waiters;
            wait_by_polling(&*self.clock, waiters, &request.grant, limit, poll).await
        })
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(async move {
            // The connection keeps their order.
            renew_each(&batch, |renewal| locks::renew(self, renewal, limit)).await
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
        Box::pin(locks::break_lock(self, name, token, confirm_until, limit))
    }

    fn guarantees(&self) -> Guarantees {
        guarantees::read(self)
    }
}

impl Observe for Redis {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move {
            let (keys, shown) = (self.prefix.keys(&name)?, LockInfo::SHOWN_WAITERS);
            inspect::inspect(self, keys, name.clone(), shown, limit).await
        })
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(async move { inspect::list(self, &page, limit).await })
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, POLL_INTERVAL, name, seen))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.connection.shown())
    }
}
