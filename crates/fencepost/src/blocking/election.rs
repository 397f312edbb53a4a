//! Elections for threads.

use fencepost_core::{FencingToken, Token};

use super::block_on;
use super::guard::GuardHandle;
use crate::backend::LossCause;
use crate::election::Leader;
use crate::error::Result;
use crate::options::{acquire_options, wait_option};

/// [`crate::Election`] for threads.
///
/// ```
/// let fp = fencepost::blocking::Fencepost::connect("memory:blocking-election")?;
/// let scheduler = fp.election("scheduler");
/// let mut observer = scheduler.observe()?;
///
/// let leadership = scheduler.campaign("10.0.0.7:8080")?;
/// leadership.check()?; // before each step that only a leader may do
/// println!("leading in term {}", leadership.term());
/// assert_eq!(observer.wait_next()?.and_then(|leader| leader.term), Some(leadership.term()));
/// leadership.resign()?;
/// # Ok::<(), fencepost::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until `campaign` is called"]
pub struct Election(pub(super) crate::Election);

acquire_options!(wraps Election);
wait_option!(wraps Election);

impl Election {
    /// Blocks until this candidate leads. See [`crate::Election::campaign`].
    pub fn campaign(&self, value: impl AsRef<[u8]>) -> Result<Leadership> {
        block_on(self.0.campaign(value)).map(Leadership)
    }

    /// See [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader>> {
        block_on(self.0.leader())
    }

    /// See [`crate::Election::observe`].
    pub fn observe(&self) -> Result<Observer> {
        self.0.observe().map(Observer)
    }
}

/// [`crate::Term`] for threads.
#[derive(Clone, Debug)]
pub struct Term(crate::Term);

impl Term {
    /// See [`crate::Term::number`].
    #[must_use]
    pub fn number(&self) -> Token {
        self.0.number()
    }

    /// See [`crate::Term::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::Term::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// Blocks until the leadership is lost. See [`crate::Term::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::Term::proclaim`].
    pub fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.proclaim(value))
    }

    /// See [`crate::Term::handle`].
    #[must_use]
    pub fn handle(&self) -> GuardHandle {
        GuardHandle::of(self.0.handle())
    }
}

/// [`crate::Leadership`] for threads.
#[must_use = "dropping the leadership gives it up"]
#[derive(Debug)]
pub struct Leadership(crate::Leadership);

impl Leadership {
    /// See [`crate::Leadership::term`].
    #[must_use]
    pub fn term(&self) -> Token {
        self.0.term()
    }

    /// See [`crate::Leadership::fencing`].
    #[must_use]
    pub fn fencing(&self) -> FencingToken {
        self.0.fencing()
    }

    /// See [`crate::Leadership::check`].
    pub fn check(&self) -> Result<FencingToken> {
        self.0.check()
    }

    /// Blocks until the leadership is lost. See [`crate::Leadership::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::Term::proclaim`].
    pub fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.proclaim(value))
    }

    /// A view of this leadership for the work under it.
    #[must_use]
    pub fn handle(&self) -> Term {
        Term(self.0.handle())
    }

    /// See [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        block_on(self.0.resign())
    }
}

/// [`crate::Observer`] for threads.
#[derive(Debug)]
pub struct Observer(crate::Observer);

impl Observer {
    /// Blocks until the leader or its value changes. See [`crate::Observer::next`].
    pub fn wait_next(&mut self) -> Result<Option<Leader>> {
        block_on(self.0.next())
    }
}
