//! Out of a group, one leader at a time.
//!
//! An election is a lock whose holder says something of itself. A candidate waits in the lock's queue, the
//! leader holds it, and the token of its grant is its term: higher than that of every leader before it. So a
//! leader that was paused and overtaken is told by its guard, and kept out by the fence.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Label, LockName, Token, Value};
use tokio::sync::Mutex;

use crate::backend::{HolderInfo, LockInfo, LossCause, NotHeld, Renewal};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Standing};
use crate::lock::Lock;
use crate::options::acquire_options;
use crate::watch::Watch;

/// How long `lead` leaves a store alone that could not be reached.
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
/// // Hold it as a value ...
/// let leadership = scheduler.campaign("10.0.0.7:8080").await?;
/// println!("leading in term {}", leadership.term());
/// leadership.resign().await?;
///
/// // ... or run something while leading: it is cancelled on loss, and started again in the next term.
/// let answer = scheduler.lead("10.0.0.7:8080", |term| async move { term.number().get() }).await?;
/// assert!(answer > 1);
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nobody stands for election until `campaign` or `lead` is awaited"]
pub struct Election {
    client: Arc<Client>,
    name: String,
    lock: Lock,
}

acquire_options!(Election, lock.options);

impl Election {
    pub(crate) fn new(client: &Arc<Client>, name: &str) -> Self {
        let lock = Lock::new(Arc::clone(client), name);
        Self { client: Arc::clone(client), name: name.to_owned(), lock }
    }

    /// Waits until it is our turn to lead. Dropping the future withdraws the candidature.
    pub async fn campaign(&self, value: impl AsRef<[u8]>) -> Result<Leadership> {
        let lock = self.lock.clone().value(Value::new(value)?);
        lock.acquire().await.map(|guard| Leadership::new(&self.client, guard))
    }

    /// The same for at most this long; then the error's kind is `Held` and says who leads.
    pub async fn campaign_within(
        &self,
        value: impl AsRef<[u8]>,
        limit: Duration,
    ) -> Result<Leadership> {
        let lock = self.lock.clone().value(Value::new(value)?);
        lock.acquire_within(limit).await.map(|guard| Leadership::new(&self.client, guard))
    }

    /// Campaigns, and runs `work` while leading. Work that is overtaken by a loss is dropped at its next
    /// await, and begins anew when we lead again. When it is done we resign, and its result is returned. A store
    /// that can not be reached is tried again, every second.
    ///
    /// Dropping the future drops the work first and gives up the leadership after that.
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
            let leadership = match self.campaign(value).await {
                Ok(leadership) => leadership,
                Err(error) if *error.kind() == ErrorKind::Unreachable => {
                    tracing::warn!(name = self.name, %error, "can not campaign; trying again");
                    self.client.clock.alarm(self.client.clock.now() + CAMPAIGN_DELAY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let term = leadership.term.clone();
            // Not even entered if the leadership is lost by now.
            match leadership.run(async { work(term).await }).await {
                Ok(done) => {
                    // It is done whether or not the store hears of our leaving.
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
    pub fn observe(&self) -> Result<Observer> {
        let watch = Watch::new(&self.client.store, LockName::new(&self.name)?);
        Ok(Observer { watch, last: None, told: false, top: None })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A term of ours, for the work that is done in it. Cheap to clone; it does not keep the leadership.
#[derive(Clone)]
pub struct Term {
    client: Arc<Client>,
    standing: Standing,
    /// One proclamation at a time, so that the last one stands.
    proclaiming: Arc<Mutex<()>>,
}

impl Term {
    /// The number of the term: the fencing token to send along with every write.
    #[must_use]
    pub fn number(&self) -> Token {
        self.standing.token()
    }

    /// Says something else of ourselves from now on. Observers see it, in the same term. It is a renewal, and
    /// counts as progress. After an error of kind `Unreachable` it may or may not have been heard: say it again.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        let value = Some(Value::new(value)?);
        let _alone = self.proclaiming.lock().await;
        let hold = self.standing.hold();
        self.standing.trusted()?;
        hold.progress();
        let (grant, token) = (hold.grant.clone(), Some(self.standing.own_token()));
        let renewal = Renewal { grant, ttl: None, token, value };
        let reply = self.client.store.renew(renewal).await?;
        match reply.value {
            Ok(renewed) => {
                hold.renewed(reply.sent, renewed.ttl);
                Ok(())
            }
            Err(NotHeld(cause)) => {
                let cause = cause.unwrap_or(LossCause::Expired);
                hold.lose(cause);
                Err(Error::lost(&hold.grant.name, cause))
            }
        }
    }
}

impl Deref for Term {
    type Target = Standing;

    fn deref(&self) -> &Standing {
        &self.standing
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({}, {:?})", self.standing.own_token(), self.state())
    }
}

/// We lead, until it is resigned, dropped or lost.
#[must_use = "a leadership that is dropped at once is given up at once"]
#[derive(Debug)]
pub struct Leadership {
    term: Term,
    guard: Guard,
}

impl Leadership {
    fn new(client: &Arc<Client>, guard: Guard) -> Self {
        let (client, standing) = (Arc::clone(client), guard.standing());
        Self { term: Term { client, standing, proclaiming: Arc::default() }, guard }
    }

    /// The number of the term: the fencing token to send along with every write.
    #[must_use]
    pub fn term(&self) -> Token {
        self.term.number()
    }

    /// The guard of the lock behind it.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Steps down, and tells the next in line. Whatever the leader did must have stopped before.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// Steps down once `drain` is done: we go on leading, and renewing, until then. If the leadership is lost
    /// meanwhile, the drain is dropped and the error says so.
    pub async fn resign_after<T>(self, drain: impl Future<Output = T>) -> Result<T> {
        let drained = self.run(drain).await?;
        self.resign().await?;
        Ok(drained)
    }
}

impl Deref for Leadership {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.term
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term, which is the fencing token of its grant; `None` for another make of client that has none.
    pub term: Option<Token>,
    /// What it says of itself; `None` if it holds the name as a plain lock.
    pub value: Option<Value>,
    /// What a person reads as the leader.
    pub label: Label,
}

impl From<HolderInfo> for Leader {
    fn from(holder: HolderInfo) -> Self {
        Self { term: holder.token, value: holder.value, label: holder.label }
    }
}

/// Those who lead, one after the other. Made by [`Election::observe`].
///
/// Terms come in order: none is told after a higher one was. Those that came and went between two looks may
/// be skipped; the last one never is. Where a store's tokens fall, as after a restore from a backup, terms that
/// are lower than one that was told before are not told: begin to observe anew.
pub struct Observer {
    watch: Watch,
    /// Who was told last, once anything was.
    last: Option<Leader>,
    told: bool,
    /// The highest term told so far.
    top: Option<Token>,
}

impl Observer {
    /// Who leads, on the first call; then each change of leader or value, and `None` when nobody leads.
    /// Dropping the future loses nothing, and after an error the next call goes on.
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
        // A server that is behind may show a term that is over.
        let over = term.is_some() && term < self.top;
        if over || self.told && self.last == leader {
            return false;
        }
        self.top = self.top.max(term);
        (self.last, self.told) = (leader, true);
        true
    }
}
