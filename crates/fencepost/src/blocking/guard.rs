//! Guards for threads.

use std::time::Duration;

use fencepost_core::{FencingToken, LockName, Moment, OwnerId, Token, Ttl};

use super::block_on;
use crate::backend::{LossCause, Presence};
use crate::error::Result;
use crate::grant_state::GuardStatus;

/// [`crate::Guard`] for threads.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard(pub(super) crate::Guard);

impl Guard {
    /// See [`crate::GuardHandle::name`].
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// See [`crate::GuardHandle::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// See [`crate::GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// See [`crate::GuardHandle::status`].
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.0.status()
    }

    /// See [`crate::GuardHandle::ttl`].
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.0.ttl()
    }

    /// See [`crate::GuardHandle::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// See [`crate::GuardHandle::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.0.deadline()
    }

    /// See [`crate::GuardHandle::renewal_error`].
    #[must_use]
    pub fn renewal_error(&self) -> Option<String> {
        self.0.renewal_error()
    }

    /// Blocks until the guard is lost. See [`crate::GuardHandle::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::GuardHandle::changes`].
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.0.changes())
    }

    /// See [`crate::GuardHandle::progress`].
    pub fn progress(&self) {
        self.0.progress();
    }

    /// A view of this guard for the work under it.
    #[must_use]
    pub fn handle(&self) -> GuardHandle {
        GuardHandle(self.0.handle())
    }

    /// See [`crate::Guard::owner`].
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.0.owner()
    }

    /// See [`crate::Guard::presence`].
    #[must_use]
    pub const fn presence(&self) -> Option<&Presence> {
        self.0.presence()
    }

    /// See [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// See [`crate::Guard::detach`].
    #[must_use = "without the owner nobody can renew or release the grant"]
    pub fn detach(self) -> OwnerId {
        self.0.detach()
    }
}

/// [`crate::GuardHandle`] for threads.
#[derive(Clone, Debug)]
pub struct GuardHandle(crate::GuardHandle);

impl GuardHandle {
    pub(super) fn of(handle: &crate::GuardHandle) -> Self {
        Self(handle.clone())
    }

    /// See [`crate::GuardHandle::name`].
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// See [`crate::GuardHandle::token`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// See [`crate::GuardHandle::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::GuardHandle::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// See [`crate::GuardHandle::status`].
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.0.status()
    }

    /// See [`crate::GuardHandle::ttl`].
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.0.ttl()
    }

    /// See [`crate::GuardHandle::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// See [`crate::GuardHandle::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.0.deadline()
    }

    /// See [`crate::GuardHandle::renewal_error`].
    #[must_use]
    pub fn renewal_error(&self) -> Option<String> {
        self.0.renewal_error()
    }

    /// Blocks until the guard is lost. See [`crate::GuardHandle::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::GuardHandle::changes`].
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.0.changes())
    }

    /// See [`crate::GuardHandle::progress`].
    pub fn progress(&self) {
        self.0.progress();
    }
}

/// [`crate::Changes`] for threads.
#[derive(Debug)]
pub struct Changes(crate::Changes);

impl Changes {
    /// Blocks until the guard changes. See [`crate::Changes::next`].
    pub fn wait_next(&mut self) -> (GuardStatus, Moment) {
        block_on(self.0.next())
    }
}
