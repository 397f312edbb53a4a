//! A run of one key, and how it finishes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{FencingToken, Label, LockName, Token};

use crate::backend::LossCause;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, GuardHandle};
use crate::ledger::{Completion, Ledger, Outcome, RecordInfo, State, outcome_unknown};
use crate::retry::MAX_RETRY_DELAY;
use crate::transaction::Transaction;

/// A view of a run for the work in it. Cheap to clone; it does not keep the lock.
#[derive(Clone)]
pub struct RunHandle {
    pub(super) client: Arc<Client>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) handle: GuardHandle,
    pub(super) retention: Duration,
    pub(super) label: Label,
    /// The work finished the record in a transaction of its own.
    pub(super) in_transaction: Arc<AtomicBool>,
}

impl RunHandle {
    fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// The number of the fencing token, for logs.
    #[must_use]
    pub fn token(&self) -> Token {
        self.handle.token()
    }

    /// Name and token, for a fence: pass them with every write. See [`GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.handle.fencing()
    }

    /// The same if the run can be trusted right now. See [`GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.handle.check()
    }

    /// Resolves with the cause once the lock of the key is lost. See [`GuardHandle::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.handle.lost()
    }

    /// Reports that the work advances. See [`GuardHandle::progress`].
    pub fn progress(&self) {
        self.handle.progress();
    }

    /// The view of the guard behind it, for everything else: status, deadline.
    #[must_use]
    pub const fn handle(&self) -> &GuardHandle {
        &self.handle
    }

    fn finish(&self, outcome: Outcome) -> Completion {
        let (name, label) = (self.name().clone(), self.label.clone());
        Completion::new(name, self.token(), label, outcome, self.retention)
    }

    /// Records the key as done in the caller's own transaction: if that commits, the effect and the record are both
    /// there; if not, neither is. The transaction must be in the database of the store, PostgreSQL or SQLite. An error of
    /// kind `Lost` says that this run was overtaken: roll back. That makes the record the fence of the transaction; it
    /// needs no other. `result` is what is recorded: what the work returns after this is not used.
    ///
    /// Make it the last step, and commit soon: other runners of the key wait meanwhile. If the outcome of a commit was
    /// unknown and the work retries, an error says that the first commit succeeded: roll back, and return the error.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(fp: fencepost::Fencepost, db: &mut fencepost::fences::postgres::tokio_postgres::Client)
    /// #     -> fencepost::Result<()> {
    /// // `db` is a connection to the database that the store is in.
    /// let billing = fp.once("billing/2026-11-16");
    /// let done = billing.run(async |run| {
    ///     let mut tx = db.transaction().await?;
    ///     tx.execute("INSERT INTO invoice VALUES (42, 1000)", &[]).await?;
    ///     run.done_in(&mut tx, "1 invoice").await?;
    ///     tx.commit().await?; // both, or neither
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("")
    /// });
    /// println!("{:?}", done.await?.result);
    /// # Ok(()) }
    /// ```
    pub async fn done_in(
        &self,
        transaction: &mut impl Transaction,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        let (finish, store_id) = self.completion(result.into())?;
        let recorded = transaction.finish(finish, store_id).await?;
        self.recorded(recorded)
    }

    /// [`done_in`](Self::done_in) without async: a transaction of rusqlite cannot be sent to another thread, so a
    /// future that awaits while it has one cannot be spawned.
    ///
    /// The tables of the effect are in the store's file. Let fencepost create that file, then add them to it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use fencepost::Fencepost;
    /// use fencepost::fences::sqlite::rusqlite::{Connection, TransactionBehavior::Immediate};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// let fp = Fencepost::connect(&format!("sqlite:{}", path.display())).await?;
    /// let mut shop = Connection::open(&path)?;
    /// shop.busy_timeout(std::time::Duration::from_secs(5))?;
    /// shop.execute_batch("CREATE TABLE IF NOT EXISTS invoice (customer INTEGER, sum INTEGER)")?;
    ///
    /// let billing = fp.once("billing/2026-11-16");
    /// let done = billing.run(async |run| {
    ///     let tx = shop.transaction_with_behavior(Immediate)?;
    ///     tx.execute("INSERT INTO invoice VALUES (42, 1000)", [])?;
    ///     run.done_in_sqlite(&tx, "1 invoice")?;
    ///     tx.commit()?; // both, or neither
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("")
    /// });
    /// assert_eq!(done.await?.result, b"1 invoice");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(all(feature = "sqlite", unix))]
    pub fn done_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        let (finish, store_id) = self.completion(result.into())?;
        let recorded = crate::backends::sqlite::finish_in(transaction, &finish, &store_id)?;
        self.recorded(recorded)
    }

    fn completion(&self, result: Vec<u8>) -> Result<(Completion, String)> {
        let store_id = self.ledger.store_id().ok_or_else(|| {
            let backend = self.client.store.guarantees().backend;
            Error::refused(format!(
                "the {backend} store has no transactions to record \"{}\" in: use the database of the \
                 effect as the store (postgres: or sqlite:)",
                self.name()
            ))
        })?;
        Ok((self.finish(Outcome::Done(checked(result)?)), store_id))
    }

    fn recorded(&self, recorded: bool) -> Result<()> {
        if !recorded {
            return Err(Error::lost(self.name(), LossCause::TakenOver));
        }
        self.in_transaction.store(true, Ordering::Release);
        // The record is the fence of this transaction.
        self.handle.grant_state().fencing_used();
        Ok(())
    }

    async fn has_no_record(&self) -> Result<bool> {
        Ok(self.client.store.look_up(&*self.ledger, self.name()).await?.is_none())
    }

    /// The record, if a transaction that this run recorded it in was committed.
    pub(super) async fn committed_record(&self) -> Result<Option<RecordInfo>> {
        if !self.in_transaction.load(Ordering::Acquire) {
            return Ok(None);
        }
        let record = self.client.store.look_up(&*self.ledger, self.name()).await?;
        Ok(record.filter(|record| record.state == State::Done && record.token == self.token()))
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("handle", &self.handle).finish_non_exhaustive()
    }
}

