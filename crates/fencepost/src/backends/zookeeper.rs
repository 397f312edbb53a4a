//! `zookeeper://HOST,HOST/CHROOT` a ZooKeeper that is there already.
//!
//! The lock is a directory, its path the lock's name (names.rs). Whoever wants it makes an ephemeral, numbered
//! node there; the lowest number holds, and each waits for the one before it to go. The nodes are called as
//! Curator's `InterProcessMutex` or kazoo's `Lock` calls them (nodes.rs), so these exclude us, and we them.
//!
//! *Why grants exclude:* the leader numbers the nodes of a directory in the order in which it makes them, and no
//! lower number comes later. Our turn has come when the list shows none before ours, however old the list is:
//! what it shows too much of makes us wait. A node is there as long as its session, and the leader ends a
//! session when it has not heard of it for the timeout. A lease is two thirds of the timeout, and counts from
//! a moment of which we know that the leader has heard of us since (beat.rs), so a guard is lost before its
//! session is.
//! *Why tokens rise:* the token is the number of the transaction that made the node (czxid). The leader counts
//! them for the whole ensemble, a new leader begins a higher epoch, and nodes are granted in the order in
//! which they were made. The number in a node's name begins anew with its directory: it is no token.
//! *Where that ends:* with the data. Servers that are restored from old files, or a majority of them that lost
//! its disks (or never synced them, `forceSync=no`), grant again and count again. A clock is not needed:
//! but a leader that stands still may end sessions early when it goes on (beat.rs).
//!
//! *Sessions:* grants of one TTL share one session, kept alive by pings, and each has a heartbeat of its own: a
//! write to its node, which no server answers without the leader, unlike a ping. A grant that is not renewed
//! is taken back at the end of its lease, since the session goes on for the others. A script's grant has a
//! session of its own that only renewals keep; its password lies sealed in the node, for the owner alone, so
//! that another process can carry on.
//! *Elections:* the same line, but that a candidate's node has its value and nothing else (notes.rs), as Curator's
//! `LeaderSelector` and `LeaderLatch` and kazoo's `Election` have it. *Records* are nodes that stay (records.rs).
//! *Waiting:* a watch on the node before ours, and a look at our own node and session before we believe.
//! *Lateness:* a session's requests are carried out in the order in which they were sent, and once it is
//! attached to another server nothing sent through the old one is. So after a break we look whether a node with
//! our mark is there before another is made, and a release on the same session comes behind all of it.

mod address;
mod asks;
mod beat;
mod broken;
mod conn;
mod dial;
mod faults;
mod found;
mod grants;
mod keep;
mod line;
mod names;
mod nodes;
mod notes;
mod ops;
mod patience;
mod pipe;
mod places;
mod record;
mod record_dirs;
mod record_gc;
mod records;
mod session;
mod shared;
mod time;
mod tls;
mod views;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

pub(crate) use self::address::ZooKeeperUrl;
use self::faults::Fault;
use self::names::path_of;
use self::notes::check_value;
use self::places::Place;
use self::shared::{CLOSE, Shared};
use crate::backend::{BoxFuture, Broken, Glimpse, Liveness, LockInfo, Surroundings};
use crate::backends::bridge::{Acquired, Backend, Observe, Renewal, Renewed, Request, Wait};
use crate::error::{Error, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};
use crate::race::race;

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
        shared.control().ready().await.map_err(Fault::into_error)?;
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
        for (_, session) in self.shared.sessions().drain() {
            self.shared.close_later(&session);
        }
        for place in self.shared.places.all(|place| place.liveness == Liveness::LeaseOnly) {
            if let Some(session) = place.session() {
                session.leave();
            }
        }
    }
}

/// Stops the task of an acquire that nobody waits for any more.
struct Stop(Option<AbortHandle>);

