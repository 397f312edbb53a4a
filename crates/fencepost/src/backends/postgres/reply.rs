//! What the steps answer, as the types that the rest works with.

use std::time::Duration;

use fencepost_core::{Label, LockName, Token, Ttl, Value};
use tokio_postgres::Row;

use crate::backend::{HolderInfo, LockInfo, WaiterInfo};
use crate::store_error::StoreError;

pub(super) fn odd(verb: &str) -> StoreError {
    StoreError::refused(format!(
        "the server gave an odd answer to {verb}: is the schema \"fencepost\" ours?"
    ))
}

/// What a step begins with.
pub(super) fn status(row: &Row, verb: &str) -> Result<i32, StoreError> {
    row.try_get("status").map_err(|_| odd(verb))
}

/// A number that may be missing; below zero, as a clock that was set back makes a span, it is zero.
pub(super) fn number(row: &Row, column: &str) -> Option<u64> {
    let number: Option<i64> = row.try_get(column).ok()?;
    number.map(|number| u64::try_from(number).unwrap_or(0))
}

pub(super) fn text(row: &Row, column: &str) -> Option<String> {
    row.try_get(column).ok()?
}

pub(super) fn token(row: &Row, column: &str, verb: &str) -> Result<Token, StoreError> {
    number(row, column).and_then(|token| Token::new(token).ok()).ok_or_else(|| odd(verb))
}

pub(super) fn ttl(row: &Row, column: &str, verb: &str) -> Result<Ttl, StoreError> {
    let ttl = number(row, column).map(Duration::from_millis);
    ttl.and_then(|ttl| Ttl::new(ttl).ok()).ok_or_else(|| odd(verb))
}

/// Who holds a lock, as far as a row tells.
pub(super) fn holder(row: &Row) -> Option<HolderInfo> {
    let millis = |column| number(row, column).map(Duration::from_millis);
    let value: Option<Vec<u8>> = row.try_get("r_value").ok().flatten();
    Some(HolderInfo {
        label: Label::new(&text(row, "r_label")?).ok()?,
        token: number(row, "r_token").and_then(|token| Token::new(token).ok()),
        ttl: millis("r_ttl").and_then(|ttl| Ttl::new(ttl).ok()),
        held_for: millis("r_held"),
        remaining: millis("r_left"),
        endless: false,
        value: value.map(|value| Value::found(&value)),
    })
}

/// A lock, as `inspect` and `list` tell of it.
pub(super) fn lock_info(name: LockName, row: &Row) -> LockInfo {
    let waited: Vec<i64> =
        row.try_get::<_, Option<_>>("r_waited").ok().flatten().unwrap_or_default();
    let labels: Vec<String> =
        row.try_get::<_, Option<_>>("r_waiters").ok().flatten().unwrap_or_default();
    let waiters = labels.iter().zip(waited).filter_map(|(label, waited)| {
        let waiting_for = Some(Duration::from_millis(u64::try_from(waited).unwrap_or(0)));
        Some(WaiterInfo { label: Label::new(label).ok()?, waiting_for })
    });
    LockInfo {
        name,
        holder: holder(row),
        waiting: number(row, "r_waiting")
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0),
        waiters: waiters.collect(),
    }
}
