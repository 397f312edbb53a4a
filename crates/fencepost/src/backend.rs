//! What a store must do to grant locks. Guards, heartbeats, deadlines and limits are written once, above it.
//!
//! A store implements [`Backend`] and [`Observe`], and [`Ledger`] if it can keep records. The rules:
//!
//! - Each verb is idempotent by [`GrantId`]: a retry changes nothing and returns the same token.
//! - A future may be dropped at any await. `release` undoes what it left behind, and takes effect after it.
//! - A grant that a retry may have found already made restarts its lease, or sets `queued` (P4).
//! - A decision about the lock is a value (`Held`, [`NotHeld`]). A [`StoreError`] means that the store did not decide.
//! - Answer or fail before `limit`: only the backend can say why. The library can only say that it is late.

use std::fmt;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use fencepost_base::BoxFuture;
pub use fencepost_core::{HolderInfo, LossCause, short};
use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl, Value};
use tokio_util::task::TaskTracker;

use crate::guarantees::Guarantees;
use crate::ledger::Ledger;
pub use crate::retry::{Reply, StoreCall, StoreResult};
pub use crate::store_error::{Outcome, StoreError, StoreErrorKind};

/// The answers to a batch of renewals, in its order.
pub type Renewals = Vec<StoreResult<Result<Renewed, NotHeld>>>;

/// Grants and ends. Reads are in [`Observe`], records of `once` in [`Ledger`].
pub trait Backend: Send + Sync + 'static {
    /// Tries once, in one atomic step. If the lock is held, `Queue::Join` takes or refreshes a position and answers
    /// `Queued`; `Queue::Skip` leaves nothing behind and answers `Held`.
    fn try_acquire(&self, request: Request, queue: Queue, limit: Moment)
    -> StoreCall<'_, Acquired>;

    /// Waits at the position that `try_acquire` took, until it is granted or gone. At `limit` it answers `Queued`, and
    /// the position stays until it is released or its lease ends.
    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired>;

    /// Renews a batch of grants.
    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals>;

    /// Ends what the owner has under the name: a grant, a position, or an acquire whose outcome is unknown.
    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>>;

    /// Ends the current grant of `name`, whoever holds it; with a token, only the grant that has it. `None` if there is
    /// no such grant. Then it waits until `confirm_until` for the holder to confirm, which the holder does with a
    /// `release`; a third-party holder is not waited for.
    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>>;

    /// What this store keeps under which fault. Sends nothing.
    fn guarantees(&self) -> Guarantees;

    /// Resolves once nothing is under way that a caller left to the backend; soon in any case. A backend that runs such
    /// work on [`Surroundings::tasks`] does not need it.
    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Reads: who holds what, and when that changes.
pub trait Observe: Send + Sync + 'static {
    /// Who holds `name` and who waits for it.
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo>;

    /// Every lock that is held or waited for, ordered by name, without the waiters' names.
    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>>;

    /// Resolves with the state of `name` once it differs from `seen`; at once if nothing was seen yet.
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo>;
}

/// An opened store: what it can do, as the objects that do it.
#[derive(Clone)]
pub struct Store {
    /// Grants locks and ends them.
    pub backend: Arc<dyn Backend>,
    /// Reads them.
    pub observe: Arc<dyn Observe>,
    /// Keeps records of what was done, if the store can.
    pub ledger: Option<Arc<dyn Ledger>>,
}

impl Store {
    /// A store that keeps no records.
    pub fn without_ledger<B: Backend + Observe>(store: Arc<B>) -> Self {
        Self { backend: store.clone(), observe: store, ledger: None }
    }
}

impl<B: Backend + Observe + Ledger> From<Arc<B>> for Store {
    fn from(store: Arc<B>) -> Self {
        Self { backend: store.clone(), observe: store.clone(), ledger: Some(store) }
    }
}

/// A lock and an owner: what each verb is idempotent by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantId {
    /// The lock.
    pub name: LockName,
    /// The id made for this acquisition.
    pub owner: OwnerId,
}

/// Who asks for what.
#[derive(Clone, Debug)]
pub struct Request {
    /// The lock, and the id made for this acquisition.
    pub grant: GrantId,
    /// How long the store keeps the grant without a renewal.
    pub ttl: Ttl,
    /// What a person reads as the holder.
    pub label: Label,
    /// What a candidate says of itself, for all to read; `None` for a lock that is no election.
    pub value: Option<Value>,
    /// Whether the grant may end with this process.
    pub liveness: Liveness,
    /// Where to tell of a loss that the store notices first.
    pub loss: LossSignal,
}

