//! What the owners of this client have at the store: a place in a line each, and those at the head hold.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::{Label, Moment, Token, Ttl, Value};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, oneshot, watch};
use tokio::task::AbortHandle;

use super::client::{Session, Stat};
use super::layout::{Contender, Mark};
use crate::backend::{
    GrantId, Liveness, LossCause, LossSignal, NotHeld, Reply, Request, StoreError,
};

/// How many ended grants are remembered with their cause.
const REMEMBERED: usize = 256;

/// One owner's place.
pub(super) struct Place {
    pub(super) id: GrantId,
    /// The lock's directory.
    pub(super) dir: String,
    pub(super) mark: Mark,
    pub(super) label: Label,
    /// What a candidate says of itself when it takes its place.
    pub(super) value: Option<Value>,
    pub(super) asked: Ttl,
    pub(super) liveness: Liveness,
    pub(super) loss: LossSignal,
    /// Why it ended, once somebody has found out.
    pub(super) cause: OnceCell<LossCause>,
    /// Until when its caller counts on it, at most; in nanoseconds.
    lease: AtomicU64,
    stand: Mutex<Stand>,
}

/// How it stands.
#[derive(Default)]
pub(super) struct Stand {
    pub(super) session: Option<Arc<Session>>,
    /// The path of its node, once that is known.
    pub(super) node: Option<String>,
    /// What is to be in it: each heartbeat writes that.
    pub(super) written: Arc<[u8]>,
    /// What was in it, at which version, when we last heard.
    there: (i32, Arc<[u8]>),
    pub(super) grant: Option<(Token, Ttl)>,
    /// What a try saw, for the wait that follows.
    pub(super) seen: Option<Seen>,
    /// A node was asked for and the answer is not known.
    pub(super) unsure: bool,
    /// It is being released: no node is made any more.
    over: bool,
    task: Option<AbortHandle>,
    going: Option<watch::Sender<Going>>,
}

impl Stand {
    /// The node has this in it from the beginning, as far as we are concerned.
    pub(super) fn made_with(&mut self, data: Vec<u8>) {
        self.written = data.into();
        self.there = (0, Arc::clone(&self.written));
    }

    /// The node has this in it, the servers say. Their answers may come to us in another order.
    pub(super) fn is_there(&mut self, version: i32, data: Arc<[u8]>) {
        if version.wrapping_sub(self.there.0) > 0 {
            self.there = (version, data);
        }
    }

    /// The servers will not have this in it, a quota being used up or such: a heartbeat that went on to say it would be
    /// refused as well, and the grant be lost by that.
    pub(super) fn take_back(&mut self, refused: &Arc<[u8]>) {
        if Arc::ptr_eq(&self.written, refused) {
            self.written = Arc::clone(&self.there.1);
        }
    }
}

/// Where a node stands in its line.
pub(super) struct Seen {
    pub(super) session: Arc<Session>,
    pub(super) stat: Stat,
    /// The word that the node is gone, or the connection.
    pub(super) own: oneshot::Receiver<()>,
    /// Those before it, the first one first.
    pub(super) ahead: Vec<Contender>,
}

/// How its release stands.
#[derive(Clone, Debug)]
pub(super) enum Going {
    Asked,
    /// The last attempt failed; there will be others.
    Failing(StoreError),
    /// Nothing of it is left; or nothing was there, with the cause if that is known.
    Gone(Reply<Result<(), NotHeld>>),
}

impl Place {
    pub(super) fn new(request: &Request, dir: String) -> Self {
        Self {
            id: request.grant.clone(),
            dir,
            mark: Mark::of(&request.grant),
            label: request.label.clone(),
            value: request.value.clone(),
            asked: if request.value.is_some() { short_of(request.ttl) } else { request.ttl },
            liveness: request.liveness,
            loss: request.loss.clone(),
            cause: OnceCell::new(),
            lease: AtomicU64::new(0),
            stand: Mutex::default(),
        }
    }

