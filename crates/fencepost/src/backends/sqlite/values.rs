//! What the holder of a lock says of itself, for elections.
//!
//! ```text
//! fencepost_values   name, token, value
//! ```
//!
//! A row counts only for the grant whose token it bears, so it goes with that grant: whoever holds the lock next has
//! another token. Nothing is written here about a lock whose holder says nothing, and steps of locks do not look. Rows
//! of grants that have ended are removed now and then.

use fencepost_core::{LockName, Token, Value};
use rusqlite::{Connection, OptionalExtension as _};

/// What the holder with this token says.
pub(super) fn said(
    db: &Connection,
    name: &LockName,
    token: Token,
) -> rusqlite::Result<Option<Value>> {
    db.prepare_cached("SELECT value FROM fencepost_values WHERE name = ? AND token = ?")?
        .query_row((name.as_str(), token.get().cast_signed()), |row| row.get::<_, Vec<u8>>(0))
        .optional()
        .map(|value| value.map(|value| Value::found(&value)))
}

/// From now on it says this. In the transaction that has seen its grant.
pub(super) fn say(
    db: &Connection,
    name: &LockName,
    token: Token,
    value: &Value,
) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO fencepost_values VALUES (?, ?, ?)")?.execute((
        name.as_str(),
        token.get().cast_signed(),
        value.as_bytes(),
    ))?;
    Ok(())
}

/// Removes the rows of grants that are over, if there are any: reading is cheaper than a commit.
pub(super) fn forget_stale(db: &Connection) -> rusqlite::Result<()> {
    const STALE: &str = "FROM fencepost_values WHERE NOT EXISTS (SELECT 1 FROM locks \
                         WHERE locks.name = fencepost_values.name AND locks.token = fencepost_values.token)";
    if db.prepare_cached(&format!("SELECT 1 {STALE} LIMIT 1"))?.exists([])? {
        db.execute(&format!("DELETE {STALE}"), [])?;
    }
    Ok(())
}
