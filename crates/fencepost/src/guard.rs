//! The client's handle that keeps a grant.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{FencingToken, LockName, Moment, OwnerId, Token, Ttl};
use futures_core::Stream;
use tokio::sync::watch;

use crate::backend::{
    BoxFuture, Grant, GrantId, HolderInfo, LossCause, LossSignal, NotHeld, Presence, Renewal, short,
};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::grant_state::{Bounds, GrantState, GuardStatus, Status};
use crate::owner::draw_owner;

/// How long after the end of its lease a release may still be answered.
const LAST_RELEASE: Duration = Duration::from_millis(100);

/// A held lock, renewed in the background until it is released, dropped or lost.
///
/// Dropping it releases in the background; [`release`](Self::release) says whether that worked. Pass
/// [`fencing`](Self::fencing) to a fence with every write: a lock alone cannot stop a holder that froze past its lease.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    client: Arc<Client>,
    handle: GuardHandle,
    presence: Option<Presence>,
    /// Cleared once nothing of it can be left at the store.
    release_on_drop: bool,
}

/// A view of a guard for the work under it. Cheap to clone; it does not keep the lock, and is lost with the guard.
#[derive(Clone)]
pub struct GuardHandle {
    grant_state: Arc<GrantState>,
}

impl GuardHandle {
    pub(crate) fn grant_state(&self) -> &Arc<GrantState> {
        &self.grant_state
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.grant_state.grant.name
    }

    /// The number of the fencing token, for logs: higher than that of every earlier grant of this name.
    #[must_use]
    pub fn token(&self) -> Token {
        self.grant_state.token().expect("a guard is handed out after its grant came")
    }

    /// Name and token, for a fence. A guard [`for_correctness`](crate::Lock::for_correctness) that never gave them away
    /// is reported as a near miss: nothing at the resource can stop its holder.
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.grant_state.fencing_used();
        FencingToken::new(self.name().clone(), self.token())
    }

    /// The same if the guard can be trusted right now; else the error says why not. Reads the clock.
    pub fn check(&self) -> Result<FencingToken> {
        self.trusted()?;
        Ok(self.fencing())
    }

    /// Whether the guard can be trusted right now.
    pub(crate) fn trusted(&self) -> Result<()> {
        match self.status() {
            GuardStatus::Lost(cause) => Err(Error::lost(self.name(), cause)),
            GuardStatus::Released => Err(Error::lost(self.name(), LossCause::Released)),
            _ => Ok(()),
        }
    }

    /// Whether the lock is held, failing, lost or released. Reads the clock.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.grant_state.status().state
    }

    /// The TTL that the store granted.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.grant_state.status().ttl
    }

    /// How long the guard can be trusted if no renewal succeeds. Reads the clock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grant_state.remaining()
    }

    /// When the guard is lost if no renewal succeeds.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.grant_state.status().end()
    }

    /// Why the last renewal failed, if it did: it explains a loss to an outage.
    #[must_use]
    pub fn renewal_error(&self) -> Option<String> {
        self.grant_state.renewal_error()
    }

    /// Resolves with the cause once the guard is lost; never for a guard that was released. Does not borrow the guard,
    /// so that another task can await it. For work that may outlive its guard use [`run`](Self::run) or
    /// [`check`](Self::check): they fail after a release, too.
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        let mut status = self.grant_state.subscribe();
        // Keeps the state alive: a lost guard that is dropped is still lost.
        let grant_state = Arc::clone(&self.grant_state);
        async move {
            let lost = status
                .wait_for(|status| matches!(status.state, GuardStatus::Lost(_)))
                .await
                .map(|status| status.state);
            drop(grant_state);
            match lost {
                Ok(GuardStatus::Lost(cause)) => cause,
                // The sender is in `grant_state`, so the wait ends only with a loss.
                _ => std::future::pending().await,
            }
        }
    }

    /// Follows the guard: each renewal, the first one that fails, the loss.
    #[must_use]
    pub fn changes(&self) -> Changes {
        let (grant_state, mut status) =
            (Arc::clone(&self.grant_state), self.grant_state.subscribe());
        // The end is a change that every follower sees, also one that comes after it.
        if status.borrow().over() {
            status.mark_changed();
        }
        Changes { grant_state, status, changed: None, over: false }
    }

    /// Runs `work` until it is done or the guard is lost or released, whichever comes first. After that the work is not
    /// polled again: it is dropped at its next await. If that await is a `COMMIT`, its outcome is unknown. A transaction
    /// that has entered a fence does not need this: if the holder was overtaken, the fence refuses it.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut status = self.grant_state.subscribe();
        let over = async move {
            // The sender is in our state, so the wait ends only with the guard.
            let _ = status.wait_for(Status::over).await;
        };
        let (mut work, mut over) = (pin!(work), pin!(over));
        poll_fn(|context| {
            // The clock is read before every step: after a freeze, work and loss are ready together.
            self.trusted()?;
            if over.as_mut().poll(context).is_ready() {
                self.trusted()?;
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Reports that the work advances. Only matters with [`Lock::progress_within`](crate::Lock::progress_within).
    pub fn progress(&self) {
        self.grant_state.progress();
    }
}

/// What the work under the guard may call; [`handle`](Self::handle) gives it away.
impl Guard {
    /// See [`GuardHandle::name`].
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// See [`GuardHandle::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.handle.token()
    }

    /// See [`GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.handle.fencing()
    }

    /// See [`GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.handle.check()
    }

    /// See [`GuardHandle::status`].
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.handle.status()
    }

    /// See [`GuardHandle::ttl`].
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.handle.ttl()
    }

    /// See [`GuardHandle::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.handle.remaining()
    }

    /// See [`GuardHandle::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.handle.deadline()
    }

    /// See [`GuardHandle::renewal_error`].
    #[must_use]
    pub fn renewal_error(&self) -> Option<String> {
        self.handle.renewal_error()
    }

    /// See [`GuardHandle::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.handle.lost()
    }

    /// See [`GuardHandle::changes`].
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.handle.changes()
    }

    /// See [`GuardHandle::run`].
    pub fn run<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
        self.handle.run(work)
    }

    /// See [`GuardHandle::progress`].
    pub fn progress(&self) {
        self.handle.progress();
    }

    /// A view of this guard for the work under it.
    #[must_use]
    pub fn handle(&self) -> GuardHandle {
        self.handle.clone()
    }
}