impl Drop for Stop {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Backend for ZooKeeper {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move {
            let shared = &self.shared;
            check_value(request.value.as_ref())?;
            if request.value.is_some() && request.liveness == Liveness::LeaseOnly {
                return Err(grants::lease_only_refused(&request.name));
            }
            let dir = path_of(&shared.chroot, &request.name);
            let place = shared.places.enter(Place::new(&request, dir));
            if let Some(grant) = shared.granted_before(&place).await? {
                return Ok(Acquired::Granted(grant));
            }
            let (tell, told) = oneshot::channel();
            let task = line::stand(Arc::clone(shared), Arc::clone(&place), wait, tell);
            let task = shared.around.runtime.spawn(task).abort_handle();
            place.hand_to(task.clone());
            let mut stop = Stop(Some(task));
            let answer = told.await.unwrap_or_else(|_| {
                Err(Error::unreachable("this acquire was withdrawn, or its client is closing"))
            })?;
            // Granted, it goes on to look after the grant.
            stop.0 = None;
            Ok(answer)
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            // All are under way at once; a session keeps their order.
            let asked = batch.iter().map(|renewal| grants::renew(&self.shared, renewal));
            futures_util::future::join_all(asked).await
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { grants::release(&self.shared, &name, owner).await })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move { self.shared.break_lock(&name, token, confirm_until).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move { self.shared.inspect(&name, LockInfo::SHOWN_WAITERS).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(self.shared.list())
    }

    fn guarantees(&self) -> Guarantees {
        let (lines, correctness, read) = {
            let found = self.shared.found();
            (found.0.lines(), found.0.correctness(), found.1)
        };
        // Whoever asks again sees what has become of them.
        if self.shared.now().since(read) >= REFRESH {
            self.shared.found().1 = self.shared.now();
            let shared = Arc::clone(&self.shared);
            self.shared.around.runtime.spawn(async move { shared.look_around().await });
        }
        Guarantees { found: lines, ..guarantees(correctness) }
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.close_idle(Duration::ZERO);
            let mut closing = self.shared.closing.subscribe();
            let none = closing.wait_for(|count| *count == 0);
            race(none, self.shared.around.clock.alarm(self.shared.now() + CLOSE)).await;
        })
    }
}

fn guarantees(correctness: Correctness) -> Guarantees {
    // What makes it unfit is sessions that may end before their guards know (found.rs).
    let in_time = match &correctness {
        Correctness::Fit => Kept::both(
            "a holder that is cut off is told before its session ends; without a quorum nobody \
             is granted",
        ),
        Correctness::Unfit { .. } => Kept {
            exclusion: Holds::No,
            tokens: Holds::Yes,
            note: "a session may end before its guard knows: see \"for correctness\"",
        },
    };
    Guarantees {
        backend: "zookeeper",
        scope: "all who use this ensemble and path, Curator's or kazoo's locks included",
        records: Records::like(&correctness),
        correctness,
        fifo: true,
        wake: "each waits for the one before it to go (a watch)",
        clock: "the leader's monotonic clock",
        longest: Ttl::MAX,
        lengthens: false,
        found: Vec::new(),
        under: [
            Kept::both(
                "the lock is free when its session has timed out: one and a half TTLs and a tick and a half at most; a failover starts it anew",
            ),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both("every write is synced on a majority before it is answered"),
            // beat.rs says when.
            Kept {
                exclusion: Holds::No,
                tokens: Holds::Yes,
                note: "the new leader has every grant, and gives each session its whole timeout again; but a \
                       leader that stood still and goes on may end sessions early: fence the resource",
            },
            Kept::none_such("no lock goes by a wall clock; records are kept by the leader's"),
            in_time,
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "servers restored from old data grant again, with old tokens",
            },
        ],
    }
}

impl Observe for ZooKeeper {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(self.shared.changed(name, seen))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({}{})", self.shared.servers.shown(), self.shared.chroot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarantees::Fault;

    #[test]
    fn sessions_that_may_end_too_early_are_declared() {
        let unfit = Correctness::Unfit { why: String::new(), remedy: String::new() };
        for (correctness, exclusion) in [(Correctness::Fit, Holds::Yes), (unfit, Holds::No)] {
            let kept = guarantees(correctness);
            let (_, partition) = kept.rows().find(|(it, _)| *it == Fault::Partition).unwrap();
            assert_eq!((partition.exclusion, partition.tokens), (exclusion, Holds::Yes));
            // A leader that stood still, whatever the limits are.
            let (_, failover) = kept.rows().find(|(it, _)| *it == Fault::Failover).unwrap();
            assert_eq!((failover.exclusion, failover.tokens), (Holds::No, Holds::Yes));
        }
    }
}
