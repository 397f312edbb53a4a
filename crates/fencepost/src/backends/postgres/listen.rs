//! How notifications reach a client: a connection that LISTENs, from the first wait on, from the first grant that is
//! held for more than a moment, and from the first break. Waiters are notified of a release, holders of a break.
//!
//! It may be that none comes: a PgBouncer in transaction mode takes LISTEN and then gives the session to others.
//! So we notify ourselves first. Without it, waiters go by their own look every 250 ms, and holders by their next
//! renewal.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::breaks::{BROKEN, Breaks, CONFIRMED};
use crate::backend::Surroundings;
use crate::backends::ears::Ears;
use crate::clock::Clock;
use crate::postgres::Pool;
use crate::postgres::error::explain;
use crate::race::{First, race};
use crate::store_error::StoreError;

/// How long our own word may take.
const HEARD: Duration = Duration::from_secs(2);
/// How long to leave a server alone that cut us off: at first, and at most while nobody waits in the queue. Up to twice
/// as long with jitter.
const BREATH: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);
/// And one that does not pass words on.
const DEAF: Duration = Duration::from_mins(5);
/// A grant that ends sooner is not worth a connection.
const BRIEF: Duration = Duration::from_millis(50);
pub(super) const NOTIFY: &str = "SELECT pg_catalog.pg_notify($1, $2)";
/// What we say to ourselves.
const HELLO: &str = "hello";

/// What one client listens with.
pub(super) struct Listener {
    heard: Arc<Heard>,
    runtime: Handle,
    started: AtomicBool,
    /// Somebody looks soon whether a grant is held for more than a moment.
    looking: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
}

/// What comes over the connection, and whom it is for.
struct Heard {
    channel: String,
    pool: Weak<Pool>,
    ears: Arc<Ears>,
    breaks: Arc<Breaks>,
    clock: Arc<dyn Clock>,
    /// Whether notifications reach us now.
    ready: watch::Sender<bool>,
    /// Somebody has begun to wait for a notification.
    wanted: Notify,
}

/// How an attempt to listen ended.
enum Ended {
    /// The connection was cut, or there was none.
    Cut,
    /// Our own word did not come.
    Deaf,
}

impl Listener {
    pub(super) fn new(
        client: &str,
        pool: &Arc<Pool>,
        ears: &Arc<Ears>,
        breaks: &Arc<Breaks>,
        around: &Surroundings,
    ) -> Arc<Self> {
        let heard = Heard {
            channel: format!("fencepost_{client}"),
            pool: Arc::downgrade(pool),
            ears: Arc::clone(ears),
            breaks: Arc::clone(breaks),
            clock: Arc::clone(&around.clock),
            ready: watch::Sender::new(false),
            wanted: Notify::new(),
        };
        Arc::new(Self {
            heard: Arc::new(heard),
            runtime: around.runtime.clone(),
            started: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            task: Mutex::default(),
        })
    }

    /// Under which the server's word reaches us.
    pub(super) fn channel(&self) -> &str {
        &self.heard.channel
    }

