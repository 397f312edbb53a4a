//! One recorded success per key, over all processes that use the store.
//!
//! A run of KEY holds the lock `once/KEY` and has a record of that name in the store's ledger (ledger.rs):
//! absent, then running under the grant's token, then done. The lock keeps two runners from working at once, gives the
//! runner a heartbeat, and frees the key when the runner dies. The record is what counts: it turns done only if it is
//! running under the runner's own token, so a runner that was paused and overtaken cannot finish it.
//!
//! *Not promised:* a runner that dies between its effect and the record leaves a record that says running, and the next
//! runner repeats the effect. The same holds for a runner that cannot reach the store before its lease ends. If the effect
//! is a transaction of PostgreSQL or SQLite, [`RunHandle::done_in`] finishes the record in it: both happen, or neither.

mod run;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{LockName, Token};

pub use self::run::{RunGuard, RunHandle};
use crate::bounded_store::Wait;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result, one_line};
use crate::guard::Guard;
use crate::ledger::{Claim, Claimed, LONGEST_RUN, Ledger, RecordInfo, State};
use crate::lock::Lock;
use crate::options::{acquire_options, wait_option};
use crate::race::{First, race};
use crate::retry::MAX_RETRY_DELAY;

/// The prefix of the names of locks and records.
pub(crate) const PREFIX: &str = "once/";
/// The default retention of a record.
pub const DEFAULT_RETENTION: Duration = Duration::from_hours(7 * 24);
/// The longest retention of a record: ten years.
pub const MAX_RETENTION: Duration = Duration::from_hours(10 * 366 * 24);
/// How often a waiter looks up the record.
pub(crate) const LOOK_UP_EVERY: Duration = Duration::from_millis(250);

/// Work that is done once per key. Made by [`Fencepost::once`](crate::Fencepost::once).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use fencepost::Fencepost;
///
/// let fp = Fencepost::connect("memory:once").await?;
/// let billing = fp.once("billing/2026-11-16").retain_for(Duration::from_hours(7 * 24));
/// # let billing = billing.may_repeat();
///
/// let first = billing.run(|run| async move {
///     println!("billing under token {}", run.token());
///     Ok::<_, std::io::Error>("412 invoices")
/// });
/// assert!(first.await?.ran);
///
/// let second = billing.run(|_| async { Err::<&str, _>(std::io::Error::other("not run at all")) });
/// let second = second.await?;
/// assert!(!second.ran && second.result == b"412 invoices");
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing runs until `run` or `begin` is awaited"]
pub struct Once {
    client: Arc<Client>,
    key: String,
    retention: Duration,
    /// Whatever the key: TTL, label, bounds, wait.
    pub(crate) lock: Lock,
    on_failure: OnFailure,
    may_repeat: bool,
}

/// What happens to a key whose work failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The next runner runs it.
    #[default]
    Retry,
    /// It is recorded as failed: nobody runs it again until the record is forgotten or its retention is over.
    Record,
}

/// The record of a key after [`Once::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The result of the one run.
    pub result: Vec<u8>,
    /// Whether this call ran it.
    pub ran: bool,
    /// The token of the one run.
    pub token: Token,
}

/// The outcome of [`Once::begin`].
#[derive(Debug)]
pub enum Start {
    /// The caller runs it now.
    Claimed(RunGuard),
    /// It is done, or recorded as failed.
    Finished(RecordInfo),
}

acquire_options!(Once, lock.options);
wait_option!(Once, lock.options);

impl Once {
    pub(crate) fn new(client: &Arc<Client>, key: &str) -> Self {
        Self {
            client: Arc::clone(client),
            key: key.to_owned(),
            retention: DEFAULT_RETENTION,
            lock: Lock::new(Arc::clone(client), PREFIX),
            on_failure: OnFailure::Retry,
            may_repeat: false,
        }
    }

