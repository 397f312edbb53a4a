//! The client's handle on a grant.

use std::fmt;
use std::future::Future;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use tokio::sync::watch;

use crate::backend::{LossCause, Presence, short};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{GuardState, Hold, Status};
use crate::race::{First, race};

/// A lock that is held. It is renewed in the background until it is released, dropped or lost.
///
/// Dropping it releases in the background; [`release`](Self::release) says whether that worked. Carry
/// [`token`](Standing::token) with every write: a lock alone can not stop a holder that froze past its lease.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    standing: Standing,
    presence: Option<Presence>,
    unread: Unread,
    undo: Undo,
}

/// What can be asked of a grant. Cheap to clone, so that work can take one with it: it does not keep the lock,
/// and turns lost with the guard.
#[derive(Clone)]
pub struct Standing {
    token: Token,
    hold: Arc<Hold>,
}

impl Standing {
    pub(crate) const fn new(token: Token, hold: Arc<Hold>) -> Self {
        Self { token, hold }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// What is locked.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// The fencing token: higher than that of every earlier grant of this name.
    #[must_use]
    pub fn token(&self) -> Token {
        self.hold.token_was_read();
        self.token
    }

    /// The same for the library's own use, which no fence sees.
    pub(crate) const fn own_token(&self) -> Token {
        self.token
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
    pub(crate) fn new(standing: Standing, presence: Option<Presence>, undo: Undo) -> Self {
        let unread = Unread(Some(Arc::clone(&standing.hold)));
        Self { standing, presence, unread, undo }
    }

    /// What the work under this guard can take with it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }

    /// The secret that proves who may renew and release.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.hold().owner
    }

    /// The open file that shows this holder lives, where the store uses one: let a child process inherit
    /// it and the grant lives as long as the child.
    #[must_use]
    pub const fn presence(&self) -> Option<&Presence> {
        self.presence.as_ref()
    }

    /// Gives the lock back. `Lost` if it was not ours any more. When the store can not be reached the
    /// release goes on in the background until the lease is over.
    pub async fn release(self) -> Result<()> {
        let Self { mut undo, standing, unread, .. } = self;
        drop(unread);
        let token = standing.token;
        let (client, hold) = (Arc::clone(&undo.client), Arc::clone(&undo.hold));
        let status = hold.status();
        hold.released();
        client.keeper.forget(&hold);
        // Dropped here, `undo` releases in the background: a cancelled release is still a release.
        let call = client.store.backend.release(hold.name.clone(), hold.owner);
        let limit = status.deadline.max(client.clock.now()) + Duration::from_millis(100);
        let outcome = match race(call, client.clock.alarm(limit)).await {
            First::Left(outcome) => outcome,
            First::Right(()) => Err(Error::unreachable(format!(
                "the store did not answer the release of \"{}\" before its lease ran out",
                hold.name
            ))),
        };
        let gone = match outcome {
            Ok(()) => None,
            Err(error) => match error.kind() {
                ErrorKind::NotHeld(cause) => Some((*cause).unwrap_or(LossCause::Expired)),
                _ => return Err(error),
            },
        };
        undo.disarm();
        tracing::debug!(name = %hold.name, token = %token, "released");
        match (status.state, gone) {
            (GuardState::Lost(cause), _) | (_, Some(cause)) => Err(Error::lost(&hold.name, cause)),
            _ => Ok(()),
        }
    }

    /// Lets go of the guard without releasing: the grant stays until its lease ends or the returned owner
    /// releases it. Meant for a [`lease_only`](crate::Lock::lease_only) lock.
    #[must_use = "without the owner nobody can renew or release the grant"]
    pub fn detach(self) -> OwnerId {
        let Self { mut undo, mut unread, .. } = self;
        // Whoever goes on with the grant has its own way to the token.
        unread.0 = None;
        // Over before it is forgotten, or a renewal under way would put it back on the wheel.
        undo.hold.released();
        undo.client.keeper.forget(&undo.hold);
        undo.disarm();
        undo.hold.owner
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
            .field("token", &self.token)
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

/// Tells, when its guard goes, that nobody read the token though it mattered.
struct Unread(Option<Arc<Hold>>);

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(hold) = &self.0 {
            hold.report_unread();
        }
    }
}

/// Gives back what an acquisition took, or may have taken, unless it is disarmed (P6).
pub(crate) struct Undo {
    client: Arc<Client>,
    hold: Arc<Hold>,
    ttl: Ttl,
    armed: bool,
}

impl Undo {
    pub(crate) const fn armed(client: Arc<Client>, hold: Arc<Hold>, ttl: Ttl) -> Self {
        Self { client, hold, ttl, armed: true }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// Releases now and tells how that went. Dropped before that, it goes on in the background.
    pub(crate) async fn release_now(&mut self) -> Result<()> {
        let release = self.client.store.backend.release(self.hold.name.clone(), self.hold.owner);
        let verb = format!("release \"{}\"", self.hold.name);
        let released = self.client.bounded(&verb, release).await;
        match &released {
            Err(error) if !matches!(error.kind(), ErrorKind::NotHeld(_)) => {}
            _ => self.disarm(),
        }
        released
    }

    pub(crate) const fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed {
            self.hold.released();
            self.client.keeper.forget(&self.hold);
            self.client.keeper.undo(self.hold.name.clone(), self.hold.owner, self.ttl);
        }
    }
}