impl Guard {
    /// Made before the request leaves. From here on every exit returns this guard or drops it, and a dropped guard
    /// releases what may have been granted (P6).
    pub(crate) fn pending(
        client: &Arc<Client>,
        name: &LockName,
        ttl: Ttl,
        bounds: Bounds,
    ) -> Result<Self> {
        let grant = GrantId { name: name.clone(), owner: draw_owner()? };
        let (clock, counters) = (Arc::clone(&client.clock), Arc::clone(&client.counters));
        let handle =
            GuardHandle { grant_state: GrantState::new(grant, ttl, bounds, clock, counters) };
        Ok(Self { client: Arc::clone(client), handle, presence: None, release_on_drop: true })
    }

    fn grant_state(&self) -> &Arc<GrantState> {
        self.handle.grant_state()
    }

    /// Whether the guard can be trusted right now.
    pub(crate) fn trusted(&self) -> Result<()> {
        self.handle.trusted()
    }

    pub(crate) fn id(&self) -> &GrantId {
        &self.grant_state().grant
    }

    pub(crate) fn loss_signal(&self) -> LossSignal {
        self.client.heartbeat.loss_signal(self.grant_state())
    }

    /// From when a grant counts, and for how long. A grant whose lease may be older than the request is renewed first,
    /// and counts from that (P4). `None` if it is over.
    pub(crate) async fn confirm(
        &self,
        grant: &Grant,
        sent: Moment,
    ) -> Result<Option<(Moment, Ttl)>> {
        if !grant.needs_confirmation {
            return Ok(Some((sent, grant.ttl)));
        }
        let renewal = Renewal::new(self.id().clone()).with_token(grant.token);
        let reply = self.client.store.renew(renewal).await?;
        Ok(reply.value.ok().map(|renewed| (reply.sent, renewed.ttl)))
    }

    /// Granted: counts the deadline from `sent`, and renews from now on. False if the grant is over already.
    pub(crate) fn start(&mut self, grant: Grant, sent: Moment, ttl: Ttl) -> bool {
        self.presence = grant.presence;
        self.grant_state().start(grant.token, sent, ttl);
        if self.status() != GuardStatus::Held {
            return false;
        }
        self.client.heartbeat.add(self.grant_state());
        true
    }

    /// Nothing of it can be at the store: for a first try that was refused and not retried.
    pub(crate) const fn forget(&mut self) {
        self.release_on_drop = false;
    }

    /// Gives up the position of a wait that is over, and says who holds the lock, if the store answers soon. If it does
    /// not, the drop releases in the background.
    pub(crate) async fn withdraw(&mut self) -> Option<HolderInfo> {
        let holder = self.client.store.withdraw(self.id()).await.ok()?;
        self.forget();
        holder
    }