    /// Begins to listen, if that has not begun, and soon if it failed.
    pub(super) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            self.heard.wanted.notify_waiters();
            return;
        }
        let task = self.runtime.spawn(listen(Arc::clone(&self.heard))).abort_handle();
        *self.task.lock() = Some(task);
    }

    /// Begins to listen in a moment, if a grant is still held then.
    pub(super) fn start_if_held(self: &Arc<Self>) {
        if self.started.load(Ordering::Relaxed) || self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (listener, clock) = (Arc::downgrade(self), Arc::clone(&self.heard.clock));
        self.runtime.spawn(async move {
            clock.alarm(clock.now() + BRIEF).await;
            let Some(listener) = listener.upgrade() else { return };
            listener.looking.store(false, Ordering::Relaxed);
            if listener.heard.breaks.any_lives() {
                listener.start();
            }
        });
    }

    /// Whether notifications reach us, by this time.
    pub(super) async fn is_ready(&self, limit: Moment) -> bool {
        self.start();
        let mut ready = self.heard.ready.subscribe();
        let becomes = ready.wait_for(|ready| *ready);
        matches!(race(becomes, self.heard.clock.alarm(limit)).await, First::Left(Ok(_)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

async fn listen(heard: Arc<Heard>) {
    let mut delay = BREATH;
    loop {
        let Some(pool) = heard.pool.upgrade() else { return };
        let ended = heard.listen_once(&pool).await;
        if heard.ready.send_replace(false) {
            delay = BREATH;
        }
        match ended {
            Ok(Ended::Cut) => {}
            Ok(Ended::Deaf) => {
                tracing::debug!(
                    server = %pool.shown(),
                    "NOTIFY does not reach us (a PgBouncer in transaction mode?): waiters look every 250 ms, and \
                     holders learn of a break with their next renewal"
                );
                drop(pool);
                heard.clock.alarm(heard.clock.now() + DEAF).await;
                continue;
            }
            Err(error) => {
                tracing::debug!(server = %pool.shown(), why = %error, "cannot listen");
            }
        }
        drop(pool);
        heard.pause(jittered(delay)).await;
        delay = (delay * 2).min(LONGEST);
    }
}

/// From all of it to twice as long, so that those who were cut off together do not come back together.
fn jittered(delay: Duration) -> Duration {
    // Without random numbers all wait equally long: worse, and no harm.
    let part = getrandom::u32().unwrap_or(0);
    delay + delay.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

impl Heard {
    /// Waits so long, or until somebody needs the connection, but not less than a moment.
    async fn pause(&self, delay: Duration) {
        let from = self.clock.now();
        self.clock.alarm(from + BREATH).await;
        let wanted = self.wanted.notified();
        if self.ears.is_empty() {
            race(wanted, self.clock.alarm(from + delay)).await;
        }
    }

    async fn listen_once(&self, pool: &Pool) -> Result<Ended, StoreError> {
        let (channel, clock) = (&self.channel, &self.clock);
        let (client, mut connection) = pool.open_raw(clock.now() + HEARD).await?;
        let hello = Notify::new();
        let driving = async {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                let AsyncMessage::Notification(word) = message else { continue };
                if word.channel() != channel {
                    self.breaks.notified(word.channel(), word.payload());
                } else if word.payload() == HELLO {
                    hello.notify_one();
                } else {
                    self.ears.tell_those(word.payload());
                }
            }
        };
        let talking = async {
            // Names of ours: letters, digits and underscores.
            client
                .batch_execute(&format!("LISTEN {channel}; LISTEN {BROKEN}; LISTEN {CONFIRMED}"))
                .await
                .map_err(|error| explain(error, pool.shown(), StoreError::no_reply))?;
            // Over another connection: on this one it would come back even where others' words do not.
            pool.call_outside(NOTIFY, &[(channel, Type::TEXT), (&HELLO, Type::TEXT)]).await?;
            let heard = race(hello.notified(), clock.alarm(clock.now() + HEARD)).await;
            if let First::Right(()) = heard {
                return Ok(Ended::Deaf);
            }
            // What was said meanwhile was not heard. Holders go by their next renewal.
            self.ears.tell_all();
            self.ready.send_replace(true);
            // The client is kept, or the connection would end.
            let ended: Result<Ended, StoreError> = std::future::pending().await;
            drop(client);
            ended
        };
        match race(talking, driving).await {
            First::Left(ended) => ended,
            First::Right(()) => Ok(Ended::Cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use fencepost_core::OwnerId;

    use super::*;
    use crate::clock::ManualClock;

    fn heard(clock: &ManualClock) -> Heard {
        Heard {
            channel: "fencepost_x".to_owned(),
            pool: Weak::new(),
            ears: Arc::default(),
            breaks: Arc::default(),
            clock: Arc::new(clock.clone()),
            ready: watch::Sender::new(false),
            wanted: Notify::new(),
        }
    }

    #[test]
    fn holder_waits_longer_until_somebody_waits_in_the_queue() {
        let clock = ManualClock::new();
        let heard = heard(&clock);
        let context = &mut Context::from_waker(Waker::noop());
        {
            let mut pause = pin!(heard.pause(LONGEST));
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(BREATH);
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(LONGEST);
            assert!(pause.as_mut().poll(context).is_ready());
        }
        {
            let mut pause = pin!(heard.pause(LONGEST));
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(BREATH);
            assert!(pause.as_mut().poll(context).is_pending());
            heard.wanted.notify_waiters();
            assert!(pause.as_mut().poll(context).is_ready(), "a new waiter ends it");
        }
        let _waiter = heard.ears.open(OwnerId::from_bits(1));
        let mut pause = pin!(heard.pause(LONGEST));
        assert!(pause.as_mut().poll(context).is_pending());
        clock.advance(BREATH);
        assert!(pause.as_mut().poll(context).is_ready(), "with a waiter it is short");
    }

    #[test]
    fn jitter_only_lengthens() {
        for _ in 0..1000 {
            let delay = jittered(LONGEST);
            assert!(delay >= LONGEST && delay <= LONGEST * 2, "{delay:?}");
        }
    }
}
