//! Shared by the parts of one client: its sessions, its positions, and how nodes are found.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::client::{Access, CreateMode, Key, OnShorter, Servers, Session};
use super::config::{Config, Style};
use super::error::{Code, code, if_exists, ignore_refusal};
use super::layout::{Contender, NodeTag, RESERVED, in_order};
use super::positions::{Position, Positions};
use super::record_gc::Neighbours;
use super::server_info::ServerInfo;
use super::time::Reading;
use crate::backend::{BackendContext, Liveness, LossCause, LossSignal, StoreError, StoreResult};
use crate::clock::Clock;
use crate::race::race;
use crate::retry::{RETRY_DELAY, retry};

/// How long a session without nodes stays.
const IDLE: Duration = Duration::from_secs(30);
/// How long to wait for sessions to be closed. They end by themselves otherwise.
pub(super) const CLOSE: Duration = Duration::from_secs(2);

pub(super) struct Shared {
    pub(super) context: BackendContext,
    pub(super) servers: Arc<Servers>,
    pub(super) chroot: String,
    pub(super) style: Style,
    pub(super) access: Access,
    /// The sessions of this process's grants, by TTL in milliseconds.
    pub(super) sessions: Mutex<HashMap<u32, Arc<Session>>>,
    pub(super) positions: Positions,
    /// Whether the servers know containers.
    containers: AtomicBool,
    /// The server info that was last read, and when.
    pub(super) server_info: Mutex<(ServerInfo, Moment)>,
    /// The leader's clock, as last read.
    pub(super) reading: Mutex<Option<Reading>>,
    /// Records that may have expired.
    pub(super) neighbours: Mutex<Neighbours>,
}

