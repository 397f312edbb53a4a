//! `etcd://HOST,HOST,HOST` an etcd that is there already, alone or a cluster.
//!
//! The lock is what Go's `concurrency.Mutex`, `etcdctl lock` and `elect`, and etcd's own lock service make
//! of it: a key under the name, tied to a lease; the oldest key holds (keys.rs). So they exclude us, and we
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
//! *Waiting:* each watches the one before it, and only that one (line.rs). First come, first served, other
//! makes of client included.
//! *Lateness:* what an acquire has sent is seen through to its end even if nobody waits for it any more, and
//! a release of the same owner comes after that. If the connection breaks, an acquire may still come
//! after its release: then its lease runs out.

mod address;
#[rustfmt::skip]
#[expect(
    unreachable_pub,
    unused_qualifications,
    clippy::enum_variant_names,
    clippy::pedantic,
    reason = "generated; what the messages mean is told where they are used"
)]
mod api;
mod calls;
mod faults;
mod found;
mod holder_watch;
mod keys;
mod line;
mod link;
mod record;
mod records;
mod renew;
mod through;
mod views;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::sync::{oneshot, watch};

pub(crate) use self::address::EtcdUrl;
use self::faults::Fault;
use self::found::{Found, Version};
use self::holder_watch::HolderWatch;
use self::keys::{Prefix, lease_of};
use self::line::{Place, Waited, token_from};
use self::link::Link;
use self::through::Through;
use crate::backend::{BoxFuture, Broken, Glimpse, LockInfo, Surroundings};
use crate::backends::bridge::{Acquired, Backend, Grant, Observe, Renewal, Renewed, Request, Wait};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};
use crate::race::{First, race};

/// How long a call is tried that names no limit. Shorter than the library waits, so that the error can say
/// which members failed.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long one who waits puts up with a cluster that can not answer: longer than it takes to elect a leader.
const OUTAGE: Duration = Duration::from_secs(15);
/// How long to leave a member alone that just failed.
const BREATH: Duration = Duration::from_millis(50);
/// By how much the last question of one who waits may overrun its limit.
const OVERTIME: Duration = Duration::from_millis(100);
/// How long one who came too late waits for its withdrawal, and to be told who has the lock.
const FAREWELL: Duration = Duration::from_millis(120);
/// The same for one that did not want to wait, and has no limit to keep.
const TRY_FAREWELL: Duration = Duration::from_secs(2);
/// How long we ask the members how they do when we connect.
const HEALTH_WITHIN: Duration = Duration::from_millis(500);

/// A store on an etcd cluster.
pub struct Etcd(Arc<Desk>);

/// What tasks share that outlive the call that started them.
struct Desk {
    link: Link,
    prefix: Prefix,
    around: Surroundings,
    found: Found,
    /// How many operations the cluster takes in one transaction, as far as is known.
    most_ops: AtomicUsize,
    /// The leases of acquires and releases that are under way.
    under_way: watch::Sender<HashSet<i64>>,
    /// The grants of this client, to be notified when they end.
    holders: HolderWatch,
}

impl Etcd {
    pub(crate) async fn open(url: EtcdUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let link = Link::open(&url, around);
        // A quorum must answer, to this user.
        let prefix = Prefix(url.prefix);
        let nothing = calls::range_of((keys::broken_key(0, 0), Vec::new()));
        let limit = around.clock.now() + PATIENCE;
        link.range(&nothing, limit).await.map_err(Fault::into_error)?;
        let found = Found::read(&link, around.clock.now() + HEALTH_WITHIN).await;
        let around = around.clone();
        let under_way = watch::Sender::new(HashSet::new());
        let most_ops = AtomicUsize::new(calls::MOST_OPS);
        let holders = HolderWatch::default();
        let desk = Desk { link, prefix, around, found, most_ops, under_way, holders };
        Ok(Arc::new(Self(Arc::new(desk))))
    }
}

/// Keeps a lease on the list of those that are under way.
struct UnderWay {
    desk: Arc<Desk>,
    lease: i64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.desk.under_way.send_modify(|leases| {
            leases.remove(&self.lease);
        });
    }
}