    pub(super) fn stand(&self) -> MutexGuard<'_, Stand> {
        self.stand.lock()
    }

    /// The path of a contender for the same lock.
    pub(super) fn child(&self, contender: &Contender) -> String {
        format!("{}/{}", self.dir, contender.node)
    }

    pub(super) fn node(&self) -> Option<String> {
        self.stand().node.clone()
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.stand().session.clone()
    }

    pub(super) fn granted(&self) -> bool {
        self.stand().grant.is_some()
    }

    /// Moves to another session, or to none: what it had in the old one is gone.
    pub(super) fn move_to(&self, session: Option<Arc<Session>>) {
        let mut stand = self.stand();
        (stand.node, stand.grant, stand.unsure, stand.seen) = (None, None, false, None);
        stand.session = session;
    }

    /// Asks for a node, unless the place is being released: what a release asks then comes behind it.
    pub(super) fn ask_for_node<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        let mut stand = self.stand();
        if stand.over {
            return None;
        }
        stand.unsure = true;
        Some(ask())
    }

    /// From now on this task looks after it, and no other.
    pub(super) fn hand_to(&self, task: AbortHandle) {
        let mut stand = self.stand();
        if stand.over {
            task.abort();
        }
        if let Some(old) = stand.task.replace(task) {
            old.abort();
        }
    }

    /// Nothing new is asked for it any more.
    pub(super) fn stop(&self) {
        let mut stand = self.stand();
        stand.over = true;
        if let Some(task) = stand.task.take() {
            task.abort();
        }
    }

    /// Where its release is told of, and whether we are the first to ask for it.
    pub(super) fn going(&self) -> (watch::Sender<Going>, bool) {
        let mut stand = self.stand();
        let first = stand.going.is_none();
        let told = stand.going.get_or_insert_with(|| watch::Sender::new(Going::Asked));
        (told.clone(), first)
    }

    pub(super) fn is_over(&self) -> bool {
        self.stand().over
    }

    /// Its caller may count on it until then.
    pub(super) fn leased(&self, until: Moment) {
        self.lease.fetch_max(until.as_nanos(), Ordering::SeqCst);
    }

    pub(super) fn lease_end(&self) -> Moment {
        Moment::from_nanos(self.lease.load(Ordering::SeqCst))
    }
}

/// The lease of a candidate: so short that its session's timeout, half as long again, is the TTL that was asked
/// for. Then the next one leads within that TTL and a tick, if the leader dies.
fn short_of(ttl: Ttl) -> Ttl {
    Ttl::new(ttl.as_duration() * 2 / 3).unwrap_or(Ttl::MIN)
}

/// All places of this client.
#[derive(Default)]
pub(super) struct Places {
    open: Mutex<HashMap<GrantId, Arc<Place>>>,
    /// The last ones that ended by themselves.
    ended: Mutex<VecDeque<(GrantId, LossCause)>>,
}

impl Places {
    pub(super) fn get(&self, id: &GrantId) -> Option<Arc<Place>> {
        self.open.lock().get(id).cloned()
    }

    /// The place that is there, or this one.
    pub(super) fn enter(&self, place: Place) -> Arc<Place> {
        Arc::clone(self.open.lock().entry(place.id.clone()).or_insert_with(|| Arc::new(place)))
    }

    /// Forgets this place, if it is still the one that is known.
    pub(super) fn remove(&self, place: &Arc<Place>) {
        let mut open = self.open.lock();
        if open.get(&place.id).is_some_and(|known| Arc::ptr_eq(known, place)) {
            open.remove(&place.id);
        }
    }

    /// The grant ended by itself: forgotten but for the cause.
    pub(super) fn end(&self, place: &Arc<Place>, cause: LossCause) {
        self.remove(place);
        let mut ended = self.ended.lock();
        if ended.len() == REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((place.id.clone(), cause));
    }

    pub(super) fn why_ended(&self, id: &GrantId) -> Option<LossCause> {
        let ended = self.ended.lock();
        ended.iter().rev().find(|(whose, _)| whose == id).map(|(_, cause)| *cause)
    }

    /// Those for which this holds.
    pub(super) fn all(&self, wanted: impl Fn(&Place) -> bool) -> Vec<Arc<Place>> {
        self.open.lock().values().filter(|place| wanted(place)).cloned().collect()
    }
}
