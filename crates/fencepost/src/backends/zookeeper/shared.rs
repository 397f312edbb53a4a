//! What the parts of one client share: its sessions, its places in line, and how nodes are looked for.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use super::client::{Access, Key, Make, OnShorter, Servers, Session};
use super::config::{Style, ZooKeeperUrl};
use super::error::{Code, code, found, said};
use super::layout::{Contender, Mark, RESERVED, in_order};
use super::places::{Place, Places};
use super::record_gc::Neighbours;
use super::server_info::Found;
use super::time::Reading;
use crate::backend::{Liveness, LossCause, LossSignal, StoreError, StoreResult, Surroundings};
use crate::clock::Clock;
use crate::race::race;
use crate::retry::{RETRY_DELAY, retry};

/// How long a session stays that carries nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How long to wait for sessions to be closed. They end by themselves otherwise.
pub(super) const CLOSE: Duration = Duration::from_secs(2);

pub(super) struct Shared {
    pub(super) around: Surroundings,
    pub(super) servers: Arc<Servers>,
    pub(super) chroot: String,
    pub(super) style: Style,
    pub(super) access: Access,
    /// The sessions of this process's grants, by TTL in milliseconds.
    pub(super) sessions: Mutex<HashMap<u32, Arc<Session>>>,
    pub(super) places: Places,
    /// Whether the servers know containers.
    containers: AtomicBool,
    /// What was last read of the servers, and when.
    pub(super) found: Mutex<(Found, Moment)>,
    /// What time it was at the leader, when it was last asked.
    reading: Mutex<Option<Reading>>,
    /// Records that may be over.
    pub(super) neighbours: Mutex<Neighbours>,
}

impl Shared {
    pub(super) fn new(url: ZooKeeperUrl, around: &Surroundings) -> Self {
        let servers = Servers {
            hosts: url.hosts,
            clock: Arc::clone(&around.clock),
            tls: url.tls,
            credentials: url.credentials,
        };
        Self {
            around: around.clone(),
            servers: Arc::new(servers),
            chroot: url.chroot,
            style: url.style,
            access: url.access,
            sessions: Mutex::default(),
            places: Places::default(),
            containers: AtomicBool::new(true),
            found: Mutex::default(),
            reading: Mutex::default(),
            neighbours: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.around.clock.now()
    }

    /// Leaves the servers alone for a moment, after a failure.
    pub(super) async fn pause(&self) {
        self.around.clock.alarm(self.now() + RETRY_DELAY).await;
    }

    /// Asks until there is an answer, over connections and sessions that break in between. For requests that change
    /// nothing if they are made twice.
    pub(super) async fn call<T, F>(
        &self,
        limit: Moment,
        ask: impl Fn(Arc<Session>) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        retry(&*self.around.clock, limit, |_| {
            let (sent, asked) = (self.now(), ask(self.control()));
            async move { Ok((asked.await?, sent)) }
        })
        .await
    }

    pub(super) fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock()
    }

    /// Reads what kind of servers these are.
    pub(super) async fn look_around(&self) {
        self.found.lock().1 = self.now();
        let found = Found::read(self).await;
        self.found.lock().0 = found;
    }

    /// The session for what belongs to no grant: that of grants with the default TTL.
    pub(super) fn control(&self) -> Arc<Session> {
        self.session_for(default_ttl(), Liveness::Process)
    }

    /// The session that carries grants of this TTL, or a script's grant alone.
    pub(super) fn session_for(&self, ttl: Ttl, liveness: Liveness) -> Arc<Session> {
        let start = |kept| {
            Session::start(&self.servers, timeout_for(ttl), None, kept, &self.around.runtime)
        };
        if liveness == Liveness::LeaseOnly {
            return start(false);
        }
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get(&ttl.as_millis()).filter(|session| !session.is_over()) {
            return Arc::clone(session);
        }
        let session = start(true);
        sessions.insert(ttl.as_millis(), Arc::clone(&session));
        session
    }

    /// A session that another process has made.
    pub(super) fn attach(&self, ttl: Ttl, key: Key) -> Arc<Session> {
        Session::start(&self.servers, timeout_for(ttl), Some(key), false, &self.around.runtime)
    }