impl Shared {
    pub(super) fn new(config: Config, context: &BackendContext) -> Self {
        let servers = Servers {
            hosts: config.hosts,
            clock: Arc::clone(&context.clock),
            tls: config.tls,
            credentials: config.credentials,
        };
        Self {
            context: context.clone(),
            servers: Arc::new(servers),
            chroot: config.chroot,
            style: config.style,
            access: config.access,
            sessions: Mutex::default(),
            positions: Positions::default(),
            containers: AtomicBool::new(true),
            server_info: Mutex::default(),
            reading: Mutex::default(),
            neighbours: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.context.clock.now()
    }

    /// Pauses after a failure.
    pub(super) async fn pause(&self) {
        self.context.clock.alarm(self.now() + RETRY_DELAY).await;
    }

    /// Retries until there is a reply, over connections and sessions that break in between. For requests that are safe to
    /// send twice.
    pub(super) async fn call<T, F>(
        &self,
        limit: Moment,
        ask: impl Fn(Arc<Session>) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        retry(&*self.context.clock, limit, |_| {
            let (sent, asked) = (self.now(), ask(self.control()));
            async move { Ok((asked.await?, sent)) }
        })
        .await
    }

    /// Reads the server info.
    pub(super) async fn look_around(&self) {
        self.server_info.lock().1 = self.now();
        let found = ServerInfo::read(self).await;
        self.server_info.lock().0 = found;
    }

    /// The session for requests without a grant: that of grants with the default TTL.
    pub(super) fn control(&self) -> Arc<Session> {
        self.session_for(default_ttl(), Liveness::Process)
    }

    /// The session for grants with this TTL, or for a script's grant alone.
    pub(super) fn session_for(&self, ttl: Ttl, liveness: Liveness) -> Arc<Session> {
        let start = |kept| {
            Session::start(&self.servers, timeout_for(ttl), None, kept, &self.context.runtime)
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

    /// A session that another process has created.
    pub(super) fn attach(&self, ttl: Ttl, key: Key) -> Arc<Session> {
        Session::start(&self.servers, timeout_for(ttl), Some(key), false, &self.context.runtime)
    }

    /// Assigns a session to this position: its waiter or holder learns if the session becomes shorter.
    pub(super) fn move_position(&self, position: &Position, session: Arc<Session>) {
        let (clock, runtime) = (Arc::clone(&self.context.clock), self.context.runtime.clone());
        let carried = Carried { loss: position.loss.clone(), clock, runtime };
        session.notify_if_shorter(Box::new(carried));
        position.move_to(Some(session));
    }

    /// Ends a session, or gives up soon: it ends by itself otherwise.
    fn close(&self, session: &Session) -> impl Future<Output = ()> + Send + use<> {
        let (closed, limit) = (session.close(), self.context.clock.alarm(self.now() + CLOSE));
        async move { drop(race(closed, limit).await) }
    }

    /// The same in the background.
    pub(super) fn close_later(&self, session: &Session) {
        self.context.tasks.spawn_on(self.close(session), &self.context.runtime);
    }

    /// Closes the sessions that have had no nodes for this long. Resolves when they are closed.
    pub(super) fn close_idle(&self, idle: Duration) -> impl Future<Output = ()> + Send + use<> {
        let mut sessions = self.sessions.lock();
        let unused = |ttl: u32, session: &Arc<Session>| {
            // One is kept, so that an idle client need not connect for its next lock.
            let spared = ttl == default_ttl().as_millis() && !idle.is_zero();
            // Under the mutex, so that no call gets another handle.
            let idle = Arc::strong_count(session) == 1 && session.unused_for() >= idle;
            session.is_over() || idle && !spared
        };
        let unused = sessions.extract_if(|ttl, session| unused(*ttl, session));
        let closing = join_all(unused.map(|(_, session)| self.close(&session)));
        async move { drop(closing.await) }
    }

    /// Drops what is unused.
    pub(super) fn gc(self: &Arc<Self>) {
        // A client that has closed opens no more locks.
        let idle = if self.context.closing.is_cancelled() { Duration::ZERO } else { IDLE };
        self.context.tasks.spawn_on(self.close_idle(idle), &self.context.runtime);
        // A script's grant that is not renewed here is renewed elsewhere, or ends. A later renewal here finds it
        // again.
        let forgotten = self.positions.all(|position| {
            let unused = |session: &Arc<Session>| session.unused_for() > session.timeout();
            position.liveness == Liveness::LeaseOnly
                && position.granted()
                && position.session().is_some_and(|session| unused(&session))
        });
        for position in forgotten {
            self.positions.remove(&position);
            position.stop();
            if let Some(session) = position.session() {
                session.leave();
            }
        }
    }

    /// Creates the directory of a lock, and its missing parents.
    pub(super) async fn make_directory(
        &self,
        session: &Session,
        dir: &str,
        access: Access,
    ) -> Result<(), StoreError> {
        let below =
            |containers| if containers { CreateMode::Container } else { CreateMode::Persistent };
        self.make_path(session, dir, below, access).await
    }

    /// Creates a directory and its missing parents. Below the chroot, `below` gives the kind of node, depending on whether
    /// the servers know containers.
    pub(super) async fn make_path(
        &self,
        session: &Session,
        dir: &str,
        below: impl Fn(bool) -> CreateMode,
        access: Access,
    ) -> Result<(), StoreError> {
        let reserved = format!("{}/{RESERVED}", self.chroot);
        loop {
            let containers = self.containers.load(Ordering::Relaxed);
            let ends = dir.match_indices('/').map(|(at, _)| at).skip(1).chain([dir.len()]);
            // All at once: an existing node gives an error that is ignored.
            let asked: Vec<_> = ends
                .map(|end| {
                    let (make, access) = match &dir[..end] {
                        above if above.len() <= self.chroot.len() => {
                            (CreateMode::Persistent, self.access)
                        }
                        // All clients of this path have nodes there.
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

    /// The children of a directory, at least as of now; none if it does not exist.
    pub(super) async fn children_now(
        &self,
        session: &Session,
        dir: &str,
    ) -> Result<Vec<String>, StoreError> {
        let (synced, children) = (session.sync(dir), session.children(dir));
        let (synced, children) = (synced.await, children.await);
        synced?;
        Ok(if_exists(children)?.unwrap_or_default())
    }

    /// The nodes of one owner, in order; certainly including all that this session has requested.
    pub(super) async fn nodes_of(
        &self,
        session: &Session,
        dir: &str,
        tag: NodeTag,
    ) -> Result<Vec<String>, StoreError> {
        // A deposed leader answers a sync, but not a write, even one that fails: it is proposed like any other.
        // No node has this name, since the servers append a number to it.
        let nowhere = session.delete(&format!("{dir}/{}", tag.prefix(self.style)));
        let children = session.children(dir);
        let (proven, children) = (nowhere.await, children.await);
        ignore_refusal(proven)?;
        let children = if_exists(children)?.unwrap_or_default();
        let ours = tag.finder();
        let contenders = in_order(&children).into_iter().filter(|one| ours(&one.node));
        Ok(contenders.map(|one| format!("{dir}/{}", one.node)).collect())
    }

    /// The first of these that is a contender: a persistent node is none, whatever its name.
    pub(super) async fn first_of(
        &self,
        session: &Session,
        dir: &str,
        contenders: &[Contender],
    ) -> Result<Option<Contender>, StoreError> {
        for one in contenders {
            let stat = session.exists(&format!("{dir}/{}", one.node)).await?;
            if stat.is_some_and(|stat| stat.ends()) {
                return Ok(Some(one.clone()));
            }
        }
        Ok(None)
    }

    /// The grant's node is gone and its session is not: finds the cause, once, and notifies the guard.
    pub(super) async fn ended(&self, position: &Arc<Position>, session: &Session) -> LossCause {
        let find_out =
            async || match self.why_gone(session, &position.dir, position.tag, false).await {
                Ok(cause) => cause.unwrap_or(LossCause::TakenOver),
                Err(_) => LossCause::SessionGone,
            };
        let cause = *position.cause.get_or_init(find_out).await;
        self.lost(position, cause);
        cause
    }

    /// The grant is gone.
    pub(super) fn lost(&self, position: &Arc<Position>, cause: LossCause) {
        self.positions.end(position, cause);
        position.loss.fire(cause);
        if position.liveness == Liveness::LeaseOnly
            && let Some(session) = position.session()
        {
            self.close_later(&session);
        }
    }
}

fn default_ttl() -> Ttl {
    Ttl::new(crate::options::DEFAULT_TTL).unwrap_or(Ttl::MAX)
}

/// The session timeout for a lease: one and a half times as long.
fn timeout_for(ttl: Ttl) -> Duration {
    Duration::from_millis((u64::from(ttl.as_millis()) * 3).div_ceil(2))
}

/// The lease of a session with this timeout, two thirds of it; `None` if it is too short for one.
fn lease(timeout: Duration) -> Option<Ttl> {
    Ttl::new((timeout * 2 / 3).min(Ttl::MAX.as_duration())).ok()
}

/// The lease of this session.
pub(super) fn ttl_of(session: &Session) -> Result<Ttl, StoreError> {
    let timeout = session.timeout();
    lease(timeout).ok_or_else(|| {
        StoreError::refused(format!(
            "the server's session timeout is only {timeout:?}: raise its maxSessionTimeout"
        ))
    })
}

/// A guard that depends on a session, with a grant or a position.
struct Carried {
    loss: LossSignal,
    clock: Arc<dyn Clock>,
    runtime: Handle,
}

impl OnShorter for Carried {
    /// From now on the guard may rely on no more than this.
    fn shortened(&self, sent: Moment, timeout: Duration) {
        let end = self.loss.shorten(sent, lease(timeout).unwrap_or(Ttl::MIN));
        let Some(end) = end.filter(|end| *end < Moment::NEVER) else { return };
        // The heartbeat may sleep for longer than the lease now lasts.
        let (loss, alarm) = (self.loss.clone(), self.clock.alarm(end));
        self.runtime.spawn(async move {
            alarm.await;
            loss.expire_if_due();
        });
    }

    fn is_connected(&self) -> bool {
        self.loss.is_connected()
    }
}