impl Desk {
    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.around.clock
    }

    fn through<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Through<T> {
        Through::new(self.link.caller_has_lane(), &self.around.runtime, work)
    }

    /// Takes a lease onto the list of those that are under way, once it is not there any more: what is done
    /// about one lease is done one after the other.
    async fn under_way(self: &Arc<Self>, lease: i64) -> UnderWay {
        while !self.under_way.send_if_modified(|leases| leases.insert(lease)) {
            let mut listed = self.under_way.subscribe();
            // The sender lives as long as we do, so waiting can not fail.
            let _ = listed.wait_for(|leases| !leases.contains(&lease)).await;
        }
        UnderWay { desk: Arc::clone(self), lease }
    }

    /// Takes a place in line, and waits there if it is not the first.
    async fn acquire(self: &Arc<Self>, request: Request, wait: Wait) -> Result<Acquired, Fault> {
        let until = match wait {
            Wait::No => self.now() + PATIENCE,
            Wait::Until(until) => until,
            Wait::Forever => Moment::NEVER,
        };
        let limit = (self.now() + OUTAGE).min(until.max(self.now()) + OVERTIME);
        let lease = lease_of(&request.name, request.owner);
        let (name, loss) = (request.name.clone(), request.loss.clone());
        let under_way = self.under_way(lease).await;
        let desk = Arc::clone(self);
        // To its end, even if nobody waits for it any more: a release comes after that.
        let entering = self.through(async move {
            let _under_way = under_way;
            let Some(mut place) = desk.enter(&request, lease, limit).await? else {
                return Ok(None);
            };
            desk.see(&request.name, &mut place, limit).await?;
            Ok(Some(place))
        });
        let Some(mut place) = entering.await? else { return Ok(Acquired::PlaceLost) };
        if place.is_first() {
            self.watch_holder(&name, &place, &loss);
            return granted(&place, place.old);
        }
        let desk = Arc::clone(self);
        let (mut answer, answered) = oneshot::channel();
        // A place is kept from our own thread, and as long as somebody waits for it.
        self.around.runtime.spawn(async move {
            let waiting = async {
                if wait == Wait::No {
                    return desk.withdraw(&name, &place, TRY_FAREWELL).await;
                }
                match desk.wait(&name, &mut place, until).await? {
                    Waited::First => {
                        desk.watch_holder(&name, &place, &loss);
                        granted(&place, false)
                    }
                    Waited::Gone => Ok(Acquired::PlaceLost),
                    Waited::TooLate => desk.withdraw(&name, &place, FAREWELL).await,
                }
            };
            if let First::Left(acquired) = race(waiting, answer.closed()).await {
                let _ = answer.send(acquired);
            }
        });
        answered
            .await
            .unwrap_or_else(|_| Err(Fault::Unreachable("waiting for etcd panicked".into())))
    }

    /// Revokes a lease, to the end of it even if nobody waits for that any more.
    async fn revoke(self: &Arc<Self>, lease: i64, limit: Moment) -> Result<(), Fault> {
        let under_way = self.under_way(lease).await;
        let desk = Arc::clone(self);
        self.through(async move {
            let _under_way = under_way;
            desk.link.revoke(lease, limit).await.map(|_| ())
        })
        .await
    }

    /// Leaves the line, and says who has the lock.
    async fn withdraw(
        self: &Arc<Self>,
        name: &LockName,
        place: &Place,
        farewell: Duration,
    ) -> Result<Acquired, Fault> {
        let limit = self.now() + PATIENCE;
        let lease = place.lease;
        // We shall say that nothing is left, so it goes on until that is so, whoever waits for it.
        let leaving = self.revoke(lease, self.now() + ttl_from(place.ttl)?.as_duration());
        let asking = async {
            let holder = self.holder(name, limit).await?;
            match holder.filter(|kv| kv.lease != lease) {
                Some(kv) => self.holder_info(&kv, limit).await.map(Some),
                None => Ok(None),
            }
        };
        let both = futures_util::future::join(leaving, asking);
        match race(both, self.clock().alarm(self.now() + farewell)).await {
            First::Left((left, holder)) => match left {
                Ok(()) | Err(Fault::NoLease { .. }) => {
                    Ok(Acquired::Held(holder.unwrap_or_default()))
                }
                Err(fault) => Err(fault),
            },
            // It goes on; whoever waits for it sees that.
            First::Right(()) => Ok(Acquired::Held(None)),
        }
    }

    async fn release(self: &Arc<Self>, name: &LockName, owner: OwnerId) -> Result<()> {
        let lease = lease_of(name, owner);
        self.holders.remove(lease);
        let limit = self.now() + PATIENCE;
        let again = match self.revoke(lease, limit).await {
            Ok(()) => return Ok(()),
            Err(Fault::NoLease { again }) => again,
            Err(fault) => return Err(fault.into_error()),
        };
        match self.confirm_broken(lease, limit).await {
            // The answer to our first try was lost.
            None if again => Ok(()),
            cause => Err(Error::not_held(name, cause)),
        }
    }
}

fn granted(place: &Place, queued: bool) -> Result<Acquired, Fault> {
    let (token, ttl) = (token_from(place.made)?, ttl_from(place.ttl)?);
    Ok(Acquired::Granted(Grant { token, ttl, sent: place.sent, queued, presence: None }))
}

/// The TTL of a lease that has this many seconds.
fn ttl_from(seconds: i64) -> Result<Ttl, Fault> {
    let span = u64::try_from(seconds).ok().map(Duration::from_secs);
    span.and_then(|span| Ttl::new(span.min(Ttl::MAX.as_duration())).ok())
        .ok_or_else(|| Fault::Elsewhere(format!("etcd gave a lease of {seconds} s")))
}