    /// Releases what a failed acquire may have left. If that fails or is dropped, the drop releases in the background.
    pub(crate) async fn undo(&mut self) -> Result<()> {
        let _ = self.client.store.release(self.id(), None).await?;
        self.forget();
        Ok(())
    }

    /// The secret by which the store knows who may renew and release.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.grant_state().grant.owner
    }

    /// The open file that shows that this holder lives, where the store uses one: a child process that inherits it keeps
    /// the grant alive.
    #[must_use]
    pub const fn presence(&self) -> Option<&Presence> {
        self.presence.as_ref()
    }

    /// Releases the lock. `Lost` if the grant had ended before. If the store cannot be reached, the release is retried in
    /// the background until the lease is over.
    pub async fn release(mut self) -> Result<()> {
        let grant_state = Arc::clone(self.grant_state());
        grant_state.warn_if_unfenced();
        let status = grant_state.status();
        grant_state.released();
        self.client.heartbeat.forget(&grant_state);
        // If this future is dropped here, so is the guard, and that releases in the background.
        let lease_end = status.deadline.max(self.client.clock.now()) + LAST_RELEASE;
        let released = self.client.store.release(&grant_state.grant, Some(lease_end)).await?;
        self.forget();
        tracing::debug!(name = %grant_state.grant.name, token = %self.token(), "released");
        match (status.state, released) {
            (GuardStatus::Lost(cause), _) => Err(Error::lost(&grant_state.grant.name, cause)),
            (_, Err(NotHeld(cause))) => {
                Err(Error::lost(&grant_state.grant.name, cause.unwrap_or(LossCause::Expired)))
            }
            (_, Ok(())) => Ok(()),
        }
    }

    /// Gives up the guard without a release: the grant stays until its lease ends or the returned owner releases it.
    /// For a [`lease_only`](crate::Lock::lease_only) lock.
    #[must_use = "without the owner nobody can renew or release the grant"]
    pub fn detach(mut self) -> OwnerId {
        // Ended before it leaves the timer queue, or a renewal in flight would put it back.
        self.grant_state().released();
        self.client.heartbeat.forget(self.grant_state());
        // No warning: the process that continues with the grant gets the token in another way.
        self.forget();
        self.owner()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.release_on_drop {
            let ttl = self.ttl();
            self.grant_state().warn_if_unfenced();
            self.grant_state().released();
            self.client.heartbeat.forget(self.grant_state());
            self.client.heartbeat.undo(self.id().clone(), ttl);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Guard", &self.handle, f)
    }
}

impl fmt::Debug for GuardHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("GuardHandle", self, f)
    }
}

fn debug(name: &str, handle: &GuardHandle, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name)
        .field("name", handle.name())
        .field("token", &handle.grant_state.token())
        .field("status", &handle.status())
        .field("remaining", &short(handle.remaining()))
        .finish_non_exhaustive()
}

/// The changes of a guard, one after the other; as a stream it ends after the loss or the release. Made by
/// [`GuardHandle::changes`].
pub struct Changes {
    grant_state: Arc<GrantState>,
    status: watch::Receiver<Status>,
    /// What a poll of the stream waits for. It changes nothing here, so that nothing is lost if it is dropped.
    changed: Option<BoxFuture<'static, ()>>,
    /// The last status was seen: the stream has ended.
    over: bool,
}

impl Changes {
    /// Resolves with the status and the deadline once either has changed since the last call. Changes in between may be
    /// skipped. Dropping the future loses nothing.
    pub async fn next(&mut self) -> (GuardStatus, Moment) {
        // It may have seen the change that we return now.
        self.changed = None;
        // Cannot fail: the sender is in our state.
        let _ = self.status.changed().await;
        self.latest()
    }

    fn latest(&mut self) -> (GuardStatus, Moment) {
        self.grant_state.expire_if_due();
        let status = self.status.borrow_and_update();
        self.over = status.over();
        (status.state, status.end())
    }
}

impl Stream for Changes {
    type Item = (GuardStatus, Moment);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        let changed = this.changed.get_or_insert_with(|| {
            // A clone has seen what the original has, and sees the same changes.
            let mut status = this.status.clone();
            Box::pin(async move {
                let _ = status.changed().await;
            })
        });
        std::task::ready!(changed.as_mut().poll(context));
        this.changed = None;
        Poll::Ready(Some(this.latest()))
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("name", &self.grant_state.grant.name)
            .finish_non_exhaustive()
    }
}