    /// Makes a session carry this place: whoever waits there or holds learns if it becomes shorter.
    pub(super) fn move_place(&self, place: &Place, session: Arc<Session>) {
        let (clock, runtime) = (Arc::clone(&self.around.clock), self.around.runtime.clone());
        let carried = Carried { loss: place.loss.clone(), clock, runtime };
        session.tell_if_shorter(Box::new(carried));
        place.move_to(Some(session));
    }

    /// Ends a session, or gives up soon: it ends by itself otherwise.
    fn close(&self, session: &Session) -> impl Future<Output = ()> + Send + use<> {
        let (closed, limit) = (session.close(), self.around.clock.alarm(self.now() + CLOSE));
        async move { drop(race(closed, limit).await) }
    }

    /// The same in the background.
    pub(super) fn close_later(&self, session: &Session) {
        self.around.tasks.spawn_on(self.close(session), &self.around.runtime);
    }

    /// Closes the sessions that carry nothing, and have not for so long. Resolves when they are closed.
    pub(super) fn close_idle(&self, idle: Duration) -> impl Future<Output = ()> + Send + use<> {
        let mut sessions = self.sessions.lock();
        let unused = |ttl: u32, session: &Arc<Session>| {
            // One is kept, so that a client that rests need not connect for its next lock.
            let spared = ttl == default_ttl().as_millis() && !idle.is_zero();
            // Under the lock nobody gets another handle.
            let idle = Arc::strong_count(session) == 1 && session.unused_for() >= idle;
            session.is_over() || idle && !spared
        };
        let unused = sessions.extract_if(|ttl, session| unused(*ttl, session));
        let closing = join_all(unused.map(|(_, session)| self.close(&session)));
        async move { drop(closing.await) }
    }

