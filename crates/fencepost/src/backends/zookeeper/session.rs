//! One session: what it is called, who keeps it, and the task that moves it from server to server.
//!
//! A session is the lease: its ephemeral nodes go when the leader has not heard of it for its timeout. The
//! task connects, serves, and connects to the next server when that breaks, always to the same session.
//! Requests that were not sent yet wait for the next connection; those that were sent fail as cut.
//!
//! A session that carries grants of this process is *kept*: pinged, and connected again at once. One that
//! carries a grant of a script is not, once it is granted: only renewals lengthen it. It is connected when
//! somebody asks something.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::beat::Beat;
use super::conn::{Conn, Over, Watch};
use super::dial::{Greeting, Servers};
use super::faults::{Fault, malformed};
use super::notes::Key;
use super::ops::Op;
use super::patience::Patience;
use super::wire::{Hello, Malformed};
use crate::backend::LossSignal;
use crate::clock::Clock;

/// How long requests wait for a connection before they fail.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait between rounds over all servers, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// A connection that has lived for this long was a good one.
const SETTLED: Duration = Duration::from_secs(1);

/// A handle on one session.
pub(super) struct Session {
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
    /// Whose grants it carries, to be told when it becomes shorter.
    carried: Mutex<Vec<LossSignal>>,
    runtime: Handle,
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
        answer: oneshot::Sender<Result<Heard, Fault>>,
    },
    /// Answered once there is a connection.
    Ready(oneshot::Sender<Result<(), Fault>>),
    /// Whether it is kept may have changed.
    Nudge,
    /// Ends the session at the server. All its nodes go.
    Close(oneshot::Sender<Result<(), Fault>>),
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
pub(super) struct Kept(Arc<Session>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.core.keepers.fetch_sub(1, Ordering::SeqCst);
        let _ = self.0.orders.send(Order::Nudge);
    }
}

impl Session {
    /// A new session, or one that exists. It connects when it is kept or asked.
    pub(super) fn start(
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
            carried: Mutex::default(),
            runtime: runtime.clone(),
            state: watch::Sender::new(State::Down),
            keepers: AtomicUsize::new(usize::from(kept)),
            used: AtomicU64::new(now.as_nanos()),
        });
        let (orders, taken) = unbounded_channel();
        runtime.spawn(run(Arc::clone(&core), taken));
        Arc::new(Self { core, orders })
    }

    pub(super) fn keep(self: &Arc<Self>) -> Kept {
        self.core.keepers.fetch_add(1, Ordering::SeqCst);
        let _ = self.orders.send(Order::Nudge);
        Kept(Arc::clone(self))
    }

    /// Its number; 0 before it is ready.
    pub(super) fn id(&self) -> i64 {
        self.core.facts().id
    }

    pub(super) fn key(&self) -> Key {
        let facts = self.core.facts();
        Key { session: facts.id, password: facts.password.clone() }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.core.timeout()
    }

    /// The timeout that it asked for, and the one that it was given; `None` before it is ready.
    pub(super) fn timeouts(&self) -> Option<(Duration, Duration)> {
        let facts = self.core.facts();
        let asked = u64::from(self.core.asked.unsigned_abs());
        (facts.id != 0).then_some((Duration::from_millis(asked), facts.timeout))
    }

    /// The lease that it carries: two thirds of its timeout.
    pub(super) fn ttl(&self) -> Result<Ttl, Fault> {
        let timeout = self.timeout();
        lease(timeout).ok_or_else(|| {
            Fault::Refused(format!(
                "the server keeps a session for {timeout:?} only: raise its maxSessionTimeout"
            ))
        })
    }

    /// From now on it carries this guard's grant, or place.
    pub(super) fn carry(&self, guard: &LossSignal) {
        let mut carried = self.core.carried();
        if carried.len() == carried.capacity() {
            carried.retain(LossSignal::is_heard);
        }
        carried.push(guard.clone());
    }

    pub(super) fn is_over(&self) -> bool {
        *self.core.state.borrow() == State::Over
    }

    pub(super) fn unused_for(&self) -> Duration {
        let used = Moment::from_nanos(self.core.used.load(Ordering::Relaxed));
        self.core.clock.now().since(used)
    }

    /// Resolves once it is connected (`true`) or over (`false`), after a connection broke.
    pub(super) async fn up_or_over(&self) -> bool {
        let mut state = self.core.state.subscribe();
        let settled = state.wait_for(|state| *state != State::Down).await;
        settled.is_ok_and(|state| *state == State::Up)
    }

    /// Resolves once there is a connection.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        if *self.core.state.borrow() == State::Up {
            return Ok(());
        }
        let (ready, told) = oneshot::channel();
        let _ = self.orders.send(Order::Ready(ready));
        told.await.unwrap_or(Err(Fault::Gone))
    }

    /// Ends it at the server.
    pub(super) fn close(&self) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let (closing, closed) = oneshot::channel();
        let _ = self.orders.send(Order::Close(closing));
        async move { closed.await.unwrap_or(Ok(())) }
    }

    /// Lets go of it, and leaves it to run out.
    pub(super) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Asks; it is on its way when this returns, behind all that was asked before.
    pub(super) fn ask<T>(
        &self,
        op: Op,
        watch: Option<Watch>,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> impl Future<Output = Result<(T, Moment), Fault>> + Send + use<T> {
        self.core.used.store(self.core.clock.now().as_nanos(), Ordering::Relaxed);
        let (answer, told) = oneshot::channel();
        let _ = self.orders.send(Order::Ask { op, watch, answer });
        async move {
            let heard = told.await.unwrap_or(Err(Fault::Gone))?;
            let value = read(&heard.body).map_err(|Malformed| malformed("the server"))?;
            Ok((value, heard.counts))
        }
    }
}

