//! One session: its id, its users, and the task that moves it from server to server.
//!
//! A session's ephemeral nodes are deleted when the leader has no sign of it for its timeout. The task connects, serves,
//! and connects to the next server when that breaks, always to the same session. Requests that were not sent yet wait
//! for the next connection; those that were sent fail.
//!
//! A session that is *kept* is pinged, and reconnected at once. Any other connects when it has a request, and only
//! requests extend it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::adaptive_timeout::AdaptiveTimeout;
use super::conn::{Conn, ConnectionEnd, Watch};
use super::dial::{ConnectError, Servers};
use super::lease_credit::LeaseCredit;
use super::protocol::Op;
use super::requests::Answer;
use super::wire::{ConnectRequest, Malformed};
use crate::backend::{StoreError, StoreErrorKind};
use crate::backends::zookeeper::error::{Code, code, malformed};
use crate::clock::Clock;
use crate::retry::CALL_TIMEOUT;

/// How long to wait between rounds over all servers, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// A connection that has lived for this long was a good one.
const SETTLED: Duration = Duration::from_secs(1);

/// What another process needs to attach to a session.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

/// Depends on the timeout of a session.
pub(crate) trait OnShorter: Send + Sync {
    /// Since the request that left at `sent` the servers keep the session for `timeout` only, less than before.
    fn shortened(&self, sent: Moment, timeout: Duration);

    /// Whether it still depends on it.
    fn is_connected(&self) -> bool;
}

/// A handle on one session.
pub(crate) struct Session {
    core: Arc<Core>,
    orders: UnboundedSender<Order>,
}

/// Shared by the handle and the task.
pub(super) struct Core {
    servers: Arc<Servers>,
    pub(super) clock: Arc<dyn Clock>,
    /// The timeout to request, in milliseconds.
    asked: i32,
    facts: Mutex<Facts>,
    /// Notified when it becomes shorter.
    dependents: Mutex<Vec<Box<dyn OnShorter>>>,
    state: watch::Sender<State>,
    /// How many users keep it alive.
    keep_alives: AtomicUsize,
    /// When its last request came, in nanoseconds.
    used: AtomicU64,
}

struct Facts {
    /// 0 until the first handshake.
    id: i64,
    password: Vec<u8>,
    timeout: Duration,
    /// The last transaction that we saw: a server that is behind it refuses us.
    zxid: i64,
    lease_credit: LeaseCredit,
    adaptive_timeout: AdaptiveTimeout,
    /// The latest moment from which a write that was confirmed counts, on any connection of this session.
    credited: Option<Moment>,
    /// When a waiter last sent a heartbeat for all of them.
    heartbeat: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No connection now.
    Down,
    Up,
    /// It has ended, or we have left it. Final.
    Over,
}

/// A message to the task.
pub(super) enum Order {
    Ask {
        op: Op,
        watch: Option<Watch>,
        answer: oneshot::Sender<Result<RawReply, StoreError>>,
    },
    /// Answered once there is a connection.
    Ready(oneshot::Sender<Result<(), StoreError>>),
    /// The number of its users may have changed.
    Nudge,
    /// Ends the session at the server, which deletes all its nodes.
    Close(oneshot::Sender<Result<(), StoreError>>),
    /// Ends the task and leaves the session as it is.
    Leave,
}

/// A reply.
pub(super) struct RawReply {
    pub(super) body: Vec<u8>,
    /// From this moment on the session certainly lives for two thirds of its timeout (`lease_credit.rs`).
    pub(super) counts: Moment,
}

/// While it lives, the session is kept.
pub(crate) struct KeepAlive(Arc<Session>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.core.keep_alives.fetch_sub(1, Ordering::SeqCst);
        let _ = self.0.orders.send(Order::Nudge);
    }
}

impl Session {
    /// A new session, or an existing one. It connects when it is kept, or at its first request.
    pub(crate) fn start(
        servers: &Arc<Servers>,
        asked: Duration,
        key: Option<Key>,
        kept: bool,
        runtime: &Handle,
    ) -> Arc<Self> {
        let (clock, now) = (Arc::clone(&servers.clock), servers.clock.now());
        let (id, password) = key.map_or((0, vec![0; 16]), |key| (key.session, key.password));
        let (lease_credit, adaptive_timeout) =
            (LeaseCredit::new(now, asked), AdaptiveTimeout::new(asked));
        let facts = Facts {
            id,
            password,
            timeout: asked,
            zxid: 0,
            lease_credit,
            adaptive_timeout,
            credited: None,
            heartbeat: None,
        };
        let core = Arc::new(Core {
            servers: Arc::clone(servers),
            clock,
            asked: i32::try_from(asked.as_millis()).unwrap_or(i32::MAX),
            facts: Mutex::new(facts),
            dependents: Mutex::default(),
            state: watch::Sender::new(State::Down),
            keep_alives: AtomicUsize::new(usize::from(kept)),
            used: AtomicU64::new(now.as_nanos()),
        });
        let (orders, taken) = unbounded_channel();
        runtime.spawn(run(Arc::clone(&core), taken));
        Arc::new(Self { core, orders })
    }

