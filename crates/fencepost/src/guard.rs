//! The client's handle on a grant.

use std::fmt;
use std::future::Future;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::sync::watch;

use crate::backend::{
    Grant, GrantId, HolderInfo, LossCause, LossSignal, NotHeld, Presence, Renewal, short,
};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::hold::{Bounds, GuardState, Hold, Status};
use crate::owner::draw_owner;

/// How long after the end of its lease a release may still be answered.
const LAST_RELEASE: Duration = Duration::from_millis(100);

/// A lock that is held. It is renewed in the background until it is released, dropped or lost.
///
/// Dropping it releases in the background; [`release`](Self::release) says whether that worked. Carry
/// [`token`](Standing::token) with every write: a lock alone can not stop a holder that froze past its lease.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    client: Arc<Client>,
    standing: Standing,
    presence: Option<Presence>,
    /// Cleared once nothing of it can be left at the store.
    release_on_drop: bool,
}

/// What can be asked of a grant. Cheap to clone, so that work can take one with it: it does not keep the lock,
/// and turns lost with the guard.
#[derive(Clone)]
pub struct Standing {
    hold: Arc<Hold>,
}

impl Standing {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// What is locked.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hold.grant.name
    }

    /// The fencing token: higher than that of every earlier grant of this name.
    #[must_use]
    pub fn token(&self) -> Token {
        self.hold.token_was_read();
        self.own_token()
    }

    /// The same for the library's own use, which no fence sees.
    pub(crate) fn own_token(&self) -> Token {
        self.hold.token().expect("a guard is handed out after its grant came")
    }

    /// The TTL that the store really keeps.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.hold.status().ttl
    }

    /// How long the guard can be trusted if nothing more is heard of the store. Reads the clock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// The moment at which the guard turns lost if nothing more is heard of the store.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.hold.status().end()
    }

    /// Why the last renewal failed, if it did: what a guard that was lost to an outage can say of it.
    #[must_use]
    pub fn renewal_error(&self) -> Option<String> {
        self.hold.renewal_error()
    }

    /// Where the guard stands. Reads the clock.
    #[must_use]
    pub fn state(&self) -> GuardState {
        self.hold.status().state
    }

    /// The token if the guard can be trusted right now, else the error that says why not.
    pub fn check(&self) -> Result<Token> {
        self.trusted()?;
        Ok(self.token())
    }

    /// Whether the guard can be trusted right now.
    pub(crate) fn trusted(&self) -> Result<()> {
        match self.state() {
            GuardState::Lost(cause) => Err(Error::lost(self.name(), cause)),
            GuardState::Released => Err(Error::lost(self.name(), LossCause::Released)),
            _ => Ok(()),
        }
    }

    /// Resolves with the cause once the guard is lost. Does not borrow the guard, so that it can be
    /// awaited in another task; it never resolves for a guard that was released. Work that may outlive its
    /// guard uses [`run`](Self::run) or [`check`](Self::check), which know of that too.
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        let mut status = self.hold.subscribe();
        // The hold stays alive through this: a lost guard that is dropped is still lost.
        let hold = Arc::clone(&self.hold);
        async move {
            let lost = status
                .wait_for(|status| matches!(status.state, GuardState::Lost(_)))
                .await
                .map(|status| status.state);
            drop(hold);
            match lost {
                Ok(GuardState::Lost(cause)) => cause,
                // The sender lives in `hold`, so the wait ends only with a loss.
                _ => std::future::pending().await,
            }
        }
    }

    /// Follows the guard: each renewal, the first failing one, the loss.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes { hold: Arc::clone(&self.hold), status: self.hold.subscribe() }
    }

    /// Runs `work` until it is done or the guard is lost or released, whichever comes first. Lost work is
    /// dropped at its next await, and is not polled again once the deadline has passed.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut status = self.hold.subscribe();
        let over = async move {
            // The sender lives in our hold, so the wait ends only with the guard.
            let _ = status.wait_for(Status::over).await;
        };
        let (mut work, mut over) = (pin!(work), pin!(over));
        poll_fn(|context| {
            // The clock is asked before every step: after a freeze, work and loss are ready together.
            self.trusted()?;
            if over.as_mut().poll(context).is_ready() {
                self.trusted()?;
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// The work is getting on. Only matters with [`Lock::progress_within`](crate::Lock::progress_within).
    pub fn progress(&self) {
        self.hold.progress();
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
        let (clock, tally) = (Arc::clone(&client.clock), Arc::clone(&client.tally));
        let standing = Standing { hold: Hold::new(grant, ttl, bounds, clock, tally) };
        Ok(Self { client: Arc::clone(client), standing, presence: None, release_on_drop: true })
    }

    pub(crate) fn id(&self) -> &GrantId {
        &self.hold().grant
    }

    pub(crate) fn loss_signal(&self) -> LossSignal {
        self.client.keeper.loss_signal(self.hold())
    }

    /// From when a grant counts, and for how long. One that was made while we waited may be as old as our position: it
    /// is renewed first, and counts from that (P4). `None` if it is over.
    pub(crate) async fn confirm(
        &self,
        grant: &Grant,
        sent: Moment,
    ) -> Result<Option<(Moment, Ttl)>> {
        if !grant.queued {
            return Ok(Some((sent, grant.ttl)));
        }
        let (id, token) = (self.id().clone(), Some(grant.token));
        let renewal = Renewal { grant: id, ttl: None, token, value: None };
        let reply = self.client.store.renew(renewal).await?;
        Ok(reply.value.ok().map(|renewed| (reply.sent, renewed.ttl)))
    }

    /// The grant is there: counts its deadline from `sent`, and renews it from now on. False if it is over already.
    pub(crate) fn start(&mut self, grant: Grant, sent: Moment, ttl: Ttl) -> bool {
        self.presence = grant.presence;
        self.hold().start(grant.token, sent, ttl);
        if self.state() != GuardState::Held {
            return false;
        }
        self.client.keeper.keep(self.hold());
        true
    }

    /// Nothing of it can be at the store: for a try that was refused and not retried.
    pub(crate) const fn forget(&mut self) {
        self.release_on_drop = false;
    }

    /// Gives up a position whose time is over, and says who has the lock, if the store answers soon. If it does not,
    /// the drop releases in the background.
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

    /// What the work under this guard can take with it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }

    /// The secret that proves who may renew and release.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.hold().grant.owner
    }

    /// The open file that shows this holder lives, where the store uses one: let a child process inherit
    /// it and the grant lives as long as the child.
    #[must_use]
    pub const fn presence(&self) -> Option<&Presence> {
        self.presence.as_ref()
    }

    /// Gives the lock back. `Lost` if it was not ours any more. When the store can not be reached the
    /// release goes on in the background until the lease is over.
    pub async fn release(mut self) -> Result<()> {
        let hold = Arc::clone(self.hold());
        hold.report_unread();
        let status = hold.status();
        hold.released();
        self.client.keeper.forget(&hold);
        // Dropped here, the guard releases in the background: a cancelled release is still a release.
        let lease_end = status.deadline.max(self.client.clock.now()) + LAST_RELEASE;
        let released = self.client.store.release(&hold.grant, Some(lease_end)).await?;
        self.forget();
        tracing::debug!(name = %hold.grant.name, token = %self.own_token(), "released");
        match (status.state, released) {
            (GuardState::Lost(cause), _) => Err(Error::lost(&hold.grant.name, cause)),
            (_, Err(NotHeld(cause))) => {
                Err(Error::lost(&hold.grant.name, cause.unwrap_or(LossCause::Expired)))
            }
            (_, Ok(())) => Ok(()),
        }
    }

    /// Lets go of the guard without releasing: the grant stays until its lease ends or the returned owner
    /// releases it. Meant for a [`lease_only`](crate::Lock::lease_only) lock.
    #[must_use = "without the owner nobody can renew or release the grant"]
    pub fn detach(mut self) -> OwnerId {
        // Over before it is forgotten, or a renewal under way would put it back on the wheel.
        self.hold().released();
        self.client.keeper.forget(self.hold());
        // Whoever goes on with the grant has its own way to the token.
        self.forget();
        self.owner()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.release_on_drop {
            let ttl = self.ttl();
            self.hold().report_unread();
            self.hold().released();
            self.client.keeper.forget(self.hold());
            self.client.keeper.undo(self.id().clone(), ttl);
        }
    }
}

impl std::ops::Deref for Guard {
    type Target = Standing;

    fn deref(&self) -> &Standing {
        &self.standing
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.standing, f)
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.hold.token())
            .field("state", &self.state())
            .field("remaining", &short(self.remaining()))
            .finish_non_exhaustive()
    }
}

/// What happens to a guard, one thing after the other. Made by [`Standing::changes`].
#[derive(Debug)]
pub struct Changes {
    hold: Arc<Hold>,
    status: watch::Receiver<Status>,
}

impl Changes {
    /// Resolves with the state and the deadline once either has changed since the last call. Changes that
    /// came and went in between may be skipped. Dropping the future loses nothing.
    pub async fn next(&mut self) -> (GuardState, Moment) {
        // Can not fail: the sender lives in our hold.
        let _ = self.status.changed().await;
        self.hold.settle();
        let status = self.status.borrow_and_update();
        (status.state, status.end())
    }
}
