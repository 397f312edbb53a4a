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
//! *Waiting:* a watch on the node before ours, and a look at our own node and session before we believe.
//! *Lateness:* a session's requests are carried out in the order in which they were sent, and once it is
//! attached to another server nothing sent through the old one is. So after a break we look whether a node with
//! our mark is there before another is made, and a release on the same session comes behind all of it.

mod address;
mod beat;
mod broken;
mod conn;
mod dial;
mod faults;
mod found;
mod grants;
mod line;
mod names;
mod nodes;
mod ops;
mod pipe;
mod places;
mod session;
mod tls;
mod views;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Ttl};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use self::address::Style;
pub(crate) use self::address::ZooKeeperUrl;
use self::broken::Ended;
use self::dial::Servers;
use self::faults::{Code, Fault};
use self::found::Found;
use self::names::path_of;
use self::nodes::{Contender, Key, Mark, in_order};
use self::ops::{Access, Make};
use self::places::{Place, Places};
use self::session::Session;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, Liveness, LockInfo, LossCause, Observe,
    Renewal, Renewed, Request, Surroundings, Wait,
};
use crate::counted::Counted;
use crate::error::{Error, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept};
use crate::race::race;

/// How long a session stays that carries nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How often sessions and places are looked at that nobody uses.
const UPKEEP: Duration = Duration::from_secs(5);
/// How old what is known of the servers may be.
const REFRESH: Duration = Duration::from_secs(5);
/// How long to wait for sessions to be closed. They end by themselves otherwise.
const CLOSE: Duration = Duration::from_secs(2);

/// A store on one ZooKeeper ensemble.
pub struct ZooKeeper {
    shared: Arc<Shared>,
    upkeep: AbortHandle,
}

struct Shared {
    around: Surroundings,
    servers: Arc<Servers>,
    chroot: String,
    style: Style,
    access: Access,
    /// The sessions of this process's grants, by TTL in milliseconds.
    sessions: Mutex<HashMap<u32, Arc<Session>>>,
    places: Places,
    /// Whether the servers know containers.
    containers: AtomicBool,
    /// How many things are under way that nobody waits for.
    closing: watch::Sender<usize>,
    /// What was last read of the servers, and when.
    found: Mutex<(Found, Moment)>,
}

