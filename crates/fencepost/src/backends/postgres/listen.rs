//! How the server's word reaches those who wait: a connection that LISTENs, from the first wait on.
//!
//! It may be that no word comes: a PgBouncer in transaction mode takes LISTEN and then gives the session to others.
//! So we send ourselves a word first. Without it, waiters go by their own look every 250 ms.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use crate::backend::Surroundings;
use crate::backends::ears::Ears;
use crate::clock::Clock;
use crate::postgres::{Fault, Pool};
use crate::race::{First, race};

/// How long our own word may take.
const HEARD: Duration = Duration::from_secs(2);
/// How long to leave a server alone that cut us off, and one that does not pass words on.
const BREATH: Duration = Duration::from_millis(250);
const DEAF: Duration = Duration::from_mins(5);
/// What we say to ourselves.
const HELLO: &str = "hello";

/// The ear of one client.
pub(super) struct Listener {
    channel: String,
    pool: Weak<Pool>,
    ears: Arc<Ears>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    started: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
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
        around: &Surroundings,
    ) -> Self {
        Self {
            channel: format!("fencepost_{client}"),
            pool: Arc::downgrade(pool),
            ears: Arc::clone(ears),
            clock: Arc::clone(&around.clock),
            runtime: around.runtime.clone(),
            started: AtomicBool::new(false),
            task: Mutex::default(),
        }
    }

    /// Under which the server's word reaches us.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Begins to listen, if that has not begun.
    pub(super) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let listening = listen(
            self.channel.clone(),
            self.pool.clone(),
            Arc::clone(&self.ears),
            Arc::clone(&self.clock),
        );
        let task = self.runtime.spawn(listening).abort_handle();
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

async fn listen(channel: String, pool: Weak<Pool>, ears: Arc<Ears>, clock: Arc<dyn Clock>) {
    loop {
        let Some(pool) = pool.upgrade() else { return };
        let breath = match listen_once(&channel, &pool, &ears, &clock).await {
            Ok(Ended::Cut) => BREATH,
            Ok(Ended::Deaf) => {
                tracing::debug!(
                    server = %pool.shown(),
                    "NOTIFY does not reach us (a PgBouncer in transaction mode?): waiters look every 250 ms"
                );
                DEAF
            }
            Err(fault) => {
                tracing::debug!(server = %pool.shown(), why = %fault.message, "can not listen");
                BREATH
            }
        };
        drop(pool);
        clock.alarm(clock.now() + breath).await;
    }
}

async fn listen_once(
    channel: &str,
    pool: &Pool,
    ears: &Arc<Ears>,
    clock: &Arc<dyn Clock>,
) -> Result<Ended, Fault> {
    let (client, mut connection) = pool.open_raw(clock.now() + HEARD).await?;
    let hello = Notify::new();
    let driving = async {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            let AsyncMessage::Notification(word) = message else { continue };
            if word.payload() == HELLO {
                hello.notify_one();
            } else {
                ears.tell_those(word.payload());
            }
        }
    };
    let talking = async {
        // A name of ours: letters, digits and an underscore.
        client
            .batch_execute(&format!("LISTEN {channel}"))
            .await
            .map_err(|error| Fault::of(&error, pool.shown()))?;
        // Over another connection: on this one it would come back even where others' words do not.
        let ask = "SELECT pg_catalog.pg_notify($1, $2)";
        pool.call_outside(ask, &[(&channel, Type::TEXT), (&HELLO, Type::TEXT)]).await?;
        if let First::Right(()) = race(hello.notified(), clock.alarm(clock.now() + HEARD)).await {
            return Ok(Ended::Deaf);
        }
        // What was said meanwhile was not heard.
        ears.tell_all();
        // The client is kept, or the connection would end.
        let ended: Result<Ended, Fault> = std::future::pending().await;
        drop(client);
        ended
    };
    match race(talking, driving).await {
        First::Left(ended) => ended,
        First::Right(()) => Ok(Ended::Cut),
    }
}
