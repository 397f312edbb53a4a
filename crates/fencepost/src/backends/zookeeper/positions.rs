//! The positions of this client's owners; the first one in a queue holds the lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::{Label, Moment, Token, Ttl, Value};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, oneshot, watch};
use tokio::task::AbortHandle;

use super::client::{Session, Stat};
use super::layout::{Contender, NodeTag};
use crate::backend::{
    GrantId, Liveness, LossCause, LossSignal, NotHeld, Reply, Request, StoreError,
};

/// How many ended grants are remembered with their cause.
const REMEMBERED: usize = 256;

/// One owner's position.
pub(super) struct Position {
    pub(super) id: GrantId,
    /// The lock's directory.
    pub(super) dir: String,
    pub(super) tag: NodeTag,
    pub(super) label: Label,
    /// What a candidate publishes when it takes its position.
    pub(super) value: Option<Value>,
    pub(super) asked: Ttl,
    pub(super) liveness: Liveness,
    pub(super) loss: LossSignal,
    /// Why it ended, once that was looked up.
    pub(super) cause: OnceCell<LossCause>,
    /// Until when its caller relies on it, at most; in nanoseconds.
    lease: AtomicU64,
    state: Mutex<PositionState>,
}

/// Its state.
#[derive(Default)]
pub(super) struct PositionState {
    pub(super) session: Option<Arc<Session>>,
    /// The path of its node, once that is known.
    pub(super) node: Option<String>,
    /// The data that it must have: each heartbeat writes it.
    pub(super) written: Arc<[u8]>,
    /// The version and data that the last reply showed.
    there: (i32, Arc<[u8]>),
    pub(super) grant: Option<(Token, Ttl)>,
    /// The queue as a try saw it, for the wait that follows.
    pub(super) seen: Option<QueueView>,
    /// A request to create the node had no reply.
    pub(super) unsure: bool,
    /// It is being released: no node is created any more.
    over: bool,
    task: Option<AbortHandle>,
    release_state: Option<watch::Sender<ReleaseState>>,
}

impl PositionState {
    /// The node was created with this data.
    pub(super) fn made_with(&mut self, data: Vec<u8>) {
        self.written = data.into();
        self.there = (0, Arc::clone(&self.written));
    }

    /// A reply says that the node has this data. Replies may arrive out of order.
    pub(super) fn is_there(&mut self, version: i32, data: Arc<[u8]>) {
        if version.wrapping_sub(self.there.0) > 0 {
            self.there = (version, data);
        }
    }

    /// The servers refused this data, for example by a quota: heartbeats that repeat it would be refused too, and the
    /// grant would be lost.
    pub(super) fn take_back(&mut self, refused: &Arc<[u8]>) {
        if Arc::ptr_eq(&self.written, refused) {
            self.written = Arc::clone(&self.there.1);
        }
    }
}

/// The position of a node in its queue.
pub(super) struct QueueView {
    pub(super) session: Arc<Session>,
    pub(super) stat: Stat,
    /// Notified when the node is gone, or the connection.
    pub(super) own: oneshot::Receiver<()>,
    /// The contenders before it, in order.
    pub(super) ahead: Vec<Contender>,
}

/// The state of its release.
#[derive(Clone, Debug)]
pub(super) enum ReleaseState {
    Requested,
    /// The last attempt failed; there will be others.
    Failing(StoreError),
    /// Nothing of it is left; or nothing was there, with the cause if that is known.
    Gone(Reply<Result<(), NotHeld>>),
}

