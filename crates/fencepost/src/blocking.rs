//! The same locks without async: every call here blocks its thread and is otherwise the same code.
//!
//! ```
//! use std::time::Duration;
//!
//! let fp = fencepost::blocking::Fencepost::connect("memory:blocking")?;
//! let guard = fp.lock("invoice/42").ttl(Duration::from_secs(30)).acquire()?;
//! let fencing = guard.check()?; // before each step that needs the lock
//! println!("writing under token {}", fencing.token());
//! guard.release()?;
//! # Ok::<(), fencepost::Error>(())
//! ```

mod election;
mod guard;
mod once;

use fencepost_core::{OwnerId, Token, Ttl};

pub use self::election::{Election, Leadership, Observer, Term};
pub use self::guard::{Changes, Guard, GuardHandle};
pub use self::once::{Claims, Once, RunGuard, RunHandle, SingleFlight, Start};
use crate::backend::{Broken, LockInfo, Page, PageRequest, Renewed, Reply};
use crate::block_on::block_on;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::RecordInfo;
use crate::metrics::Metrics;
use crate::options::{acquire_options, wait_option};
use crate::store_options::StoreOptions;

/// [`crate::Fencepost`] for threads.
#[derive(Clone, Debug)]
pub struct Fencepost(crate::Fencepost);

impl Fencepost {
    /// See [`crate::Fencepost::connect`].
    pub fn connect(store: impl Into<StoreOptions>) -> Result<Self> {
        block_on(crate::Fencepost::connect(store)).map(Self)
    }

    /// See [`crate::Fencepost::connect_existing`].
    pub fn connect_existing(store: impl Into<StoreOptions>) -> Result<Self> {
        block_on(crate::Fencepost::connect_existing(store)).map(Self)
    }

    /// See [`crate::Fencepost::from_env`].
    pub fn from_env() -> Result<Self> {
        block_on(crate::Fencepost::from_env()).map(Self)
    }

    /// See [`crate::Fencepost::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// See [`crate::Fencepost::election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// See [`crate::Fencepost::once`].
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once(self.0.once(key))
    }

    /// See [`crate::Fencepost::single_flight`].
    pub fn single_flight(&self, key: impl AsRef<str>) -> SingleFlight {
        SingleFlight(self.0.single_flight(key))
    }

    /// See [`crate::Fencepost::claim`].
    pub fn claim(&self, items: impl IntoIterator<Item = impl Into<String>>) -> Claims {
        Claims(self.0.claim(items))
    }

    /// See [`crate::Fencepost::once_records`].
    pub fn once_records(&self) -> Result<Vec<(String, RecordInfo)>> {
        block_on(self.0.once_records())
    }

    /// See [`crate::Fencepost::metrics`].
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.0.metrics()
    }

    /// See [`crate::Fencepost::inspect`].
    pub fn inspect(&self, name: &str) -> Result<LockInfo> {
        block_on(self.0.inspect(name))
    }

    /// See [`crate::Fencepost::list`].
    pub fn list(&self) -> Result<Vec<LockInfo>> {
        block_on(self.0.list())
    }

    /// See [`crate::Fencepost::list_page`].
    pub fn list_page(&self, page: &PageRequest) -> Result<Page> {
        block_on(self.0.list_page(page))
    }

    /// See [`crate::Fencepost::break_lock`].
    pub fn break_lock(&self, name: &str) -> Result<Option<Broken>> {
        block_on(self.0.break_lock(name))
    }

    /// See [`crate::Fencepost::break_grant`].
    pub fn break_grant(&self, name: &str, token: Token) -> Result<Option<Broken>> {
        block_on(self.0.break_grant(name, token))
    }

    /// See [`crate::Fencepost::renew`].
    pub fn renew(&self, name: &str, owner: OwnerId, ttl: Option<Ttl>) -> Result<Reply<Renewed>> {
        block_on(self.0.renew(name, owner, ttl))
    }

    /// See [`crate::Fencepost::release`].
    pub fn release(&self, name: &str, owner: OwnerId) -> Result<()> {
        block_on(self.0.release(name, owner))
    }

    /// See [`crate::Fencepost::watch`].
    pub fn watch(&self, name: &str) -> Result<Watch> {
        self.0.watch(name).map(Watch)
    }

    /// See [`crate::Fencepost::guarantees`].
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }

    /// See [`crate::Fencepost::close`].
    pub fn close(&self) {
        block_on(self.0.close());
    }
}

impl From<crate::Fencepost> for Fencepost {
    fn from(client: crate::Fencepost) -> Self {
        Self(client)
    }
}

/// [`crate::Watch`] for threads.
#[derive(Debug)]
pub struct Watch(crate::Watch);

impl Watch {
    /// Blocks until the lock changes. See [`crate::Watch::next`].
    pub fn wait_next(&mut self) -> Result<LockInfo> {
        block_on(self.0.next())
    }
}

/// [`crate::Lock`] for threads.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until an acquire is called"]
pub struct Lock(crate::Lock);

acquire_options!(wraps Lock);
wait_option!(wraps Lock);

impl Lock {
    /// See [`crate::Lock::lease_only`].
    pub fn lease_only(self) -> Self {
        Self(self.0.lease_only())
    }

    /// Blocks until the lock is acquired. See [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard)
    }

    /// See [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard))
    }
}
