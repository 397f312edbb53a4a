//! The connection to one server: how a request reaches it and its reply comes back.
//!
//! What must hold: no call hangs for ever, and none waits for a server that is known to be gone. A request whose socket
//! broke is retried on the next one, since every script is idempotent by owner. A request that was sent on the old
//! socket may still arrive late: unanswered.rs keeps track of it, and the scripts refuse it (release.lua).
//! maintenance.rs keeps the socket up. A busy caller has one of its own (`caller_socket.rs`).

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Mutex, MutexGuard};
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::address::Address;
use super::caller_socket::CallerSocket;
use super::clock_skew::ClockSkew;
use super::error::classify;
use super::reply::ScriptReply;
use super::scripts::{Call, Operation};
use super::server_info::ServerInfo;
use super::socket::Socket;
use super::subscriber::Subscriber;
use crate::backend::{BackendContext, Reply, StoreError, StoreResult, short};
use crate::clock::Clock;
use crate::race::{First, race};
use crate::retry::retry;

/// The timeout of our own probe, when calls seem to hang or when we connect.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// How long one attempt waits for a socket. Less than the attempt may take, so that it can report that nothing was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// The connection to one server.
pub(in crate::backends) struct Connection {
    shared: Arc<Shared>,
    maintenance: AbortHandle,
}

pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) state: watch::Sender<State>,
    /// The server info that was last read, and when: kept during an outage.
    server_info: Mutex<Option<(ServerInfo, Moment)>>,
    clock_skew: ClockSkew,
    pub(super) caller_socket: CallerSocket,
    /// Wakes the maintenance task.
    pub(super) nudge: Notify,
}

#[derive(Clone)]
pub(super) enum State {
    /// The first attempt to connect is under way, or the first one after a broken connection.
    Opening,
    Up(Arc<Socket>),
    /// The last attempt failed. The next one is under way.
    Down(StoreError),
}

impl Connection {
    /// Starts to connect, and stays connected as long as it lives.
    pub(in crate::backends) fn open(
        address: Address,
        context: &BackendContext,
        subscriber: &Arc<Subscriber>,
    ) -> Self {
        let shared = Arc::new(Shared {
            address,
            clock: Arc::clone(&context.clock),
            subscriber: Arc::clone(subscriber),
            state: watch::Sender::new(State::Opening),
            server_info: Mutex::default(),
            clock_skew: ClockSkew::default(),
            caller_socket: CallerSocket::default(),
            nudge: Notify::new(),
        });
        let maintenance = context.runtime.spawn(Arc::clone(&shared).maintain()).abort_handle();
        Self { shared, maintenance }
    }

    pub(in crate::backends) fn shown(&self) -> &str {
        &self.shared.address.shown
    }

    /// There is a grant now: the client soon subscribes to breaks.
    pub(in crate::backends) fn subscribe_to_breaks(&self) {
        self.shared.nudge.notify_one();
    }

    /// How often the server's clock has jumped.
    pub(in crate::backends) fn jumps(&self) -> u32 {
        self.shared.clock_skew.jumps()
    }

    /// What was last read of the server.
    pub(in crate::backends) fn server_info(&self) -> Option<ServerInfo> {
        self.shared.server_info().as_ref().map(|(server_info, _)| server_info.clone())
    }

    /// Why there is no connection, if there is none.
    pub(in crate::backends) fn down(&self) -> Option<String> {
        match &*self.shared.state.borrow() {
            State::Up(_) => None,
            State::Down(error) => Some(error.message().to_owned()),
            State::Opening => Some(format!("still connecting to {}", self.shown())),
        }
    }

    /// Waits until it is connected.
    pub(in crate::backends) async fn connected(&self, limit: Moment) -> Result<(), StoreError> {
        self.shared.socket(limit).await.map(drop)
    }

    /// Runs a script. Scripts are idempotent by owner, so a request whose connection broke is retried.
    pub(in crate::backends) async fn call(
        &self,
        call: &Call,
        limit: Moment,
    ) -> StoreResult<ScriptReply> {
        let reply = self.send(&call.command, Some(call.operation), limit).await?;
        self.shared.read(reply, call)
    }

    /// Runs a plain command, in the same way.
    pub(in crate::backends) async fn command(
        &self,
        command: &Cmd,
        limit: Moment,
    ) -> StoreResult<Value> {
        self.send(command, None, limit).await
    }

    /// Runs a script once, on the current socket, if the server has been up for long enough. A restart breaks the
    /// socket, so a server that lost its data cannot answer in between. `limit` is for the connection: the call waits for
    /// the reply as long as the socket lasts.
    pub(in crate::backends) async fn call_once(
        &self,
        call: &Call,
        up_for: Duration,
        limit: Moment,
    ) -> StoreResult<ScriptReply> {
        let shared = &self.shared;
        let socket = shared.socket(limit).await?;
        let up = shared.uptime();
        if up < up_for {
            return Err(StoreError::unavailable(format!(
                "up for {} only, and votes after {}",
                short(up),
                short(up_for)
            )));
        }
        let (value, sent) = shared.send_over(&socket, &call.command, Some(call.operation)).await?;
        shared.read(Reply::new(value, sent), call)
    }