    /// How long the record stays once it is done or failed; seven days by default.
    pub fn retain_for(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// What happens to the key if the work fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Accepts a store that can lose records: the work must be safe to run twice.
    pub fn may_repeat(mut self) -> Self {
        self.may_repeat = true;
        self
    }

    /// Runs `work` unless it is done, and returns the result of the one run. If another runner is working, waits for the
    /// outcome, and takes over if that runner fails or dies.
    ///
    /// If the lock is lost, the work is dropped at its next await. If the work fails, the error's kind is `Failed`.
    pub async fn run<R, E, F>(&self, work: impl FnOnce(RunHandle) -> F) -> Result<Recorded>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Boxed: the caller's future would be large.
        let run_guard = match Box::pin(self.begin()).await? {
            Start::Claimed(run_guard) => run_guard,
            Start::Finished(record) => return self.recorded(record),
        };
        let (run, token) = (run_guard.handle(), run_guard.token());
        let ran = |record: RecordInfo| Recorded { result: record.result, ran: true, token };
        // Not even started if the guard is lost by now.
        let worked = match run_guard.guard.run(Box::pin(async { work(run).await })).await {
            Ok(worked) => worked,
            // The lock is lost, but its transaction may have been committed before.
            Err(lost) => {
                return run_guard.run.committed_record().await.ok().flatten().map(ran).ok_or(lost);
            }
        };
        match worked {
            Ok(_) if run_guard.run.in_transaction.load(Ordering::Acquire) => {
                run_guard.committed().await.map(ran)
            }
            Ok(result) => {
                let result = result.into();
                run_guard.done(result.clone()).await?;
                Ok(Recorded { result, ran: true, token })
            }
            Err(error) => {
                // It may have failed because the answer to a commit was lost.
                if let Some(record) = run_guard.run.committed_record().await? {
                    run_guard.release().await;
                    return Ok(ran(record));
                }
                let (error, run) = (error.into(), run_guard.handle());
                let message = one_line(&*error);
                let recorded = match self.on_failure {
                    OnFailure::Retry => run_guard.give_up().await,
                    OnFailure::Record => run_guard.failed(&message).await,
                };
                if let Err(error) = recorded {
                    let error = error.one_line();
                    tracing::warn!(key = self.key, %error, "the failure could not be recorded");
                }
                // The attempt to record waited for any commit in flight: the record may be there now.
                if let Ok(Some(record)) = run.committed_record().await {
                    return Ok(ran(record));
                }
                Err(self.failure("failed").with_source(error))
            }
        }
    }

    fn recorded(&self, record: RecordInfo) -> Result<Recorded> {
        if record.state == State::Failed {
            // An error is one line.
            let message = String::from_utf8_lossy(&record.result).replace(char::is_control, " ");
            let how = "failed before, and was recorded as failed: forget it to let it run again";
            return Err(self.failure(how).with_source(message));
        }
        Ok(Recorded { result: record.result, ran: false, token: record.token })
    }

    fn failure(&self, how: &str) -> Error {
        Error::new(ErrorKind::Failed, format!("the work of once \"{}\" {how}", self.key))
    }

    /// Claims the key, or returns its record: for work that is not a future. If another runner is working, waits for as
    /// long as [`wait_timeout`](Self::wait_timeout) allows.
    pub async fn begin(&self) -> Result<Start> {
        let (ledger, name) = (self.checked_ledger()?, self.name()?);
        if let Some(record) = self.client.store.look_up(&*ledger, &name).await?
            && record.is_finished()
        {
            return Ok(Start::Finished(record));
        }
        self.begin_unfinished(ledger, name).await
    }

    /// Where this key is recorded, if its options are valid for that.
    pub(crate) fn checked_ledger(&self) -> Result<Arc<dyn Ledger>> {
        let ledger = self.client.ledger(self.may_repeat)?;
        check_retention(self.retention)?;
        Ok(ledger)
    }

    /// [`begin`](Self::begin) without its first look-up: nothing was recorded a moment ago.
    pub(crate) async fn begin_unfinished(
        &self,
        ledger: Arc<dyn Ledger>,
        name: LockName,
    ) -> Result<Start> {
        let wait = self.lock.options.wait(self.client.clock.now());
        loop {
            let finished = until_recorded(
                &self.client,
                &*ledger,
                &name,
                LOOK_UP_EVERY,
                RecordInfo::is_finished,
            );
            // The position is given up if another runner has done it meanwhile: a frozen waiter would block all behind it.
            let guard = match race(finished, self.lock.clone().named(&name).take(wait)).await {
                First::Left(record) => return Ok(Start::Finished(record)),
                First::Right(Err(error)) if error.kind() == ErrorKind::Held => {
                    // It may have been done since the last look-up.
                    let record = self.client.store.look_up(&*ledger, &name).await?;
                    let finished = record.filter(RecordInfo::is_finished);
                    return finished.map(Start::Finished).ok_or(error);
                }
                First::Right(guard) => guard?,
            };
            let claimed = self.claim(&*ledger, &guard, wait).await?;
            match (claimed, guard.trusted()) {
                (Claimed::Finished(record), _) => return Ok(Start::Finished(record)),
                // Another runner may have claimed the key since.
                (_, Err(lost)) if wait == Wait::No => return Err(lost),
                (_, Err(_)) => {}
                (Claimed::Ours, Ok(())) => {
                    let run = RunHandle {
                        client: Arc::clone(&self.client),
                        ledger,
                        handle: guard.handle(),
                        retention: self.retention,
                        label: self.lock.shown_label()?,
                        in_transaction: Arc::default(),
                    };
                    return Ok(Start::Claimed(RunGuard { key: self.key.clone(), run, guard }));
                }
                (Claimed::Overtaken, Ok(())) => {
                    let token = guard.token();
                    return Err(Error::refused(format!(
                        "the record of once \"{}\" has a higher token than {token}, which the store \
                         grants now: its tokens have fallen; forget the record",
                        self.key
                    )));
                }
            }
        }
    }

