//! One session: what it is called, who keeps it, and the task that moves it from server to server.
//!
//! A session's ephemeral nodes go when the leader has not heard of it for its timeout. The task connects, serves,
//! and connects to the next server when that breaks, always to the same session. Requests that were not sent yet wait
//! for the next connection; those that were sent fail.
//!
//! A session that is *kept* is pinged, and connected again at once. Any other is connected when it is asked something,
//! and only requests lengthen it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::asks::Answer;
use super::beat::Beat;
use super::conn::{Conn, Over, Watch};
use super::dial::{Greeting, Servers};
use super::ops::Op;
use super::patience::Patience;
use super::wire::{Hello, Malformed};
use crate::backend::{StoreError, StoreErrorKind};
use crate::backends::zookeeper::error::{Code, code, malformed};
use crate::clock::Clock;
use crate::retry::CALL_TIMEOUT;

/// How long to wait between rounds over all servers, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// A connection that has lived for this long was a good one.
const SETTLED: Duration = Duration::from_secs(1);

/// A session as another process needs it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

/// Who depends on how long a session lasts.
pub(crate) trait OnShorter: Send + Sync {
    /// From the request on that left at `sent` the servers keep it for `timeout` only, less than before.
    fn shortened(&self, sent: Moment, timeout: Duration);

    /// Whether anybody still depends on it.
    fn is_connected(&self) -> bool;
}

/// A handle on one session.
pub(crate) struct Session {
    core: Arc<Core>,
    orders: UnboundedSender<Order>,
}

/// What the handle and the task share.
pub(super) struct Core {
    servers: Arc<Servers>,
    pub(super) clock: Arc<dyn Clock>,
    /// The timeout to ask for, in milliseconds.
    asked: i32,
    facts: Mutex<Facts>,
    /// Who is told when it becomes shorter.
    dependents: Mutex<Vec<Box<dyn OnShorter>>>,
    state: watch::Sender<State>,
    /// How many want it kept alive.
    keepers: AtomicUsize,
    /// When it was last asked anything, in nanoseconds.
    used: AtomicU64,
}

struct Facts {
    /// 0 until the first handshake.
    id: i64,
    password: Vec<u8>,
    timeout: Duration,
    /// The last transaction that we saw: a server that is behind it does not take us.
    zxid: i64,
    beat: Beat,
    patience: Patience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No connection now.
    Down,
    Up,
    /// It has ended, or we have left it. Final.
    Over,
}

/// What the task is told.
pub(super) enum Order {
    Ask {
        op: Op,
        watch: Option<Watch>,
        answer: oneshot::Sender<Result<Heard, StoreError>>,
    },
    /// Answered once there is a connection.
    Ready(oneshot::Sender<Result<(), StoreError>>),
    /// Whether it is kept may have changed.
    Nudge,
    /// Ends the session at the server. All its nodes go.
    Close(oneshot::Sender<Result<(), StoreError>>),
    /// Ends the task and leaves the session as it is.
    Leave,
}

/// An answer.
pub(super) struct Heard {
    pub(super) body: Vec<u8>,
    /// From when the session is sure to be alive for its timeout less a third (beat.rs).
    pub(super) counts: Moment,
}

/// While it lives, the session is kept.
pub(crate) struct Kept(Arc<Session>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.core.keepers.fetch_sub(1, Ordering::SeqCst);
        let _ = self.0.orders.send(Order::Nudge);
    }
}

impl Session {
    /// A new session, or one that exists. It connects when it is kept or asked.
    pub(crate) fn start(
        servers: &Arc<Servers>,
        asked: Duration,
        key: Option<Key>,
        kept: bool,
        runtime: &Handle,
    ) -> Arc<Self> {
        let (clock, now) = (Arc::clone(&servers.clock), servers.clock.now());
        let (id, password) = key.map_or((0, vec![0; 16]), |key| (key.session, key.password));
        let (beat, patience) = (Beat::new(now, asked), Patience::new(asked));
        let facts = Facts { id, password, timeout: asked, zxid: 0, beat, patience };
        let core = Arc::new(Core {
            servers: Arc::clone(servers),
            clock,
            asked: i32::try_from(asked.as_millis()).unwrap_or(i32::MAX),
            facts: Mutex::new(facts),
            dependents: Mutex::default(),
            state: watch::Sender::new(State::Down),
            keepers: AtomicUsize::new(usize::from(kept)),
            used: AtomicU64::new(now.as_nanos()),
        });
        let (orders, taken) = unbounded_channel();
        runtime.spawn(run(Arc::clone(&core), taken));
        Arc::new(Self { core, orders })
    }

    pub(crate) fn keep(self: &Arc<Self>) -> Kept {
        self.core.keepers.fetch_add(1, Ordering::SeqCst);
        let _ = self.orders.send(Order::Nudge);
        Kept(Arc::clone(self))
    }

    /// Its number; 0 before it is ready.
    pub(crate) fn id(&self) -> i64 {
        self.core.facts().id
    }

    pub(crate) fn key(&self) -> Key {
        let facts = self.core.facts();
        Key { session: facts.id, password: facts.password.clone() }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.core.timeout()
    }

