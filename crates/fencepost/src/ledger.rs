//! What a store must do to keep records: which work is running, done or failed, under which token.
//!
//! A record is a resource with a fence. It lies under the name of the lock that its runner holds, and bears the
//! token of the last runner that claimed it. The rules ([`fencepost_core::records`]), each one atomic step at the store:
//!
//! - `claim` makes the record `running` under the caller's token: if there is none, or one whose time is
//!   over, or a `running` one with this token or a lower one. A settled record is returned as it is.
//! - `finish` settles it: only where it is `running` with the caller's own token. So a runner that was paused
//!   and overtaken can not settle it, and of all runs one at most is recorded as done.
//! - Both are idempotent: sent again with the same token they say the same.
//! - A record that was settled stays until its time is over, by the store's own clock, or it is forgotten.
//!
//! Neither asks whether the caller still holds the lock: its lease only keeps two from working at once. That
//! one success is recorded does not rest on it, but on the step above and on tokens that rise.

use std::time::Duration;

pub use fencepost_core::records::{Claim, Claimed, Entry, Finish, Outcome, Over, State};
use fencepost_core::{LockName, Moment, Token};

use crate::retry::StoreCall;

/// What is said of an end that was sent, was not heard of, and then met no record.
pub(crate) fn nobody_knows(name: &LockName) -> String {
    format!(
        "nobody knows whether \"{name}\" was recorded: the answer was lost, and there is no record now; see \
         whether the work was done"
    )
}

/// How long a record of running work is kept at least: a run that takes longer can not be recorded.
pub const LONGEST_RUN: Duration = Duration::from_hours(7 * 24);

/// A store that keeps records.
pub trait Ledger: Send + Sync + 'static {
    /// Makes the record `running` under this token, unless it is settled or a higher token has it.
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed>;

    /// Settles a record that the caller may settle. False, with nothing changed, if it may not.
    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool>;

    /// The record under `name`, if there is one whose time is not over.
    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>>;

    /// All records whose names start so, ordered by name, without their results.
    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>>;

    /// Removes the record under `name` if it bears this token. False if there was none such.
    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool>;

    /// Which store this is, as no other is called: a caller's own transaction settles a record only in this one.
    /// `None` if no transaction of a caller's can reach it. Asked after a claim.
    fn place(&self) -> Option<String> {
        None
    }
}
