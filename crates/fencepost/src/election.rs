//! One leader of a group at a time.
//!
//! An election is a lock whose holder publishes a value. A candidate waits in the lock's queue, the leader holds the lock,
//! and the token of its grant is its term: higher than that of every leader before it. So a leader that was paused and
//! overtaken learns it from its guard, and a fence refuses it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{FencingToken, Label, LockName, Token, Value};
use futures_core::Stream;
use tokio::sync::Mutex;

use crate::backend::{HolderInfo, LockInfo, LossCause, NotHeld, Renewal};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, GuardHandle};
use crate::lock::Lock;
use crate::options::{acquire_options, wait_option};
use crate::watch::Watch;

/// Pause before `lead` campaigns again after a failure of the store.
const CAMPAIGN_DELAY: Duration = Duration::from_secs(1);

/// An election under one name. Made by [`Fencepost::election`](crate::Fencepost::election).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use fencepost::Fencepost;
///
/// let fp = Fencepost::connect("memory:election").await?;
/// let scheduler = fp.election("scheduler");
///
/// // Hold the leadership as a value ...
/// let leadership = scheduler.campaign("10.0.0.7:8080").await?;
/// println!("leading in term {}", leadership.term());
/// leadership.resign().await?;
///
/// // ... or run work while leading: it is cancelled on a loss, and started again in the next term.
/// let answer = scheduler.lead("10.0.0.7:8080", |term| async move { term.number().get() }).await?;
/// assert!(answer > 1);
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is sent until `campaign` or `lead` is awaited"]
pub struct Election {
    client: Arc<Client>,
    name: String,
    lock: Lock,
}

acquire_options!(Election, lock.options);
wait_option!(Election, lock.options);

impl Election {
    pub(crate) fn new(client: &Arc<Client>, name: &str) -> Self {
        let lock = Lock::new(Arc::clone(client), name);
        Self { client: Arc::clone(client), name: name.to_owned(), lock }
    }

    /// Waits until this candidate leads, for as long as [`wait_timeout`](Self::wait_timeout) allows. Dropping the future
    /// withdraws the candidate. `value` is what observers see of the leader: an address, or anything of at most 4 KiB.
    pub async fn campaign(&self, value: impl AsRef<[u8]>) -> Result<Leadership> {
        let lock = self.lock.clone().value(Value::new(value)?);
        lock.acquire().await.map(|guard| Leadership::new(&self.client, guard))
    }

    /// Campaigns, and runs `work` while leading. If the leadership is lost, the work is dropped at its next await, and
    /// started again in the next term. When it is done, the leader resigns and its result is returned. While the store
    /// cannot be reached, campaigns again every second; any other error of a campaign is returned.
    ///
    /// Dropping the future drops the work first and gives up the leadership after that, in the background. So a service
    /// that leads until it is stopped has work that does not end, drops this future when it stops, and then awaits
    /// [`close`](crate::Fencepost::close).
    pub async fn lead<T, F>(
        &self,
        value: impl AsRef<[u8]>,
        mut work: impl FnMut(Term) -> F,
    ) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let value = value.as_ref();
        loop {
            // Boxed: the caller's future would be large.
            let leadership = match Box::pin(self.campaign(value)).await {
                Ok(leadership) => leadership,
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    let error = error.one_line();
                    tracing::warn!(name = self.name, %error, "cannot campaign; retrying");
                    self.client.clock.alarm(self.client.clock.now() + CAMPAIGN_DELAY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let term = leadership.handle();
            // Not even started if the leadership is lost by now.
            match leadership.run(Box::pin(async { work(term).await })).await {
                Ok(done) => {
                    // The work is done, whether or not the release succeeds.
                    let _ = leadership.resign().await;
                    return Ok(done);
                }
                Err(lost) => tracing::warn!(name = self.name, %lost, "no longer leader"),
            }
        }
    }

    /// Who leads now; `None` if nobody does.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let info = self.client.store.inspect(LockName::new(&self.name)?).await?;
        Ok(info.holder.map(Leader::from))
    }

    /// Follows who leads.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let fp = fencepost::Fencepost::connect("memory:observe").await?;
    /// let scheduler = fp.election("scheduler");
    /// # let leadership = scheduler.campaign("10.0.0.7:8080").await?;
    /// let mut observer = scheduler.observe()?;
    /// // In a loop: the first answer is the present state, each later one a change.
    /// match observer.next().await? {
    ///     Some(leader) => println!("{:?} leads in term {:?}", leader.value, leader.term),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok::<(), fencepost::Error>(()) }).unwrap();
    /// ```
    pub fn observe(&self) -> Result<Observer> {
        let watch = Watch::new(&self.client, LockName::new(&self.name)?);
        Ok(Observer { watch, last: None, shown: false, highest: None })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A view of a leadership for the work under it. Cheap to clone; it does not keep the leadership.
#[derive(Clone)]
pub struct Term {
    client: Arc<Client>,
    handle: GuardHandle,
    /// One proclamation at a time, so that the last one counts.
    proclaiming: Arc<Mutex<()>>,
}

impl Term {
    /// The number of the term, for logs: the token of the leader's grant.
    #[must_use]
    pub fn number(&self) -> Token {
        self.handle.token()
    }

    /// Name and term, for a fence: pass them with every write. See [`GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.handle.fencing()
    }

    /// The same if the leadership can be trusted right now. See [`GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.handle.check()
    }