/// What keeps a grant alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The lease, and the life of this process: a store that sees it end may free the lock at once.
    Process,
    /// The lease alone: the grant outlives the process that took it.
    LeaseOnly,
}

/// What a try does if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Takes a position in the queue, or refreshes the one that this owner has.
    Join,
    /// Nothing.
    Skip,
}

/// The answer to an acquire.
#[derive(Debug)]
pub enum Acquired {
    /// The lock is ours.
    Granted(Grant),
    /// Others are ahead, and this owner has a position in the queue.
    Queued {
        /// How many positions are ahead, as far as the store tells.
        ahead: u64,
    },
    /// Another client has it, or waiters are ahead. This request left nothing at the store.
    Held(Option<HolderInfo>),
    /// Our place in the queue ended while we waited, with its lease or by somebody's hand. A fresh owner
    /// gets a fresh one.
    PlaceLost,
}

/// A grant as the store gave it.
#[derive(Debug)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// The TTL that the store really keeps.
    pub ttl: Ttl,
    /// The store made this grant while we waited in its queue: it counts only once a renewal confirms it.
    pub queued: bool,
    /// The open file that shows the holder lives, where the store uses one.
    pub presence: Option<Presence>,
}

/// A grant to renew.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The lock and who holds it.
    pub grant: GrantId,
    /// A longer TTL from now on. A shorter one is not taken: a guard counts on the lease it was promised.
    pub ttl: Option<Ttl>,
    /// The token that it was granted with, if the caller knows: a grant with another is not the one meant.
    pub token: Option<Token>,
    /// What the holder says of itself from now on; `None` leaves that as it is.
    pub value: Option<Value>,
}

/// A renewed grant.
#[derive(Clone, Copy, Debug)]
pub struct Renewed {
    /// The token, the same as before.
    pub token: Token,
    /// The TTL that the store really keeps.
    pub ttl: Ttl,
}

/// The owner has no grant there, and why, if the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld(pub Option<LossCause>);

/// A grant that an operator ended.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Who held the lock.
    pub label: Label,
    /// The token of the broken grant, if it had one: see [`HolderInfo::token`].
    pub token: Option<Token>,
    /// Above the broken grant's token and above no later one: where those who wait have their token
    /// already, it may be that of the next. Enter a fence with it to shut the broken holder out before
    /// anybody else has the lock.
    pub floor: Token,
    /// The holder confirmed that it knows. If not, it may be frozen, cut off, a script, or a third-party client: it
    /// may go on until its own deadline, and only a fence stops it.
    pub confirmed: bool,
}

/// What a person reads as a client that is not ours: with what it says of itself.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn strangers_label(data: &[u8]) -> Label {
    let text = std::str::from_utf8(data).unwrap_or_default();
    let text: String = text.chars().take(60).collect();
    match Label::new(&format!("another client ({text})")) {
        Ok(label) if !text.trim().is_empty() => label,
        _ => HolderInfo::stranger().label,
    }
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq)]
pub struct WaiterInfo {
    /// What a person reads as the waiter.
    pub label: Label,
    /// How long it has waited, where the store tells.
    pub waiting_for: Option<Duration>,
}

/// A lock as the store sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// Who holds it.
    pub holder: Option<HolderInfo>,
    /// How many wait.
    pub waiting: usize,
    /// The first of those who wait, in order; at most [`LockInfo::SHOWN_WAITERS`], and none in a list.
    pub waiters: Vec<WaiterInfo>,
}

impl LockInfo {
    /// How many waiters an inspection names.
    pub const SHOWN_WAITERS: usize = 32;

    /// What tells this state from the next.
    #[must_use]
    pub fn glimpse(&self) -> Glimpse {
        let holder = self.holder.as_ref();
        Glimpse {
            held: holder.is_some(),
            token: holder.and_then(|holder| holder.token),
            value: holder.and_then(|holder| holder.value.clone()),
            waiting: self.waiting,
        }
    }
}

/// What an observer compares: who holds, what it says, and how many wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glimpse {
    /// Whether anybody holds it.
    pub held: bool,
    /// The holder's token.
    pub token: Option<Token>,
    /// What it says of itself.
    pub value: Option<Value>,
    /// How many wait.
    pub waiting: usize,
}