    async fn send(
        &self,
        command: &Cmd,
        operation: Option<&Operation>,
        limit: Moment,
    ) -> StoreResult<Value> {
        let shared = &self.shared;
        retry(&*shared.clock, limit, move |attempt| async move {
            // A retry does not use the caller's socket: the caller's runtime may be what is stuck.
            let socket = match shared.caller_socket.of_caller(shared).filter(|_| attempt == 0) {
                Some(socket) => socket,
                None => shared.socket(limit.min(shared.clock.now() + CONNECT_TIMEOUT)).await?,
            };
            shared.send_over(&socket, command, operation).await
        })
        .await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.maintenance.abort();
    }
}

impl Shared {
    /// The socket, once there is one; otherwise why there is none, and nothing was sent.
    async fn socket(&self, limit: Moment) -> Result<Arc<Socket>, StoreError> {
        let state = self.state.borrow().clone();
        match state {
            State::Up(socket) => Ok(socket),
            // Boxed: most calls find it up, and are smaller without this.
            State::Opening => Box::pin(self.opened(limit)).await,
            State::Down(error) => Err(not_sent(&error)),
        }
    }

    /// Waits until it is decided whether there is a socket.
    async fn opened(&self, limit: Moment) -> Result<Arc<Socket>, StoreError> {
        let start = self.clock.now();
        let mut states = self.state.subscribe();
        let settled = states.wait_for(|state| !matches!(state, State::Opening));
        if let First::Left(Ok(settled)) = race(settled, self.clock.alarm(limit)).await {
            match &*settled {
                State::Up(socket) => return Ok(Arc::clone(socket)),
                State::Down(error) => return Err(not_sent(error)),
                State::Opening => {}
            }
        }
        Err(StoreError::busy(format!(
            "no connection to {} within {}",
            self.address.shown,
            short(limit.since(start))
        )))
    }

    /// Sends once. Returns the reply, and when the request left.
    async fn send_over(
        &self,
        socket: &Arc<Socket>,
        command: &Cmd,
        operation: Option<&Operation>,
    ) -> Result<(Value, Moment), StoreError> {
        let sent = self.clock.now();
        let reply = socket.send(command, operation, self).await;
        reply.map(|value| (value, sent)).map_err(|error| self.failed(socket, &error))
    }

    /// Classifies an error, and gives up the socket if it broke.
    fn failed(&self, socket: &Arc<Socket>, error: &RedisError) -> StoreError {
        let failed = classify(error, &self.address.shown);
        if failed.is_interrupted() {
            self.lose(socket, &failed);
        } else if error.code() == Some("READONLY") && !self.lose(socket, &failed) {
            // This server was demoted. The name may resolve to the new primary by now: the retry uses the connection's
            // own socket.
            return StoreError::busy(failed.message());
        }
        failed
    }

    /// Gives up this socket. Returns whether it was the connection's own, and was not given up before.
    pub(super) fn lose(&self, socket: &Arc<Socket>, why: &StoreError) -> bool {
        socket.end();
        let lost = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up(current) if Arc::ptr_eq(current, socket));
            if current {
                *state = State::Opening;
            }
            current
        });
        if lost || self.caller_socket.current().is_some_and(|socket| socket.has_ended()) {
            self.caller_socket.close();
        }
        if lost {
            tracing::debug!(server = %self.address.shown, %why, "connection lost");
            self.nudge.notify_one();
        }
        lost
    }

    /// Reads a script's reply, and notes the server's time in it.
    fn read(&self, reply: Reply<Value>, call: &Call) -> StoreResult<ScriptReply> {
        let reply = reply.try_map(|value| ScriptReply::read(value, call.operation.verb))?;
        if reply.value.time > 0
            && let Some(jump) =
                self.clock_skew.observe(reply.value.time, reply.sent, self.clock.now())
        {
            let by = short(Duration::from_micros(jump.unsigned_abs()));
            let way = if jump > 0 { "forwards" } else { "backwards" };
            tracing::warn!(
                server = %self.address.shown,
                "the server's clock jumped {way} by {by}: leases ended early or late"
            );
        }
        Ok(reply)
    }

    pub(super) fn server_info(&self) -> MutexGuard<'_, Option<(ServerInfo, Moment)>> {
        self.server_info.lock()
    }

    /// The server's minimum uptime. A server that does not report it counts as just started.
    fn uptime(&self) -> Duration {
        match &*self.server_info() {
            Some((server_info, read)) => {
                server_info.uptime().unwrap_or_default() + self.clock.now().since(*read)
            }
            None => Duration::ZERO,
        }
    }
}

/// Why the last attempt to connect failed: nothing was sent.
fn not_sent(error: &StoreError) -> StoreError {
    if error.is_transient() {
        StoreError::unavailable(error.message())
    } else {
        StoreError::refused(error.message())
    }
}

/// The settings of every socket. Timeouts are our own.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}