    /// Resolves with the cause once the leadership is lost. See [`GuardHandle::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.handle.lost()
    }

    /// Runs `work` until it is done or the leadership is over. See [`GuardHandle::run`].
    pub fn run<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
        self.handle.run(work)
    }

    /// The view of the guard behind it, for everything else: status, deadline, progress.
    #[must_use]
    pub const fn handle(&self) -> &GuardHandle {
        &self.handle
    }

    /// Publishes another value from now on. Observers see it, in the same term. It renews the grant, and counts as
    /// progress. After an error of kind `Unreachable` the outcome is unknown: proclaim again.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        let value = Value::new(value)?;
        let _alone = self.proclaiming.lock().await;
        let grant_state = self.handle.grant_state();
        self.handle.trusted()?;
        grant_state.progress();
        let renewal = Renewal::new(grant_state.grant.clone());
        let renewal = renewal.with_token(self.number()).with_value(value);
        let reply = self.client.store.renew(renewal).await?;
        match reply.value {
            Ok(renewed) => {
                grant_state.renewed(reply.sent, renewed.ttl);
                Ok(())
            }
            Err(NotHeld(cause)) => {
                let cause = cause.unwrap_or(LossCause::Expired);
                grant_state.lose(cause);
                Err(Error::lost(&grant_state.grant.name, cause))
            }
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({}, {:?})", self.number(), self.handle.status())
    }
}

/// The leadership of one term, until it is resigned, dropped or lost.
#[must_use = "dropping the leadership gives it up"]
#[derive(Debug)]
pub struct Leadership {
    term: Term,
    guard: Guard,
}

impl Leadership {
    fn new(client: &Arc<Client>, guard: Guard) -> Self {
        let (client, handle) = (Arc::clone(client), guard.handle());
        Self { term: Term { client, handle, proclaiming: Arc::default() }, guard }
    }

    /// The number of the term, for logs: the token of the leader's grant.
    #[must_use]
    pub fn term(&self) -> Token {
        self.term.number()
    }

    /// Name and term, for a fence: pass them with every write. See [`GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.term.fencing()
    }

    /// The same if the leadership can be trusted right now. See [`GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.term.check()
    }

    /// Resolves with the cause once the leadership is lost. See [`GuardHandle::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.term.lost()
    }

    /// Runs `work` until it is done or the leadership is over. See [`GuardHandle::run`].
    pub fn run<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
        self.term.run(work)
    }

    /// Publishes another value from now on. See [`Term::proclaim`].
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        self.term.proclaim(value).await
    }

    /// The guard of the lock behind it.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// A view of this leadership for the work under it.
    #[must_use]
    pub fn handle(&self) -> Term {
        self.term.clone()
    }

    /// Gives up the leadership, so that the next candidate leads. The leader's work must have stopped before.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// Resigns once `drain` is done, and leads until then. If the leadership is lost meanwhile, the drain is dropped and
    /// the error says so.
    pub async fn resign_after<T>(self, drain: impl Future<Output = T>) -> Result<T> {
        let drained = self.run(drain).await?;
        self.resign().await?;
        Ok(drained)
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term: the token of its grant. `None` for a third-party client without tokens.
    pub term: Option<Token>,
    /// What it publishes; `None` if it holds the name as a plain lock.
    pub value: Option<Value>,
    /// What a person reads as the leader.
    pub label: Label,
}

impl From<HolderInfo> for Leader {
    fn from(holder: HolderInfo) -> Self {
        Self { term: holder.token, value: holder.value, label: holder.label }
    }
}

/// The leaders, one after the other; also a stream, which does not end. Made by [`Election::observe`].
///
/// Terms come in order: after a term no lower one is shown. Leaders in between may be skipped; the latest never is. If a
/// store's tokens fall, as after a restore from a backup, lower terms are not shown: start a new observer.
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    /// What was shown last.
    last: Option<Leader>,
    /// Whether anything was shown yet.
    shown: bool,
    /// The highest term that was shown.
    highest: Option<Token>,
}

impl Observer {
    /// Who leads, on the first call; then each change of leader or value, and `None` when nobody leads.
    /// Dropping the future loses nothing.
    ///
    /// While the store cannot be reached, each call fails at once: pause before the next one. After an error the next call
    /// continues and shows a change, not the leader that it showed before: to see who leads, start a new observer.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let info = self.watch.next().await?;
            if self.is_news(&info) {
                return Ok(self.last.clone());
            }
        }
    }

    fn is_news(&mut self, info: &LockInfo) -> bool {
        let leader = info.holder.clone().map(Leader::from);
        let term = leader.as_ref().and_then(|leader| leader.term);
        // A server that lags may show a term that is over.
        let over = term.is_some() && term < self.highest;
        if over || self.shown && self.last == leader {
            return false;
        }
        self.highest = self.highest.max(term);
        (self.last, self.shown) = (leader, true);
        true
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(info) = std::task::ready!(Pin::new(&mut self.watch).poll_next(context)) else {
                return Poll::Ready(None);
            };
            match info {
                Ok(info) if !self.is_news(&info) => {}
                Ok(_) => return Poll::Ready(Some(Ok(self.last.clone()))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}
