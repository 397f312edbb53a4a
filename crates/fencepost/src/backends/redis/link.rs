//! The connection to one server: one socket for all calls and for the server's word to its waiters, kept
//! up by a task on the client's own thread.
//!
//! What must hold: no call hangs for ever, and none waits for a server that is known to be gone. A call
//! that finds the connection cut is made again on the next one, since every step is idempotent by owner;
//! one that has no answer for [`HANG`] takes the connection down, if a question of our own has none either.
//! What was sent on the old connection may still arrive there, late: unanswered.rs keeps track of it, and the scripts
//! refuse it (release.lua).

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fencepost_core::{Moment, OwnerId};
use parking_lot::{Mutex, MutexGuard};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value, from_redis_value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::address::{Address, answers_like};
use super::drift::Drift;
use super::faults::{Fault, FaultKind};
use super::found::{self, Found};
use super::grants::LiveGrants;
use super::keys::channel;
use super::lane::Lane;
use super::live::{End, Live};
use super::scripts::{Call, Of, Step, Steps};
use super::{Ears, LATE};
use crate::backend::{Surroundings, short};
use crate::backends::unanswered::Unanswered;
use crate::clock::{Clock, wall};
use crate::race::{First, race};

/// After so long without an answer to anybody, the server is asked whether it is there.
pub(super) const HANG: Duration = Duration::from_millis(1500);
/// How long a server may take to answer our own question, once calls seem to hang, or when we connect.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// A connection that has lived for this long was a good one.
const SETTLED: Duration = Duration::from_secs(1);
/// How often the connection is looked at while somebody waits for an answer.
const LOOK: Duration = Duration::from_millis(500);
/// How long a call goes on trying, over connections that break.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait between attempts to connect, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// How often the server's settings are read again.
const REFRESH: Duration = Duration::from_secs(5);

/// The scripts, prepared once.
pub(in crate::backends) static STEPS: LazyLock<Steps> = LazyLock::new(Steps::new);

/// The way to one server.
pub(in crate::backends) struct Link {
    shared: Arc<Shared>,
    upkeep: AbortHandle,
}

pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) clock: Arc<dyn Clock>,
    /// The client's name for itself, where the server's word reaches it.
    client: String,
    ears: Arc<Ears>,
    grants: Arc<LiveGrants>,
    unanswered: Unanswered,
    state: watch::Sender<State>,
    /// What was last read of the server, and when: also while it is away.
    found: Mutex<Option<(Found, Moment)>>,
    drift: Drift,
    pub(super) lane: Lane,
    /// The upkeep has something to do.
    pub(super) nudge: Notify,
}

#[derive(Clone)]
enum State {
    /// The first attempt is under way, or the one after a cut.
    Opening,
    Up(Arc<Live>),
    /// The last attempt failed. The next one is on its way.
    Down(Fault),
}

/// An answer.
pub(in crate::backends) struct Heard {
    pub(in crate::backends) value: Value,
    /// When the request left that it answers.
    pub(in crate::backends) sent: Moment,
    /// The call was made before on a connection that broke, and may have been carried out then.
    pub(in crate::backends) again: bool,
}

impl Link {
    /// Starts to connect, and stays connected as long as it lives.
    pub(in crate::backends) fn open(
        address: Address,
        around: &Surroundings,
        client: String,
        ears: Arc<Ears>,
        grants: Arc<LiveGrants>,
    ) -> Self {
        let shared = Arc::new(Shared {
            address,
            clock: Arc::clone(&around.clock),
            client,
            ears,
            grants,
            unanswered: Unanswered::new(LATE),
            state: watch::Sender::new(State::Opening),
            found: Mutex::default(),
            drift: Drift::default(),
            lane: Lane::default(),
            nudge: Notify::new(),
        });
        let upkeep = around.runtime.spawn(Arc::clone(&shared).keep_up()).abort_handle();
        Self { shared, upkeep }
    }

    pub(in crate::backends) fn shown(&self) -> &str {
        &self.shared.address.shown
    }

