//! `redis://HOST:PORT/DB` a Redis that is there already. `rediss://` for TLS, `redis+unix:///PATH` for a socket.
//!
//! The lock is the key that every Redis lock client uses: its name, a string with the holder's id, set only
//! if absent, with an expiry, deleted only by compare (layout.rs). So redis-py's `Lock`, npm `redlock` and
//! others exclude us, and we them.
//!
//! *Why grants exclude:* each step is one script, and the server runs one script at a time. A grant is made
//! only where the key is absent, and the key stays for the TTL from then on. A guard counts its deadline
//! from before its request, so it is lost before the key is.
//! *Why tokens rise:* the grant's script draws `max(last + 1, microseconds now)`, where `last` is kept
//! beside the lock until the server's clock has passed it by the retention. If it is lost before, with
//! all the data or by a failover, the time alone is higher than any token drawn so far.
//! *Where that ends:* exclusion ends with the key: a server that restarts or fails over without its last
//! writes, FLUSHALL, an eviction, a jump of the server's clock. Tokens fall only if the record is lost and
//! the clock is behind where it was: that of a replica that took over, or one that was ahead for longer than the
//! retention and was then set back. So a lock here is for correctness only on a server that syncs every
//! write, has no replicas, evicts nothing, and has a clock like ours (`server_info.rs`).
//!
//! *Waiting:* who waits stands in a queue beside the lock, by arrival, and keeps its place with a word every
//! 250 ms. A release tells the first of them, and only that one; a free lock is given to nobody else of
//! ours while the first one's place is kept. Other makes of client see neither queue nor word: they poll
//! and may overtake. They publish nothing either, which is one reason to look every 250 ms.
//! *Elections:* what a candidate says of itself lies beside the lock, under its owner's id, and ends with the
//! lease. It is written in the script that grants or renews, so it is never another leader's.
//! *Lateness:* a request may arrive after the one that should undo it, when it was sent on a connection that
//! broke, on another one, or behind it in a batch. A release that finds nothing, or that undoes an acquire whose
//! outcome is unknown (unanswered.rs), leaves a note for its owner, and a late acquire finds it.
//! *Breaking:* a break publishes (name, token), and the holder renews at once and learns the rest from the answer. Its
//! release leaves the same note, which confirms to whoever broke it that the holder knows.
//!
//! config.rs, error.rs and `server_info.rs` are in `fencepost_base::redis`: the fence uses them too. There is no queue.rs
//! (polling.rs waits) and no values.rs (the script that grants or renews writes the value). Beyond the
//! files that every backend has: reply.rs reads what scripts answer; pipeline.rs, socket.rs, `caller_socket.rs` and
//! maintenance.rs are below the connection; subscriber.rs is what the server publishes to us, drift.rs its clock.

mod caller_socket;
mod connection;
mod drift;
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

use fencepost_base::redis::{RedisUrl, config, error, server_info};
use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

pub(in crate::backends) use self::{
    config::Address,
    connection::Connection,
    error::is_wrong_type,
    inspect::{listed, lock_names, shown_name},
    layout::{Keys, Prefix},
    locks::{remember_ms, until_confirmed, value_number},
    reply::{Ballot, KeyHolder, Listed, ScriptReply, Seen},
    scripts::{Call, STEPS},
    subscriber::Subscriber,
};
use super::polling::wait_by_polling;
use super::unanswered::Unanswered;
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Request, StoreCall, Surroundings,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::retry::CALL_TIMEOUT;

/// How long a waiter or an observer trusts what it saw.
pub(in crate::backends) const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long the first in line waits for a third-party client, which notifies nobody when it releases.
pub(in crate::backends) const LOOK_AT_STRANGERS: Duration = Duration::from_millis(50);
/// How long after it left an acquire may arrive: as long as a server keeps its note, and time to send it.
pub(in crate::backends) const LATE: Duration = REMEMBER.saturating_mul(2);
/// How long an owner is remembered that was released before it came, at most.
const REMEMBER: Duration = Duration::from_mins(1);

/// A store on one Redis server.
pub struct Redis {
    connection: Connection,
    clock: Arc<dyn Clock>,
    prefix: Prefix,
    /// In milliseconds, as the scripts are told.
    retention: u64,
    subscriber: Arc<Subscriber>,
    unanswered: Unanswered,
}

impl Redis {
    pub(crate) async fn open(url: RedisUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let (clock, prefix) = (Arc::clone(&around.clock), Prefix::new(url.options.prefix.clone())?);
        let subscriber = Subscriber::new(url.address.db(), &prefix)?;
        let connection = Connection::open(url.address, around, &subscriber);
        connection.connected(clock.now() + CALL_TIMEOUT).await?;
        let retention = url.options.token_retention().as_millis() as u64;
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
            Ok(locks::poll(self, &request, queue, limit).await?.map(|polled| polled.acquired))
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
            // All are under way at once; the connection keeps their order.
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

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(inspect::list(self, limit))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.connection.shown())
    }
}