impl ZooKeeper {
    pub(crate) async fn open(url: ZooKeeperUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let clock = Arc::clone(&around.clock);
        let servers = Servers::new(url.hosts, clock, url.tls, url.credentials);
        let shared = Arc::new(Shared {
            around: around.clone(),
            servers: Arc::new(servers),
            chroot: url.chroot,
            style: url.style,
            access: url.access,
            sessions: Mutex::default(),
            places: Places::default(),
            containers: AtomicBool::new(true),
            closing: watch::Sender::new(0),
            found: Mutex::default(),
        });
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

impl Shared {
    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u32, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self) -> MutexGuard<'_, (Found, Moment)> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what kind of servers these are.
    async fn look_around(&self) {
        self.found().1 = self.now();
        let found = Found::read(self).await;
        self.found().0 = found;
    }

    /// The session for what belongs to no grant of its own.
    fn control(&self) -> Arc<Session> {
        let ttl = Ttl::new(crate::lock::DEFAULT_TTL).unwrap_or(Ttl::MAX);
        self.session_for(ttl, Liveness::Process)
    }

    /// The session that carries grants of this TTL, or a script's grant alone.
    fn session_for(&self, ttl: Ttl, liveness: Liveness) -> Arc<Session> {
        let start = |kept| {
            Session::start(&self.servers, timeout_for(ttl), None, kept, &self.around.runtime)
        };
        if liveness == Liveness::LeaseOnly {
            return start(false);
        }
        let mut sessions = self.sessions();
        if let Some(session) = sessions.get(&ttl.as_millis()).filter(|session| !session.is_over()) {
            return Arc::clone(session);
        }
        let session = start(true);
        sessions.insert(ttl.as_millis(), Arc::clone(&session));
        session
    }

    /// A session that another process has made.
    fn attach(&self, ttl: Ttl, key: Key) -> Arc<Session> {
        Session::start(&self.servers, timeout_for(ttl), Some(key), false, &self.around.runtime)
    }

    /// Ends a session in the background.
    fn close_later(&self, session: &Session) {
        let (counted, closed) = (Counted::new(&self.closing), session.close());
        let limit = self.around.clock.alarm(self.now() + CLOSE);
        self.around.runtime.spawn(async move {
            let _counted = counted;
            race(closed, limit).await;
        });
    }

    /// Closes the sessions that carry nothing, and have not for so long.
    fn close_idle(&self, idle: Duration) {
        let mut sessions = self.sessions();
        let unused = |session: &Arc<Session>| {
            // Under the lock nobody gets another handle.
            session.is_over() || Arc::strong_count(session) == 1 && session.unused_for() >= idle
        };
        for (_, session) in sessions.extract_if(|_, session| unused(session)) {
            self.close_later(&session);
        }
    }

    /// Lets go of what nobody uses.
    fn tidy(&self) {
        self.close_idle(IDLE);
        // A script's grant that is not renewed here is kept by others, or ends. Whoever renews it here
        // again finds it again.
        let forgotten = self.places.all(|place| {
            let unused = |session: &Arc<Session>| session.unused_for() > session.timeout();
            place.liveness == Liveness::LeaseOnly
                && place.granted()
                && place.session().is_some_and(|session| unused(&session))
        });
        for place in forgotten {
            self.places.remove(&place);
            place.stop();
            if let Some(session) = place.session() {
                session.leave();
            }
        }
    }

    /// The path of a contender for this place's lock.
    #[expect(clippy::unused_self, reason = "reads better beside the other paths")]
    fn child(&self, place: &Place, contender: &Contender) -> String {
        format!("{}/{}", place.dir, contender.node)
    }

    /// Makes the directory of a lock, and what is missing above it.
    async fn make_directory(&self, session: &Session, dir: &str) -> Result<(), Fault> {
        loop {
            let containers = self.containers.load(Ordering::Relaxed);
            let ends = dir.match_indices('/').map(|(at, _)| at).skip(1).chain([dir.len()]);
            // All at once: what is there already says so.
            let asked: Vec<_> = ends
                .map(|end| {
                    let make = if containers && end > self.chroot.len() {
                        Make::Container
                    } else {
                        Make::Persistent
                    };
                    session.create(&dir[..end], b"", make, self.access)
                })
                .collect();
            let (mut first, mut last) = (None, Ok(()));
            for answer in asked {
                last = match answer.await {
                    Ok(_) | Err(Fault::Said(Code::NodeExists)) => Ok(()),
                    Err(fault) => {
                        first.get_or_insert_with(|| fault.clone());
                        Err(fault)
                    }
                };
            }
            let Err(last) = last else { return Ok(()) };
            match first.unwrap_or(last) {
                Fault::Said(Code::Unimplemented) if containers => {
                    self.containers.store(false, Ordering::Relaxed);
                }
                fault => return Err(fault),
            }
        }
    }

    /// The children of a directory, no older than now; none if it is not there.
    async fn children_now(&self, session: &Session, dir: &str) -> Result<Vec<String>, Fault> {
        let (synced, children) = (session.sync(dir), session.children(dir));
        let (synced, children) = (synced.await, children.await);
        synced?;
        match children {
            Err(Fault::Said(Code::NoNode)) => Ok(Vec::new()),
            children => children,
        }
    }

    /// The nodes of one owner, the first in line first.
    async fn nodes_of(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
    ) -> Result<Vec<String>, Fault> {
        let children = self.children_now(session, dir).await?;
        let line = in_order(&children).into_iter().filter(|one| mark.is_on(&one.node));
        Ok(line.map(|one| format!("{dir}/{}", one.node)).collect())
    }

    /// The grant's node is gone and its session is not: finds out why, once, and tells the guard.
    async fn ended(&self, place: &Arc<Place>, session: &Session) -> LossCause {
        let find_out = async || match self.find_marker(session, &place.dir, place.mark).await {
            Ok(Ended::Broken) => LossCause::Broken,
            Ok(Ended::Otherwise) => LossCause::TakenOver,
            Err(_) => LossCause::SessionGone,
        };
        let cause = *place.cause.get_or_init(find_out).await;
        self.lost(place, cause);
        cause
    }

    /// The grant is gone.
    fn lost(&self, place: &Arc<Place>, cause: LossCause) {
        self.places.end(place, cause);
        place.loss.fire(cause);
        if place.liveness == Liveness::LeaseOnly
            && let Some(session) = place.session()
        {
            self.close_later(&session);
        }
    }

    /// The grant that this place has, if it is still there.
    async fn granted_before(&self, place: &Arc<Place>) -> Result<Option<Grant>> {
        let (session, node, grant) = {
            let stand = place.stand();
            (stand.session.clone(), stand.node.clone(), stand.grant)
        };
        let (Some(session), Some(node), Some((token, ttl))) = (session, node, grant) else {
            return Ok(None);
        };
        let children = session.children(&node).await;
        match children {
            // It counts once it is renewed.
            Ok(_) => {
                let sent = Moment::default();
                Ok(Some(Grant { token, ttl, sent, queued: true, presence: None }))
            }
            Err(Fault::Said(Code::NoNode) | Fault::Gone) => Ok(None),
            Err(fault) => Err(fault.into_error()),
        }
    }
}

/// The session timeout that carries a lease: half as long again.
fn timeout_for(ttl: Ttl) -> Duration {
    Duration::from_millis((u64::from(ttl.as_millis()) * 3).div_ceil(2))
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

    fn break_lock(&self, name: LockName) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move { self.shared.break_lock(&name).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move { self.shared.inspect(&name, LockInfo::SHOWN_WAITERS).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(self.shared.list())
    }

    fn guarantees(&self) -> Guarantees {
        let (lines, read) = {
            let found = self.shared.found();
            (found.0.lines(), found.1)
        };
        // Whoever asks again sees what has become of them.
        if self.shared.now().since(read) >= REFRESH {
            self.shared.found().1 = self.shared.now();
            let shared = Arc::clone(&self.shared);
            self.shared.around.runtime.spawn(async move { shared.look_around().await });
        }
        Guarantees { found: lines, ..guarantees() }
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

fn guarantees() -> Guarantees {
    Guarantees {
        backend: "zookeeper",
        scope: "all who use this ensemble and path, Curator's or kazoo's locks included",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "each waits for the one before it to go (a watch)",
        clock: "the leader's monotonic clock",
        longest: Ttl::MAX,
        lengthens: false,
        found: Vec::new(),
        under: [
            Kept::both(
                "the lock is free when its session has timed out: one and a half TTLs at most, and a tick",
            ),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both("every write is synced on a majority before it is answered"),
            Kept::both(
                "the new leader has every grant, and gives each session its whole timeout again",
            ),
            Kept::none_such("no wall clock is used"),
            Kept::both(
                "a holder that is cut off is told before its session ends; without a quorum nobody \
                 is granted",
            ),
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
