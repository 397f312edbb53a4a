//! A run of one key: what it holds, and how it is settled.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::Label;

use crate::backend::LossCause;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Standing};
use crate::ledger::{Entry, Finish, Ledger, Outcome, Over, State, nobody_knows};
use crate::retry::MAX_RETRY_DELAY;
use crate::transaction::Transaction;

/// What the work of one run can take with it. Cheap to clone; it does not keep the lock.
#[derive(Clone)]
pub struct Run {
    pub(super) client: Arc<Client>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) standing: Standing,
    pub(super) keep: Duration,
    pub(super) label: Label,
    /// The mark went into a transaction of the work's own.
    pub(super) in_transaction: Arc<AtomicBool>,
}

impl Run {
    fn finish(&self, outcome: Outcome) -> Finish {
        Finish {
            name: self.name().clone(),
            token: self.own_token(),
            label: self.label.clone(),
            outcome,
            keep: self.keep,
            over: Over::OwnClaim,
        }
    }

    /// Marks the key as done inside the caller's own transaction: when that commits, effect and mark are both
    /// there, and if it does not, neither is. The transaction must be one of the database that the store is
    /// in, PostgreSQL or SQLite. An error of kind `Lost` says that this run was overtaken: roll back.
    ///
    /// Mark last, and commit soon: others who want the key wait meanwhile. Work that tries again because it does not
    /// know whether its commit was carried out is told if it was, by an error: roll back, and return that.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(fp: fencepost::Fencepost, db: &mut fencepost::tokio_postgres::Client)
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
        let (finish, place) = self.mark(result.into())?;
        let settled = transaction.finish(finish, place).await?;
        self.marked(settled)
    }

    /// [`done_in`](Self::done_in) without async: a transaction of rusqlite can not be sent to another thread, so a
    /// future that awaits while it has one can not be spawned.
    ///
    /// The tables of the effect are in the store's file. Let fencepost make that file, then add them to it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use fencepost::Fencepost;
    /// use fencepost::rusqlite::{Connection, TransactionBehavior::Immediate};
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
    ///     run.done_in_now(&tx, "1 invoice")?;
    ///     tx.commit()?; // both, or neither
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("")
    /// });
    /// assert_eq!(done.await?.result, b"1 invoice");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(all(feature = "sqlite", unix))]
    pub fn done_in_now(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        result: impl Into<Vec<u8>>,
    ) -> Result<()> {
        let (finish, place) = self.mark(result.into())?;
        let settled = crate::backends::sqlite::finish_in(transaction, &finish, &place)?;
        self.marked(settled)
    }

    fn mark(&self, result: Vec<u8>) -> Result<(Finish, String)> {
        let place = self.ledger.place().ok_or_else(|| {
            let backend = self.client.store.guarantees().backend;
            Error::refused(format!(
                "the {backend} store has no transactions that \"{}\" could be marked in: use the \
                 database of the effect as store (postgres: or sqlite:)",
                self.name()
            ))
        })?;
        Ok((self.finish(Outcome::Done(checked(result)?)), place))
    }

    fn marked(&self, settled: bool) -> Result<()> {
        if !settled {
            return Err(Error::lost(self.name(), LossCause::TakenOver));
        }
        self.in_transaction.store(true, Ordering::Release);
        Ok(())
    }

    async fn has_no_record(&self) -> Result<bool> {
        Ok(self.client.store.look_up(&*self.ledger, self.name()).await?.is_none())
    }

    /// The record, if a transaction of this run was committed that marked it as done.
    pub(super) async fn marked_entry(&self) -> Result<Option<Entry>> {
        if !self.in_transaction.load(Ordering::Acquire) {
            return Ok(None);
        }
        let entry = self.client.store.look_up(&*self.ledger, self.name()).await?;
        Ok(entry.filter(|entry| entry.state == State::Done && entry.token == self.own_token()))
    }
}

impl Deref for Run {
    type Target = Standing;

    fn deref(&self) -> &Standing {
        &self.standing
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("standing", &self.standing).finish_non_exhaustive()
    }
}

