//! A store that does not exist, for clients that only read: it is not created, and answers as an empty one until it is.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fencepost_core::{LockName, Moment, Token};

use super::new_file::is_empty;
use super::queue::POLL_INTERVAL;
use super::{Sqlite, SqliteOptions, guarantees};
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Reply, Request, Store, StoreCall,
    StoreError,
};
use crate::backends::until_changed::inspect_until_changed;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName};

/// Opens the file; a missing one is created, or stands for an empty store, as `context` says. Waits for the disk and, at
/// worst, for other processes: on the client's own thread, which has no guard before its store is open.
pub(crate) fn open(options: SqliteOptions, context: BackendContext) -> Result<Store> {
    options.check()?;
    if !context.create && is_empty(&options.path) {
        let absent = Absent { options, context, found: OnceLock::new() };
        return Ok(Store::from(Arc::new(absent)));
    }
    Ok(Sqlite::open(&options, &context)?.into())
}

/// A file that does not exist yet.
struct Absent {
    options: SqliteOptions,
    context: BackendContext,
    /// The store, once another client has created it.
    found: OnceLock<Arc<Sqlite>>,
}

impl Absent {
    /// The store, if it exists by now.
    async fn store(&self) -> Result<Option<&Sqlite>, StoreError> {
        if self.found.get().is_none() && !is_empty(&self.options.path) {
            let (options, context) = (self.options.clone(), self.context.clone());
            // On the client's own thread, whichever thread calls.
            let opened =
                self.context.runtime.spawn(async move { Sqlite::open(&options, &context) }).await;
            let panicked = |_| StoreError::unavailable("opening the file panicked");
            let store = opened.map_err(panicked)??;
            self.found.get_or_init(|| store);
        }
        Ok(self.found.get().map(|store| &**store))
    }

    /// The store, for calls that need it.
    async fn needed(&self) -> Result<&Sqlite, StoreError> {
        self.store().await?.ok_or_else(|| {
            StoreError::refused(format!(
                "there is no store at {}, and this client does not create one: connect with \
                 Fencepost::connect",
                self.options.path.display()
            ))
        })
    }

    /// The answer of the store; `empty` if it does not exist.
    fn or<'a, T: Send + 'a>(
        &'a self,
        empty: T,
        call: impl FnOnce(&'a Sqlite) -> StoreCall<'a, T> + Send + 'a,
    ) -> StoreCall<'a, T> {
        Box::pin(async move {
            match self.store().await? {
                Some(store) => call(store).await,
                None => Ok(Reply::new(empty, self.context.clock.now())),
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
                store => {
                    let none = |_| Reply::new(Err(NotHeld(None)), self.context.clock.now());
                    let answer = store.map(none);
                    batch.into_iter().map(|renewal| (renewal.grant, answer.clone())).collect()
                }
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
                &std::path::absolute(&self.options.path)
                    .unwrap_or_else(|_| self.options.path.clone()),
                self.options.shared.then(|| "that of its directory".into()),
            ),
        }
    }
}

impl Observe for Absent {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        let empty = LockInfo::free(name.clone());
        self.or(empty, move |store| store.inspect(name, limit))
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        self.or(Page::default(), move |store| store.list(page, limit))
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.context.clock, POLL_INTERVAL, name, seen))
    }
}

impl Ledger for Absent {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.needed().await?.claim(claim, limit).await })
    }

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.needed().await?.finish(finish, limit).await })
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        self.or(RecordsByName::new(), move |store| store.look_up(names, limit))
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        self.or(Vec::new(), move |store| store.list_records(&prefix, limit))
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.or(false, move |store| store.forget(name, token, limit))
    }

    fn store_id(&self) -> Option<String> {
        self.found.get().and_then(|store| store.store_id())
    }
}

impl fmt::Debug for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({}, not created yet)", self.options.path.display())
    }
}
