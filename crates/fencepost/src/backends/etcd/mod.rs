//! `etcd://HOST,HOST,HOST` an existing etcd, a single server or a cluster.
//!
//! The lock has the layout of Go's `concurrency.Mutex`, `etcdctl lock` and `elect`, and etcd's own lock service: a
//! key under the name, tied to a lease; the oldest key holds (layout.rs). So they exclude us, and we exclude them.
//! Each grant has a lease of its own: two grants on one lease would share the key, and both would hold the lock.
//!
//! *Why grants exclude:* the cluster's log issues each `create_revision` once, and only the key with the lowest one
//! of a name holds it. The grant ends with its key: by a release, a break, or the end of its lease. A guard counts
//! its deadline from before its request, so it is lost before the lease can end. A keep-alive alone proves nothing,
//! since a leader that was paused and replaced answers it as well: it counts only if a read of our own key after it
//! went through the cluster, in the same term (renew.rs).
//! *Why tokens rise:* the token is that `create_revision`. Revisions only rise, and a grant is made only when
//! no older key is left, so a later grant has a younger key.
//! *Where that ends:* a cluster that is restored from a backup has its old revisions again (etcd#16028). A leader
//! that was replaced may revoke live leases (etcd#12528, #15247): the store then grants early, and the old holder
//! learns of it at its next renewal; the fence must stop it until then.
//!
//! *Breaks:* the holder's key is deleted and a note is put, in one step. The holder watches its key (`holder_watch.rs`),
//! and its release deletes the note: that confirms the break.
//!
//! *Elections:* the key of a candidate is the same, and its value is what the candidate publishes, as in Go's
//! `concurrency.Election`. So `etcdctl elect` reads ours, and we read its value.
//!
//! *Waiting:* each waiter watches the key before its own, and only that one. Waiters are granted in order, third-party
//! clients included. One read grants; queue.rs says from when the grant counts.
//! *Late requests:* an acquire that was sent is completed even if its caller is gone, and a release of the same owner
//! comes after that. If the connection breaks, an acquire may still arrive after its release: then its lease
//! expires.
//!
//! *Files:* those of every backend, and `requests.rs` (one function for each RPC), `api.rs` (the stubs of `etcd.proto`),
//! `completion.rs` (work that outlives its caller), `renew.rs` (renewals, and why they count), `holder_watch.rs` (how a
//! holder learns that its key is gone), `record.rs` (what a record looks like).

mod completion;
mod config;
mod connection;
mod error;
mod guarantees;
mod holder_watch;
mod inspect;
mod layout;
mod locks;
mod queue;
mod record;
mod records;
mod renew;
mod requests;
mod server_info;
#[cfg(test)]
mod testing;
mod values;

#[rustfmt::skip]
#[expect(
    unreachable_pub,
    unused_qualifications,
    clippy::enum_variant_names,
    clippy::pedantic,
    reason = "generated; the messages are explained where they are used"
)]
mod api;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl};

use self::config::Config;
pub use self::config::EtcdOptions;
use self::connection::Connection;
pub use self::guarantees::guarantees_of;
use self::holder_watch::HolderWatch;
use self::layout::Prefix;
use self::locks::InFlight;
use self::queue::Positions;
use self::server_info::ServerInfo;
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall, StoreError,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::retry::{CALL_TIMEOUT, replied};

/// The pause before a failed watch is reopened, and before a waiter retries a cluster that does not answer.
const REWATCH_DELAY: Duration = Duration::from_millis(50);

/// A store on an etcd cluster.
pub struct Etcd(Arc<Shared>);

/// Shared with tasks that outlive the call that started them.
struct Shared {
    connection: Connection,
    prefix: Prefix,
    context: BackendContext,
    server_info: ServerInfo,
    /// How many operations the cluster allows in one transaction, as far as we know.
    most_ops: AtomicUsize,
    in_flight: InFlight,
    positions: Positions,
    /// The grants of this client, to be notified when they end.
    holders: HolderWatch,
}

impl Etcd {
    pub(crate) async fn open(options: EtcdOptions, context: &BackendContext) -> Result<Arc<Self>> {
        let config = Config::new(options)?;
        let connection = Connection::open(&config, context);
        // A quorum must answer, to this user.
        let nothing = requests::range_of((layout::broken_key(0, 0), Vec::new()));
        connection.range(&nothing, context.clock.now() + CALL_TIMEOUT).await?;
        let server_info = ServerInfo::read(&connection).await;
        Ok(Arc::new(Self(Arc::new(Shared {
            connection,
            prefix: Prefix(config.prefix),
            context: context.clone(),
            server_info,
            most_ops: AtomicUsize::new(requests::MOST_OPS),
            in_flight: InFlight::default(),
            positions: Positions::default(),
            holders: HolderWatch::default(),
        }))))
    }
}

impl Shared {
    fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }
}

/// The TTL of a lease that has this many seconds.
fn ttl_from(seconds: i64) -> Result<Ttl, StoreError> {
    let span = u64::try_from(seconds).ok().map(Duration::from_secs);
    span.and_then(|span| Ttl::new(span.min(Ttl::MAX.as_duration())).ok())
        .ok_or_else(|| StoreError::unavailable(format!("etcd granted a lease of {seconds} s")))
}

fn token_from(revision: i64) -> Result<Token, StoreError> {
    u64::try_from(revision).ok().and_then(|token| Token::new(token).ok()).ok_or_else(|| {
        StoreError::refused(format!("the revision {revision} of this etcd is too high for a token"))
    })
}

impl Backend for Etcd {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(locks::try_acquire(&self.0, request, queue, limit))
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(queue::wait(&self.0, request, limit))
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(renew::renew(&self.0, batch, limit))
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(locks::release(&self.0, grant, limit))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        let broken = locks::break_lock(&self.0, name, token, confirm_until, limit);
        Box::pin(replied(self.0.clock(), broken))
    }

    fn guarantees(&self) -> Guarantees {
        let ServerInfo { lines, version, voters } = &self.0.server_info;
        guarantees::guarantees(*version, *voters).with_server_info(lines.clone())
    }
}

impl Observe for Etcd {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(replied(self.0.clock(), inspect::inspect(&self.0, name, limit)))
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(replied(self.0.clock(), inspect::list(&self.0, page, limit)))
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(replied(self.0.clock(), inspect::changed(&self.0, name, seen)))
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.0.connection.shown())
    }
}