fn checked(result: Vec<u8>) -> Result<Vec<u8>> {
    if result.len() > Entry::MAX_RESULT {
        return Err(Error::invalid(format!(
            "the result has {} bytes, and a record takes {}: keep it elsewhere, and return where",
            result.len(),
            Entry::MAX_RESULT
        )));
    }
    Ok(result)
}

/// A key that is ours to run. Settle it with [`done`](Self::done), [`failed`](Self::failed) or
/// [`give_up`](Self::give_up); if it is dropped, the next one to come runs it.
#[must_use = "a turn that is dropped at once is given up at once"]
pub struct Turn {
    pub(super) key: String,
    pub(super) run: Run,
    pub(super) guard: Guard,
}

impl Turn {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The guard of the lock that keeps others from it.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// What the work can take with it.
    #[must_use]
    pub fn handle(&self) -> Run {
        self.run.clone()
    }

    /// Records that it is done, and lets go of the key. `Lost` if the run was overtaken: then it is not.
    ///
    /// A result of more than 64 KiB is not kept, and the key is recorded as failed, since the work was done
    /// and must not be repeated for that.
    pub async fn done(self, result: impl Into<Vec<u8>>) -> Result<()> {
        match checked(result.into()) {
            Ok(result) => self.settle(Outcome::Done(result)).await,
            Err(error) => {
                let message = format!("the work was done, but {error}");
                self.settle(Outcome::Failed(message.into_bytes())).await?;
                Err(error)
            }
        }
    }

    /// Records that it failed for good: nobody tries again until the record is forgotten or its time is over.
    pub async fn failed(self, message: &str) -> Result<()> {
        let mut end = message.len().min(Entry::MAX_RESULT);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        self.settle(Outcome::Failed(message.as_bytes()[..end].to_vec())).await
    }

    /// It was not done: the next one to come may try.
    pub async fn give_up(self) -> Result<()> {
        self.settle(Outcome::Abandoned).await
    }

    /// The mark went into a transaction with [`Run::done_in`]: sees that it was committed, and lets go.
    pub async fn committed(self) -> Result<Entry> {
        match self.run.marked_entry().await? {
            Some(entry) => {
                self.let_go().await;
                Ok(entry)
            }
            None => Err(Error::new(
                ErrorKind::Failed,
                format!(
                    "the work of once \"{}\" marked it as done in a transaction that was not \
                     committed: commit it before the work returns",
                    self.key
                ),
            )),
        }
    }

    /// Settles the record, to the end of it even if nobody waits for that any more: the work is done, and to let
    /// go of the key before the mark is there would have it done again.
    async fn settle(self, outcome: Outcome) -> Result<()> {
        let client = Arc::clone(&self.run.client);
        let settling = client.keeper.see_through(async move {
            let Run { client, ledger, .. } = &self.run;
            // A try of which nobody knows whether it was carried out.
            let mut in_doubt = false;
            loop {
                // Whether or not the lock is still ours: the record's own token decides.
                let finish = self.run.finish(outcome.clone());
                match client.store.finish(&**ledger, finish).await {
                    Ok(true) => break,
                    // It may have been recorded, and have gone since: then nobody has taken it over.
                    Ok(false) if in_doubt && self.run.has_no_record().await? => {
                        return Err(Error::unreachable(nobody_knows(self.run.name())));
                    }
                    Ok(false) => return Err(Error::lost(self.run.name(), LossCause::TakenOver)),
                    Err(error) if *error.kind() != ErrorKind::Unreachable => return Err(error),
                    Err(error) if self.run.check().is_err() => return Err(error),
                    Err(error) => {
                        tracing::warn!(key = self.key, %error, "not recorded yet; trying again");
                        in_doubt = true;
                        client.clock.alarm(client.clock.now() + MAX_RETRY_DELAY).await;
                    }
                }
            }
            self.let_go().await;
            Ok(())
        });
        settling.await.unwrap_or_else(|_| {
            Err(Error::unreachable("the client ended before the record was settled"))
        })
    }

    /// The record says all there is to say: a lock that was lost meanwhile does not matter.
    pub(super) async fn let_go(self) {
        if let Err(error) = self.guard.release().await {
            tracing::debug!(key = self.key, %error, "the lock was gone before its record was settled");
        }
    }
}

impl Deref for Turn {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("key", &self.key)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