impl Backend for Etcd {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move {
            self.0.prefix.check(&request.name)?;
            self.0.acquire(request, wait).await.map_err(Fault::into_error)
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move { self.0.renew(&batch).await })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.0.prefix.check(&name)?;
            self.0.release(&name, owner).await
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move {
            self.0.prefix.check(&name)?;
            self.0.break_lock(&name, token, confirm_until).await.map_err(Fault::into_error)
        })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            self.0.prefix.check(&name)?;
            let seen = self.0.inspect(&name).await.map_err(Fault::into_error)?;
            Ok(seen.info)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move { self.0.list().await.map_err(Fault::into_error) })
    }

    fn guarantees(&self) -> Guarantees {
        let Found { lines, version, voters } = &self.0.found;
        Guarantees { found: lines.clone(), ..guarantees(*version, *voters) }
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut listed = self.0.under_way.subscribe();
            let _ = listed.wait_for(HashSet::is_empty).await;
        })
    }
}

/// What an etcd of this version keeps that this many vote on: `guarantees_of("3.5.13", 3)`.
#[must_use]
pub fn guarantees_of(version: &str, voters: usize) -> Guarantees {
    guarantees(found::version_of(version), voters)
}

/// Whether a version is this one of its series, or later.
fn since(version: Version, in_3_4: u32, in_3_5: u32) -> bool {
    match version {
        (3, 4, patch) => patch >= in_3_4,
        (3, 5, patch) => patch >= in_3_5,
        version => version > (3, 5, 0),
    }
}

fn correctness(version: Version, voters: usize) -> Correctness {
    let unfit = |why: &str, remedy: &str| Correctness::Unfit {
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    };
    match version {
        (0, ..) => unfit(
            "its members did not tell their version, so nobody knows what it keeps",
            "try again when they answer",
        ),
        (3, 5, 0..3) => unfit(
            "members of etcd 3.5.0 to 3.5.2 can come to differ after a crash",
            "update it to 3.5.13 or later",
        ),
        _ if voters < 2 && !since(version, 21, 5) => unfit(
            "a single etcd before 3.4.21 and 3.5.5 can lose in a crash what it has answered \
             (etcd#14370)",
            "update it, or use three members",
        ),
        _ => Correctness::Fit,
    }
}

fn guarantees(version: Version, voters: usize) -> Guarantees {
    // etcd#12528, #15247: a leader that stood still ends leases that are not its own any more.
    let mended = since(version, 31, 13);
    let correctness = correctness(version, voters);
    let after_crash = match &correctness {
        Correctness::Fit => Kept::both("every grant is synced on a majority before it is answered"),
        Correctness::Unfit { .. } => Kept {
            exclusion: Holds::No,
            tokens: Holds::No,
            note: "a crash may take back what was answered: see \"for correctness\"",
        },
    };
    Guarantees {
        backend: "etcd",
        scope: "all who use this cluster, other makes of client included",
        records: Records::like(&correctness),
        correctness,
        fifo: true,
        wake: "each waiter watches the one before it",
        clock: "the monotonic clock of the cluster's leader",
        longest: Ttl::MAX,
        lengthens: false,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            after_crash,
            if voters == 1 {
                Kept::none_such("it has one member")
            } else if mended {
                Kept::both("a new leader gives every lease its full time again")
            } else {
                Kept {
                    exclusion: Holds::No,
                    tokens: Holds::Yes,
                    note: "a new leader gives every lease its full time again; but a leader that stood \
                           still and was replaced may end live leases when it wakes: fence the resource, \
                           or update to 3.4.31, 3.5.13 or later",
                }
            },
            Kept::both("leases are counted on a monotonic clock"),
            Kept::both(
                "a holder that is cut off is told before its lease ends; without a quorum nobody is \
                 granted",
            ),
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "a restored backup has its old revisions: held locks are forgotten and tokens fall",
            },
        ],
    }
}

impl Observe for Etcd {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            self.0.prefix.check(&name)?;
            self.0.changed(&name, seen).await.map_err(Fault::into_error)
        })
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.0.link.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_the_version() {
        let fit = |version, voters| guarantees_of(version, voters).correctness == Correctness::Fit;
        assert!(fit("3.4.23", 1) && fit("3.5.5", 1) && fit("3.6.0-rc.1", 1) && fit("3.4.20", 3));
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3), ("x", 3)] {
            assert!(!fit(version, voters), "{version}");
        }
        let failover = |version| guarantees_of(version, 3).under[3].exclusion;
        for version in ["3.4.31", "3.5.13", "3.6.1", "4.0.0"] {
            assert_eq!(failover(version), Holds::Yes, "{version}");
        }
        for version in ["3.4.30", "3.5.12", "3.3.99", ""] {
            assert_eq!(failover(version), Holds::No, "{version}");
        }
    }

    #[test]
    fn a_version_that_may_forget_in_a_crash_declares_it() {
        let after_crash = |version, voters| {
            let kept = guarantees_of(version, voters).under[2];
            (kept.exclusion, kept.tokens)
        };
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3)] {
            assert_eq!(after_crash(version, voters), (Holds::No, Holds::No), "{version}");
        }
        assert_eq!(after_crash("3.4.20", 3), (Holds::Yes, Holds::Yes));
    }
}