    /// There is a grant now: breaks are listened to, soon.
    pub(in crate::backends) fn listen_to_breaks(&self) {
        self.shared.nudge.notify_one();
    }

    /// Whether an acquire of this owner may still arrive at the server.
    pub(in crate::backends) fn may_arrive(&self, owner: OwnerId) -> bool {
        self.shared.unanswered.has(owner, self.shared.clock.now())
    }

    /// As if every acquire of this owner had been answered.
    #[cfg(test)]
    pub(super) fn forget_unanswered(&self, owner: OwnerId) {
        self.shared.unanswered.clear(owner);
    }

    /// How often the server's clock has jumped.
    pub(in crate::backends) fn jumps(&self) -> u32 {
        self.shared.drift.jumps()
    }

    /// What was last read of the server.
    pub(in crate::backends) fn found(&self) -> Option<Found> {
        self.shared.found().as_ref().map(|(found, _)| found.clone())
    }

    /// Why there is no connection, if there is none.
    pub(in crate::backends) fn down(&self) -> Option<Fault> {
        match &*self.shared.state.borrow() {
            State::Up(_) => None,
            State::Down(fault) => Some(fault.clone()),
            State::Opening => {
                Some(Fault::cut(format!("still connecting to {}", self.shared.address.shown)))
            }
        }
    }