    /// The timeout that it asked for, and the one that it was given; `None` before it is ready.
    pub(crate) fn timeouts(&self) -> Option<(Duration, Duration)> {
        let facts = self.core.facts();
        let asked = u64::from(self.core.asked.unsigned_abs());
        (facts.id != 0).then_some((Duration::from_millis(asked), facts.timeout))
    }

    /// From now on this one is told when it becomes shorter.
    pub(crate) fn tell_if_shorter(&self, dependent: Box<dyn OnShorter>) {
        let mut dependents = self.core.dependents.lock();
        if dependents.len() == dependents.capacity() {
            dependents.retain(|one| one.is_connected());
        }
        dependents.push(dependent);
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.core.state.borrow() == State::Over
    }

    pub(crate) fn unused_for(&self) -> Duration {
        let used = Moment::from_nanos(self.core.used.load(Ordering::Relaxed));
        self.core.clock.now().since(used)
    }

    /// Resolves once it is connected (`true`) or over (`false`), after a connection broke.
    pub(crate) async fn up_or_over(&self) -> bool {
        let mut state = self.core.state.subscribe();
        let settled = state.wait_for(|state| *state != State::Down).await;
        settled.is_ok_and(|state| *state == State::Up)
    }

    /// Resolves once there is a connection.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        if *self.core.state.borrow() == State::Up {
            return Ok(());
        }
        let (ready, told) = oneshot::channel();
        let _ = self.orders.send(Order::Ready(ready));
        told.await.unwrap_or_else(|_| Err(Code::SessionGone.into()))
    }

    /// Ends it at the server.
    pub(crate) fn close(&self) -> impl Answer<()> + use<> {
        let (closing, closed) = oneshot::channel();
        let _ = self.orders.send(Order::Close(closing));
        async move { closed.await.unwrap_or(Ok(())) }
    }

    /// Lets go of it, and leaves it to run out.
    pub(crate) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Asks; it is on its way when this returns, behind all that was asked before.
    pub(super) fn ask<T>(
        &self,
        op: Op,
        watch: Option<Watch>,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> impl Answer<(T, Moment)> + use<T> {
        self.core.used.store(self.core.clock.now().as_nanos(), Ordering::Relaxed);
        let (answer, told) = oneshot::channel();
        let _ = self.orders.send(Order::Ask { op, watch, answer });
        async move {
            let heard = told.await.unwrap_or_else(|_| Err(Code::SessionGone.into()))?;
            let value = read(&heard.body).map_err(|Malformed| malformed("the server"))?;
            Ok((value, heard.counts))
        }
    }
}

impl Core {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.facts().timeout
    }

    /// The server keeps the session for less than the one before it. What the leader does with it counts from the
    /// hello, whose answer we have just heard.
    fn shorten(&self, sent: Moment, timeout: Duration) {
        tracing::warn!(
            "a server of {} keeps a session for {timeout:?}, less than the one before: give all the same \
             minSessionTimeout and maxSessionTimeout",
            self.servers.shown()
        );
        for dependent in self.dependents.lock().iter().filter(|one| one.is_connected()) {
            dependent.shortened(sent, timeout);
        }
    }

    /// How long a server may leave us without an answer.
    pub(super) fn patience(&self) -> Duration {
        self.facts().patience.limit()
    }

    /// One has left us without for that long.
    pub(super) fn hung(&self) {
        let mut facts = self.facts();
        let timeout = facts.timeout;
        facts.patience.hung(self.servers.hosts.len(), timeout);
    }

    pub(super) fn kept(&self) -> bool {
        self.keepers.load(Ordering::SeqCst) > 0
    }

    /// A request was answered. From when that counts.
    pub(super) fn confirmed(&self, zxid: i64, sent: Moment, writes: bool) -> Moment {
        let now = self.clock.now();
        let mut facts = self.facts();
        facts.zxid = facts.zxid.max(zxid);
        facts.beat.confirm(sent, now);
        let timeout = facts.timeout;
        facts.patience.answered(now.since(sent), timeout);
        // A read may be answered by a server that the leader has not heard of for a while.
        if writes { facts.beat.credit(sent) } else { facts.beat.handshake() }
    }

    pub(super) fn disconnected(&self) {
        self.set(State::Down);
    }

    fn set(&self, new: State) {
        self.state.send_if_modified(|state| {
            let changes = *state != new && *state != State::Over;
            if changes {
                *state = new;
            }
            changes
        });
    }

    async fn connect(self: &Arc<Self>, turn: usize) -> Result<Conn, Greeting> {
        let hosts = &self.servers.hosts;
        let Some(host) = hosts.get(turn % hosts.len().max(1)) else {
            return Err(Greeting::Failed(StoreError::unavailable("the URL names no server")));
        };
        let (id, zxid, password, patience) = {
            let facts = self.facts();
            (facts.id, facts.zxid, facts.password.clone(), facts.patience.limit())
        };
        let hello =
            Hello { last_zxid: zxid, timeout_ms: self.asked, session: id, password: &password };
        let greeted = self.servers.greet(host, &hello, patience).await?;
        let timeout = u64::from(greeted.welcome.timeout_ms.unsigned_abs());
        let timeout = Duration::from_millis(timeout);
        let shorter = {
            let mut facts = self.facts();
            let shorter = id != 0 && timeout < facts.timeout;
            facts.timeout = timeout;
            (facts.id, facts.password) = (greeted.welcome.session, greeted.welcome.password);
            facts.beat = Beat::new(greeted.sent, facts.timeout);
            facts.patience.answered(self.clock.now().since(greeted.sent), timeout);
            shorter
        };
        // Before anybody sees that it is up again.
        if shorter {
            self.shorten(greeted.sent, timeout);
        }
        self.set(State::Up);
        Ok(Conn::new(Arc::clone(self), greeted.pipe, host.to_string()))
    }

    /// Why nothing was asked, with all servers that were tried.
    fn away(&self, last: &StoreError) -> StoreError {
        if !last.is_transient() {
            return last.clone();
        }
        let servers = self.servers.shown();
        StoreError::unavailable(format!("no ZooKeeper server of {servers} takes us: {last}"))
    }
}