/// What a store's notification about one grant reaches.
pub(crate) trait OnLoss: Send + Sync + fmt::Debug {
    /// Renews at once, or as soon as it is granted.
    fn renew_now(&self);
    /// Turns the guard lost.
    fn lose(&self, cause: LossCause);
    /// Lowers what the guard counts on. See [`LossSignal::shorten`].
    fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment>;
    /// Turns the guard lost if its time has come.
    fn settle(&self);
    /// Whether the guard lives.
    fn is_connected(&self) -> bool;
}

/// By which a backend tells a guard that its grant is gone, before the guard's own deadline.
#[derive(Clone, Debug, Default)]
pub struct LossSignal(Option<Arc<dyn OnLoss>>);

impl LossSignal {
    /// A signal that nobody hears, for a caller without a guard.
    #[must_use]
    pub fn unheard() -> Self {
        Self::default()
    }

    pub(crate) fn to(on_loss: Arc<dyn OnLoss>) -> Self {
        Self(Some(on_loss))
    }

    /// The store notified us that the grant may have ended: the heartbeat renews it now, and the answer decides. So
    /// a notification that is wrong, forged or repeated costs a renewal and nothing else.
    pub fn renew_now(&self) {
        if let Some(on_loss) = &self.0 {
            on_loss.renew_now();
        }
    }

    /// The grant is gone. The first cause stays; a released guard does not mind.
    pub fn fire(&self, cause: LossCause) {
        if let Some(on_loss) = &self.0 {
            on_loss.lose(cause);
        }
    }

    /// The store keeps this lease from now on, shorter than what it promised: a guard counts on no more
    /// than `sent + ttl` for all that was asked before `sent`. Gives when it ends; `None` if it has.
    #[must_use = "nobody who waits hears of that end unless it is settled then"]
    pub fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.0.as_ref()?.shorten(sent, ttl)
    }

    /// Turns the guard lost if its time has come, for those who wait to hear of it.
    pub fn settle(&self) {
        if let Some(on_loss) = &self.0 {
            on_loss.settle();
        }
    }

    /// Whether anybody still hears it.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.0.as_ref().is_some_and(|on_loss| on_loss.is_connected())
    }
}

/// An open file whose lock the kernel drops with the last process that has it: while it is locked, the
/// holder lives. Only Unix systems have it.
#[derive(Clone, Debug)]
pub struct Presence(Arc<PresenceFile>);

#[derive(Debug)]
struct PresenceFile {
    #[cfg(unix)]
    file: OwnedFd,
    inherited: AtomicBool,
}

impl Presence {
    /// Wraps a file that is locked already.
    #[cfg(unix)]
    #[must_use]
    pub fn new(file: OwnedFd) -> Self {
        Self(Arc::new(PresenceFile { file, inherited: AtomicBool::new(false) }))
    }

    /// The file, to be handed to a child process so that the grant lives as long as the child does. From
    /// then on the file is not used for another grant.
    #[cfg(unix)]
    #[must_use]
    pub fn inherit(&self) -> BorrowedFd<'_> {
        self.0.inherited.store(true, Ordering::Relaxed);
        self.0.file.as_fd()
    }

    /// Whether another process may have it open.
    #[must_use]
    pub fn inherited(&self) -> bool {
        self.0.inherited.load(Ordering::Relaxed)
    }
}

/// What a backend is opened with.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// What time it is.
    pub clock: Arc<dyn crate::clock::Clock>,
    /// The client's own runtime, on a thread of its own, for tasks and sockets.
    pub runtime: tokio::runtime::Handle,
    /// Runs what must come to its end after its caller is gone. A client that closes waits for it.
    pub tasks: TaskTracker,
    /// Whether to create what is not there yet: a file, a schema. If not, a store that does not exist answers as an
    /// empty one, and refuses to grant.
    pub create: bool,
}

#[cfg(all(test, any(feature = "etcd", feature = "zookeeper")))]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_words_are_shown_if_they_can_be() {
        assert_eq!(strangers_label(b"127.0.0.1").as_str(), "another client (127.0.0.1)");
        for nothing in [&b""[..], b"\xff", b"\n", b" "] {
            assert_eq!(strangers_label(nothing).as_str(), "another client");
        }
        assert!(strangers_label("ü".repeat(400).as_bytes()).as_str().len() <= Label::MAX_BYTES);
    }
}
