//! What a store must do to keep records: which work is running, done or failed, under which token.
//!
//! A record is a resource with a fence. It has the name of the lock that its runner holds, and the token of the
//! last runner that claimed it. The rules ([`fencepost_core::records`]), each one atomic step at the store:
//!
//! - `claim` makes the record `running` under the caller's token: if there is none, or an expired one, or a
//!   `running` one with this token or a lower one. A finished record is returned unchanged.
//! - `finish` ends the run, only if the record is `running` with the caller's own token. So a runner that was paused
//!   and overtaken cannot finish it, and at most one run is recorded as done.
//! - Both are idempotent: a retry with the same token gets the same answer.
//! - A finished record stays until it expires, by the store's own clock, or is forgotten.
//!
//! Neither checks whether the caller still holds the lock: the lock only keeps two runners from working at once.
//! That one success is recorded depends on the steps above and on tokens that rise.

use std::collections::HashMap;
use std::time::Duration;

pub use fencepost_core::records::{
    Claim, Claimed, Completion, Outcome, Precondition, RecordInfo, State,
};
use fencepost_core::{LockName, Moment, Token};

use crate::retry::StoreCall;

/// The error for a `finish` whose reply was lost, if its retry finds no record.
pub(crate) fn outcome_unknown(name: &LockName) -> String {
    format!(
        "the outcome of recording \"{name}\" is unknown: the reply was lost, and there is no record now; \
        check whether the work was done"
    )
}

/// The minimum retention of a running record: a run that takes longer cannot be recorded.
pub const LONGEST_RUN: Duration = Duration::from_hours(7 * 24);

/// How many names the library looks up in one call. Their results may have 6.25 MiB together.
pub const LOOK_UP_BATCH: usize = 100;

/// Records by their names.
pub type RecordsByName = HashMap<LockName, RecordInfo>;

/// A store that keeps records.
pub trait Ledger: Send + Sync + 'static {
    /// Makes the record `running` under this token, unless it is finished or a higher token has it.
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed>;

    /// Finishes a record that the caller may finish. False, with nothing changed, if it may not.
    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool>;

    /// The records under these names, at most [`LOOK_UP_BATCH`] of them: in one round trip, if the store can do that. A
    /// name is left out if it has no record, or one that has expired.
    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName>;

    /// All records whose names have this prefix, ordered by name, without their results.
    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>>;

    /// Removes the record under `name` if it has this token. False if there was no such record.
    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool>;

    /// The unique id of this store: a caller's own transaction finishes a record only in this store. `None` if no
    /// transaction of a caller can reach it. Called after a claim.
    fn store_id(&self) -> Option<String> {
        None
    }
}