    /// Lets go of what nobody uses.
    pub(super) fn tidy(self: &Arc<Self>) {
        self.around.tasks.spawn_on(self.close_idle(IDLE), &self.around.runtime);
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

    /// Makes the directory of a lock, and what is missing above it.
    pub(super) async fn make_directory(
        &self,
        session: &Session,
        dir: &str,
        access: Access,
    ) -> Result<(), StoreError> {
        let below = |containers| if containers { Make::Container } else { Make::Persistent };
        self.make_path(session, dir, below, access).await
    }

    /// Makes a directory and what is missing above it. What lies below the chroot is made as `below` says of
    /// servers that know containers, or do not.
    pub(super) async fn make_path(
        &self,
        session: &Session,
        dir: &str,
        below: impl Fn(bool) -> Make,
        access: Access,
    ) -> Result<(), StoreError> {
        let reserved = format!("{}/{RESERVED}", self.chroot);
        loop {
            let containers = self.containers.load(Ordering::Relaxed);
            let ends = dir.match_indices('/').map(|(at, _)| at).skip(1).chain([dir.len()]);
            // All at once: what is there already says so.
            let asked: Vec<_> = ends
                .map(|end| {
                    let (make, access) = match &dir[..end] {
                        above if above.len() <= self.chroot.len() => {
                            (Make::Persistent, self.access)
                        }
                        // All who use this path have something there.
                        ours if ours == reserved => (below(containers), Access::Open),
                        _ => (below(containers), access),
                    };
                    session.create(&dir[..end], b"", make, access)
                })
                .collect();
            let (mut first, mut last) = (None, Ok(()));
            for answer in asked {
                last = match answer.await {
                    Err(error) if code(&error) != Some(Code::NodeExists) => {
                        first.get_or_insert_with(|| error.clone());
                        Err(error)
                    }
                    _ => Ok(()),
                };
            }
            let Err(last) = last else { return Ok(()) };
            match first.unwrap_or(last) {
                error if containers && code(&error) == Some(Code::Unimplemented) => {
                    self.containers.store(false, Ordering::Relaxed);
                }
                error => return Err(error),
            }
        }
    }

    /// The children of a directory, no older than now; none if it is not there.
    pub(super) async fn children_now(
        &self,
        session: &Session,
        dir: &str,
    ) -> Result<Vec<String>, StoreError> {
        let (synced, children) = (session.sync(dir), session.children(dir));
        let (synced, children) = (synced.await, children.await);
        synced?;
        Ok(found(children)?.unwrap_or_default())
    }

    /// The nodes of one owner, the first in line first; surely all of them that this session has asked for.
    pub(super) async fn nodes_of(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
    ) -> Result<Vec<String>, StoreError> {
        // A sync is answered by a leader that is none any more. A write that fails is not: it is proposed like
        // any other. No node has this name, since the servers put a number behind it.
        let nowhere = session.delete(&format!("{dir}/{}", mark.prefix(self.style)));
        let children = session.children(dir);
        let (proven, children) = (nowhere.await, children.await);
        said(proven)?;
        let children = found(children)?.unwrap_or_default();
        let ours = mark.finder();
        let line = in_order(&children).into_iter().filter(|one| ours(&one.node));
        Ok(line.map(|one| format!("{dir}/{}", one.node)).collect())
    }

    /// The first of these that is a contender: one that stays is none, whatever it is called.
    pub(super) async fn first_of(
        &self,
        session: &Session,
        dir: &str,
        line: &[Contender],
    ) -> Result<Option<Contender>, StoreError> {
        for one in line {
            let stat = session.exists(&format!("{dir}/{}", one.node)).await?;
            if stat.is_some_and(|stat| stat.ends()) {
                return Ok(Some(one.clone()));
            }
        }
        Ok(None)
    }

    /// The grant's node is gone and its session is not: finds out why, once, and tells the guard.
    pub(super) async fn ended(&self, place: &Arc<Place>, session: &Session) -> LossCause {
        let find_out = async || match self.why_gone(session, &place.dir, place.mark, false).await {
            Ok(cause) => cause.unwrap_or(LossCause::TakenOver),
            Err(_) => LossCause::SessionGone,
        };
        let cause = *place.cause.get_or_init(find_out).await;
        self.lost(place, cause);
        cause
    }

    /// The grant is gone.
    pub(super) fn lost(&self, place: &Arc<Place>, cause: LossCause) {
        self.places.end(place, cause);
        place.loss.fire(cause);
        if place.liveness == Liveness::LeaseOnly
            && let Some(session) = place.session()
        {
            self.close_later(&session);
        }
    }
}

fn default_ttl() -> Ttl {
    Ttl::new(crate::options::DEFAULT_TTL).unwrap_or(Ttl::MAX)
}

/// The session timeout that carries a lease: half as long again.
fn timeout_for(ttl: Ttl) -> Duration {
    Duration::from_millis((u64::from(ttl.as_millis()) * 3).div_ceil(2))
}

/// The lease that a session of this timeout carries, two thirds of it; `None` if it is too short for any.
fn lease(timeout: Duration) -> Option<Ttl> {
    Ttl::new((timeout * 2 / 3).min(Ttl::MAX.as_duration())).ok()
}

/// The lease that this session carries.
pub(super) fn ttl_of(session: &Session) -> Result<Ttl, StoreError> {
    let timeout = session.timeout();
    lease(timeout).ok_or_else(|| {
        StoreError::refused(format!(
            "the server keeps a session for {timeout:?} only: raise its maxSessionTimeout"
        ))
    })
}

/// A guard whose grant, or place, a session carries.
struct Carried {
    loss: LossSignal,
    clock: Arc<dyn Clock>,
    runtime: Handle,
}

impl OnShorter for Carried {
    /// The guard may count on no more, from now on.
    fn shortened(&self, sent: Moment, timeout: Duration) {
        let end = self.loss.shorten(sent, lease(timeout).unwrap_or(Ttl::MIN));
        let Some(end) = end.filter(|end| *end < Moment::NEVER) else { return };
        // Whoever keeps the lease may sleep for longer than it lasts now.
        let (loss, alarm) = (self.loss.clone(), self.clock.alarm(end));
        self.runtime.spawn(async move {
            alarm.await;
            loss.settle();
        });
    }

    fn is_connected(&self) -> bool {
        self.loss.is_heard()
    }
}
