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
use super::scripts::Operation;
use crate::race::{First, race};

/// After this long without any reply, the server is probed.
const HANG: Duration = Duration::from_millis(1500);

/// One physical connection.
pub(super) struct Socket {
    pub(super) connection: MultiplexedConnection,
    /// The runtime that drives it.
    home: Handle,
    pipeline: Arc<Pipeline>,
    end: Arc<End>,
    pub(super) activity: Activity,
}

/// Set once, when the socket is given up.
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

    fn is_set(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) async fn wait(&self) {
        // Created before the check, so that an end in between is not missed.
        let ended = self.notify.notified();
        if !self.is_set() {
            ended.await;
        }
    }
}

/// Tracks whether replies arrive.
#[derive(Default)]
pub(super) struct Activity {
    /// How many requests wait for a reply.
    waiting: AtomicUsize,
    /// When the last reply came, or the first request began to wait after a silence; in nanoseconds.
    last: AtomicU64,
    /// The maintenance task checks it regularly.
    watched: AtomicBool,
}

impl Socket {
    /// A connection that was opened on the current runtime.
    pub(super) fn new(connection: MultiplexedConnection, end: Arc<End>) -> Self {
        let (pipeline, activity) = (Arc::default(), Activity::default());
        Self { connection, home: Handle::current(), pipeline, end, activity }
    }

    /// Sends a command. If it is a script that the server does not know, loads it first.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        operation: Option<&Operation>,
        shared: &Shared,
    ) -> redis::RedisResult<Value> {
        let reply = self.send_once(command, shared).await;
        match operation {
            Some(operation)
                if reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) =>
            {
                // Boxed: it happens once per script.
                Box::pin(async {
                    self.send_once(&operation.load(), shared).await?;
                    self.send_once(command, shared).await
                })
                .await
            }
            _ => reply,
        }
    }

    async fn send_once(&self, command: &Cmd, shared: &Shared) -> redis::RedisResult<Value> {
        let _waiting = self.activity.begin(shared);
        if self.has_ended() {
            return Err(cut());
        }
        let reply = async {
            // A single request is sent at once: there is nothing to batch.
            if self.activity.waiting.load(Ordering::Relaxed) == 1 {
                return self.connection.clone().send_packed_command(command).await;
            }
            let reply =
                self.pipeline.send(command.clone(), &self.connection, &self.home, &self.end);
            reply.await.unwrap_or_else(|_| Err(cut()))
        };
        match race(reply, self.end.wait()).await {
            First::Left(reply) => {
                self.activity.record_reply(shared.clock.now());
                reply.and_then(Value::extract_error)
            }
            First::Right(()) => Err(cut()),
        }
    }

    pub(super) fn end(&self) {
        self.end.set();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_set()
    }
}

fn cut() -> redis::RedisError {
    let kind = std::io::ErrorKind::ConnectionAborted;
    std::io::Error::new(kind, "the server did not answer in time, or the connection was cut").into()
}

impl Activity {
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
    pub(super) fn record_reply(&self, now: Moment) {
        self.last.store(now.as_nanos(), Ordering::SeqCst);
    }

    /// Whether replies have not come for too long.
    pub(super) fn hangs(&self, now: Moment) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && now.since(Moment::from_nanos(self.last.load(Ordering::SeqCst))) >= HANG
    }

    /// Whether a call waits. If not, the next one wakes the maintenance task.
    pub(super) fn is_awaited(&self) -> bool {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return true;
        }
        self.watched.store(false, Ordering::SeqCst);
        // A call may have come between the two.
        self.waiting.load(Ordering::SeqCst) > 0 && !self.watched.swap(true, Ordering::SeqCst)
    }
}

/// Counts a request until it is answered or given up.
struct Waiting<'a>(&'a Activity);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