    pub(crate) fn keep_alive(self: &Arc<Self>) -> KeepAlive {
        self.core.keep_alives.fetch_add(1, Ordering::SeqCst);
        let _ = self.orders.send(Order::Nudge);
        KeepAlive(Arc::clone(self))
    }

    /// Its number; 0 before it is ready.
    pub(crate) fn id(&self) -> i64 {
        self.core.facts.lock().id
    }

    pub(crate) fn key(&self) -> Key {
        let facts = self.core.facts.lock();
        Key { session: facts.id, password: facts.password.clone() }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.core.timeout()
    }

    /// The timeout that was requested, and the one that was granted; `None` before it is ready.
    pub(crate) fn timeouts(&self) -> Option<(Duration, Duration)> {
        let facts = self.core.facts.lock();
        let asked = u64::from(self.core.asked.unsigned_abs());
        (facts.id != 0).then_some((Duration::from_millis(asked), facts.timeout))
    }

    /// From this moment on the session certainly lives for two thirds of its timeout: a quorum confirmed a write that
    /// counts from then. `None` if none was confirmed yet.
    pub(crate) fn credited(&self) -> Option<Moment> {
        self.core.facts.lock().credited
    }

    /// When a waiter is to send a write, if each write serves for `every`.
    pub(crate) fn heartbeat_due(&self, every: Duration) -> Moment {
        self.core.facts.lock().heartbeat_due(every)
    }

    /// Whether the caller is to send that write now. If so, the other waiters of this session need not.
    pub(crate) fn claim_heartbeat(&self, every: Duration) -> bool {
        let (now, mut facts) = (self.core.clock.now(), self.core.facts.lock());
        let due = now >= facts.heartbeat_due(every);
        if due {
            facts.heartbeat = Some(now);
        }
        due
    }

    /// From now on this one is notified when the session becomes shorter.
    pub(crate) fn notify_if_shorter(&self, dependent: Box<dyn OnShorter>) {
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
        let (ready, receiver) = oneshot::channel();
        let _ = self.orders.send(Order::Ready(ready));
        receiver.await.unwrap_or_else(|_| Err(Code::SessionGone.into()))
    }

    /// Ends it at the server.
    pub(crate) fn close(&self) -> impl Answer<()> + use<> {
        let (closing, closed) = oneshot::channel();
        let _ = self.orders.send(Order::Close(closing));
        async move { closed.await.unwrap_or(Ok(())) }
    }

