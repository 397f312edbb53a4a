//! The resource's side: a fence refuses the write of a holder that was paused past its lease.
//!
//! A lock alone cannot do that. Its holder may freeze after the last check and before the write. So each grant carries
//! a [`Token`] that only rises, and the resource keeps a *mark* per lock name: the highest token that has entered. A
//! holder presents both as one [`FencingToken`], so that a token is never compared under the name of another lock:
//! `guard.fencing()` in the crate `fencepost`, [`FencingToken::new`] in a service that receives them. All fences here
//! have one contract (P8):
//!
//! - **Enter first.** A holder calls `enter` before it reads. That raises the mark. A holder that fences only its
//!   writes can still lose updates: A reads with 33 and pauses, B reads with 34, A's write is accepted because B has
//!   not written yet, and B overwrites it.
//! - **Equal is accepted**: it is the same holder. **Lower is refused** with [`ErrorKind::Stale`], and
//!   the error says which token has entered, and by whom. A refused `enter` writes nothing.
//! - **Check and act are one step.** `enter` is part of the transaction whose writes it protects. A program
//!   that reads in one transaction and writes in another enters both.
//! - **The mark belongs to the lock's name.** Tokens of different names, or of different stores, do not
//!   compare. Before you move a lock to another store, check the marks.
//!
//! They share one set of functions. Each takes what the fence works on (a transaction, a connection; nothing where the
//! fence is a handle), then a [`FencingToken`], or for operators the lock's name:
//!
//! | function | what it does |
//! |---|---|
//! | `enter(.., &fencing)` | raises the mark, or refuses |
//! | `enter_as(.., &fencing, who)` | the same, with a label that says who entered |
//! | `write(.., &fencing, data)` | enters and writes, in one step |
//! | `mark(.., name)` | the mark of a lock, if any holder has entered |
//! | `show(.., name)` | the marks of a lock, or of all |
//! | `reset(.., name, to, by, why)` | sets or deletes a mark, and records it |
//! | `audit(.., name)` | the logged resets |
//!
//! The label is for people; without `enter_as` it is `host:pid`. `reset` is for an operator whose lock store was lost,
//! so that its tokens start again below the marks.
//!
//! | fence | where the mark is | what it stops | instead of `write` |
//! |---|---|---|---|
//! | `postgres` | a table in the database | stale transactions that enter; with `protect`, all that do not enter too | `begin` or `enter`, then your statements |
//! | `sqlite` | a table in the database | stale transactions that enter | `begin` or `enter`, then your statements |
//! | `column` | a column of the row itself | stale writes of that row | |
//! | `redis` | a key beside the data | stale commands that go through it | `checked(&fencing)`, which collects commands |
//! | `file` | a file beside the data, on one host | stale writes that go through it | |
//! | `object` | in the object, or in a small one before it | stale reads and writes of that object | |
//!
//! A `column` keeps a number and nothing else: it has only `enter` and `write`, and cannot check the name. Where a
//! single row is all that you protect, [`cas`] needs no lock and no token. A fence of your own calls [`admit`], which
//! is the rule, and runs the suite in `fencepost_conformance::fences`.
//!
//! Each fence re-exports its driver, as `sqlite::rusqlite`, `postgres::tokio_postgres`, `redis::redis` and
//! `object::object_store`: your transaction, connection or store must be of that version. A new major version of a
//! driver (of 0.x: a new minor version) is a breaking change of this crate.
//!
//! The crate `fencepost` has all of this as `fencepost::fences`. A service that only checks tokens needs this crate
//! alone.
//!
//! [`ErrorKind::Stale`]: crate::ErrorKind::Stale
//! [`Token`]: crate::Token

#![cfg_attr(docsrs, feature(doc_cfg))]

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
pub use fencepost_core::{FencingToken, Label, LockName, Token};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use rows::Row;
