//! A store that is not there, for those who only look: it is not made, and answers as an empty one until it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use fencepost_core::{LockName, Moment, Token};

use super::new_file::is_empty;
use super::queue::LOOK_AGAIN;
use super::{Options, Sqlite, guarantees};
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Reply, Request, Store, StoreCall, StoreError, Surroundings,
};
use crate::backends::until_changed::inspect_until_changed;
use crate::error::{Error, Result};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};

/// Opens the file; one that is not there is made, or waited for, as `around` says.
pub(crate) async fn open(path: PathBuf, options: Options, around: Surroundings) -> Result<Store> {
    if !around.create && is_empty(&path) {
        let absent = Absent { path, options, around, found: OnceLock::new() };
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
    found: OnceLock<Arc<Sqlite>>,
}

impl Absent {
    /// The store, if it is there by now.
    async fn store(&self) -> Result<Option<&Sqlite>, StoreError> {
        if self.found.get().is_none() && !is_empty(&self.path) {
            let open = open_now(self.path.clone(), self.options, self.around.clone());
            // On the client's own runtime, whoever asks.
            let opened = self.around.runtime.spawn(open).await;
            let panicked = |_| StoreError::unavailable("opening the file panicked");
            let store = opened.map_err(panicked)??;
            self.found.get_or_init(|| store);
        }
        Ok(self.found.get().map(|store| &**store))
    }

    /// The store, for what cannot be done without it.
    async fn needed(&self) -> Result<&Sqlite, StoreError> {
        self.store().await?.ok_or_else(|| {
            StoreError::refused(format!(
                "there is no store at {}, and this client does not make one: connect with \
                 Fencepost::connect",
                self.path.display()
            ))
        })
    }

    /// The answer of the store; `empty` is that of one that is not there.
    fn or<'a, T: Send + 'a>(
        &'a self,
        empty: T,
        call: impl FnOnce(&'a Sqlite) -> StoreCall<'a, T> + Send + 'a,
    ) -> StoreCall<'a, T> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => call(store).await,
                None => Ok(Reply::new(empty, self.around.clock.now())),
            }
        })
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

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(async move {
            match self.store().await {
                Ok(Some(store)) => store.renew(batch, limit).await,
                Ok(None) => {
                    let now = self.around.clock.now();
                    batch.iter().map(|_| Ok(Reply::new(Err(NotHeld(None)), now))).collect()
                }
                Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        self.or(Err(NotHeld(None)), move |store| store.release(grant, limit))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        self.or(None, move |store| store.break_lock(name, token, confirm_until, limit))
    }

    fn guarantees(&self) -> Guarantees {
        match self.found.get() {
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
        let empty = LockInfo { name: name.clone(), holder: None, waiting: 0, waiters: Vec::new() };
        self.or(empty, move |store| store.inspect(name, limit))
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        self.or(Vec::new(), move |store| store.list(limit))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
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
        self.or(None, move |store| store.look_up(name, limit))
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        self.or(Vec::new(), move |store| store.entries(&prefix, limit))
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.or(false, move |store| store.forget(name, token, limit))
    }

    fn place(&self) -> Option<String> {
        self.found.get().and_then(|store| store.place())
    }
}

impl fmt::Debug for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({}, not there yet)", self.path.display())
    }
}
