//! One recorded success per key, over all processes that use the store.
//!
//! A run of KEY holds the lock `once/KEY` and has a record of that name in the store's ledger (ledger.rs):
//! absent, then running under the grant's token, then done. The lock keeps two from working at once, gives the
//! runner a heartbeat, and frees the key when the runner dies. The record is what counts: it turns done only
//! where it is running with the runner's own token, so whoever was paused and overtaken can not mark it.
//!
//! *What is not promised:* a runner that dies after its effect and before its mark leaves a record that says
//! running, and the next one repeats the effect. So does one that lives but can not reach the store before its
//! lease ends. Where the effect is a transaction of PostgreSQL or SQLite,
//! [`Run::done_in`] puts the mark into it, and both happen or neither.

mod turn;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{LockName, Token};

pub use self::turn::{Run, Turn};
use crate::bounded_store::Wait;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::ledger::{Claim, Claimed, Entry, LONGEST_RUN, Ledger, State};
use crate::lock::Lock;
use crate::options::acquire_options;
use crate::race::{First, race};
use crate::retry::MAX_RETRY_DELAY;

/// What the locks and records of keys begin with.
pub(crate) const PREFIX: &str = "once/";
/// How long a record is kept that names no time.
pub const DEFAULT_KEEP: Duration = Duration::from_hours(7 * 24);
/// The longest time that a record is kept: ten years.
pub const LONGEST_KEEP: Duration = Duration::from_hours(10 * 366 * 24);
/// How often one who waits looks whether it is done.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Work that is done once per key. Made by [`Fencepost::once`](crate::Fencepost::once).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use fencepost::Fencepost;
///
/// let fp = Fencepost::connect("memory:once").await?;
/// let billing = fp.once("billing/2026-11-16").keep(Duration::from_hours(7 * 24));
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
#[must_use = "nothing is run until `run` or `begin` is awaited"]
pub struct Once {
    client: Arc<Client>,
    key: String,
    keep: Duration,
    /// Whatever the key: its TTL, label and bounds.
    pub(crate) lock: Lock,
    wait: Option<Duration>,
    on_failure: OnFailure,
    may_repeat: bool,
}

/// What becomes of a key whose work failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The next one to come tries again.
    #[default]
    Retry,
    /// It is recorded as failed, and not tried again until it is forgotten or its time is over.
    Record,
}

/// How a key stands after [`Once::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What the one run gave.
    pub result: Vec<u8>,
    /// Whether it was this call that ran.
    pub ran: bool,
    /// The token of the one run.
    pub token: Token,
}

/// What comes of [`Once::begin`].
#[derive(Debug)]
pub enum Begun {
    /// It is ours to do.
    Ours(Turn),
    /// It is done, or has failed for good.
    Settled(Entry),
}

acquire_options!(Once, lock.options);

impl Once {
    pub(crate) fn new(client: &Arc<Client>, key: &str) -> Self {
        Self {
            client: Arc::clone(client),
            key: key.to_owned(),
            keep: DEFAULT_KEEP,
            lock: Lock::new(Arc::clone(client), PREFIX),
            wait: None,
            on_failure: OnFailure::Retry,
            may_repeat: false,
        }
    }

    /// How long the record is kept once it is done or failed; seven days unless set.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Waits at most this long for somebody else's run; then the error's kind is `Held` and says who runs.
    /// Zero for not at all. Without this it waits as long as that takes.
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// What becomes of the key if the work fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Takes a store that may lose its records: to do the work once more then is a waste, and no harm.
    pub fn may_repeat(mut self) -> Self {
        self.may_repeat = true;
        self
    }

