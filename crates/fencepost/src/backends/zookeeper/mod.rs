//! `zookeeper://HOST,HOST/CHROOT` a ZooKeeper that is there already.
//!
//! The lock is a directory, its path the lock's name (layout/names.rs). Whoever wants it makes an ephemeral, numbered
//! node there; the lowest number holds, and each waits for the one before it to go. The nodes are called as
//! Curator's `InterProcessMutex` or kazoo's `Lock` calls them (layout/nodes.rs), so these exclude us, and we them.
//!
//! *Why grants exclude:* the leader numbers the nodes of a directory in the order in which it makes them, and no
//! lower number comes later. Our turn has come when the list shows none before ours, however old the list is:
//! what it shows too much of makes us wait. A node is there as long as its session, and the leader ends a
//! session when it has not heard of it for the timeout. A lease is two thirds of the timeout, and counts from
//! a moment of which we know that the leader has heard of us since (client/beat.rs), so a guard is lost before its
//! session is.
//! *Why tokens rise:* the token is the number of the transaction that made the node (czxid). The leader counts
//! them for the whole ensemble, a new leader begins a higher epoch, and nodes are granted in the order in
//! which they were made. The number in a node's name begins anew with its directory: it is no token.
//! *Where that ends:* with the data. Servers that are restored from old files, or a majority of them that lost
//! its disks (or never synced them, `forceSync=no`), grant again and count again. A clock is not needed:
//! but a leader that stands still may end sessions early when it goes on (client/beat.rs).
//!
//! *Sessions:* grants of one TTL share one session, kept alive by pings, and each has a heartbeat of its own: a
//! write to its node, which no server answers without the leader, unlike a ping. A grant that is not renewed
//! is taken back at the end of its lease, since the session goes on for the others. A script's grant has a
//! session of its own that only renewals keep; its password lies sealed in the node, for the owner alone, so
//! that another process can carry on.
//! *Elections:* the same line, but that a candidate's node has its value and nothing else (layout/notes.rs), as Curator's
//! `LeaderSelector` and `LeaderLatch` and kazoo's `Election` have it. *Records* are nodes that stay (records.rs).
//! *Waiting:* a watch on the node before ours, and a look at our own node and session before we believe.
//! *Lateness:* a session's requests are carried out in the order in which they were sent, and once it is
//! attached to another server nothing sent through the old one is. So after a break we look whether a node with
//! our mark is there before another is made, and a release on the same session comes behind all of it.
//!
//! No `connection.rs`: that is `client`, a client of ZooKeeper that knows nothing of locks. No `values.rs`: a candidate's
//! value is its node's data, written with the node and by heartbeats. A try takes a place in line, so it is in
//! `queue.rs`. Besides: `places.rs` (what our owners have at the servers), `shared.rs` (the sessions, and how nodes are
//! looked for).

mod client;
mod config;
mod error;
mod guarantees;
mod inspect;
mod layout;
mod locks;
mod places;
mod queue;
mod record;
mod record_dirs;
mod record_gc;
mod records;
mod server_info;
mod shared;
mod time;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use tokio::task::AbortHandle;

use self::client::{ops, session, wire};
pub(crate) use self::config::ZooKeeperUrl;
use self::layout::{names, nodes};
use self::shared::Shared;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, Liveness, LockInfo, NotHeld, Observe,
    Queue, Renewal, Renewals, Request, StoreCall, Surroundings,
};
use crate::error::Result;
use crate::guarantees::Guarantees;

/// How often sessions and places are looked at that nobody uses.
const UPKEEP: Duration = Duration::from_secs(5);
/// How old what is known of the servers may be.
const REFRESH: Duration = Duration::from_secs(5);

/// A store on one ZooKeeper ensemble.
pub struct ZooKeeper {
    shared: Arc<Shared>,
    upkeep: AbortHandle,
}

impl ZooKeeper {
    pub(crate) async fn open(url: ZooKeeperUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let shared = Arc::new(Shared::new(url, around));
        shared.control().ready().await?;
        shared.look_around().await;
        let weak = Arc::downgrade(&shared);
        let upkeep = around.runtime.spawn(async move {
            while let Some(shared) = weak.upgrade() {
                shared.tidy();
                let clock = Arc::clone(&shared.around.clock);
                drop(shared);
                clock.alarm(clock.now() + UPKEEP).await;
            }
        });
        Ok(Arc::new(Self { shared, upkeep: upkeep.abort_handle() }))
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.upkeep.abort();
        // What they carry goes with them. A script's grants stay, until their sessions run out.
        for (_, session) in self.shared.sessions.lock().drain() {
            self.shared.close_later(&session);
        }
        for place in self.shared.places.all(|place| place.liveness == Liveness::LeaseOnly) {
            if let Some(session) = place.session() {
                session.leave();
            }
        }
    }
}

impl Backend for ZooKeeper {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move { queue::try_acquire(&self.shared, &request, queue, limit).await })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move { queue::wait(&self.shared, &request, limit).await })
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(async move {
            // All are under way at once; a session keeps their order.
            let asked = batch.iter().map(|renewal| locks::renew(&self.shared, renewal, limit));
            futures_util::future::join_all(asked).await
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move { locks::release(&self.shared, &grant, limit).await })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(async move { self.shared.break_lock(&name, token, confirm_until, limit).await })
    }

    fn guarantees(&self) -> Guarantees {
        let (lines, correctness, read) = {
            let found = self.shared.found.lock();
            (found.0.lines(), found.0.correctness(), found.1)
        };
        // Whoever asks again sees what has become of them.
        if self.shared.now().since(read) >= REFRESH {
            self.shared.found.lock().1 = self.shared.now();
            let shared = Arc::clone(&self.shared);
            self.shared.around.runtime.spawn(async move { shared.look_around().await });
        }
        Guarantees { found: lines, ..guarantees::of(correctness) }
    }

    /// Closes the sessions that carry nothing: they would stay until they time out.
    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.close_idle(Duration::ZERO))
    }
}

impl Observe for ZooKeeper {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { Ok(self.shared.look(&name, limit).await?.map(|(info, _)| info)) })
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(self.shared.list(limit))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(self.shared.changed(name, seen))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({}{})", self.shared.servers.shown(), self.shared.chroot)
    }
}
