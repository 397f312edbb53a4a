//! What a store must do to grant locks. Guards, heartbeats, deadlines and limits are written once, above it.
//!
//! A store implements [`Backend`] and [`Observe`], and [`Ledger`] if it can keep records. The rules:
//!
//! - Each verb is idempotent by [`GrantId`]: a retry changes nothing and returns the same token.
//! - A future may be dropped at any await. `release` undoes what it left behind, and takes effect after it.
//! - A grant that a retry may have found already made restarts its lease, or sets `needs_confirmation` (P4). One after a
//!   wait may count from a heartbeat of its position that the store has confirmed: then `sent` is when that left, and at
//!   least two thirds of the lease are left. So `sent` may be older than the call.
//! - A decision about the lock is a value (`Held`, [`NotHeld`]). A [`StoreError`] means that the store did not decide.
//! - Answer or fail before `limit`: only the backend can say why. The library can only say that it is late.

use std::collections::HashMap;
use std::fmt;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod shown;

pub use fencepost_base::BoxFuture;
pub use fencepost_core::{HolderInfo, LossCause, short};
use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::shown::{LockInfo, LockVersion, Page, PageRequest, WaiterInfo};
use crate::guarantees::Guarantees;
use crate::ledger::Ledger;
pub use crate::retry::{Reply, StoreCall, StoreResult};
pub use crate::store_error::{Outcome, StoreError, StoreErrorKind};

/// The answers to a batch of renewals, by grant.
pub type Renewals = HashMap<GrantId, StoreResult<Result<Renewed, NotHeld>>>;

/// Grants and ends. Reads are in [`Observe`], records of `once` in [`Ledger`].
pub trait Backend: Send + Sync + 'static {
    /// Tries once, in one atomic step. If the lock is held, `Queue::Join` takes or refreshes a position and answers
    /// `Queued`; `Queue::Skip` leaves nothing behind and answers `Held`.
    fn try_acquire(&self, request: Request, queue: Queue, limit: Moment)
    -> StoreCall<'_, Acquired>;

    /// Waits at the position that `try_acquire` took, until it is granted or gone. At `limit` it answers `Queued`, and
    /// the position stays until it is released or its lease ends.
    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired>;

    /// Renews a batch of grants. A missing answer counts as a failed renewal whose outcome is unknown.
    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals>;

    /// Ends what the owner has under the name: a grant, a position, or an acquire whose outcome is unknown.
    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>>;

    /// Ends the current grant of `name`, whoever holds it; with a token, only the grant that has it. `None` if there is
    /// no such grant. Then it waits until `confirm_until` for the holder to confirm with a `release`; it does not wait
    /// for a third-party holder.
    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>>;

    /// What this store keeps under which fault. Sends nothing.
    fn guarantees(&self) -> Guarantees;
}

/// Reads: who holds what, and when that changes.
pub trait Observe: Send + Sync + 'static {
    /// Who holds `name` and who waits for it.
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo>;

    /// A page of the locks that are held or waited for, ordered by name, without the waiters' names.
    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page>;

    /// Resolves with the state of `name` once it differs from `seen`; at once if nothing was seen yet.
    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo>;
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
    /// The id that was drawn for this acquire.
    pub owner: OwnerId,
}

/// A request for a grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The lock, and the id of this acquire.
    pub grant: GrantId,
    /// How long the store keeps the grant without a renewal.
    pub ttl: Ttl,
    /// What a person reads as the holder.
    pub label: Label,
    /// What a candidate publishes; `None` for a lock that is not an election.
    pub value: Option<Value>,
    /// Whether the grant may end with this process.
    pub liveness: Liveness,
    /// Notified of a loss that the store detects before the guard does.
    pub loss: LossSignal,
}

impl Request {
    /// A request for a lock that is tied to this process, without a value and without a guard.
    ///
    /// ```
    /// use fencepost::{Label, LockName, OwnerId, Ttl};
    /// use fencepost::backend::{GrantId, Liveness, Request};
    ///
    /// let grant = GrantId { name: LockName::new("invoice/42")?, owner: OwnerId::from_bits(7) };
    /// let request = Request::new(grant, Ttl::MIN, Label::new("web-3:4711")?)
    ///     .with_liveness(Liveness::LeaseOnly);
    /// assert!(request.value.is_none() && !request.loss.is_connected());
    /// # Ok::<(), fencepost::Error>(())
    /// ```
    #[must_use]
    pub fn new(grant: GrantId, ttl: Ttl, label: Label) -> Self {
        let (liveness, loss) = (Liveness::Process, LossSignal::disconnected());
        Self { grant, ttl, label, value: None, liveness, loss }
    }

