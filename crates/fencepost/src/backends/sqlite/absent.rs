//! A store that is not there, for those who only look: it is not made, and answers as an empty one until it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fencepost_core::{LockName, Moment, Token};
use parking_lot::Mutex;

use super::{LOOK_AGAIN, Options, Sqlite, file, guarantees};
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewed, Reply, Request, Store, StoreCall, StoreError, StoreResult, Surroundings,
};
use crate::backends;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};

/// Opens the file; one that is not there is made, or waited for, as `around` says.
pub(crate) async fn open(path: PathBuf, options: Options, around: Surroundings) -> Result<Store> {
    if !around.create && file::is_empty(&path) {
        let absent = Absent { path, options, around, found: Mutex::default() };
        return Ok(Store::from(Arc::new(absent)));
    }
    Ok(open_now(path, options, around).await?.into())
}

async fn open_now(path: PathBuf, options: Options, around: Surroundings) -> Result<Arc<Sqlite>> {
    let open = move || Sqlite::open(&path, options, &around);
    // Opening waits for the disk and, at worst, for other processes.
    let opened = tokio::task::spawn_blocking(open).await;
    opened.map_err(|_| Error::unreachable("opening the file panicked"))?
}

/// A file that nobody has made yet.
struct Absent {
    path: PathBuf,
    options: Options,
    around: Surroundings,
    /// The store, once somebody has made it.
    found: Mutex<Option<Arc<Sqlite>>>,
}

impl Absent {
    /// The store, if it is there by now.
    async fn store(&self) -> Result<Option<Arc<Sqlite>>, StoreError> {
        let found = || self.found.lock();
        if let Some(store) = &*found() {
            return Ok(Some(Arc::clone(store)));
        }
        if file::is_empty(&self.path) {
            return Ok(None);
        }
        let open = open_now(self.path.clone(), self.options, self.around.clone());
        // On the client's own runtime, whoever asks.
        let opened = self.around.runtime.spawn(open).await;
        let panicked = |_| StoreError::unavailable("opening the file panicked");
        let store = opened.map_err(panicked)??;
        Ok(Some(Arc::clone(found().get_or_insert(store))))
    }

    /// The store, for what cannot be done without it.
    async fn needed(&self) -> Result<Arc<Sqlite>, StoreError> {
        self.store().await?.ok_or_else(|| {
            StoreError::refused(format!(
                "there is no store at {}, and this client does not make one: connect with \
                 Fencepost::connect",
                self.path.display()
            ))
        })
    }
}

impl Absent {
    /// The answer of a store that is empty.
    fn empty<T>(&self, value: T) -> Reply<T> {
        Reply::new(value, self.around.clock.now())
    }
}

impl Backend for Absent {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move { self.needed().await?.try_acquire(request, queue, limit).await })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move { self.needed().await?.wait(request, limit).await })
    }

    fn renew(
        &self,
        batch: Vec<Renewal>,
        limit: Moment,
    ) -> BoxFuture<'_, Vec<StoreResult<Result<Renewed, NotHeld>>>> {
        Box::pin(async move {
            match self.store().await {
                Ok(Some(store)) => store.renew(batch, limit).await,
                Ok(None) => batch.iter().map(|_| Ok(self.empty(Err(NotHeld(None))))).collect(),
                Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.release(grant, limit).await,
                None => Ok(self.empty(Err(NotHeld(None)))),
            }
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.break_lock(name, token, confirm_until, limit).await,
                None => Ok(self.empty(None)),
            }
        })
    }

    fn guarantees(&self) -> Guarantees {
        let found = self.found.lock();
        match &*found {
            Some(store) => store.guarantees(),
            None => guarantees::of(
                &std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone()),
                self.options.shared.then(|| "that of its directory".into()),
            ),
        }
    }
}

impl Observe for Absent {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move {
            let Some(store) = self.store().await? else {
                let (holder, waiters) = (None, Vec::new());
                return Ok(self.empty(LockInfo { name, holder, waiting: 0, waiters }));
            };
            store.inspect(name, limit).await
        })
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.list(limit).await,
                None => Ok(self.empty(Vec::new())),
            }
        })
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(backends::inspect_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl Ledger for Absent {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.needed().await?.claim(claim, limit).await })
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.needed().await?.finish(finish, limit).await })
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.look_up(name, limit).await,
                None => Ok(self.empty(None)),
            }
        })
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.entries(&prefix, limit).await,
                None => Ok(self.empty(Vec::new())),
            }
        })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.forget(name, token, limit).await,
                None => Ok(self.empty(false)),
            }
        })
    }

    fn place(&self) -> Option<String> {
        let found = self.found.lock();
        found.as_ref().and_then(|store| store.place())
    }
}

impl fmt::Debug for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({}, not there yet)", self.path.display())
    }
}
