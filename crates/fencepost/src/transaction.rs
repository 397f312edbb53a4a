//! Transactions of a caller's that a record of `once` is settled in.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use fencepost_core::LockName;

use crate::backend::BoxFuture;
use crate::error::Result;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::error::{Error, ErrorKind};
use crate::ledger::Finish;

/// A transaction that a record can be settled in, together with the work's own writes.
pub trait Transaction {
    /// [`Ledger::finish`](crate::Ledger::finish), as a part of this transaction. Refused if it is not one of the store that is at
    /// [`place`](crate::Ledger::place). Unlike there it is no success if this very run settled the record already: the
    /// transaction that did was committed, and this one would have the effect once more.
    fn finish(&mut self, finish: Finish, place: String) -> BoxFuture<'_, Result<bool>>;
}

/// The error of a mark that this very run has committed before.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn marked_already(name: &LockName) -> Error {
    let message = format!(
        "this run marked \"{name}\" already, in a transaction that was committed: roll this one back"
    );
    Error::new(ErrorKind::Failed, message)
}

/// The error of a mark in a transaction that does not see the claim.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn unseen(name: &LockName) -> Error {
    Error::refused(format!(
        "the claim of \"{name}\" is not seen by this transaction: begin it inside the work; or the record was \
         forgotten meanwhile, or its time is over"
    ))
}

/// The error of a second mark in one transaction.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn marked_twice(name: &LockName) -> Error {
    Error::invalid(format!(
        "this transaction has marked \"{name}\" already: mark it once, as the last step before the commit"
    ))
}