    /// Sets what the candidate says of itself.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Option<Value>>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets whether the grant may end with this process.
    #[must_use]
    pub const fn with_liveness(mut self, liveness: Liveness) -> Self {
        self.liveness = liveness;
        self
    }

    /// Sets the signal to notify of a loss.
    #[must_use]
    pub fn with_loss(mut self, loss: LossSignal) -> Self {
        self.loss = loss;
        self
    }
}

/// What keeps a grant alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The lease, and the life of this process: a store that sees the process end may free the lock at once.
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
        /// How many positions are ahead, as far as the store knows.
        ahead: u64,
    },
    /// Another client has it, or waiters are ahead. This request left nothing at the store.
    Held(Option<HolderInfo>),
    /// The position ended while we waited: its lease expired, or an operator removed it. Retry with a new
    /// owner.
    PositionLost,
}

/// A grant as the store gave it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// The TTL that the store really keeps.
    pub ttl: Ttl,
    /// The lease may be older than the request that was answered: the grant counts only once a renewal confirms it.
    pub needs_confirmation: bool,
    /// The open file that shows the holder lives, where the store uses one.
    pub presence: Option<Presence>,
}

impl Grant {
    /// A grant whose lease began when the `sent` of its reply says, or later.
    #[must_use]
    pub const fn new(token: Token, ttl: Ttl) -> Self {
        Self { token, ttl, needs_confirmation: false, presence: None }
    }

    /// Sets whether a renewal must confirm it before it counts.
    #[must_use]
    pub const fn with_needs_confirmation(mut self, needs_confirmation: bool) -> Self {
        self.needs_confirmation = needs_confirmation;
        self
    }

    /// Sets the open file that shows the holder lives.
    #[must_use]
    pub fn with_presence(mut self, presence: impl Into<Option<Presence>>) -> Self {
        self.presence = presence.into();
        self
    }
}

/// A grant to renew.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The lock and who holds it.
    pub grant: GrantId,
    /// A longer TTL from now on. A shorter one is ignored: the guard relies on the lease that it was granted.
    pub ttl: Option<Ttl>,
    /// The token of the grant, if the caller knows it: a grant with another token is not renewed.
    pub token: Option<Token>,
    /// What the holder publishes from now on; `None` leaves it unchanged.
    pub value: Option<Value>,
}

impl Renewal {
    /// A renewal for the TTL that the grant has, whatever its token.
    #[must_use]
    pub const fn new(grant: GrantId) -> Self {
        Self { grant, ttl: None, token: None, value: None }
    }

    /// Sets a longer TTL.
    #[must_use]
    pub fn with_ttl(mut self, ttl: impl Into<Option<Ttl>>) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Sets the token that the grant must have.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets what the holder says of itself from now on.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Option<Value>>) -> Self {
        self.value = value.into();
        self
    }
}

/// A renewed grant.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewed {
    /// The token, the same as before.
    pub token: Token,
    /// The TTL that the store really keeps.
    pub ttl: Ttl,
}

impl Renewed {
    /// A grant with this token, of which the store keeps this TTL.
    #[must_use]
    pub const fn new(token: Token, ttl: Ttl) -> Self {
        Self { token, ttl }
    }
}

/// The owner has no grant there, and why, if the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld(pub Option<LossCause>);

/// A grant that an operator ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Broken {
    /// Who held the lock.
    pub label: Label,
    /// The token of the broken grant, if it had one: see [`HolderInfo::token`].
    pub token: Option<Token>,
    /// Above the broken grant's token and not above any later one: where waiters have their tokens already, it may
    /// be that of the next waiter. Enter it at the fence to shut out the broken holder before another client has the
    /// lock.
    pub floor: Token,
    /// The holder confirmed that it knows. If not, it may be frozen, cut off, a script, or a third-party client: it
    /// may continue until its own deadline, and only a fence stops it.
    pub confirmed: bool,
}

impl Broken {
    /// A broken grant that had no token, and that nobody confirmed.
    #[must_use]
    pub const fn new(label: Label, floor: Token) -> Self {
        Self { label, token: None, floor, confirmed: false }
    }

    /// Sets the token of the broken grant.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets whether the holder confirmed.
    #[must_use]
    pub const fn with_confirmed(mut self, confirmed: bool) -> Self {
        self.confirmed = confirmed;
        self
    }
}

