//! `etcd://HOST,HOST,HOST` an etcd that is there already, alone or a cluster.
//!
//! The lock is what Go's `concurrency.Mutex`, `etcdctl lock` and `elect`, and etcd's own lock service make
//! of it: a key under the name, tied to a lease; the oldest key holds (layout.rs). So they exclude us, and we
//! them. Each grant has a lease of its own: two on one lease would share the key, and both hold.
//!
//! *Why grants exclude:* a key's `create_revision` is given once, by the cluster's log, and only the lowest
//! of a name holds. It goes when its key goes: by a release, a break, or the end of its lease. A guard
//! counts its deadline from before its request, so it is lost before the lease can end. A keep-alive alone
//! proves nothing, since a leader that was replaced while it stood still answers it as well: it counts
//! only if a read of our own key after it went through the cluster, in the same term (renew.rs).
//! *Why tokens rise:* the token is that `create_revision`. Revisions only rise, and a grant is made only when
//! no older key is left, so a later grant has a younger key.
//! *Where that ends:* a cluster that is restored from a backup has its old revisions again (etcd#16028). A
//! leader that was replaced may revoke leases that are alive (etcd#12528, #15247): the store then grants
//! early, and the old holder learns of it at its next renewal; that is for the fence.
//!
//! *Breaks:* the holder's key is deleted and a note is put, in one step. The holder watches its key (`holder_watch.rs`), and
//! its release takes the note away: that confirms the break.
//!
//! *Elections:* the key of a candidate is the same, and its value is what it says, as Go's `concurrency.Election`
//! has it. So `etcdctl elect` reads ours, and we read theirs.
//!
//! *Waiting:* each watches the one before it, and only that one (queue.rs). First come, first served, other
//! makes of client included.
//! *Lateness:* what an acquire has sent is seen through to its end even if nobody waits for it any more, and
//! a release of the same owner comes after that. If the connection breaks, an acquire may still come
//! after its release: then its lease runs out.
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
    reason = "generated; what the messages mean is told where they are used"
)]
mod api;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl};

pub(crate) use self::config::EtcdUrl;
use self::connection::Connection;
pub use self::guarantees::guarantees_of;
use self::holder_watch::HolderWatch;
use self::layout::Prefix;
use self::locks::InFlight;
use self::queue::Positions;
use self::server_info::Found;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Reply, Request, StoreCall, StoreError, StoreResult, Surroundings,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::retry::CALL_TIMEOUT;

/// The pause before a watch is opened again that failed, and before a waiter asks a cluster again that does not answer.
const REWATCH_DELAY: Duration = Duration::from_millis(50);

/// A store on an etcd cluster.
pub struct Etcd(Arc<Shared>);

/// What tasks share that outlive the call that started them.
struct Shared {
    connection: Connection,
    prefix: Prefix,
    around: Surroundings,
    found: Found,
    /// How many operations the cluster takes in one transaction, as far as is known.
    most_ops: AtomicUsize,
    in_flight: InFlight,
    positions: Positions,
    /// The grants of this client, to be notified when they end.
    holders: HolderWatch,
}

impl Etcd {
    pub(crate) async fn open(url: EtcdUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let connection = Connection::open(&url, around);
        // A quorum must answer, to this user.
        let nothing = requests::range_of((layout::broken_key(0, 0), Vec::new()));
        connection.range(&nothing, around.clock.now() + CALL_TIMEOUT).await?;
        let found = Found::read(&connection).await;
        Ok(Arc::new(Self(Arc::new(Shared {
            connection,
            prefix: Prefix(url.prefix),
            around: around.clone(),
            found,
            most_ops: AtomicUsize::new(requests::MOST_OPS),
            in_flight: InFlight::default(),
            positions: Positions::default(),
            holders: HolderWatch::default(),
        }))))
    }
}

impl Shared {
    fn clock(&self) -> &dyn Clock {
        &*self.around.clock
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }

    /// The reply of a call that is made of several requests.
    async fn replied<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> StoreResult<T> {
        let sent = self.now();
        Ok(Reply::new(call.await?, sent))
    }
}

/// The TTL of a lease that has this many seconds.
fn ttl_from(seconds: i64) -> Result<Ttl, StoreError> {
    let span = u64::try_from(seconds).ok().map(Duration::from_secs);
    span.and_then(|span| Ttl::new(span.min(Ttl::MAX.as_duration())).ok())
        .ok_or_else(|| StoreError::unavailable(format!("etcd gave a lease of {seconds} s")))
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
        Box::pin(self.0.replied(broken))
    }

    fn guarantees(&self) -> Guarantees {
        let Found { lines, version, voters } = &self.0.found;
        Guarantees { found: lines.clone(), ..guarantees::guarantees(*version, *voters) }
    }
}

impl Observe for Etcd {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(self.0.replied(inspect::inspect(&self.0, name, limit)))
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(self.0.replied(inspect::list(&self.0, limit)))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(self.0.replied(inspect::changed(&self.0, name, seen)))
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.0.connection.shown())
    }
}
