//! One physical connection, and whether it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::connection::Shared;
use super::pipeline::Pipeline;
use super::scripts::Step;
use crate::race::{First, race};

/// After so long without a reply to anybody, the server is asked whether it is there.
const HANG: Duration = Duration::from_millis(1500);

/// One physical connection.
pub(super) struct Socket {
    pub(super) connection: MultiplexedConnection,
    /// The runtime that drives it.
    home: Handle,
    pipeline: Arc<Pipeline>,
    end: Arc<End>,
    pub(super) pulse: Pulse,
}

/// Set once, when the socket is of no use any more.
#[derive(Default)]
pub(super) struct End {
    ended: AtomicBool,
    notify: Notify,
}

impl End {
    pub(super) fn set(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }
}

/// Whether replies come.
#[derive(Default)]
pub(super) struct Pulse {
    /// How many requests wait for a reply.
    waiting: AtomicUsize,
    /// When the last reply came, or the first request began to wait after a silence; in nanoseconds.
    last: AtomicU64,
    /// The maintenance looks at it from time to time.
    watched: AtomicBool,
}

impl Socket {
    /// A connection that was made on the runtime on which this is called.
    pub(super) fn new(connection: MultiplexedConnection, end: Arc<End>) -> Self {
        let (pipeline, pulse) = (Arc::default(), Pulse::default());
        Self { connection, home: Handle::current(), pipeline, end, pulse }
    }

    /// Sends a command. If it is a script that the server does not know, the server learns it first.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        step: Option<&Step>,
        shared: &Shared,
    ) -> redis::RedisResult<Value> {
        match (self.send_once(command, shared).await, step) {
            (Err(error), Some(step)) if error.code() == Some("NOSCRIPT") => {
                self.send_once(&step.load(), shared).await?;
                self.send_once(command, shared).await
            }
            (reply, _) => reply,
        }
    }

    async fn send_once(&self, command: &Cmd, shared: &Shared) -> redis::RedisResult<Value> {
        let _waiting = self.pulse.begin(shared);
        // Made before the check, so that an end in between is not missed.
        let ended = self.end.notify.notified();
        if self.has_ended() {
            return Err(cut());
        }
        let reply = async {
            // A single request is sent at once: there is nothing to batch.
            if self.pulse.waiting.load(Ordering::Relaxed) == 1 {
                return self.connection.clone().send_packed_command(command).await;
            }
            let reply = self.pipeline.send(command.clone(), &self.connection, &self.home);
            reply.await.unwrap_or_else(|_| Err(cut()))
        };
        match race(reply, ended).await {
            First::Left(reply) => {
                self.pulse.beat(shared.clock.now());
                reply.and_then(Value::extract_error)
            }
            First::Right(()) => Err(cut()),
        }
    }

    pub(super) fn end(&self) {
        self.end.set();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.ended.load(Ordering::SeqCst)
    }
}

fn cut() -> redis::RedisError {
    let kind = std::io::ErrorKind::ConnectionAborted;
    std::io::Error::new(kind, "the server did not answer in time, or the connection was cut").into()
}

impl Pulse {
    fn begin(&self, shared: &Shared) -> Waiting<'_> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            self.last.store(shared.clock.now().as_nanos(), Ordering::SeqCst);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.watched.swap(true, Ordering::SeqCst) {
            shared.nudge.notify_one();
        }
        Waiting(self)
    }

    /// A reply came.
    pub(super) fn beat(&self, now: Moment) {
        self.last.store(now.as_nanos(), Ordering::SeqCst);
    }

    /// Whether replies have not come for too long.
    pub(super) fn hangs(&self, now: Moment) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && now.since(Moment::from_nanos(self.last.load(Ordering::SeqCst))) >= HANG
    }

    /// Whether somebody waits. If not, the next one who does will nudge.
    pub(super) fn is_awaited(&self) -> bool {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return true;
        }
        self.watched.store(false, Ordering::SeqCst);
        // Somebody may have come between the two.
        self.waiting.load(Ordering::SeqCst) > 0 && !self.watched.swap(true, Ordering::SeqCst)
    }
}

/// Counts a request until it is answered or given up.
struct Waiting<'a>(&'a Pulse);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
