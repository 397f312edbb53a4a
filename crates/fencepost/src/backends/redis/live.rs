//! One connection, and whether it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fencepost_core::Moment;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::bunch::Bunch;
use super::link::{HANG, Shared};
use super::scripts::Step;
use crate::race::{First, race};

/// One connection.
pub(in crate::backends) struct Live {
    pub(super) connection: MultiplexedConnection,
    /// The runtime that drives it.
    home: Handle,
    bunch: Arc<Bunch>,
    end: Arc<End>,
    pub(super) pulse: Pulse,
}

/// Told once, when the connection is of no use any more.
#[derive(Default)]
pub(super) struct End {
    ended: AtomicBool,
    told: Notify,
}

impl End {
    pub(super) fn tell(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }
}

/// Whether answers come.
#[derive(Default)]
pub(super) struct Pulse {
    /// How many calls wait for an answer.
    waiting: AtomicUsize,
    /// When the last answer came, or the first call began to wait after a silence; in nanoseconds.
    last: AtomicU64,
    /// The upkeep looks at it from time to time.
    watched: AtomicBool,
}

impl Live {
    /// A connection that was made on the runtime on which this is called.
    pub(super) fn new(connection: MultiplexedConnection, end: Arc<End>) -> Self {
        let (bunch, pulse) = (Arc::default(), Pulse::default());
        Self { connection, home: Handle::current(), bunch, end, pulse }
    }

    pub(super) fn lane(connection: MultiplexedConnection) -> Self {
        Self::new(connection, Arc::default())
    }

    /// Sends a command; a server that does not know its script is taught it.
    pub(super) async fn put(
        &self,
        command: &Cmd,
        step: Option<&Step>,
        shared: &Shared,
    ) -> redis::RedisResult<Value> {
        match (self.ask(command, shared).await, step) {
            (Err(error), Some(step)) if error.code() == Some("NOSCRIPT") => {
                self.ask(&step.load(), shared).await?;
                self.ask(command, shared).await
            }
            (answer, _) => answer,
        }
    }

    async fn ask(&self, command: &Cmd, shared: &Shared) -> redis::RedisResult<Value> {
        let _counted = self.pulse.count(shared);
        // Made before the look, so that a word in between is not missed.
        let ended = self.end.told.notified();
        if self.has_ended() {
            return Err(cut());
        }
        let answer = async {
            // Who is alone gathers nobody.
            if self.pulse.waiting.load(Ordering::Relaxed) == 1 {
                return self.connection.clone().send_packed_command(command).await;
            }
            let answered = self.bunch.send(command.clone(), &self.connection, &self.home);
            answered.await.unwrap_or_else(|_| Err(cut()))
        };
        match race(answer, ended).await {
            First::Left(answer) => {
                self.pulse.heard(shared.clock.now());
                answer.and_then(Value::extract_error)
            }
            First::Right(()) => Err(cut()),
        }
    }

    pub(super) fn end(&self) {
        self.end.tell();
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
    fn count(&self, shared: &Shared) -> Counted<'_> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            self.last.store(shared.clock.now().as_nanos(), Ordering::SeqCst);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.watched.swap(true, Ordering::SeqCst) {
            shared.nudge.notify_one();
        }
        Counted(self)
    }

    /// An answer came.
    pub(super) fn heard(&self, now: Moment) {
        self.last.store(now.as_nanos(), Ordering::SeqCst);
    }

    /// Whether answers have not come for too long.
    pub(super) fn hangs(&self, now: Moment) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && now.since(Moment::from_nanos(self.last.load(Ordering::SeqCst))) >= HANG
    }

    /// Whether somebody waits. If not, the next one who does will nudge.
    pub(super) fn beats(&self) -> bool {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return true;
        }
        self.watched.store(false, Ordering::SeqCst);
        // Somebody may have come between the look and the note.
        self.waiting.load(Ordering::SeqCst) > 0 && !self.watched.swap(true, Ordering::SeqCst)
    }
}

struct Counted<'a>(&'a Pulse);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
