//! The replies of the functions as types.

use std::time::Duration;

use fencepost_core::{Label, LockName, Token, Ttl, Value};
use tokio_postgres::Row;

use crate::backend::{HolderInfo, LockInfo, WaiterInfo};
use crate::store_error::StoreError;

pub(super) fn unexpected_reply(verb: &str) -> StoreError {
    StoreError::refused(format!(
        "unexpected reply to {verb}: check that fencepost created the schema \"fencepost\""
    ))
}

/// The first columns of a reply.
pub(super) fn status(row: &Row, verb: &str) -> Result<i32, StoreError> {
    row.try_get("status").map_err(|_| unexpected_reply(verb))
}

/// A number that may be missing; zero if it is negative, as for a span when the clock was set back.
pub(super) fn number(row: &Row, column: &str) -> Option<u64> {
    let number: Option<i64> = row.try_get(column).ok()?;
    number.map(|number| u64::try_from(number).unwrap_or(0))
}

pub(super) fn text(row: &Row, column: &str) -> Option<String> {
    row.try_get(column).ok()?
}

pub(super) fn token(row: &Row, column: &str, verb: &str) -> Result<Token, StoreError> {
    number(row, column)
        .and_then(|token| Token::new(token).ok())
        .ok_or_else(|| unexpected_reply(verb))
}

pub(super) fn ttl(row: &Row, column: &str, verb: &str) -> Result<Ttl, StoreError> {
    let ttl = number(row, column).map(Duration::from_millis);
    ttl.and_then(|ttl| Ttl::new(ttl).ok()).ok_or_else(|| unexpected_reply(verb))
}

/// The holder of a lock, as far as a row shows.
pub(super) fn holder(row: &Row) -> Option<HolderInfo> {
    let millis = |column| number(row, column).map(Duration::from_millis);
    let value: Option<Vec<u8>> = row.try_get("r_value").ok().flatten();
    Some(
        HolderInfo::new(Label::new(&text(row, "r_label")?).ok()?)
            .with_token(number(row, "r_token").and_then(|token| Token::new(token).ok()))
            .with_ttl(millis("r_ttl").and_then(|ttl| Ttl::new(ttl).ok()))
            .with_held_for(millis("r_held"))
            .with_remaining(millis("r_left"))
            .with_value(value.map(|value| Value::from_store(&value))),
    )
}

/// A lock, as `inspect` and `list` return it.
pub(super) fn lock_info(name: LockName, row: &Row) -> LockInfo {
    let waited: Vec<i64> =
        row.try_get::<_, Option<_>>("r_waited").ok().flatten().unwrap_or_default();
    let labels: Vec<String> =
        row.try_get::<_, Option<_>>("r_waiters").ok().flatten().unwrap_or_default();
    let waiters = labels.iter().zip(waited).filter_map(|(label, waited)| {
        let waiting_for = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
        Some(WaiterInfo::new(Label::new(label).ok()?).with_waiting_for(waiting_for))
    });
    let waiting =
        number(row, "r_waiting").and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    LockInfo::free(name).with_holder(holder(row)).with_waiters(waiting, waiters.collect())
}
