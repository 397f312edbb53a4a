//! Elections for threads.

use std::ops::Deref;
use std::time::Duration;

use super::block_on;
use crate::election::Leader;
use crate::error::Result;
use crate::options::acquire_options;

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
#[must_use = "nobody stands for election until `campaign` is called"]
pub struct Election(pub(super) crate::Election);

acquire_options!(wraps Election);

impl Election {
    /// Blocks until it is our turn to lead. See [`crate::Election::campaign`].
    pub fn campaign(&self, value: impl AsRef<[u8]>) -> Result<Leadership> {
        block_on(self.0.campaign(value)).map(Leadership)
    }

    /// See [`crate::Election::campaign_within`].
    pub fn campaign_within(&self, value: impl AsRef<[u8]>, limit: Duration) -> Result<Leadership> {
        block_on(self.0.campaign_within(value, limit)).map(Leadership)
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

/// [`crate::Leadership`] for threads: what does not wait, such as [`term`](crate::Leadership::term), is the same.
#[must_use = "a leadership that is dropped at once is given up at once"]
#[derive(Debug)]
pub struct Leadership(crate::Leadership);

impl Leadership {
    /// See [`crate::Term::proclaim`].
    pub fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.proclaim(value))
    }

    /// Blocks until the leadership is lost. See [`crate::Standing::lost`].
    #[must_use]
    pub fn wait_lost(&self) -> crate::LossCause {
        block_on(self.0.lost())
    }

    /// See [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        block_on(self.0.resign())
    }
}

impl Deref for Leadership {
    type Target = crate::Leadership;

    fn deref(&self) -> &crate::Leadership {
        &self.0
    }
}

/// [`crate::Observer`] for threads.
pub struct Observer(crate::Observer);

impl Observer {
    /// Blocks until there is news. See [`crate::Observer::next`].
    pub fn wait_next(&mut self) -> Result<Option<Leader>> {
        block_on(self.0.next())
    }
}