/// The task of a session, until it is over.
async fn run(core: Arc<Core>, mut orders: UnboundedReceiver<Order>) {
    let mut waiting = VecDeque::new();
    let (mut turn, mut nap) = (core.servers.somewhere(), BACKOFF.0);
    let mut failed = 0;
    let mut down_since = core.clock.now();
    let (clock, count) = (Arc::clone(&core.clock), core.servers.hosts.len().max(1));
    loop {
        waiting.retain(|order| !matches!(order, Order::Ask { answer, .. } if answer.is_closed()));
        // One that never was needs no end.
        let unmade = core.facts().id == 0 && matches!(waiting.front(), Some(Order::Close(_)));
        let deserted = waiting.is_empty() && orders.is_closed() && orders.is_empty();
        if unmade || deserted {
            break;
        }
        if !core.kept() && waiting.is_empty() {
            match orders.recv().await {
                None | Some(Order::Leave) => break,
                Some(Order::Nudge) => {}
                Some(order) => waiting.push_back(order),
            }
            down_since = clock.now();
            continue;
        }
        // No guard counts on it any more. If we hear nothing and are heard, each try to connect would keep it
        // at the server, with all its nodes; and servers that were restored refuse it for ever.
        if core.facts().id != 0 && clock.now().since(down_since) > core.timeout() {
            tracing::warn!("a session with {} is given up", core.servers.shown());
            break;
        }
        match core.connect(turn).await {
            Ok(conn) => {
                failed = 0;
                let made = clock.now();
                match conn.serve(&mut waiting, &mut orders).await {
                    Over::Closed | Over::Left => break,
                    Over::Unused => continue,
                    Over::Cut(error) if error.kind() == StoreErrorKind::Refused => {
                        fail(&mut waiting, &error);
                    }
                    Over::Cut(error) => tracing::debug!(%error, "connection lost"),
                }
                turn += 1;
                down_since = clock.now();
                if down_since.since(made) >= SETTLED {
                    nap = BACKOFF.0;
                }
            }
            Err(Greeting::Failed(error)) if code(&error) == Some(Code::SessionGone) => break,
            Err(greeting) => {
                failed += 1;
                let error = match greeting {
                    Greeting::Late(why) => {
                        core.hung();
                        StoreError::unavailable(why)
                    }
                    Greeting::Failed(error) => error,
                };
                tracing::debug!(%error, "no connection");
                let mut left = false;
                while let Ok(order) = orders.try_recv() {
                    left |= matches!(order, Order::Leave);
                    waiting.push_back(order);
                }
                if left {
                    break;
                }
                let round = failed % count == 0;
                if round || clock.now().since(down_since) >= CALL_TIMEOUT {
                    fail(&mut waiting, &core.away(&error));
                }
                turn += 1;
                if !round {
                    continue;
                }
            }
        }
        clock.alarm(clock.now() + nap).await;
        nap = (nap * 2).min(BACKOFF.1);
    }
    core.set(State::Over);
    orders.close();
    while let Ok(order) = orders.try_recv() {
        waiting.push_back(order);
    }
    for order in waiting {
        match order {
            Order::Ask { answer, .. } => drop(answer.send(Err(Code::SessionGone.into()))),
            Order::Ready(ready) => drop(ready.send(Err(Code::SessionGone.into()))),
            Order::Close(closing) => drop(closing.send(Ok(()))),
            Order::Nudge | Order::Leave => {}
        }
    }
}

/// Tells all who wait that there is no connection.
fn fail(waiting: &mut VecDeque<Order>, error: &StoreError) {
    for order in waiting.drain(..) {
        match order {
            Order::Ask { answer, .. } => drop(answer.send(Err(error.clone()))),
            Order::Ready(ready) => drop(ready.send(Err(error.clone()))),
            Order::Close(closing) => drop(closing.send(Err(error.clone()))),
            Order::Nudge | Order::Leave => {}
        }
    }
}
