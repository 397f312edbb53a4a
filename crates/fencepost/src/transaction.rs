//! A caller's transaction that finishes a record of `once`.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use fencepost_core::LockName;

use crate::backend::BoxFuture;
use crate::error::Result;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::error::{Error, ErrorKind};
use crate::ledger::Completion;

/// A transaction that can finish a record, together with the work's own writes.
pub trait Transaction {
    /// [`Ledger::finish`](crate::Ledger::finish), as a part of this transaction. Refused if the transaction is not in the
    /// store at [`store_id`](crate::Ledger::store_id). Unlike there, it fails if this run finished the record before: that
    /// transaction was committed, and this one would repeat the effect.
    fn finish(&mut self, finish: Completion, store_id: String) -> BoxFuture<'_, Result<bool>>;
}

/// The error of a run that has committed its record before.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn recorded_already(name: &LockName) -> Error {
    let message = format!(
        "this run has recorded \"{name}\" in a transaction that was committed: roll this one back"
    );
    Error::new(ErrorKind::Failed, message)
}

/// The error of a transaction that does not see the claim.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn unseen(name: &LockName) -> Error {
    Error::refused(format!(
        "this transaction does not see the claim of \"{name}\": begin it inside the work; or the record was \
         forgotten meanwhile, or its retention is over"
    ))
}

/// The error of a transaction that finishes one record twice.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn recorded_twice(name: &LockName) -> Error {
    Error::invalid(format!(
        "this transaction has recorded \"{name}\" before: do it once, as the last step before the commit"
    ))
}
