//! What the parts of one client share: its sessions, its places in line, and how nodes are looked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::address::{Style, ZooKeeperUrl};
use super::broken::Ended;
use super::dial::Servers;
use super::faults::{Code, Fault};
use super::found::Found;
use super::names::RESERVED;
use super::nodes::{Contender, Mark, in_order};
use super::notes::Key;
use super::ops::{Access, Make};
use super::places::{Place, Places};
use super::record_gc::Neighbours;
use super::session::Session;
use super::time::Reading;
use crate::backend::{Liveness, LossCause, Surroundings};
use crate::backends::bridge::Grant;
use crate::counted::Counted;
use crate::error::Result;
use crate::race::race;

/// How long a session stays that carries nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How long the servers are left alone after a failure.
pub(super) const BREATH: Duration = Duration::from_millis(50);
/// How long one who wants an answer goes on trying over connections that break.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait for sessions to be closed. They end by themselves otherwise.
pub(super) const CLOSE: Duration = Duration::from_secs(2);

pub(super) struct Shared {
    pub(super) around: Surroundings,
    pub(super) servers: Arc<Servers>,
    pub(super) chroot: String,
    pub(super) style: Style,
    pub(super) access: Access,
    /// The sessions of this process's grants, by TTL in milliseconds.
    sessions: Mutex<HashMap<u32, Arc<Session>>>,
    pub(super) places: Places,
    /// Whether the servers know containers.
    containers: AtomicBool,
    /// How many things are under way that nobody waits for.
    pub(super) closing: watch::Sender<usize>,
    /// What was last read of the servers, and when.
    found: Mutex<(Found, Moment)>,
    /// What time it was at the leader, when it was last asked.
    reading: Mutex<Option<Reading>>,
    /// Records that may be over.
    pub(super) neighbours: Mutex<Neighbours>,
}

impl Shared {
    pub(super) fn new(url: ZooKeeperUrl, around: &Surroundings) -> Self {
        let clock = Arc::clone(&around.clock);
        let servers = Servers::new(url.hosts, clock, url.tls, url.credentials);
        Self {
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
            reading: Mutex::default(),
            neighbours: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.around.clock.now()
    }

    /// Leaves the servers alone for a moment, after a failure.
    pub(super) async fn breathe(&self) {
        self.around.clock.alarm(self.now() + BREATH).await;
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<u32, Arc<Session>>> {
        self.sessions.lock()
    }

    pub(super) fn found(&self) -> MutexGuard<'_, (Found, Moment)> {
        self.found.lock()
    }

    pub(super) fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock()
    }

    /// Reads what kind of servers these are.
    pub(super) async fn look_around(&self) {
        self.found().1 = self.now();
        let found = Found::read(self).await;
        self.found().0 = found;
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
        let mut sessions = self.sessions();
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

    /// Ends a session in the background.
    pub(super) fn close_later(&self, session: &Session) {
        let (counted, closed) = (Counted::new(&self.closing), session.close());
        let limit = self.around.clock.alarm(self.now() + CLOSE);
        self.around.runtime.spawn(async move {
            let _counted = counted;
            race(closed, limit).await;
        });
    }

    /// Closes the sessions that carry nothing, and have not for so long.
    pub(super) fn close_idle(&self, idle: Duration) {
        let mut sessions = self.sessions();
        let unused = |ttl: u32, session: &Arc<Session>| {
            // One is kept, so that a client that rests need not connect for its next lock.
            let spared = ttl == default_ttl().as_millis() && !idle.is_zero();
            // Under the lock nobody gets another handle.
            let idle = Arc::strong_count(session) == 1 && session.unused_for() >= idle;
            session.is_over() || idle && !spared
        };
        for (_, session) in sessions.extract_if(|ttl, session| unused(*ttl, session)) {
            self.close_later(&session);
        }
    }

    /// Lets go of what nobody uses.
    pub(super) fn tidy(self: &Arc<Self>) {
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

    /// Makes the directory of a lock, and what is missing above it.
    pub(super) async fn make_directory(&self, session: &Session, dir: &str) -> Result<(), Fault> {
        self.make_directory_for(session, dir, self.access).await
    }

    pub(super) async fn make_directory_for(
        &self,
        session: &Session,
        dir: &str,
        access: Access,
    ) -> Result<(), Fault> {
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
    ) -> Result<(), Fault> {
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
    pub(super) async fn children_now(
        &self,
        session: &Session,
        dir: &str,
    ) -> Result<Vec<String>, Fault> {
        let (synced, children) = (session.sync(dir), session.children(dir));
        let (synced, children) = (synced.await, children.await);
        synced?;
        match children {
            Err(Fault::Said(Code::NoNode)) => Ok(Vec::new()),
            children => children,
        }
    }

    /// The nodes of one owner, the first in line first; surely all of them that this session has asked for.
    pub(super) async fn nodes_of(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
    ) -> Result<Vec<String>, Fault> {
        // A sync is answered by a leader that is none any more. A write that fails is not: it is proposed like
        // any other. No node has this name, since the servers put a number behind it.
        let nowhere = session.delete(&format!("{dir}/{}", mark.prefix(self.style)));
        let children = session.children(dir);
        let (proven, children) = (nowhere.await, children.await);
        match proven {
            Ok(()) | Err(Fault::Said(_)) => {}
            Err(fault) => return Err(fault),
        }
        let children = match children {
            Err(Fault::Said(Code::NoNode)) => Vec::new(),
            children => children?,
        };
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
    ) -> Result<Option<Contender>, Fault> {
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
    pub(super) fn lost(&self, place: &Arc<Place>, cause: LossCause) {
        self.places.end(place, cause);
        place.loss.fire(cause);
        if place.liveness == Liveness::LeaseOnly
            && let Some(session) = place.session()
        {
            self.close_later(&session);
        }
    }

    /// The grant that this place has, if it is still there.
    pub(super) async fn granted_before(&self, place: &Arc<Place>) -> Result<Option<Grant>> {
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

fn default_ttl() -> Ttl {
    Ttl::new(crate::options::DEFAULT_TTL).unwrap_or(Ttl::MAX)
}

/// The session timeout that carries a lease: half as long again.
fn timeout_for(ttl: Ttl) -> Duration {
    Duration::from_millis((u64::from(ttl.as_millis()) * 3).div_ceil(2))
}
