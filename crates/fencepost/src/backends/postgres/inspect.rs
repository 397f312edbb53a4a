//! Reads. A store that does not exist, and that this client must not create, is shown as an empty one.

use fencepost_core::{LockName, Moment};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Postgres, reply, values};
use crate::backend::{LockInfo, Page, PageRequest, Reply, StoreResult};
use crate::postgres::error::is_missing;
use crate::postgres::{Parameter, Use};

const INSPECT: &str = "SELECT * FROM fencepost.inspect($1, $2)";
const LIST: &str = "SELECT * FROM fencepost.list($1, $2, $3)";

pub(super) async fn inspect(
    store: &Postgres,
    name: LockName,
    limit: Moment,
) -> StoreResult<LockInfo> {
    let shown = i32::try_from(LockInfo::SHOWN_WAITERS).unwrap_or(i32::MAX);
    let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&shown, Type::INT4)];
    let sql = if values::are_seen(store) { values::INSPECT } else { INSPECT };
    let reply = store.pool.call(Use::Asking, sql, &parameters, limit).await;
    or_empty(store, reply)?.try_map(|rows| match rows.first() {
        Some(row) => Ok(reply::lock_info(name, row)),
        None if store.create => Err(reply::unexpected_reply("inspect")),
        None => Ok(LockInfo::free(name)),
    })
}

pub(super) async fn list(store: &Postgres, page: &PageRequest, limit: Moment) -> StoreResult<Page> {
    let sql = if values::are_seen(store) { values::LIST } else { LIST };
    let after = page.after.as_ref().map_or("", LockName::as_str);
    let limit_of_page = page.limit.max(1);
    // One more than fit: then there is another page.
    let most = i64::try_from(limit_of_page).unwrap_or(i64::MAX).saturating_add(1);
    let parameters: [Parameter<'_>; 3] =
        [(&page.prefix, Type::TEXT), (&after, Type::TEXT), (&most, Type::INT8)];
    let reply = store.pool.call(Use::Asking, sql, &parameters, limit).await;
    Ok(or_empty(store, reply)?.map(|rows| {
        // In the order of the server's encoding, which decides what is on a page.
        let named = rows.iter().take(limit_of_page).filter_map(|row| {
            let name = LockName::new(&reply::text(row, "r_name")?).ok()?;
            Some(reply::lock_info(name, row))
        });
        let locks: Vec<_> = named.collect();
        let last = locks.last().filter(|_| rows.len() > limit_of_page);
        let next = last.map(|last| last.name.clone());
        Page::new(locks, next)
    }))
}

/// No rows if the store does not exist and must not be created.
pub(super) fn or_empty(store: &Postgres, reply: StoreResult<Vec<Row>>) -> StoreResult<Vec<Row>> {
    match reply {
        Err(error) if !store.create && is_missing(&error) => {
            Ok(Reply::new(Vec::new(), store.clock.now()))
        }
        reply => reply,
    }
}