    /// The record of this key, if there is one.
    pub async fn record(&self) -> Result<Option<RecordInfo>> {
        let ledger = self.client.ledger(true)?;
        self.client.store.look_up(&*ledger, &self.name()?).await
    }

    /// Removes the record, so that the work can be done again. False if there was none. While a runner is working, the
    /// error's kind is `Held`.
    pub async fn forget(&self) -> Result<bool> {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        // Under the lock: a runner that is working must not find its record gone.
        let guard = self.lock.clone().named(&name).take(Wait::No).await?;
        let Some(record) = self.client.store.look_up(&*ledger, &name).await? else {
            return Ok(false);
        };
        let forgotten = self.client.store.forget(&*ledger, name, record.token).await?;
        if let Err(error) = guard.release().await {
            let error = error.one_line();
            tracing::debug!(key = self.key, %error, "the lock was gone before it was released");
        }
        Ok(forgotten)
    }

    /// The same for another key.
    pub(crate) fn for_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    fn name(&self) -> Result<LockName> {
        name_of(PREFIX, &self.key)
    }

    /// Claims the record. Retries while the lock is ours and there is time: a transaction that is about to finish the
    /// record may block it for a while.
    async fn claim(&self, ledger: &dyn Ledger, guard: &Guard, wait: Wait) -> Result<Claimed> {
        let (name, retention) = (guard.name().clone(), self.retention.max(LONGEST_RUN));
        let claim = Claim::new(name, guard.token(), self.lock.shown_label()?, retention);
        let clock = &self.client.clock;
        loop {
            match self.client.store.claim(ledger, claim.clone()).await {
                Err(error) if error.kind() == ErrorKind::Unreachable && guard.trusted().is_ok() => {
                    let again = clock.now() + MAX_RETRY_DELAY;
                    match wait {
                        Wait::No => return Err(error),
                        Wait::Until(until) if again >= until => return Err(error),
                        _ => clock.alarm(again).await,
                    }
                }
                claimed => return claimed,
            }
        }
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The name of a key's lock and record.
pub(crate) fn name_of(prefix: &str, key: &str) -> Result<LockName> {
    let most = LockName::MAX_BYTES - prefix.len();
    if key.is_empty() || key.len() > most {
        let start: String = key.chars().take(24).collect();
        return Err(Error::invalid(format!(
            "the key \"{}\"{} has {} bytes: give 1 to {most}",
            start.escape_debug(),
            if start.len() < key.len() { "..." } else { "" },
            key.len()
        )));
    }
    Ok(LockName::new(&format!("{prefix}{key}"))?)
}

pub(crate) fn check_retention(retention: Duration) -> Result<()> {
    if retention < Duration::from_secs(1) || retention > MAX_RETENTION {
        return Err(Error::invalid(format!(
            "retention {retention:?} is out of range: give 1s to ten years"
        )));
    }
    Ok(())
}

/// Resolves once the record is one that `will_do`; looks it up this often.
pub(crate) async fn until_recorded(
    client: &Client,
    ledger: &dyn Ledger,
    name: &LockName,
    every: Duration,
    will_do: impl Fn(&RecordInfo) -> bool,
) -> RecordInfo {
    loop {
        client.clock.alarm(client.clock.now() + every).await;
        // If the store cannot be reached, the acquire reports it.
        if let Ok(Some(record)) = client.store.look_up(ledger, name).await
            && will_do(&record)
        {
            return record;
        }
    }
}