    /// The connection, once there is one; or why there is none.
    pub(in crate::backends) async fn live(&self) -> Result<Arc<Live>, Fault> {
        let shared = &self.shared;
        let not_asked = |fault: &Fault| match fault.kind {
            FaultKind::Refused => fault.clone(),
            _ => away(fault.message.clone()),
        };
        match &*shared.state.borrow() {
            State::Up(live) => return Ok(Arc::clone(live)),
            State::Down(fault) => return Err(not_asked(fault)),
            State::Opening => {}
        }
        let mut state = shared.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Opening));
        let limit = shared.clock.alarm(shared.clock.now() + PATIENCE);
        match race(settled, limit).await {
            First::Left(Ok(state)) => match &*state {
                State::Up(live) => Ok(Arc::clone(live)),
                State::Down(fault) => Err(not_asked(fault)),
                State::Opening => Err(away("still connecting".into())),
            },
            _ => Err(away(format!(
                "no connection to {} within {}",
                shared.address.shown,
                short(PATIENCE)
            ))),
        }
    }

    /// Runs a step at the server, by its digest.
    pub(in crate::backends) async fn run(&self, call: &Call) -> Result<Heard, Fault> {
        let call = self.shared.begin(call);
        let heard = self.persist(&call.command, Some(call.step)).await;
        self.shared.end(&call, heard)
    }

    /// The same, on the caller's own lane if it has one.
    pub(in crate::backends) async fn run_quick(&self, call: &Call) -> Result<Heard, Fault> {
        let shared = &self.shared;
        let Some(lane) = shared.lane.of_caller(shared) else { return self.run(call).await };
        let call = shared.begin(call);
        let sent = shared.clock.now();
        let heard = match lane.put(&call.command, Some(call.step), shared).await {
            Ok(value) => Ok(Heard { value, sent, again: false }),
            Err(error) => {
                let fault = Fault::of(&error, &shared.address.shown);
                if fault.kind == FaultKind::Cut || error.code() == Some("READONLY") {
                    shared.lane.close();
                    // It may have been carried out.
                    let heard = self.persist(&call.command, Some(call.step)).await;
                    heard.map(|heard| Heard { again: true, ..heard })
                } else {
                    Err(fault)
                }
            }
        };
        shared.end(&call, heard)
    }

    /// Runs a step on the connection that is there, once, if the server has been up for long enough. A
    /// restart cuts the connection, so a server that forgot what it knew can not answer in between.
    pub(in crate::backends) async fn run_once(
        &self,
        call: &Call,
        up_for: Duration,
    ) -> Result<Heard, Fault> {
        let shared = &*self.shared;
        let live = self.live().await?;
        let up = shared.uptime();
        if up < up_for {
            return Err(Fault {
                kind: FaultKind::Away,
                message: format!("up for {} only, and votes after {}", short(up), short(up_for)),
            });
        }
        let call = shared.begin(call);
        let sent = shared.clock.now();
        let heard = match live.put(&call.command, Some(call.step), shared).await {
            Ok(value) => Ok(Heard { value, sent, again: false }),
            Err(error) => {
                let fault = Fault::of(&error, &shared.address.shown);
                shared.judge(&live, &error, &fault);
                Err(fault)
            }
        };
        shared.end(&call, heard)
    }

    /// Runs a plain command.
    pub(in crate::backends) async fn command(&self, command: &Cmd) -> Result<Heard, Fault> {
        self.persist(command, None).await
    }

    /// Asks until there is an answer, over connections that break in between.
    async fn persist(&self, command: &Cmd, step: Option<&Step>) -> Result<Heard, Fault> {
        let shared = &*self.shared;
        let mut give_up = None;
        loop {
            let live = self.live().await?;
            let sent = shared.clock.now();
            match live.put(command, step, shared).await {
                Ok(value) => return Ok(Heard { value, sent, again: give_up.is_some() }),
                Err(error) => {
                    let fault = Fault::of(&error, &shared.address.shown);
                    shared.judge(&live, &error, &fault);
                    if fault.kind != FaultKind::Cut {
                        return Err(fault);
                    }
                    if shared.clock.now() >= *give_up.get_or_insert(sent + PATIENCE) {
                        return Err(fault);
                    }
                }
            }
        }
    }

    /// Takes note of the server's time in an answer, and says so when it jumped.
    pub(in crate::backends) fn note_time(&self, server: u64, sent: Moment) {
        let heard = self.shared.clock.now();
        if let Some(jump) = self.shared.drift.saw(server, sent, heard) {
            let by = short(Duration::from_micros(jump.unsigned_abs()));
            let way = if jump > 0 { "forwards" } else { "backwards" };
            tracing::warn!(
                server = %self.shared.address.shown,
                "the server's clock jumped {way} by {by}: leases ended early or late"
            );
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

/// A call as it is sent.
struct Begun<'a> {
    call: Cow<'a, Call>,
    /// It is an acquire, and none of its owner was open before.
    first: bool,
}

impl std::ops::Deref for Begun<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

fn away(message: String) -> Fault {
    Fault { kind: FaultKind::Away, message }
}

impl Shared {
    /// A call is about to be sent: an acquire is noted, and the release of one that may still arrive says so.
    fn begin<'a>(&self, call: &'a Call) -> Begun<'a> {
        let (now, mut first, mut sent) = (self.clock.now(), false, Cow::Borrowed(call));
        match call.of {
            Of::Acquire(owner) => first = self.unanswered.note(owner, now),
            Of::Release(owner) if self.unanswered.has(owner, now) => {
                sent = Cow::Owned(call.clone().arg("unanswered"));
            }
            Of::Anybody | Of::Release(_) => {}
        }
        Begun { call: sent, first }
    }

    fn end(&self, begun: &Begun<'_>, heard: Result<Heard, Fault>) -> Result<Heard, Fault> {
        match (begun.call.of, &heard) {
            // One that was sent before may still arrive.
            (Of::Acquire(owner), Ok(heard)) if begun.first && !heard.again => {
                self.unanswered.clear(owner);
            }
            (Of::Release(owner), Ok(_)) => self.unanswered.clear(owner),
            _ => {}
        }
        heard
    }

    pub(super) fn found(&self) -> MutexGuard<'_, Option<(Found, Moment)>> {
        self.found.lock()
    }

    /// How long the server has been up, at least. One that does not say counts as just started.
    fn uptime(&self) -> Duration {
        match &*self.found() {
            Some((found, read)) => {
                found.uptime().unwrap_or_default() + self.clock.now().since(*read)
            }
            None => Duration::ZERO,
        }
    }

    /// Whether a connection on which a call failed is of any more use.
    fn judge(&self, live: &Arc<Live>, error: &redis::RedisError, fault: &Fault) {
        // A primary that was demoted stays one: the name may lead to the new one by now.
        let demoted = error.code() == Some("READONLY");
        if fault.kind == FaultKind::Cut || demoted {
            self.lose(live, fault);
        }
    }

    /// This connection is of no use any more. Others may have said so already.
    fn lose(&self, live: &Arc<Live>, fault: &Fault) {
        live.end();
        let lost = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up(current) if Arc::ptr_eq(current, live));
            if current {
                *state = State::Opening;
            }
            current
        });
        if lost {
            self.lane.close();
            tracing::debug!(server = %self.address.shown, why = %fault.message, "connection lost");
            self.nudge.notify_one();
        }
    }

    /// Connects, watches the connection, connects again; until it is aborted.
    async fn keep_up(self: Arc<Self>) {
        let mut wait = BACKOFF.0;
        loop {
            match self.connect().await {
                Ok(live) => {
                    let (live, made) = (Arc::new(live), self.clock.now());
                    self.state.send_replace(State::Up(Arc::clone(&live)));
                    // What was said meanwhile was not heard.
                    self.ears.tell_all();
                    self.attend(live).await;
                    if self.clock.now().since(made) >= SETTLED {
                        wait = BACKOFF.0;
                    } else {
                        self.clock.alarm(self.clock.now() + wait).await;
                        wait = (wait * 2).min(BACKOFF.1);
                    }
                }
                Err(fault) => {
                    tracing::debug!(server = %self.address.shown, why = %fault.message, "no connection");
                    self.state.send_replace(State::Down(fault));
                    self.clock.alarm(self.clock.now() + wait).await;
                    wait = (wait * 2).min(BACKOFF.1);
                }
            }
        }
    }

    /// Watches one connection until its end.
    async fn attend(&self, live: Arc<Live>) {
        let mut refresh = self.clock.now() + REFRESH;
        let mut listens = false;
        loop {
            if !listens && self.grants.wanted() {
                listens = true;
                self.listen_to_breaks(&live).await;
            }
            let lane = self.lane.current();
            // Both are asked, or one of them would not nudge when it should.
            let beats = [Some(&live), lane.as_ref()].into_iter().flatten();
            let beats = beats.filter(|live| live.pulse.beats()).count() > 0;
            let look = if beats { self.clock.now() + LOOK } else { refresh };
            race(self.nudge.notified(), self.clock.alarm(look.min(refresh))).await;
            let now = self.clock.now();
            if live.has_ended() {
                self.lose(&live, &Fault::cut("the connection was cut"));
                return;
            }
            if lane.is_some_and(|lane| lane.pulse.hangs(now)) {
                self.lane.close();
            }
            let hangs = live.pulse.hangs(now);
            if !hangs && now < refresh {
                continue;
            }
            // Calls seem to hang when those who made them are not polled, too: only the answer to a
            // question of our own tells.
            refresh = now + REFRESH;
            let asked = look_around(&live.connection);
            let fault = match race(asked, self.clock.alarm(now + ANSWER)).await {
                First::Left(Ok(found)) => {
                    live.pulse.heard(self.clock.now());
                    self.learn(found).err()
                }
                // It says no, so it is there: busy, or loading.
                First::Left(Err(error)) => {
                    let fault = Fault::of(&error, &self.address.shown);
                    live.pulse.heard(self.clock.now());
                    Some(fault).filter(|fault| fault.kind == FaultKind::Cut)
                }
                First::Right(()) => Some(Fault::cut(format!(
                    "{} did not answer for {}",
                    self.address.shown,
                    short(ANSWER)
                ))),
            };
            if let Some(fault) = fault {
                self.lose(&live, &fault);
                return;
            }
        }
    }

    /// From now on a break is heard of at once. Without that, a broken holder learns of it at its next renewal.
    async fn listen_to_breaks(&self, live: &Live) {
        let mut connection = live.connection.clone();
        let subscribed = connection.subscribe(self.grants.channel());
        let limit = self.clock.alarm(self.clock.now() + ANSWER);
        if let First::Left(Err(error)) = race(subscribed, limit).await {
            let fault = Fault::of(&error, &self.address.shown);
            if fault.kind == FaultKind::Refused {
                self.grants.refuse();
                tracing::warn!(why = %fault.message, "broken holders are not notified: they learn of it at the next renewal");
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Live, Fault> {
        let limit = self.clock.alarm(self.clock.now() + ANSWER);
        match race(self.establish(), limit).await {
            First::Left(Err(fault)) if fault.kind == FaultKind::Cut && self.found().is_none() => {
                // Nothing of a Redis was seen yet: the URL may name something else.
                let limit = self.clock.alarm(self.clock.now() + ANSWER / 2);
                match race(answers_like(&self.address), limit).await {
                    First::Left(Some(what)) => Err(Fault::cut(what)),
                    _ => Err(fault),
                }
            }
            First::Left(live) => live,
            First::Right(()) => Err(Fault::cut(format!(
                "{} did not answer within {} when we connected",
                self.address.shown,
                short(ANSWER)
            ))),
        }
    }

    async fn establish(self: &Arc<Self>) -> Result<Live, Fault> {
        let fault = |error: &redis::RedisError| Fault::of(error, &self.address.shown);
        let end = Arc::new(End::default());
        let (ears, told) = (Arc::clone(&self.ears), Arc::clone(&end));
        let grants = Arc::clone(&self.grants);
        let shared = Arc::downgrade(self);
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => {
                    told.tell();
                    if let Some(shared) = shared.upgrade() {
                        shared.nudge.notify_one();
                    }
                }
                PushKind::Message => {
                    let mut words = push.data.into_iter().map(from_redis_value::<String>);
                    let (Some(Ok(channel)), Some(Ok(word))) = (words.next(), words.next()) else {
                        return Ok::<(), std::convert::Infallible>(());
                    };
                    if channel == grants.channel() {
                        grants.broken(&word);
                    } else if let Ok(owner) = word.parse::<OwnerId>() {
                        ears.tell(owner);
                    }
                }
                _ => {}
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(push);
        let opened = self.address.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = opened.await.map_err(|error| fault(&error))?;
        if let Err(error) = connection.subscribe(channel(&self.client)).await {
            let error = fault(&error);
            // One who may not listen can still wait; a server that is busy may be heard in a moment.
            if error.kind != FaultKind::Refused {
                return Err(error);
            }
            tracing::warn!(why = %error.message, "waiters are not woken at once: they look every 250 ms");
        }
        let found = look_around(&connection).await.map_err(|error| fault(&error))?;
        self.learn(found)?;
        Ok(Live::new(connection, end))
    }

    /// Takes note of what the server is, and refuses one that can not be used.
    fn learn(&self, found: Found) -> Result<(), Fault> {
        let checked = found.check(&self.address.shown);
        // Read after the answer: a server's age is not to be counted twice.
        *self.found() = Some((found, self.clock.now()));
        checked.map_err(|error| Fault { kind: FaultKind::Refused, message: error.to_string() })
    }
}

async fn look_around(connection: &MultiplexedConnection) -> redis::RedisResult<Found> {
    let mut pipeline = redis::pipe();
    let questions = found::questions();
    let count = questions.len();
    for question in questions {
        pipeline.add_command(question);
    }
    let answers = connection.clone().send_packed_commands(&pipeline, 0, count).await?;
    for answer in &answers {
        // What this user may not read is left open; a server that can not answer now is asked again.
        if let Value::ServerError(error) = answer
            && ["BUSY", "LOADING", "MASTERDOWN"].contains(&error.code())
        {
            return Err(error.clone().into());
        }
    }
    Ok(Found::read(answers, wall()))
}
