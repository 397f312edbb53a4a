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
//! `show` lists marks. `reset` sets one by hand, keeps a record of who did it and why, and is for the day on
//! which a store was lost and its tokens start again below the marks.
//!
//! | fence | where the mark is | what it stops |
//! |---|---|---|
//! | `postgres` | a table in the database | stale transactions that enter; with `protect`, all others too |
//! | `sqlite` | a table in the database | stale transactions that enter |
//! | `column` | a column of the row itself | stale writes of that row |
//! | `redis` | a key beside the data | stale commands that go through it |
//! | `file` | a file beside the data, on one host | stale writes that go through it |
//! | `object` | in the object, or in a small one before it | stale reads and writes of that object |
//!
//! Where a single row is all there is to protect, [`cas`] needs no lock at all.
//!
//! [`ErrorKind::Stale`]: crate::ErrorKind::Stale

use fencepost_core::{Label, LockName, Token};

use crate::error::{Error, ErrorKind, Result};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod cas;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod column;
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

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use rows::Row;

/// The highest token that a resource has accepted for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The lock's name.
    pub name: LockName,
    /// The highest token that has entered.
    pub token: Token,
    /// Who brought it: `host:pid`, or what the caller set.
    pub set_by: String,
    /// When, by the resource's clock, or the client's where the resource has none to ask (`object`): RFC 3339, UTC. For
    /// people; nothing is decided by it.
    pub set_at: String,
}

/// The record of one `reset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The lock's name.
    pub name: LockName,
    /// The token that had entered, if any had.
    pub from: Option<Token>,
    /// What the mark was set to; none if it was forgotten.
    pub to: Option<Token>,
    /// Who did it.
    pub by: String,
    /// Why.
    pub why: String,
    /// When, by the same clock: RFC 3339, UTC.
    pub at: String,
}

// On PostgreSQL the database says it, in the same words.
impl Mark {
    /// The error of a token that came too late.
    #[must_use]
    pub fn refuses(&self, token: Token) -> Error {
        let Self { name, token: mark, set_by, set_at } = self;
        Error::new(
            ErrorKind::Stale,
            format!(
                "token {token} for \"{name}\" is stale: {mark} has entered ({set_by}, {set_at})"
            ),
        )
    }
}

/// The longest reason, in bytes.
const WHY_MAX_BYTES: usize = 1024;

/// Who resets and why, checked.
pub(crate) fn checked_reset(by: &str, why: &str) -> Result<()> {
    Label::new(by)?;
    if why.trim().is_empty() {
        return Err(Error::invalid("the reason is empty: say why the mark is reset"));
    }
    if why.len() > WHY_MAX_BYTES {
        let length = why.len();
        return Err(Error::invalid(format!(
            "the reason has {length} bytes: use at most {WHY_MAX_BYTES}"
        )));
    }
    if let Some(bad) = why.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "the reason \"{}\" contains the control character U+{:04X}: remove it",
            why.escape_debug(),
            u32::from(bad)
        )));
    }
    Ok(())
}
