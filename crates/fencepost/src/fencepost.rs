//! What a program starts with: a client, and the verbs that need no guard.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use fencepost_core::{LockName, OwnerId, Token, Ttl};

use crate::backend::{
    Broken, GrantId, LockInfo, NotHeld, Renewal, Renewed, Reply, Store, Surroundings,
};
use crate::bounded_store::BoundedStore;
use crate::claims::Claims;
use crate::client::Client;
use crate::clock::{BootClock, Clock};
use crate::counts::Counts;
use crate::election::Election;
use crate::error::{Error, Result};
use crate::flight::SingleFlight;
use crate::guarantees::Guarantees;
use crate::ledger::{Entry, Ledger};
use crate::lock::Lock;
use crate::once::{self, Once};
use crate::watch::Watch;

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
        self.0.close().await;
    }
}

impl fmt::Debug for Fencepost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fencepost({})", self.guarantees().backend)
    }
}