/// The label of a third-party client: with the text that it stored.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn third_party_label(data: &[u8]) -> Label {
    let text = std::str::from_utf8(data).unwrap_or_default();
    let text: String = text.chars().take(60).collect();
    match Label::new(&format!("another client ({text})")) {
        Ok(label) if !text.trim().is_empty() => label,
        _ => HolderInfo::third_party().label,
    }
}

/// Receives a store's notifications about one grant.
pub(crate) trait OnLoss: Send + Sync + fmt::Debug {
    /// Renews at once, or as soon as it is granted.
    fn renew_now(&self);
    /// Turns the guard lost.
    fn lose(&self, cause: LossCause);
    /// Shortens the lease that the guard relies on. See [`LossSignal::shorten`].
    fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment>;
    /// Turns the guard lost if its deadline has come.
    fn expire_if_due(&self);
    /// Whether the guard still exists.
    fn is_connected(&self) -> bool;
}

/// Notifies a guard that its grant is gone, before the guard's own deadline.
#[derive(Clone, Debug, Default)]
pub struct LossSignal(Option<Arc<dyn OnLoss>>);

impl LossSignal {
    /// A signal that reaches no guard, for a caller without one.
    #[must_use]
    pub fn disconnected() -> Self {
        Self::default()
    }

    pub(crate) fn to(on_loss: Arc<dyn OnLoss>) -> Self {
        Self(Some(on_loss))
    }

    /// The store notified us that the grant may have ended: the heartbeat renews it now, and the reply decides. So
    /// a notification that is wrong, forged or repeated costs a renewal and nothing else.
    pub fn renew_now(&self) {
        if let Some(on_loss) = &self.0 {
            on_loss.renew_now();
        }
    }

    /// The grant is gone. The first cause stays; a released guard is not affected.
    pub fn fire(&self, cause: LossCause) {
        if let Some(on_loss) = &self.0 {
            on_loss.lose(cause);
        }
    }

    /// The store keeps a shorter lease from now on: requests that left before `sent` count until `sent + ttl` at
    /// most. Returns the guard's deadline; `None` if it is over.
    #[must_use = "call `expire_if_due` at that moment, or the tasks that wait for the loss are not woken"]
    pub fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.0.as_ref()?.shorten(sent, ttl)
    }

    /// Turns the guard lost if its deadline has come, which wakes the tasks that wait for the loss.
    pub fn expire_if_due(&self) {
        if let Some(on_loss) = &self.0 {
            on_loss.expire_if_due();
        }
    }

    /// Whether it still reaches a guard.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.as_ref().is_some_and(|on_loss| on_loss.is_connected())
    }
}

/// An open file whose lock the kernel drops with the last process that has the file open: while it is locked,
/// the holder is alive. Only on Unix systems.
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

    /// The file, for a child process that keeps the grant alive as long as it lives. From then on the file is not
    /// used for another grant.
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
#[non_exhaustive]
pub struct BackendContext {
    /// Reads the time.
    pub clock: Arc<dyn crate::clock::Clock>,
    /// The client's own runtime, on a thread of its own, for tasks and sockets.
    pub runtime: tokio::runtime::Handle,
    /// Runs work that must complete even if its caller is gone. A client that closes waits for it.
    pub tasks: TaskTracker,
    /// Cancelled when the client closes and its callers' work has ended: for a task of `tasks` that then closes what is
    /// still open. Guards that are held at that time stay held.
    pub closing: CancellationToken,
    /// Whether to create what is missing: a file, a schema. If not, a store that does not exist answers as an
    /// empty one, and refuses to grant.
    pub create: bool,
}

impl BackendContext {
    /// For a test that opens a backend without a client: nobody waits for the tasks, and what is missing is created.
    #[must_use]
    pub fn new(clock: Arc<dyn crate::clock::Clock>, runtime: tokio::runtime::Handle) -> Self {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        Self { clock, runtime, tasks, closing, create: true }
    }
}

#[cfg(all(test, any(feature = "etcd", feature = "zookeeper")))]
mod tests {
    use super::*;

    #[test]
    fn label_of_a_third_party_client_is_shown_if_printable() {
        assert_eq!(third_party_label(b"127.0.0.1").as_str(), "another client (127.0.0.1)");
        for nothing in [&b""[..], b"\xff", b"\n", b" "] {
            assert_eq!(third_party_label(nothing).as_str(), "another client");
        }
        assert!(third_party_label("ü".repeat(400).as_bytes()).as_str().len() <= Label::MAX_BYTES);
    }
}