impl Core {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }

    fn carried(&self) -> MutexGuard<'_, Vec<LossSignal>> {
        self.carried.lock()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.facts().timeout
    }

    /// The server keeps the session for less than the one before it: no guard may count on more, from now on.
    /// What the leader does with it counts from the hello, whose answer we have just heard.
    fn shorten(&self, sent: Moment, timeout: Duration) {
        tracing::warn!(
            "a server of {} keeps a session for {timeout:?}, less than the one before: give all the same \
             minSessionTimeout and maxSessionTimeout",
            self.servers.shown()
        );
        let ttl = lease(timeout).unwrap_or(Ttl::MIN);
        for guard in self.carried().iter().filter(|guard| guard.is_heard()) {
            let Some(end) = guard.shorten(sent, ttl).filter(|end| *end < Moment::NEVER) else {
                continue;
            };
            // Whoever keeps the lease may sleep for longer than it lasts now.
            let (guard, alarm) = (guard.clone(), self.clock.alarm(end));
            self.runtime.spawn(async move {
                alarm.await;
                guard.settle();
            });
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
            return Err(Greeting::Failed(Fault::Away("the URL names no server".into())));
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
    fn away(&self, last: &Fault) -> Fault {
        match last {
            Fault::Away(why) | Fault::Cut(why) | Fault::NotNow(why) => Fault::Away(format!(
                "no ZooKeeper server of {} takes us: {why}",
                self.servers.shown()
            )),
            other => other.clone(),
        }
    }
}

/// The lease that a session of this timeout carries; `None` if it is too short for any.
fn lease(timeout: Duration) -> Option<Ttl> {
    Ttl::new((timeout * 2 / 3).min(Ttl::MAX.as_duration())).ok()
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
                    Over::Cut(Fault::Refused(why)) => fail(&mut waiting, &Fault::Refused(why)),
                    Over::Cut(fault) => tracing::debug!(?fault, "connection lost"),
                }
                turn += 1;
                down_since = clock.now();
                if down_since.since(made) >= SETTLED {
                    nap = BACKOFF.0;
                }
            }
            Err(Greeting::Failed(Fault::Gone)) => break,
            Err(greeting) => {
                failed += 1;
                let fault = match greeting {
                    Greeting::Late(why) => {
                        core.hung();
                        Fault::Away(why)
                    }
                    Greeting::Failed(fault) => fault,
                };
                tracing::debug!(?fault, "no connection");
                let mut left = false;
                while let Ok(order) = orders.try_recv() {
                    left |= matches!(order, Order::Leave);
                    waiting.push_back(order);
                }
                if left {
                    break;
                }
                let round = failed % count == 0;
                if round || clock.now().since(down_since) >= PATIENCE {
                    fail(&mut waiting, &core.away(&fault));
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
            Order::Ask { answer, .. } => drop(answer.send(Err(Fault::Gone))),
            Order::Ready(ready) => drop(ready.send(Err(Fault::Gone))),
            Order::Close(closing) => drop(closing.send(Ok(()))),
            Order::Nudge | Order::Leave => {}
        }
    }
}

/// Tells all who wait that there is no connection.
fn fail(waiting: &mut VecDeque<Order>, fault: &Fault) {
    for order in waiting.drain(..) {
        match order {
            Order::Ask { answer, .. } => drop(answer.send(Err(fault.clone()))),
            Order::Ready(ready) => drop(ready.send(Err(fault.clone()))),
            Order::Close(closing) => drop(closing.send(Err(fault.clone()))),
            Order::Nudge | Order::Leave => {}
        }
    }
}
