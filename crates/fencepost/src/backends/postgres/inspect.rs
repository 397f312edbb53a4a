//! Reads. A store that does not exist, and that this client must not create, is shown as an empty one.

use fencepost_core::{LockName, Moment};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Postgres, reply, values};
use crate::backend::{LockInfo, Reply, StoreResult};
use crate::postgres::error::is_missing;
use crate::postgres::{Parameter, Use};

const INSPECT: &str = "SELECT * FROM fencepost.inspect($1, $2)";
const LIST: &str = "SELECT * FROM fencepost.list()";

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

pub(super) async fn list(store: &Postgres, limit: Moment) -> StoreResult<Vec<LockInfo>> {
    let sql = if values::are_seen(store) { values::LIST } else { LIST };
    let reply = store.pool.call(Use::Asking, sql, &[], limit).await;
    Ok(or_empty(store, reply)?.map(|rows| {
        let named = rows.iter().filter_map(|row| {
            let name = LockName::new(&reply::text(row, "r_name")?).ok()?;
            Some(reply::lock_info(name, row))
        });
        named.collect()
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
