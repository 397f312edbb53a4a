//! How notifications reach a client: a connection that LISTENs, from the first wait on, from the first grant that is
//! held for more than a moment, and from the first break. Waiters are notified of a release, holders of a break.
//!
//! Notifications may never arrive: a PgBouncer in transaction mode accepts LISTEN and then gives the session to others.
//! So we send a notification to ourselves first. Without notifications, waiters rely on their poll every 250 ms, and
//! holders on their next renewal.

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
use crate::backend::BackendContext;
use crate::backends::waiter_registry::WaiterRegistry;
use crate::clock::Clock;
use crate::postgres::Pool;
use crate::postgres::error::explain;
use crate::race::{First, race};
use crate::random;
use crate::store_error::StoreError;

/// The timeout of our notification to ourselves.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before a reconnect: at first, and the maximum while this client has no waiters. Up to twice as long with
/// jitter.
const RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The pause if notifications do not arrive.
const RELISTEN_DELAY: Duration = Duration::from_mins(5);
/// A grant that ends sooner is not worth a connection.
const BRIEF: Duration = Duration::from_millis(50);
pub(super) const NOTIFY: &str = "SELECT pg_catalog.pg_notify($1, $2)";
/// The payload of our notification to ourselves.
const HELLO: &str = "hello";

/// The listening connection of one client.
pub(super) struct Listener {
    notifications: Arc<Notifications>,
    runtime: Handle,
    started: AtomicBool,
    /// A task checks soon whether a grant is held for more than a moment.
    looking: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
}

/// The notifications of the connection, and their receivers.
struct Notifications {
    channel: String,
    pool: Weak<Pool>,
    waiters: Arc<WaiterRegistry>,
    breaks: Arc<Breaks>,
    clock: Arc<dyn Clock>,
    /// Whether notifications reach us now.
    ready: watch::Sender<bool>,
    /// A caller has begun to wait for a notification.
    wanted: Notify,
}

/// How an attempt to listen ended.
enum Ended {
    /// The connection broke, or there was none.
    Cut,
    /// Our notification to ourselves did not arrive.
    Deaf,
}

impl Listener {
    pub(super) fn new(
        client: &str,
        pool: &Arc<Pool>,
        waiters: &Arc<WaiterRegistry>,
        breaks: &Arc<Breaks>,
        context: &BackendContext,
    ) -> Arc<Self> {
        let notifications = Notifications {
            channel: format!("fencepost_{client}"),
            pool: Arc::downgrade(pool),
            waiters: Arc::clone(waiters),
            breaks: Arc::clone(breaks),
            clock: Arc::clone(&context.clock),
            ready: watch::Sender::new(false),
            wanted: Notify::new(),
        };
        Arc::new(Self {
            notifications: Arc::new(notifications),
            runtime: context.runtime.clone(),
            started: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            task: Mutex::default(),
        })
    }

    /// The channel on which this client is notified.
    pub(super) fn channel(&self) -> &str {
        &self.notifications.channel
    }

