//! The same locks without async: every call here blocks its thread and is otherwise the same code.
//!
//! ```
//! use std::time::Duration;
//!
//! let fp = fencepost::blocking::Fencepost::connect("memory:blocking")?;
//! let guard = fp.lock("invoice/42").ttl(Duration::from_secs(30)).acquire()?;
//! guard.check()?; // before each step that needs the lock
//! println!("writing under token {}", guard.token());
//! guard.release()?;
//! # Ok::<(), fencepost::Error>(())
//! ```

mod election;
mod once;

use std::ops::Deref;
use std::time::Duration;

use fencepost_core::{OwnerId, Token, Ttl};

pub use self::election::{Election, Leadership, Observer};
pub use self::once::{Begun, Claims, Once, Run, SingleFlight, Turn};
use crate::backend::{Broken, LockInfo, LossCause, Renewed, Reply};
use crate::block_on::block_on;
use crate::counts::Counts;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::Entry;
use crate::options::acquire_options;

/// [`crate::Fencepost`] for threads.
#[derive(Clone, Debug)]
pub struct Fencepost(crate::Fencepost);

impl Fencepost {
    /// See [`crate::Fencepost::connect`].
    pub fn connect(url: &str) -> Result<Self> {
        block_on(crate::Fencepost::connect(url)).map(Self)
    }

    /// See [`crate::Fencepost::connect_existing`].
    pub fn connect_existing(url: &str) -> Result<Self> {
        block_on(crate::Fencepost::connect_existing(url)).map(Self)
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

    /// See [`crate::Fencepost::once_entries`].
    pub fn once_entries(&self) -> Result<Vec<(String, Entry)>> {
        block_on(self.0.once_entries())
    }

    /// See [`crate::Fencepost::counts`].
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }

    /// See [`crate::Fencepost::inspect`].
    pub fn inspect(&self, name: &str) -> Result<LockInfo> {
        block_on(self.0.inspect(name))
    }

    /// See [`crate::Fencepost::list`].
    pub fn list(&self) -> Result<Vec<LockInfo>> {
        block_on(self.0.list())
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

impl Lock {
    /// See [`crate::Lock::lease_only`].
    pub fn lease_only(self) -> Self {
        Self(self.0.lease_only())
    }

    /// See [`crate::Lock::acquire`].
    pub fn acquire(self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard)
    }

    /// See [`crate::Lock::acquire_within`].
    pub fn acquire_within(self, limit: Duration) -> Result<Guard> {
        block_on(self.0.acquire_within(limit)).map(Guard)
    }

    /// See [`crate::Lock::try_acquire`].
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard))
    }
}

/// [`crate::Guard`] for threads: what does not wait, such as [`check`](crate::Standing::check), is the same.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Blocks until the guard is lost. See [`crate::Standing::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// See [`crate::Guard::detach`].
    #[must_use = "without the owner nobody can renew or release the grant"]
    pub fn detach(self) -> OwnerId {
        self.0.detach()
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.0
    }
}
