//! The client: a store, the thread that keeps its grants, and the verbs that need no guard.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fencepost_core::{Label, LockName, OwnerId, Token, Ttl};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::backend::{
    Broken, GrantId, LockInfo, NotHeld, Renewal, Renewed, Reply, Store, Surroundings,
};
use crate::bounded_store::BoundedStore;
use crate::claims::Claims;
use crate::clock::{BootClock, Clock};
use crate::counts::{Counts, Tally};
use crate::election::Election;
use crate::error::{Error, Result};
use crate::flight::{Flights, SingleFlight};
use crate::guarantees::{Guarantees, Records};
use crate::keeper::Keeper;
use crate::ledger::{Entry, Ledger};
use crate::lock::Lock;
use crate::once::{self, Once};
use crate::watch::Watch;

/// How long the last client that goes waits for what was dropped to be released.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A client of one store. Cheap to clone; all clones share one background thread.
///
/// When the last clone and the last guard are dropped, the drop waits up to a second for what is still being released.
/// A client that is never dropped (a `static`, `std::process::exit`) has no such moment: call [`close`](Self::close).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use fencepost::Fencepost;
///
/// let fp = Fencepost::connect("memory:readme").await?;
/// let guard = fp.lock("invoice/42").ttl(Duration::from_secs(30)).acquire().await?;
/// println!("working under token {}", guard.token());
/// guard.release().await?;
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Fencepost(pub(crate) Arc<Client>);

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

impl Fencepost {
    /// Connects to the store that `url` names: `memory:`, `memory:NAME`, `sqlite:PATH`, `redis://HOST`,
    /// `redlock://HOST,HOST,HOST`, `etcd://HOST,HOST,HOST`, `zookeeper://HOST,HOST/PATH`,
    /// `postgres://USER@HOST/DATABASE`. The pages under `docs/backends` tell of each.
    pub async fn connect(url: &str) -> Result<Self> {
        let url = crate::store_url::StoreUrl::parse(url)?;
        Self::over(Arc::new(BootClock), |around| crate::backends::open(url, around)).await
    }

    /// Connects to look only: a store that is not there yet is not created, and is shown as an empty one. To acquire
    /// there is refused.
    pub async fn connect_existing(url: &str) -> Result<Self> {
        let url = crate::store_url::StoreUrl::parse(url)?;
        let open = |around| crate::backends::open(url, Surroundings { create: false, ..around });
        Self::over(Arc::new(BootClock), open).await
    }

    /// Connects to what `FENCEPOST_URL` names or, if it is not set, to the embedded store under the user's state
    /// directory, which is for the processes of this user on this host. An empty `FENCEPOST_URL` is refused.
    pub async fn from_env() -> Result<Self> {
        Self::connect(&crate::store_url::env_url()?).await
    }

    /// A client over any backend, on any clock: the seam for a backend of your own, and for tests that
    /// hold the clock. `open` is given the clock and the client's runtime.
    pub async fn over<F>(
        clock: Arc<dyn Clock>,
        open: impl FnOnce(Surroundings) -> F,
    ) -> Result<Self>
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
        let client = Client {
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
        };
        Ok(Self(Arc::new(client)))
    }

    /// Starts to describe a lock on `name`. Nothing happens until one of its acquires is awaited.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.0), name.as_ref())
    }

    /// Starts to describe an election under `name`. Nobody stands for it until it is campaigned for.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.0, name.as_ref())
    }

    /// Starts to describe work that is done once per `key`, over all who use this store.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(&self.0, key.as_ref())
    }

    /// Starts to describe a value that one of many callers computes.
    pub fn single_flight(&self, key: impl AsRef<str>) -> SingleFlight {
        SingleFlight::new(&self.0, key.as_ref())
    }

    /// Starts to describe things of which each is done once, by one worker. Their order is kept; each is a
    /// key of [`once`](Self::once).
    pub fn claim(&self, items: impl IntoIterator<Item = impl Into<String>>) -> Claims {
        Claims::new(&self.0, items.into_iter().map(Into::into).collect())
    }

    /// The records of [`once`](Self::once), ordered by key, without their results; with their keys.
    pub async fn once_entries(&self) -> Result<Vec<(String, Entry)>> {
        let ledger = self.0.ledger(true)?;
        let entries = self.0.store.entries(&*ledger, once::PREFIX).await?;
        let key = |entry: &Entry| Some(entry.name.as_str().strip_prefix(once::PREFIX)?.to_owned());
        Ok(entries.into_iter().filter_map(|entry| Some((key(&entry)?, entry))).collect())
    }

    /// What this store keeps under which fault.
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        self.0.store.guarantees()
    }

    /// What this client has seen so far: grants, losses, near misses.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.tally.counts()
    }

    /// Who holds `name` and who waits for it.
    pub async fn inspect(&self, name: &str) -> Result<LockInfo> {
        self.0.store.inspect(LockName::new(name)?).await
    }

    /// Every lock that is held or waited for.
    pub async fn list(&self) -> Result<Vec<LockInfo>> {
        self.0.store.list().await
    }

    /// Follows the changes of `name`.
    pub fn watch(&self, name: &str) -> Result<Watch> {
        Ok(Watch::new(&self.0.store, LockName::new(name)?))
    }

    /// Ends the current grant of `name`, whoever holds it. `None` if nobody does.
    ///
    /// The holder is notified, and this waits up to a second for it to confirm: see [`Broken::confirmed`]. One that
    /// does not may go on until its own deadline, so the fence must keep it out.
    pub async fn break_lock(&self, name: &str) -> Result<Option<Broken>> {
        self.0.break_lock(name, None).await
    }

    /// Ends the grant of `name` that has this token; `None` if there is no such grant any more.
    pub async fn break_grant(&self, name: &str, token: Token) -> Result<Option<Broken>> {
        self.0.break_lock(name, Some(token)).await
    }

    /// Renews a grant by its owner, for a script that acquired it in another process.
    pub async fn renew(
        &self,
        name: &str,
        owner: OwnerId,
        ttl: Option<Ttl>,
    ) -> Result<Reply<Renewed>> {
        let name = LockName::new(name)?;
        let grant = GrantId { name: name.clone(), owner };
        let renewal = Renewal { grant, ttl, token: None, value: None };
        let Reply { value, sent, retried } = self.0.store.renew(renewal).await?;
        let value = value.map_err(|NotHeld(cause)| Error::not_held(&name, cause))?;
        Ok(Reply { value, sent, retried })
    }

    /// Releases a grant by its owner, for a script that acquired it in another process.
    pub async fn release(&self, name: &str, owner: OwnerId) -> Result<()> {
        let grant = GrantId { name: LockName::new(name)?, owner };
        let released = self.0.store.release(&grant, None).await?;
        released.map_err(|NotHeld(cause)| Error::not_held(&grant.name, cause))
    }

    /// Refuses new acquires and waits until everything dropped so far is released at the store, or its
    /// lease is over: a store that hangs can make that as long as the TTL. Guards that are still held stay
    /// held.
    pub async fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.store.drained().await;
    }
}

impl Client {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) { Err(Error::closed()) } else { Ok(()) }
    }

    async fn break_lock(&self, name: &str, token: Option<Token>) -> Result<Option<Broken>> {
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

impl fmt::Debug for Fencepost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fencepost({})", self.guarantees().backend)
    }
}

/// `host:pid`.
pub(crate) fn default_label() -> Result<Label> {
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_else(|_| "host".to_owned());
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    Ok(Label::new(&format!("{host}:{}", std::process::id()))?)
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
