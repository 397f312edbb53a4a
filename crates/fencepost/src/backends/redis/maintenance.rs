//! Keeps a connection up: a task on the client's own thread connects, watches the socket, and reconnects.
//!
//! If a call has no reply for long, and our own probe has none either, the socket is closed.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value, from_redis_value};

use super::address::answers_like;
use super::connection::{ANSWER, Shared, State, config};
use super::error::classify;
use super::server_info::{self, ServerInfo};
use super::socket::{End, Socket};
use crate::backend::{StoreError, StoreErrorKind, short};
use crate::clock::wall;
use crate::race::{First, race};
use crate::retry::{MAX_RETRY_DELAY, RETRY_DELAY};

/// After this long without a failure, the pause before a reconnect is short again.
const SETTLED: Duration = Duration::from_secs(1);
/// How often the socket is checked while a call waits for a reply.
const LOOK: Duration = Duration::from_millis(500);
/// How often the server's settings are read again.
const REFRESH: Duration = Duration::from_secs(5);

impl Shared {
    /// Connects, watches the socket, reconnects; until it is aborted.
    pub(super) async fn maintain(self: Arc<Self>) {
        let mut delay = RETRY_DELAY;
        loop {
            match self.connect().await {
                Ok(socket) => {
                    let (socket, made) = (Arc::new(socket), self.clock.now());
                    self.state.send_replace(State::Up(Arc::clone(&socket)));
                    self.subscriber.reconnected();
                    self.watch(socket).await;
                    if self.clock.now().since(made) >= SETTLED {
                        delay = RETRY_DELAY;
                        continue;
                    }
                }
                Err(error) => {
                    tracing::debug!(server = %self.address.shown, why = %error, "no connection");
                    self.state.send_replace(State::Down(error));
                }
            }
            self.clock.alarm(self.clock.now() + delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Watches one socket until its end.
    async fn watch(&self, socket: Arc<Socket>) {
        let mut refresh = self.clock.now() + REFRESH;
        let mut subscribed = false;
        loop {
            if !subscribed && self.subscriber.wants_breaks() {
                subscribed = true;
                self.subscribe_to_breaks(&socket).await;
            }
            let callers = self.caller_socket.current();
            // Check both, since each check also arms its own wake-up.
            let awaited = [Some(&socket), callers.as_ref()].into_iter().flatten();
            let awaited = awaited.filter(|socket| socket.activity.is_awaited()).count() > 0;
            let look = if awaited { self.clock.now() + LOOK } else { refresh };
            race(self.nudge.notified(), self.clock.alarm(look.min(refresh))).await;
            let now = self.clock.now();
            if socket.has_ended() {
                self.lose(&socket, &StoreError::no_reply("the connection was cut"));
                return;
            }
            if callers.is_some_and(|callers| callers.activity.hangs(now)) {
                self.caller_socket.close();
            }
            if !socket.activity.hangs(now) && now < refresh {
                continue;
            }
            // A call also looks stuck when its caller is not polled. Probe the server before closing the socket.
            refresh = now + REFRESH;
            let asked = look_around(&socket.connection);
            let lost = match race(asked, self.clock.alarm(now + ANSWER)).await {
                First::Left(Ok(server_info)) => {
                    socket.activity.record_reply(self.clock.now());
                    self.learn(server_info).err()
                }
                // An error is a reply too: the server is busy, or loading.
                First::Left(Err(error)) => {
                    socket.activity.record_reply(self.clock.now());
                    Some(classify(&error, &self.address.shown)).filter(StoreError::is_interrupted)
                }
                First::Right(()) => Some(StoreError::no_reply(format!(
                    "{} did not answer for {}",
                    self.address.shown,
                    short(ANSWER)
                ))),
            };
            if let Some(error) = lost {
                self.lose(&socket, &error);
                return;
            }
        }
    }

    /// Subscribes to breaks. Without that, a broken holder learns of it at its next renewal.
    async fn subscribe_to_breaks(&self, socket: &Socket) {
        let mut connection = socket.connection.clone();
        let subscribed = connection.subscribe(&*self.subscriber.break_channel);
        let limit = self.clock.alarm(self.clock.now() + ANSWER);
        if let First::Left(Err(error)) = race(subscribed, limit).await {
            let error = classify(&error, &self.address.shown);
            if error.kind() == StoreErrorKind::Refused {
                self.subscriber.breaks_refused();
                tracing::warn!(why = %error, "broken holders are not notified: they learn of it at the next renewal");
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Socket, StoreError> {
        let limit = self.clock.alarm(self.clock.now() + ANSWER);
        match race(self.establish(), limit).await {
            First::Left(Err(error)) if error.is_interrupted() && self.server_info().is_none() => {
                // No Redis reply was seen yet: the URL may name something else.
                let limit = self.clock.alarm(self.clock.now() + ANSWER / 2);
                match race(answers_like(&self.address), limit).await {
                    First::Left(Some(what)) => Err(StoreError::unavailable(what)),
                    _ => Err(error),
                }
            }
            First::Left(socket) => socket,
            First::Right(()) => Err(StoreError::unavailable(format!(
                "{} did not answer within {} when we connected",
                self.address.shown,
                short(ANSWER)
            ))),
        }
    }

    async fn establish(self: &Arc<Self>) -> Result<Socket, StoreError> {
        let failed = |error| classify(&error, &self.address.shown);
        let end = Arc::new(End::default());
        let (ended, shared) = (Arc::clone(&end), Arc::downgrade(self));
        let push = move |push: PushInfo| {
            let shared = shared.upgrade();
            match push.kind {
                PushKind::Disconnection => {
                    ended.set();
                    if let Some(shared) = shared {
                        shared.nudge.notify_one();
                    }
                }
                PushKind::Message => {
                    let mut words = push.data.into_iter().map(from_redis_value::<String>);
                    if let (Some(Ok(channel)), Some(Ok(message)), Some(shared)) =
                        (words.next(), words.next(), shared)
                    {
                        shared.subscriber.message(&channel, &message);
                    }
                }
                _ => {}
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let config = config().set_push_sender(push);
        let opened = self.address.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = opened.await.map_err(failed)?;
        if let Err(error) = connection.subscribe(self.subscriber.wake_channel()).await {
            let error = failed(error);
            // A user without that right can still wait; a busy server is retried later.
            if error.kind() != StoreErrorKind::Refused {
                return Err(error);
            }
            tracing::warn!(why = %error, "waiters are not woken at once: they poll every 250 ms");
        }
        let server_info = look_around(&connection).await.map_err(failed)?;
        self.learn(server_info)?;
        Ok(Socket::new(connection, end))
    }

    /// Reads the server info, and refuses a server that cannot be used.
    fn learn(&self, server_info: ServerInfo) -> Result<(), StoreError> {
        let checked = server_info.check(&self.address.shown);
        // Read after the reply, so that the server's uptime is not overstated.
        *self.server_info() = Some((server_info, self.clock.now()));
        Ok(checked?)
    }
}

async fn look_around(connection: &MultiplexedConnection) -> redis::RedisResult<ServerInfo> {
    let mut pipeline = redis::pipe();
    let questions = server_info::questions();
    let count = questions.len();
    for question in questions {
        pipeline.add_command(question);
    }
    let answers = connection.clone().send_packed_commands(&pipeline, 0, count).await?;
    for answer in &answers {
        // A setting that this user may not read stays unknown; a server that cannot answer now is retried.
        if let Value::ServerError(error) = answer
            && ["BUSY", "LOADING", "MASTERDOWN"].contains(&error.code())
        {
            return Err(error.clone().into());
        }
    }
    Ok(ServerInfo::read(answers, wall()))
}
