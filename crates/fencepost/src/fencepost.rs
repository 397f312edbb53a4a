//! The client, and the calls that need no guard.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use fencepost_core::{LockName, OwnerId, Token, Ttl};

use crate::backend::{
    BackendContext, Broken, GrantId, LockInfo, NotHeld, Page, PageRequest, Renewal, Renewed, Reply,
    Store,
};
use crate::bounded_store::BoundedStore;
use crate::claims::Claims;
use crate::client::Client;
use crate::clock::{BootClock, Clock};
use crate::election::Election;
use crate::error::{Error, Result};
use crate::flight::SingleFlight;
use crate::guarantees::Guarantees;
use crate::ledger::{Ledger, RecordInfo};
use crate::lock::Lock;
use crate::metrics::Metrics;
use crate::once::{self, Once};
use crate::store_options::StoreOptions;
use crate::watch::Watch;

/// A client of one store. Cheap to clone; all clones share one background thread.
///
/// When the last clone and the last guard are dropped, the drop waits up to a second for the releases in flight. If the
/// client is never dropped (a `static`, `std::process::exit`), call [`close`](Self::close).
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

impl Fencepost {
    /// Connects to a store that a URL names: `memory:`, `memory:NAME`, `sqlite:PATH`, `redis://HOST`,
    /// `redlock://HOST,HOST,HOST`, `etcd://HOST,HOST,HOST`, `zookeeper://HOST,HOST/PATH`,
    /// `postgres://USER@HOST/DATABASE`. Each has a page under `docs/backends`. Or to one that typed options name, where
    /// no password has to be escaped: see [`StoreOptions`].
    pub async fn connect(store: impl Into<StoreOptions>) -> Result<Self> {
        let store = store.into().0?;
        let open = |context| crate::backends::open(store, context);
        Self::with_backend(Arc::new(BootClock), open).await
    }

    /// Connects to read only: a store that does not exist is not created, and looks empty. An acquire there is refused.
    pub async fn connect_existing(store: impl Into<StoreOptions>) -> Result<Self> {
        let store = store.into().0?;
        let open = |mut context: BackendContext| {
            context.create = false;
            crate::backends::open(store, context)
        };
        Self::with_backend(Arc::new(BootClock), open).await
    }

    /// Connects to the store that `FENCEPOST_URL` names or, if it is not set, to the embedded store in the user's state
    /// directory, which is for the processes of this user on this host. An empty `FENCEPOST_URL` is refused.
    pub async fn from_env() -> Result<Self> {
        Self::connect(crate::store_options::env_url()?).await
    }

    /// A client of any backend, on any clock: for a backend of your own, and for tests with a
    /// [`ManualClock`](crate::clock::ManualClock). `open` gets the clock and the client's runtime.
    pub async fn with_backend<F>(
        clock: Arc<dyn Clock>,
        open: impl FnOnce(BackendContext) -> F,
    ) -> Result<Self>
    where
        F: Future<Output = Result<Store>> + Send + 'static,
    {
        Ok(Self(Client::open(clock, open).await?))
    }

    /// The store behind this client, for the conformance suite: a retry with the same owner.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &BoundedStore {
        &self.0.store
    }

    /// Where the store keeps records, for the conformance suite.
    #[doc(hidden)]
    pub fn ledger(&self) -> Result<Arc<dyn Ledger>> {
        self.0.ledger(true)
    }

    /// A lock on `name`. Nothing is sent until an acquire is awaited.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.0), name.as_ref())
    }

    /// An election under `name`. Nothing is sent until a campaign is awaited.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.0, name.as_ref())
    }

    /// Work that is done once per `key`, by one of all clients of this store.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(&self.0, key.as_ref())
    }

    /// A value that one of many callers computes.
    pub fn single_flight(&self, key: impl AsRef<str>) -> SingleFlight {
        SingleFlight::new(&self.0, key.as_ref())
    }

    /// Items that are each done once, by one worker, in this order. Each is a key of [`once`](Self::once).
    pub fn claim(&self, items: impl IntoIterator<Item = impl Into<String>>) -> Claims {
        Claims::new(&self.0, items.into_iter().map(Into::into).collect())
    }

    /// The keys and records of [`once`](Self::once), ordered by key, without their results.
    pub async fn once_records(&self) -> Result<Vec<(String, RecordInfo)>> {
        let ledger = self.0.ledger(true)?;
        let records = self.0.store.list_records(&*ledger, once::PREFIX).await?;
        let key =
            |record: &RecordInfo| Some(record.name.as_str().strip_prefix(once::PREFIX)?.to_owned());
        Ok(records.into_iter().filter_map(|record| Some((key(&record)?, record))).collect())
    }

    /// What holds under which fault on this store.
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        self.0.store.guarantees()
    }

    /// What this client has counted so far: grants, losses, near misses.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.0.counters.metrics()
    }

    /// Who holds `name` and who waits for it.
    pub async fn inspect(&self, name: &str) -> Result<LockInfo> {
        self.0.store.inspect(LockName::new(name)?).await
    }

    /// Every lock that is held or waited for.
    pub async fn list(&self) -> Result<Vec<LockInfo>> {
        Ok(self.list_page(&PageRequest::new()).await?.locks)
    }

    /// A page of the locks that are held or waited for.
    pub async fn list_page(&self, page: &PageRequest) -> Result<Page> {
        self.0.store.list(page.clone()).await
    }

    /// Follows the changes of `name`.
    pub fn watch(&self, name: &str) -> Result<Watch> {
        Ok(Watch::new(&self.0, LockName::new(name)?))
    }

    /// Ends the current grant of `name`, whoever holds it. `None` if nobody does.
    ///
    /// The holder is notified, and this waits up to a second for it to confirm: see [`Broken::confirmed`]. A holder that
    /// does not confirm may continue until its own deadline, so a fence must stop it.
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
        let renewal = Renewal::new(grant).with_ttl(ttl);
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

    /// Refuses new acquires, and waits until all guards that were dropped are released at the store, or their leases are
    /// over: if the store hangs, that can take a TTL. Guards that are held stay held: a service that stops first finishes
    /// or drops what has a guard or campaigns, then closes.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

impl fmt::Debug for Fencepost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fencepost({})", self.guarantees().backend)
    }
}
