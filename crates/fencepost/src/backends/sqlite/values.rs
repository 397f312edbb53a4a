//! What leaders publish.
//!
//! ```text
//! fencepost_candidate_values   name, token, value
//! ```
//!
//! A row counts only for the grant with its token: the next holder has another token. Plain locks have no row here, and
//! their operations do not read this table. Rows of grants that have ended are removed from time to time.

use fencepost_core::{LockName, Token, Value};
use rusqlite::{Connection, OptionalExtension as _};

/// What the holder with this token publishes.
pub(super) fn candidate_value(
    db: &Connection,
    name: &LockName,
    token: Token,
) -> rusqlite::Result<Option<Value>> {
    db.prepare_cached("SELECT value FROM fencepost_candidate_values WHERE name = ? AND token = ?")?
        .query_row((name.as_str(), token.get().cast_signed()), |row| row.get::<_, Vec<u8>>(0))
        .optional()
        .map(|value| value.map(|value| Value::from_store(&value)))
}

/// Publishes another value, in the transaction that has read its grant.
pub(super) fn publish(
    db: &Connection,
    name: &LockName,
    token: Token,
    value: &Value,
) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO fencepost_candidate_values VALUES (?, ?, ?)")?
        .execute((name.as_str(), token.get().cast_signed(), value.as_bytes()))?;
    Ok(())
}

/// Removes the rows of grants that are over, if there are any: reading is cheaper than a commit.
pub(super) fn forget_stale(db: &Connection) -> rusqlite::Result<()> {
    const STALE: &str = "FROM fencepost_candidate_values AS published WHERE NOT EXISTS (\
                         SELECT 1 FROM fencepost_locks AS lock \
                         WHERE lock.name = published.name AND lock.token = published.token)";
    if db.prepare_cached(&format!("SELECT 1 {STALE} LIMIT 1"))?.exists([])? {
        db.execute(&format!("DELETE {STALE}"), [])?;
    }
    Ok(())
}