impl Position {
    pub(super) fn new(request: &Request, dir: String) -> Self {
        Self {
            id: request.grant.clone(),
            dir,
            tag: NodeTag::of(&request.grant),
            label: request.label.clone(),
            value: request.value.clone(),
            asked: if request.value.is_some() { short_of(request.ttl) } else { request.ttl },
            liveness: request.liveness,
            loss: request.loss.clone(),
            cause: OnceCell::new(),
            lease: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PositionState> {
        self.state.lock()
    }

    /// The path of a contender for the same lock.
    pub(super) fn child(&self, contender: &Contender) -> String {
        format!("{}/{}", self.dir, contender.node)
    }

    pub(super) fn node(&self) -> Option<String> {
        self.state().node.clone()
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.state().session.clone()
    }

    pub(super) fn granted(&self) -> bool {
        self.state().grant.is_some()
    }

    /// Moves to another session, or to none: what it had in the old one is gone.
    pub(super) fn move_to(&self, session: Option<Arc<Session>>) {
        let mut state = self.state();
        (state.node, state.grant, state.unsure, state.seen) = (None, None, false, None);
        state.session = session;
    }

    /// Sends the request for a node, unless the position is being released: the requests of a release come after it.
    pub(super) fn ask_for_node<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state();
        if state.over {
            return None;
        }
        state.unsure = true;
        Some(ask())
    }

    /// From now on only this task watches it.
    pub(super) fn hand_to(&self, task: AbortHandle) {
        let mut state = self.state();
        if state.over {
            task.abort();
        }
        if let Some(old) = state.task.replace(task) {
            old.abort();
        }
    }

    /// Nothing more is sent for it.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.over = true;
        if let Some(task) = state.task.take() {
            task.abort();
        }
    }

    /// A receiver for the result of its release, and whether we are the first to request it.
    pub(super) fn release_state(&self) -> (watch::Sender<ReleaseState>, bool) {
        let mut state = self.state();
        let first = state.release_state.is_none();
        let sender =
            state.release_state.get_or_insert_with(|| watch::Sender::new(ReleaseState::Requested));
        (sender.clone(), first)
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Its caller may rely on it until then.
    pub(super) fn leased(&self, until: Moment) {
        self.lease.fetch_max(until.as_nanos(), Ordering::SeqCst);
    }

    pub(super) fn lease_end(&self) -> Moment {
        Moment::from_nanos(self.lease.load(Ordering::SeqCst))
    }
}

/// The lease of a candidate: two thirds of the requested TTL, so that its session's timeout is that TTL. Then the next
/// one leads within that TTL and a tick, if the leader dies.
fn short_of(ttl: Ttl) -> Ttl {
    Ttl::new(ttl.as_duration() * 2 / 3).unwrap_or(Ttl::MIN)
}

/// All positions of this client.
#[derive(Default)]
pub(super) struct Positions {
    open: Mutex<HashMap<GrantId, Arc<Position>>>,
    /// The last ones that ended by themselves.
    ended: Mutex<VecDeque<(GrantId, LossCause)>>,
}

impl Positions {
    pub(super) fn get(&self, id: &GrantId) -> Option<Arc<Position>> {
        self.open.lock().get(id).cloned()
    }

    /// The existing position of this owner, or this one.
    pub(super) fn enter(&self, position: Position) -> Arc<Position> {
        Arc::clone(
            self.open.lock().entry(position.id.clone()).or_insert_with(|| Arc::new(position)),
        )
    }

    /// Forgets this position, unless it was replaced.
    pub(super) fn remove(&self, position: &Arc<Position>) {
        let mut open = self.open.lock();
        if open.get(&position.id).is_some_and(|known| Arc::ptr_eq(known, position)) {
            open.remove(&position.id);
        }
    }

    /// The grant ended by itself: forgotten but for the cause.
    pub(super) fn end(&self, position: &Arc<Position>, cause: LossCause) {
        self.remove(position);
        let mut ended = self.ended.lock();
        if ended.len() == REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((position.id.clone(), cause));
    }

    pub(super) fn why_ended(&self, id: &GrantId) -> Option<LossCause> {
        let ended = self.ended.lock();
        ended.iter().rev().find(|(whose, _)| whose == id).map(|(_, cause)| *cause)
    }

    /// The positions that match.
    pub(super) fn all(&self, wanted: impl Fn(&Position) -> bool) -> Vec<Arc<Position>> {
        self.open.lock().values().filter(|position| wanted(position)).cloned().collect()
    }
}
