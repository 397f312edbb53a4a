//! The client: a store, and the thread that keeps its grants.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use fencepost_base::label::default_label;
use fencepost_core::{Label, LockName, Token, Ttl};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, oneshot};
use tokio_util::task::TaskTracker;

use crate::backend::{Broken, Store, Surroundings};
use crate::bounded_store::BoundedStore;
use crate::clock::Clock;
use crate::counts::Tally;
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Records;
use crate::keeper::Keeper;
use crate::ledger::Ledger;

/// How long the last client that goes waits for what was dropped to be released.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What one of this process's callers found, for those who wait with it: the value, or why there is none.
pub(crate) type Flight = OnceCell<std::result::Result<Vec<u8>, (ErrorKind, String)>>;

/// Callers of this process that wait for one value, by the record's name.
pub(crate) type Flights = Mutex<HashMap<LockName, Weak<Flight>>>;

/// What the handles of a client share.
pub(crate) struct Client {
    pub(crate) store: Arc<BoundedStore>,
    ledger: Option<Arc<dyn Ledger>>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) clock: Arc<dyn Clock>,
    /// `host:pid`, what a guard is labelled with unless the caller says otherwise.
    pub(crate) label: Label,
    /// The longest TTL that the store takes.
    pub(crate) longest: Ttl,
    pub(crate) flights: Flights,
    pub(crate) tally: Arc<Tally>,
    /// It was said that the store keeps other TTLs than it is asked for.
    pub(crate) ttl_warned: AtomicBool,
    closed: AtomicBool,
    tasks: TaskTracker,
    background: Background,
}

impl Client {
    /// Starts the client's thread, and opens the store on it.
    pub(crate) async fn open<F>(
        clock: Arc<dyn Clock>,
        open: impl FnOnce(Surroundings) -> F,
    ) -> Result<Arc<Self>>
    where
        F: Future<Output = Result<Store>> + Send + 'static,
    {
        crate::clock::start()?;
        let tasks = TaskTracker::new();
        let (background, opened) = Background::start(tasks.clone())?;
        let runtime = background.runtime.clone();
        let around = Surroundings {
            clock: Arc::clone(&clock),
            runtime: runtime.clone(),
            tasks: tasks.clone(),
            create: true,
        };
        // On the client's own thread: a caller that goes away does not leave a half-opened store.
        let store = runtime
            .spawn(open(around))
            .await
            .map_err(|_| Error::unreachable("opening the store panicked; please report this"))??;
        let longest = store.backend.guarantees().longest;
        let ledger = store.ledger.clone();
        let store = Arc::new(BoundedStore::new(store, Arc::clone(&clock)));
        // Before it ends, the thread waits until the backend has nothing left to do, too.
        let _ = opened.send(Arc::clone(&store));
        let keeper = Keeper::start(Arc::clone(&store), Arc::clone(&clock), &runtime, tasks.clone());
        Ok(Arc::new(Self {
            store,
            ledger,
            keeper,
            clock,
            label: default_label()?,
            longest,
            flights: Flights::default(),
            tally: Arc::default(),
            ttl_warned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            tasks,
            background,
        }))
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.tasks.close();
        self.tasks.wait().await;
        self.store.drained().await;
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

    /// Where records are kept. Refused if the store has none, or may lose them though that matters.
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

// A process may end right after its last guard was dropped: what that left to release is given a moment.
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
    /// Starts the thread. Before it ends, it waits until `tasks` have come to their end.
    fn start(tasks: TaskTracker) -> Result<(Self, oneshot::Sender<Arc<BoundedStore>>)> {
        let failed = |error: std::io::Error| {
            Error::unreachable("can not start the client's background thread").because(error)
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (opened, store) = oneshot::channel::<Arc<BoundedStore>>();
        let (done, drained) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("fencepost-keeper".into())
            .spawn(move || {
                runtime.block_on(async move {
                    // An error is a dropped sender: the client is gone, which is what we wait for.
                    let _ = stopped.await;
                    tasks.close();
                    tasks.wait().await;
                    if let Ok(store) = store.await {
                        store.drained().await;
                    }
                });
                // Nobody listens any more if the wait for it timed out.
                let _ = done.send(());
                // Tasks that hang in a blocking call must not keep the thread.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        let background = Self {
            runtime: handle,
            stop: Some(stop),
            thread: thread.thread().id(),
            drained: Mutex::new(drained),
        };
        Ok((background, opened))
    }

    /// Ends the thread, and blocks until it has nothing left to release, at most [`DRAIN_TIMEOUT`].
    fn stop(&mut self) {
        // A dropped sender is what it waits for.
        self.stop = None;
        // The thread cannot wait for itself: one of its own tasks may be the last to let go of the client.
        if std::thread::current().id() != self.thread {
            let _ = self.drained.get_mut().recv_timeout(DRAIN_TIMEOUT);
        }
    }
}