    /// Runs `work` unless it is done, and gives its result, or that of the one run there was. If somebody else
    /// is at it, waits for the outcome, and takes over if they fail or die.
    ///
    /// The work is dropped at its next await if its lock is lost. Its error makes this one of kind `Failed`.
    pub async fn run<R, E, F>(&self, work: impl FnOnce(Run) -> F) -> Result<Recorded>
    where
        F: Future<Output = Result<R, E>>,
        R: Into<Vec<u8>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let turn = match self.begin().await? {
            Begun::Ours(turn) => turn,
            Begun::Settled(entry) => return self.settled(entry),
        };
        let (run, token) = (turn.run.clone(), turn.own_token());
        let ran = |entry: Entry| Recorded { result: entry.result, ran: true, token };
        // Not even entered if the guard is lost by now.
        let worked = match turn.guard.run(async { work(run).await }).await {
            Ok(worked) => worked,
            // The lock is lost, but its transaction may have been committed before.
            Err(lost) => return turn.run.marked_entry().await.ok().flatten().map(ran).ok_or(lost),
        };
        match worked {
            Ok(_) if turn.run.in_transaction.load(Ordering::Acquire) => {
                turn.committed().await.map(ran)
            }
            Ok(result) => {
                let result = result.into();
                turn.done(result.clone()).await?;
                Ok(Recorded { result, ran: true, token })
            }
            Err(error) => {
                // A commit whose answer got lost may be what it failed of.
                if let Some(entry) = turn.run.marked_entry().await? {
                    turn.let_go().await;
                    return Ok(ran(entry));
                }
                let (error, run) = (error.into(), turn.run.clone());
                let message = error.to_string();
                let recorded = match self.on_failure {
                    OnFailure::Retry => turn.give_up().await,
                    OnFailure::Record => turn.failed(&message).await,
                };
                if let Err(error) = recorded {
                    tracing::warn!(key = self.key, %error, "the failure could not be recorded");
                }
                // That waited for a commit which was under way at the first look: it may be there by now.
                if let Ok(Some(entry)) = run.marked_entry().await {
                    return Ok(ran(entry));
                }
                Err(self.failure("failed").because(error))
            }
        }
    }

    fn settled(&self, entry: Entry) -> Result<Recorded> {
        if entry.state == State::Failed {
            // An error is one line.
            let message = String::from_utf8_lossy(&entry.result).replace(char::is_control, " ");
            let how = "failed before, and was recorded as failed: forget it to let it run again";
            return Err(self.failure(how).because(message));
        }
        Ok(Recorded { result: entry.result, ran: false, token: entry.token })
    }

    fn failure(&self, how: &str) -> Error {
        Error::new(ErrorKind::Failed, format!("the work of once \"{}\" {how}", self.key))
    }

    /// Makes the key ours to run, or says how it stands: for work that is no future. If somebody else is at
    /// it, waits as [`wait_at_most`](Self::wait_at_most) says.
    pub async fn begin(&self) -> Result<Begun> {
        let ledger = self.client.ledger(self.may_repeat)?;
        let name = self.name()?;
        check_keep(self.keep)?;
        if let Some(entry) = self.client.store.look_up(&*ledger, &name).await?
            && entry.is_settled()
        {
            return Ok(Begun::Settled(entry));
        }
        let now = self.client.clock.now();
        let wait = match self.wait {
            None => Wait::Forever,
            Some(limit) if limit.is_zero() => Wait::No,
            Some(limit) => Wait::Until(now + limit),
        };
        loop {
            let settled = settled(&self.client, &*ledger, &name, LOOK_AGAIN, Entry::is_settled);
            // The place in line is given up if others have done it meanwhile: one who stands there frozen
            // would hold up all behind it.
            let guard = match race(settled, self.lock.clone().named(&name).take(wait)).await {
                First::Left(entry) => return Ok(Begun::Settled(entry)),
                First::Right(Err(error)) if matches!(error.kind(), ErrorKind::Held(_)) => {
                    // It may have been done since the last look.
                    let entry = self.client.store.look_up(&*ledger, &name).await?;
                    let settled = entry.filter(Entry::is_settled);
                    return settled.map(Begun::Settled).ok_or(error);
                }
                First::Right(guard) => guard?,
            };
            let claimed = self.claim(&*ledger, &guard, wait).await?;
            match (claimed, guard.trusted()) {
                (Claimed::Settled(entry), _) => return Ok(Begun::Settled(entry)),
                // Others may have had the key since: what we claimed is the next one's to claim.
                (_, Err(lost)) if wait == Wait::No => return Err(lost),
                (_, Err(_)) => {}
                (Claimed::Ours, Ok(())) => {
                    let run = Run {
                        client: Arc::clone(&self.client),
                        ledger,
                        standing: guard.standing(),
                        keep: self.keep,
                        label: self.lock.shown_label()?,
                        in_transaction: Arc::default(),
                    };
                    return Ok(Begun::Ours(Turn { key: self.key.clone(), run, guard }));
                }
                (Claimed::Overtaken, Ok(())) => {
                    let token = guard.own_token();
                    return Err(Error::refused(format!(
                        "the record of once \"{}\" bears a higher token than {token}, which the store \
                         hands out now: its tokens have fallen; forget the record",
                        self.key
                    )));
                }
            }
        }
    }

    /// The record of this key, if there is one.
    pub async fn entry(&self) -> Result<Option<Entry>> {
        let ledger = self.client.ledger(true)?;
        self.client.store.look_up(&*ledger, &self.name()?).await
    }

    /// Removes the record, so that the work can be done again. False if there was none. Refused, with the kind
    /// `Held`, while somebody is at it.
    pub async fn forget(&self) -> Result<bool> {
        let ledger = self.client.ledger(true)?;
        let name = self.name()?;
        // Under the lock: a runner at work must not find its record gone.
        let guard = self.lock.clone().named(&name).take(Wait::No).await?;
        let Some(entry) = self.client.store.look_up(&*ledger, &name).await? else {
            return Ok(false);
        };
        let forgotten = self.client.store.forget(&*ledger, name, entry.token).await?;
        if let Err(error) = guard.release().await {
            tracing::debug!(key = self.key, %error, "the lock was gone before it was forgotten");
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

    /// Claims the record; again if that fails while the lock is ours and there is time, since a transaction that is
    /// about to mark it may keep it for a while.
    async fn claim(&self, ledger: &dyn Ledger, guard: &Guard, wait: Wait) -> Result<Claimed> {
        let claim = Claim {
            name: guard.name().clone(),
            token: guard.own_token(),
            label: self.lock.shown_label()?,
            keep: self.keep.max(LONGEST_RUN),
        };
        let clock = &self.client.clock;
        loop {
            match self.client.store.claim(ledger, claim.clone()).await {
                Err(error)
                    if *error.kind() == ErrorKind::Unreachable && guard.trusted().is_ok() =>
                {
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

/// The lock of a key, under which its record lies.
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

pub(crate) fn check_keep(keep: Duration) -> Result<()> {
    if keep < Duration::from_secs(1) || keep > LONGEST_KEEP {
        return Err(Error::invalid(format!(
            "a record can not be kept for {keep:?}: give 1s to ten years"
        )));
    }
    Ok(())
}

/// Resolves once the record is one that `will_do`; looks this often.
pub(crate) async fn settled(
    client: &Client,
    ledger: &dyn Ledger,
    name: &LockName,
    every: Duration,
    will_do: impl Fn(&Entry) -> bool,
) -> Entry {
    loop {
        client.clock.alarm(client.clock.now() + every).await;
        // A store that can not be reached is the acquire's matter.
        if let Ok(Some(entry)) = client.store.look_up(ledger, name).await
            && will_do(&entry)
        {
            return entry;
        }
    }
}
