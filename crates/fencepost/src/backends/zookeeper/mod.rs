//! `zookeeper://HOST,HOST/CHROOT` an existing ZooKeeper.
//!
//! The lock is a directory, its path the lock's name (layout/names.rs). Each contender creates an ephemeral, numbered
//! node there; the lowest number holds, and each waiter watches the node before its own. The nodes have the names of
//! Curator's `InterProcessMutex` or kazoo's `Lock` (layout/nodes.rs), so these exclude us, and we exclude them.
//!
//! *Why grants exclude:* the leader numbers the nodes of a directory in the order in which it creates them, and no
//! lower number comes later. We hold the lock if the list shows none before our node, however old the list is: a node
//! that it shows although it is gone only makes us wait. A node exists as long as its session, and the leader ends a
//! session when it has had no sign of it for the timeout. A lease is two thirds of the timeout, and counts from a moment
//! after which the leader is known to have had a sign of us (`client/lease_credit.rs`), so a guard is lost before its
//! session ends.
//! *Why tokens rise:* the token is the number of the transaction that created the node (czxid). The leader counts
//! them for the whole ensemble, a new leader begins a higher epoch, and nodes are granted in the order in which they
//! were created. The number in a node's name restarts with its directory, so it cannot be the token.
//! *Where that ends:* with the data. Servers that are restored from old files, or a majority that lost its disks (or
//! never synced them, `forceSync=no`), grant again with old tokens. No wall clock matters, but a leader that was paused
//! may end sessions early when it continues (`client/lease_credit.rs`).
//!
//! *Sessions:* grants with the same TTL share one session, kept alive by pings, and each has a heartbeat of its own: a
//! write to its node, which no server answers without the leader, unlike a ping. The client deletes the node of a grant
//! that was not renewed when its lease ends, since the session stays for the others. A script's grant has a session of
//! its own that only renewals keep alive; the session's password is in the node, encrypted for the owner, so that another
//! process can continue.
//! *Elections:* the same queue, except that a candidate's node has its value and nothing else (`layout/node_data.rs`), as
//! in Curator's `LeaderSelector` and `LeaderLatch` and kazoo's `Election`. *Records* are persistent nodes (records.rs).
//! *Waiting:* a watch on the node before ours, and a read of our own node and session before it is granted. The grant
//! counts from the session's last write that was confirmed, whichever node it was about: the session ends no earlier than
//! that and a lease, and our node no earlier than the session. So one write in a third of a lease serves all waiters of a
//! session, and the hand-over none. A ping proves nothing: a follower that was cut off answers it. Somebody may delete our node
//! while the server that we read from still shows it. That is a break: as any holder, we learn it from the watch on
//! our node, or else from a heartbeat. If less than two thirds of the lease are left, the grant must be confirmed.
//! *Late requests:* a session's requests are executed in the order in which they were sent, and once it is attached to
//! another server, none sent through the old one is. So after a broken connection we look for a node of our owner before
//! we create another, and a release on the same session comes after all of it.
//!
//! No `connection.rs`: that is `client`, a client of ZooKeeper that knows nothing of locks. No `values.rs`: a candidate's
//! value is its node's data, written with the node and by heartbeats. A try takes a position, so it is in `queue.rs`.
//! Also: `positions.rs` (the nodes of our owners), `shared.rs` (the sessions, and how nodes are found), `record.rs` (what a
//! record is on the server), `record_dirs.rs` (its directories), `record_gc.rs` (deletes expired ones), `time.rs` (the
//! leader's clock).

mod client;
mod config;
mod error;
mod guarantees;
mod inspect;
mod layout;
mod locks;
mod positions;
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

use self::client::{protocol, session, wire};
use self::config::Config;
pub use self::config::{Style, ZooKeeperOptions};
use self::layout::{names, nodes};
use self::shared::Shared;
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, Liveness, LockInfo, LockVersion,
    NotHeld, Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall,
};
use crate::backends::renew_each;
use crate::error::Result;
use crate::guarantees::Guarantees;

/// How often unused sessions and positions are checked.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// How old the server info may be.
const REFRESH: Duration = Duration::from_secs(5);

/// A store on one ZooKeeper ensemble.
pub struct ZooKeeper {
    shared: Arc<Shared>,
    maintenance: AbortHandle,
}

impl ZooKeeper {
    pub(crate) async fn open(
        options: ZooKeeperOptions,
        context: &BackendContext,
    ) -> Result<Arc<Self>> {
        let shared = Arc::new(Shared::new(Config::new(options)?, context));
        shared.control().ready().await?;
        shared.look_around().await;
        let weak = Arc::downgrade(&shared);
        let maintenance = context.runtime.spawn(async move {
            while let Some(shared) = weak.upgrade() {
                shared.gc();
                let clock = Arc::clone(&shared.context.clock);
                drop(shared);
                clock.alarm(clock.now() + MAINTENANCE_INTERVAL).await;
            }
        });
        // Sessions that carry nothing would stay until they time out.
        let (weak, closing) = (Arc::downgrade(&shared), context.closing.clone());
        let close = async move {
            closing.cancelled().await;
            if let Some(shared) = weak.upgrade() {
                shared.close_idle(Duration::ZERO).await;
            }
        };
        context.tasks.spawn_on(close, &context.runtime);
        Ok(Arc::new(Self { shared, maintenance: maintenance.abort_handle() }))
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.maintenance.abort();
        // Their nodes end with them. A script's grants stay until their sessions expire.
        for (_, session) in self.shared.sessions.lock().drain() {
            self.shared.close_later(&session);
        }
        for position in
            self.shared.positions.all(|position| position.liveness == Liveness::LeaseOnly)
        {
            if let Some(session) = position.session() {
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
            // A session keeps their order.
            renew_each(&batch, |renewal| locks::renew(&self.shared, renewal, limit)).await
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
            let server_info = self.shared.server_info.lock();
            (server_info.0.lines(), server_info.0.correctness(), server_info.1)
        };
        // A later call sees the result.
        if self.shared.now().since(read) >= REFRESH {
            self.shared.server_info.lock().1 = self.shared.now();
            let shared = Arc::clone(&self.shared);
            self.shared.context.runtime.spawn(async move { shared.look_around().await });
        }
        guarantees::of(correctness).with_server_info(lines)
    }
}

impl Observe for ZooKeeper {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { Ok(self.shared.look(&name, limit).await?.map(|(info, _)| info)) })
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(async move { self.shared.list(&page, limit).await })
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(self.shared.changed(name, seen))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({}{})", self.shared.servers.shown(), self.shared.chroot)
    }
}