    /// Begins to listen, if that has not begun, and soon if it failed.
    pub(super) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            self.notifications.wanted.notify_waiters();
            return;
        }
        let task = self.runtime.spawn(listen(Arc::clone(&self.notifications))).abort_handle();
        *self.task.lock() = Some(task);
    }

    /// Begins to listen in a moment, if a grant is still held then.
    pub(super) fn start_if_held(self: &Arc<Self>) {
        if self.started.load(Ordering::Relaxed) || self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (listener, clock) = (Arc::downgrade(self), Arc::clone(&self.notifications.clock));
        self.runtime.spawn(async move {
            clock.alarm(clock.now() + BRIEF).await;
            let Some(listener) = listener.upgrade() else { return };
            listener.looking.store(false, Ordering::Relaxed);
            if !listener.notifications.breaks.grants.owners().is_empty() {
                listener.start();
            }
        });
    }

    /// Whether notifications reach us, by this time.
    pub(super) async fn is_ready(&self, limit: Moment) -> bool {
        self.start();
        let mut ready = self.notifications.ready.subscribe();
        let becomes = ready.wait_for(|ready| *ready);
        matches!(race(becomes, self.notifications.clock.alarm(limit)).await, First::Left(Ok(_)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

async fn listen(notifications: Arc<Notifications>) {
    let mut delay = RETRY_DELAY;
    loop {
        let Some(pool) = notifications.pool.upgrade() else { return };
        let ended = notifications.listen_once(&pool).await;
        if notifications.ready.send_replace(false) {
            delay = RETRY_DELAY;
        }
        match ended {
            Ok(Ended::Cut) => {}
            Ok(Ended::Deaf) => {
                tracing::debug!(
                    server = %pool.shown(),
                    "NOTIFY does not reach this client (a PgBouncer in transaction mode?): waiters poll every 250 ms, \
                    and holders learn of a break at their next renewal"
                );
                drop(pool);
                notifications.clock.alarm(notifications.clock.now() + RELISTEN_DELAY).await;
                continue;
            }
            Err(error) => {
                tracing::debug!(server = %pool.shown(), why = %error, "cannot listen");
            }
        }
        drop(pool);
        notifications.pause(jittered(delay)).await;
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

/// Between once and twice as long, so that clients that lost their connections together do not reconnect together.
fn jittered(delay: Duration) -> Duration {
    delay + random::part_of(delay)
}

impl Notifications {
    /// Waits this long, or until a caller needs the connection, but at least a moment.
    async fn pause(&self, delay: Duration) {
        let from = self.clock.now();
        self.clock.alarm(from + RETRY_DELAY).await;
        let wanted = self.wanted.notified();
        if self.waiters.is_empty() {
            race(wanted, self.clock.alarm(from + delay)).await;
        }
    }

    async fn listen_once(&self, pool: &Pool) -> Result<Ended, StoreError> {
        let (channel, clock) = (&self.channel, &self.clock);
        let (client, mut connection) = pool.open_raw(clock.now() + HELLO_TIMEOUT).await?;
        let hello = Notify::new();
        let driving = async {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                let AsyncMessage::Notification(notification) = message else { continue };
                if notification.channel() != channel {
                    self.breaks.notified(notification.channel(), notification.payload());
                } else if notification.payload() == HELLO {
                    hello.notify_one();
                } else {
                    self.waiters.notify_matching(notification.payload());
                }
            }
        };
        let talking = async {
            // Names of ours: letters, digits and underscores.
            client
                .batch_execute(&format!("LISTEN {channel}; LISTEN {BROKEN}; LISTEN {CONFIRMED}"))
                .await
                .map_err(|error| explain(error, pool.shown(), StoreError::no_reply))?;
            // Over another connection: on this one it would arrive even if notifications of others do not.
            pool.call_outside(NOTIFY, &[(channel, Type::TEXT), (&HELLO, Type::TEXT)]).await?;
            let notifications =
                race(hello.notified(), clock.alarm(clock.now() + HELLO_TIMEOUT)).await;
            if let First::Right(()) = notifications {
                return Ok(Ended::Deaf);
            }
            // Earlier notifications were missed. Holders rely on their next renewal.
            self.waiters.notify_all();
            self.ready.send_replace(true);
            // Keep the client: the connection ends when it is dropped.
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

    fn notifications(clock: &ManualClock) -> Notifications {
        Notifications {
            channel: "fencepost_x".to_owned(),
            pool: Weak::new(),
            waiters: Arc::default(),
            breaks: Arc::default(),
            clock: Arc::new(clock.clone()),
            ready: watch::Sender::new(false),
            wanted: Notify::new(),
        }
    }

    #[test]
    fn listener_without_waiters_reconnects_later() {
        let clock = ManualClock::new();
        let notifications = notifications(&clock);
        let context = &mut Context::from_waker(Waker::noop());
        {
            let mut pause = pin!(notifications.pause(MAX_RETRY_DELAY));
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(RETRY_DELAY);
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(MAX_RETRY_DELAY);
            assert!(pause.as_mut().poll(context).is_ready());
        }
        {
            let mut pause = pin!(notifications.pause(MAX_RETRY_DELAY));
            assert!(pause.as_mut().poll(context).is_pending());
            clock.advance(RETRY_DELAY);
            assert!(pause.as_mut().poll(context).is_pending());
            notifications.wanted.notify_waiters();
            assert!(pause.as_mut().poll(context).is_ready(), "a new waiter ends it");
        }
        let _waiter = notifications.waiters.register(OwnerId::from_bits(1));
        let mut pause = pin!(notifications.pause(MAX_RETRY_DELAY));
        assert!(pause.as_mut().poll(context).is_pending());
        clock.advance(RETRY_DELAY);
        assert!(pause.as_mut().poll(context).is_ready(), "with a waiter it is short");
    }

    #[test]
    fn jitter_only_lengthens_the_delay() {
        for _ in 0..1000 {
            let delay = jittered(MAX_RETRY_DELAY);
            assert!(delay >= MAX_RETRY_DELAY && delay <= MAX_RETRY_DELAY * 2, "{delay:?}");
        }
    }
}