fn checked(result: Vec<u8>) -> Result<Vec<u8>> {
    if result.len() > RecordInfo::MAX_RESULT {
        return Err(Error::invalid(format!(
            "the result has {} bytes, and a record takes {}: keep it elsewhere, and return where",
            result.len(),
            RecordInfo::MAX_RESULT
        )));
    }
    Ok(result)
}

/// A key that the caller runs now. Finish it with [`done`](Self::done), [`failed`](Self::failed) or
/// [`give_up`](Self::give_up); if it is dropped, the next runner runs it.
#[must_use = "dropping the run gives up the key"]
pub struct RunGuard {
    pub(super) key: String,
    pub(super) run: RunHandle,
    pub(super) guard: Guard,
}

impl RunGuard {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The number of the fencing token, for logs.
    #[must_use]
    pub fn token(&self) -> Token {
        self.run.token()
    }

    /// Name and token, for a fence: pass them with every write. See [`GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.run.fencing()
    }

    /// The same if the run can be trusted right now. See [`GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.run.check()
    }

    /// Resolves with the cause once the lock of the key is lost. See [`GuardHandle::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.run.lost()
    }

    /// Reports that the work advances. See [`GuardHandle::progress`].
    pub fn progress(&self) {
        self.run.progress();
    }

    /// The guard of the key's lock.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// A view of this run for the work in it.
    #[must_use]
    pub fn handle(&self) -> RunHandle {
        self.run.clone()
    }

    /// Records the key as done, and releases it. `Lost` if the run was overtaken: then nothing was recorded.
    ///
    /// A result of more than 64 KiB is refused, and the key is recorded as failed: the work was done, and must not be
    /// repeated for that.
    pub async fn done(self, result: impl Into<Vec<u8>>) -> Result<()> {
        match checked(result.into()) {
            Ok(result) => self.record_outcome(Outcome::Done(result)).await,
            Err(error) => {
                let message = format!("the work was done, but {error}");
                self.record_outcome(Outcome::Failed(message.into_bytes())).await?;
                Err(error)
            }
        }
    }

    /// Records the key as failed: nobody runs it again until the record is forgotten or its retention is over.
    pub async fn failed(self, message: &str) -> Result<()> {
        let mut end = message.len().min(RecordInfo::MAX_RESULT);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        self.record_outcome(Outcome::Failed(message.as_bytes()[..end].to_vec())).await
    }

    /// Records that it was not done, and releases the key: the next runner runs it.
    pub async fn give_up(self) -> Result<()> {
        self.record_outcome(Outcome::Abandoned).await
    }

    /// Records the key as done in the caller's own transaction; then [`committed`](Self::committed) ends the run. See
    /// [`RunHandle::done_in`].
    pub async fn done_in(
        &self,
        transaction: &mut impl Transaction,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.run.done_in(transaction, result).await
    }

    /// [`done_in`](Self::done_in) without async. See [`RunHandle::done_in_sqlite`].
    #[cfg(all(feature = "sqlite", unix))]
    pub fn done_in_sqlite(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.run.done_in_sqlite(transaction, result)
    }

    /// For a run that was recorded with [`RunHandle::done_in`]: checks that the transaction was committed, and releases
    /// the key.
    pub async fn committed(self) -> Result<RecordInfo> {
        match self.run.committed_record().await? {
            Some(record) => {
                self.release().await;
                Ok(record)
            }
            None => Err(Error::new(
                ErrorKind::Failed,
                format!(
                    "the work of once \"{}\" recorded it as done in a transaction that was not \
                     committed: commit it before the work returns",
                    self.key
                ),
            )),
        }
    }

    /// Finishes the record. Runs to completion even if the caller drops it: the work is done, and if the key were released
    /// before the record is finished, the work would run again.
    async fn record_outcome(self, outcome: Outcome) -> Result<()> {
        let client = Arc::clone(&self.run.client);
        let settling = client.heartbeat.spawn_to_completion(async move {
            let RunHandle { client, ledger, .. } = &self.run;
            // The outcome of an earlier attempt is unknown.
            let mut in_doubt = false;
            loop {
                // Even if the lock is lost: the record's own token decides.
                let finish = self.run.finish(outcome.clone());
                let reply = client.store.finish(&**ledger, finish).await;
                in_doubt |= reply.as_ref().is_ok_and(|reply| reply.retried);
                match reply.map(|reply| reply.value) {
                    Ok(true) => break,
                    // It may have been recorded, and be gone since: then nobody has taken it over.
                    Ok(false) if in_doubt && self.run.has_no_record().await? => {
                        return Err(Error::unreachable(outcome_unknown(self.run.name())));
                    }
                    Ok(false) => return Err(Error::lost(self.run.name(), LossCause::TakenOver)),
                    Err(error) if error.kind() != ErrorKind::Unreachable => return Err(error),
                    Err(error) if self.run.handle.trusted().is_err() => return Err(error),
                    Err(error) => {
                        let error = error.one_line();
                        tracing::warn!(key = self.key, %error, "not recorded yet; retrying");
                        in_doubt = true;
                        client.clock.alarm(client.clock.now() + MAX_RETRY_DELAY).await;
                    }
                }
            }
            self.release().await;
            Ok(())
        });
        settling.await.unwrap_or_else(|_| {
            Err(Error::unreachable("the client ended before the record was finished"))
        })
    }

    /// The record is finished: a lock that was lost meanwhile does not matter.
    pub(super) async fn release(self) {
        if let Err(error) = self.guard.release().await {
            let error = error.one_line();
            tracing::debug!(key = self.key, %error, "the lock was lost before its record was finished");
        }
    }
}

impl fmt::Debug for RunGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunGuard")
            .field("key", &self.key)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
