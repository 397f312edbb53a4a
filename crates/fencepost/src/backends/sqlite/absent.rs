//! A store that is not there, for those who only look: it is not made, and answers as an empty one until it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fencepost_core::{LockName, Moment, OwnerId, Token};
use parking_lot::Mutex;

use super::{LOOK_AGAIN, Options, Sqlite, file, guarantees};
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, LockInfo, Observe, Renewal, Renewed, Request,
    Store, Surroundings, Wait,
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
    async fn store(&self) -> Result<Option<Arc<Sqlite>>> {
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
        let store = opened.map_err(|_| Error::unreachable("opening the file panicked"))??;
        Ok(Some(Arc::clone(found().get_or_insert(store))))
    }

    /// The store, for what cannot be done without it.
    async fn needed(&self) -> Result<Arc<Sqlite>> {
        self.store().await?.ok_or_else(|| {
            Error::refused(format!(
                "there is no store at {}, and this client does not make one: connect with \
                 Fencepost::connect",
                self.path.display()
            ))
        })
    }
}

impl Backend for Absent {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move { self.needed().await?.acquire(request, wait).await })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            match self.store().await {
                Ok(Some(store)) => store.renew(batch).await,
                Ok(None) => {
                    let none = |renewal: &Renewal| Err(Error::not_held(&renewal.name, None));
                    batch.iter().map(none).collect()
                }
                Err(error) => {
                    let message = error.to_string();
                    batch.iter().map(|_| Err(Error::unreachable(&*message))).collect()
                }
            }
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.release(name, owner).await,
                None => Err(Error::not_held(&name, None)),
            }
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.break_lock(name, token, confirm_until).await,
                None => Ok(None),
            }
        })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.inspect(name).await,
                None => Ok(LockInfo { name, holder: None, waiting: 0, waiters: Vec::new() }),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.list().await,
                None => Ok(Vec::new()),
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
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(backends::look_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl Ledger for Absent {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        Box::pin(async move { self.needed().await?.claim(claim).await })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { self.needed().await?.finish(finish).await })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.look_up(name).await,
                None => Ok(None),
            }
        })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.entries(&prefix).await,
                None => Ok(Vec::new()),
            }
        })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => store.forget(name, token).await,
                None => Ok(false),
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
