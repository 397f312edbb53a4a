//! The client: a store, and the thread that renews its grants.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use fencepost_base::label::default_label;
use fencepost_core::{Label, LockName, Token, Ttl};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{BackendContext, Broken, Store};
use crate::bounded_store::BoundedStore;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::Records;
use crate::heartbeat::Heartbeat;
use crate::ledger::Ledger;
use crate::metrics::Counters;

/// How long the drop of the last client waits for the releases of dropped guards.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What one caller found, for all callers of this process that wait for it.
pub(crate) type Flight = OnceCell<Result<Vec<u8>>>;

/// Callers of this process that wait for one value, by the record's name.
pub(crate) type Flights = Mutex<HashMap<LockName, Weak<Flight>>>;

/// What the handles of a client share.
pub(crate) struct Client {
    pub(crate) store: Arc<BoundedStore>,
    ledger: Option<Arc<dyn Ledger>>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) clock: Arc<dyn Clock>,
    /// `host:pid`: the default label of a guard.
    pub(crate) label: Label,
    /// The longest TTL that the store allows.
    pub(crate) max_ttl: Ttl,
    pub(crate) flights: Flights,
    pub(crate) counters: Arc<Counters>,
    /// A warning was logged that the store grants other TTLs than requested.
    pub(crate) ttl_warned: AtomicBool,
    closed: AtomicBool,
    shutdown: Shutdown,
    background: Background,
}

/// How a client ends: what callers have left to it completes, then the backend closes what it still has open.
#[derive(Clone, Default)]
struct Shutdown {
    /// Releases of dropped guards, ends of runs.
    callers: TaskTracker,
    /// The backend's own tasks.
    backend: TaskTracker,
    /// Cancelled between the two.
    closing: CancellationToken,
}

impl Shutdown {
    async fn run(&self) {
        self.callers.close();
        self.callers.wait().await;
        self.closing.cancel();
        self.backend.close();
        self.backend.wait().await;
    }
}

impl Client {
    /// Starts the client's thread, and opens the store on it.
    pub(crate) async fn open<F>(
        clock: Arc<dyn Clock>,
        open: impl FnOnce(BackendContext) -> F,
    ) -> Result<Arc<Self>>
    where
        F: Future<Output = Result<Store>> + Send + 'static,
    {
        crate::clock::start()?;
        let shutdown = Shutdown::default();
        let background = Background::start(shutdown.clone())?;
        let runtime = background.runtime.clone();
        let context = BackendContext {
            clock: Arc::clone(&clock),
            runtime: runtime.clone(),
            tasks: shutdown.backend.clone(),
            closing: shutdown.closing.clone(),
            create: true,
        };
        // On the client's own thread: a caller that drops this future does not leave a half-opened store.
        let store = runtime
            .spawn(open(context))
            .await
            .map_err(|_| Error::unreachable("opening the store panicked; please report this"))??;
        let max_ttl = store.backend.guarantees().max_ttl;
        let ledger = store.ledger.clone();
        let store = Arc::new(BoundedStore::new(store, Arc::clone(&clock)));
        let tasks = shutdown.callers.clone();
        let heartbeat = Heartbeat::start(Arc::clone(&store), Arc::clone(&clock), &runtime, tasks);
        Ok(Arc::new(Self {
            store,
            ledger,
            heartbeat,
            clock,
            label: default_label()?,
            max_ttl,
            flights: Flights::default(),
            counters: Arc::default(),
            ttl_warned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            shutdown,
            background,
        }))
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.shutdown.run().await;
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) { Err(Error::closed()) } else { Ok(()) }
    }

    pub(crate) async fn break_lock(
        &self,
        name: &str,
        token: Option<Token>,
    ) -> Result<Option<Broken>> {
        let broken = self.store.break_lock(LockName::new(name)?, token).await?;
        if let Some(broken) = &broken {
            let (token, confirmed) = (broken.token, broken.confirmed);
            tracing::warn!(name, ?token, holder = %broken.label, confirmed, "broken");
        }
        Ok(broken)
    }

    /// Where records are kept. Refused if the store keeps none, or may lose them and the caller does not accept that.
    pub(crate) fn ledger(&self, may_lose: bool) -> Result<Arc<dyn Ledger>> {
        self.check_open()?;
        let guarantees = self.store.guarantees();
        let backend = guarantees.backend;
        match (guarantees.records, &self.ledger) {
            (Records::Kept, Some(ledger)) => Ok(Arc::clone(ledger)),
            (Records::MayBeLost { .. }, Some(ledger)) if may_lose => Ok(Arc::clone(ledger)),
            (Records::MayBeLost { why, remedy }, Some(_)) => Err(Error::refused(format!(
                "the {backend} store may lose the record of what was done: {why}; {remedy}, or say \
                 that the work may be repeated (may_repeat, --may-repeat)"
            ))),
            (Records::None { why, remedy }, _) => Err(Error::refused(format!(
                "the {backend} store keeps no records: {why}; {remedy}"
            ))),
            (_, None) => Err(Error::refused(format!("the {backend} store keeps no records"))),
        }
    }
}

// A process may end right after its last guard was dropped: its release gets a moment.
impl Drop for Client {
    fn drop(&mut self) {
        self.background.stop();
    }
}

/// The client's own thread and the runtime on it.
struct Background {
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: std::thread::ThreadId,
    drained: Mutex<mpsc::Receiver<()>>,
}

impl Background {
    /// Starts the thread. Before it ends, it runs `shutdown`.
    fn start(shutdown: Shutdown) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::unreachable("cannot start the client's background thread").with_source(error)
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (done, drained) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("fencepost-heartbeat".into())
            .spawn(move || {
                runtime.block_on(async move {
                    // An error is a dropped sender: the client is gone, and we wait for that.
                    let _ = stopped.await;
                    shutdown.run().await;
                });
                // Fails if the wait for it has timed out.
                let _ = done.send(());
                // Tasks that hang in a blocking call must not keep the thread alive.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self {
            runtime: handle,
            stop: Some(stop),
            thread: thread.thread().id(),
            drained: Mutex::new(drained),
        })
    }

    /// Ends the thread, and blocks until it has nothing left to release, at most [`DRAIN_TIMEOUT`].
    fn stop(&mut self) {
        // A dropped sender is what it waits for.
        self.stop = None;
        // The thread cannot wait for itself: one of its own tasks may drop the last reference to the client.
        if std::thread::current().id() != self.thread {
            let _ = self.drained.get_mut().recv_timeout(DRAIN_TIMEOUT);
        }
    }
}