    /// Closes the connection, and lets the session expire.
    pub(crate) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Sends a request; when this returns it is queued behind all earlier ones.
    pub(super) fn ask<T>(
        &self,
        op: Op,
        watch: Option<Watch>,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> impl Answer<(T, Moment)> + use<T> {
        self.core.used.store(self.core.clock.now().as_nanos(), Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let _ = self.orders.send(Order::Ask { op, watch, answer });
        async move {
            let reply = receiver.await.unwrap_or_else(|_| Err(Code::SessionGone.into()))?;
            let value = read(&reply.body).map_err(|Malformed| malformed("the server"))?;
            Ok((value, reply.counts))
        }
    }
}

impl Facts {
    fn heartbeat_due(&self, every: Duration) -> Moment {
        self.credited.max(self.heartbeat).map_or(Moment::default(), |last| last + every)
    }
}

impl Core {
    pub(super) fn timeout(&self) -> Duration {
        self.facts.lock().timeout
    }

    /// The server keeps the session for less time than the previous one. For the leader that counts from our connect
    /// request, whose reply has just come.
    fn shorten(&self, sent: Moment, timeout: Duration) {
        tracing::warn!(
            "the session timeout of a server of {} is only {timeout:?}, less than the previous one: give all \
            servers the same minSessionTimeout and maxSessionTimeout",
            self.servers.shown()
        );
        for dependent in self.dependents.lock().iter().filter(|one| one.is_connected()) {
            dependent.shortened(sent, timeout);
        }
    }

    /// How long a server may stay silent.
    pub(super) fn adaptive_timeout(&self) -> Duration {
        self.facts.lock().adaptive_timeout.limit()
    }

    /// A server was silent for that long.
    pub(super) fn hung(&self) {
        let mut facts = self.facts.lock();
        let timeout = facts.timeout;
        facts.adaptive_timeout.hung(self.servers.hosts.len(), timeout);
    }

    pub(super) fn kept(&self) -> bool {
        self.keep_alives.load(Ordering::SeqCst) > 0
    }

    /// A request was answered; `applied` if it was a write, and the servers did it. Returns the moment from which that
    /// counts.
    pub(super) fn confirmed(&self, zxid: i64, sent: Moment, applied: bool) -> Moment {
        let now = self.clock.now();
        let mut facts = self.facts.lock();
        facts.zxid = facts.zxid.max(zxid);
        facts.lease_credit.confirm(sent, now);
        let timeout = facts.timeout;
        facts.adaptive_timeout.answered(now.since(sent), timeout);
        // A server that the leader lost a while ago may still answer a read, or a ping.
        if !applied {
            return facts.lease_credit.handshake();
        }
        let counts = facts.lease_credit.credit(sent);
        facts.credited = facts.credited.max(Some(counts));
        counts
    }

    pub(super) fn set(&self, new: State) {
        self.state.send_if_modified(|state| {
            let changes = *state != new && *state != State::Over;
            if changes {
                *state = new;
            }
            changes
        });
    }

    async fn connect(self: &Arc<Self>, turn: usize) -> Result<Conn, ConnectError> {
        let host = &self.servers.hosts[turn % self.servers.hosts.len()];
        let (id, zxid, password, adaptive_timeout) = {
            let facts = self.facts.lock();
            (facts.id, facts.zxid, facts.password.clone(), facts.adaptive_timeout.limit())
        };
        let connect_request = ConnectRequest {
            last_zxid: zxid,
            timeout_ms: self.asked,
            session: id,
            password: &password,
        };
        let connected = self.servers.connect(host, &connect_request, adaptive_timeout).await?;
        let timeout = u64::from(connected.connect_response.timeout_ms.unsigned_abs());
        let timeout = Duration::from_millis(timeout);
        let shorter = {
            let mut facts = self.facts.lock();
            let shorter = id != 0 && timeout < facts.timeout;
            facts.timeout = timeout;
            (facts.id, facts.password) =
                (connected.connect_response.session, connected.connect_response.password);
            facts.lease_credit = LeaseCredit::new(connected.sent, facts.timeout);
            facts.adaptive_timeout.answered(self.clock.now().since(connected.sent), timeout);
            shorter
        };
        // Before any caller sees that it is up again.
        if shorter {
            self.shorten(connected.sent, timeout);
        }
        self.set(State::Up);
        Ok(Conn::new(Arc::clone(self), connected.frame_stream, host.to_string()))
    }

    /// Why there is no connection, with all servers that were tried.
    fn away(&self, last: &StoreError) -> StoreError {
        if !last.is_transient() {
            return last.clone();
        }
        let servers = self.servers.shown();
        StoreError::unavailable(format!(
            "no ZooKeeper server of {servers} accepts a session: {last}"
        ))
    }
}

/// The task of a session, until it is over.
async fn run(core: Arc<Core>, mut orders: UnboundedReceiver<Order>) {
    let mut waiting = VecDeque::new();
    let (mut turn, mut nap) = (core.servers.somewhere(), BACKOFF.0);
    let mut failed = 0;
    let mut down_since = core.clock.now();
    let (clock, count) = (Arc::clone(&core.clock), core.servers.hosts.len());
    loop {
        waiting.retain(|order| !matches!(order, Order::Ask { answer, .. } if answer.is_closed()));
        // A session that was never created needs no close.
        let unmade = core.facts.lock().id == 0 && matches!(waiting.front(), Some(Order::Close(_)));
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
        // No guard relies on it any more. If our requests arrive but no reply does, each attempt to connect would
        // keep it alive at the server, with all its nodes; and servers that were restored refuse it for ever.
        if core.facts.lock().id != 0 && clock.now().since(down_since) > core.timeout() {
            tracing::warn!(
                "gave up a session with {}: no server answered within its timeout",
                core.servers.shown()
            );
            break;
        }
        match core.connect(turn).await {
            Ok(conn) => {
                failed = 0;
                let made = clock.now();
                match conn.serve(&mut waiting, &mut orders).await {
                    ConnectionEnd::Closed | ConnectionEnd::Left => break,
                    ConnectionEnd::Unused => continue,
                    ConnectionEnd::Cut(error) if error.kind() == StoreErrorKind::Refused => {
                        fail(&mut waiting, &error);
                    }
                    ConnectionEnd::Cut(error) => tracing::debug!(%error, "connection lost"),
                }
                turn += 1;
                down_since = clock.now();
                if down_since.since(made) >= SETTLED {
                    nap = BACKOFF.0;
                }
            }
            Err(ConnectError::Failed(error)) if code(&error) == Some(Code::SessionGone) => break,
            Err(connect_error) => {
                failed += 1;
                let error = match connect_error {
                    ConnectError::Late(why) => {
                        core.hung();
                        StoreError::unavailable(why)
                    }
                    ConnectError::Failed(error) => error,
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
    // An order that is dropped, here or with `waiting`, notifies its caller that the session is over.
    while orders.try_recv().is_ok() {}
}

/// Fails all waiting requests, since there is no connection.
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
