//! The resource's side: a fence refuses the write of a holder that was paused past its lease.
//!
//! A lock alone can not do that. Its holder may freeze after the last check and before the write. So each
//! grant carries a [`Token`] that only rises, and the resource keeps a *mark* per lock name: the highest token
//! that has entered. All fences here have one contract (P8):
//!
//! - **Enter first.** A holder's first act is `enter(name, token)`, before it reads. It raises the mark. A
//!   holder that only fences its writes still loses updates: A reads with 33 and pauses, B reads with 34, A's
//!   write is accepted because B has not written yet, and B overwrites it.
//! - **Equal is accepted**: it is the same holder. **Lower is refused** with [`ErrorKind::Stale`], and
//!   the error says which token has entered and who brought it. A refused `enter` writes nothing.
//! - **Check and act are one step.** `enter` is part of the transaction whose writes it protects. A program
//!   that reads in one transaction and writes in another enters in both.
//! - **The mark belongs to the lock's name.** Tokens of different names, or of different stores, do not
//!   compare. Who moves a lock to another store looks at the marks first.
//!
//! They have one set of verbs, too. Each takes what the fence works on (a transaction, a connection; nothing where the fence
//! is a handle), then the lock's name:
//!
//! | verb | what it does |
//! |---|---|
//! | `enter(.., name, token)` | raises the mark, or refuses |
//! | `write(.., name, token, data)` | enters and writes, in one step |
//! | `mark(.., name)` | the mark of a lock, if anybody has entered |
//! | `show(.., name)` | the marks of a lock, or of all |
//! | `reset(.., name, to, by, why)` | sets or forgets a mark by hand, and records it |
//! | `audit(.., name)` | the records of resets |
//!
//! `enter_as` is `enter` with a label, for people: who entered. It is `host:pid` otherwise. `reset` is for the day on which a
//! lock store was lost and its tokens start again below the marks.
//!
//! | fence | where the mark is | what it stops | instead of `write` |
//! |---|---|---|---|
//! | `postgres` | a table in the database | stale transactions that enter; with `protect`, all others too | your statements after `begin` or `enter` |
//! | `sqlite` | a table in the database | stale transactions that enter | your statements after `begin` or `enter` |
//! | `column` | a column of the row itself | stale writes of that row | |
//! | `redis` | a key beside the data | stale commands that go through it | `checked`, which collects commands |
//! | `file` | a file beside the data, on one host | stale writes that go through it | |
//! | `object` | in the object, or in a small one before it | stale reads and writes of that object | |
//!
//! A `column` keeps a number and nothing else: it has only `enter` and `write`, and the key of the row stands for the name.
//! Where a single row is all there is to protect, [`cas`] needs no lock at all. A fence of your own asks [`admit`], which is the
//! rule, and proves itself by the suite in `fencepost_conformance::fences`.
//!
//! The crate `fencepost` has all of this as `fencepost::fences`. A service that only checks tokens needs no more than this one.
//!
//! [`ErrorKind::Stale`]: crate::ErrorKind::Stale
//! [`Token`]: crate::Token

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod cas;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod column;
mod contract;
#[cfg(unix)]
pub mod file;
#[cfg(feature = "object-store")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use contract::{Admission, Mark, Reset, admit};
pub use fencepost_base::{Error, ErrorKind, Result};
pub use fencepost_core::{Label, LockName, Token};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use rows::Row;

/// A fence works in the caller's own transaction, on the caller's own connection or store, so the caller needs the same
/// version of these.
pub mod drivers {
    #[cfg(feature = "object-store")]
    pub use ::object_store;
    #[cfg(feature = "redis")]
    pub use ::redis;
    #[cfg(feature = "sqlite")]
    pub use ::rusqlite;
    #[cfg(feature = "postgres")]
    pub use ::tokio_postgres;
}
