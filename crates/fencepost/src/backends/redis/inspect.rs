//! Reads of one lock, or of all locks with keys of ours on the server.

use std::collections::BTreeSet;

use fencepost_base::redis::error::{RECORDS_LOST, is_wrong_type, layout_error};
use fencepost_core::{LockName, Moment};
use futures_util::future::join_all;
use redis::from_redis_value;

use super::Redis;
use super::connection::Connection;
use super::layout::{Keys, Prefix};
use super::reply::{LockSnapshot, unexpected_reply};
use super::scripts::OPERATIONS;
use crate::backend::{LockInfo, Page, PageRequest, Reply, StoreError, StoreResult};

/// How many names are looked up at once: one after the other is slow, all at once would flood the server.
pub(super) const BATCH: usize = 64;

pub(super) async fn inspect(
    redis: &Redis,
    keys: Keys<'_>,
    name: LockName,
    shown: usize,
    limit: Moment,
) -> StoreResult<LockInfo> {
    let reply = redis.connection.call(&OPERATIONS.inspect.on(keys).arg(shown), limit).await?;
    reply.try_map(|reply| Ok(LockSnapshot::read(&reply)?.into_info(name)))
}

pub(super) async fn list(redis: &Redis, page: &PageRequest, limit: Moment) -> StoreResult<Page> {
    let sent = redis.clock.now();
    let names = lock_names(&redis.connection, &redis.prefix, limit).await?;
    let (names, next) = page.cut(by_shown_name(names), |(shown, _)| shown);
    let mut locks = Vec::new();
    for batch in names.chunks(BATCH) {
        let asked = batch.iter().map(|(shown, found)| {
            inspect(redis, redis.prefix.keys_unchecked(found), shown.clone(), 0, limit)
        });
        for info in join_all(asked).await {
            match info {
                Ok(info) => locks.extend(listed(info.value)),
                // A key with another type by now is not a lock.
                Err(error) if is_wrong_type(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Reply::new(Page::new(locks, next), sent))
}

/// A lock in a list, if it belongs there.
pub(in crate::backends) fn listed(info: LockInfo) -> Option<LockInfo> {
    Some(info).filter(|info| info.holder.is_some() || info.waiting > 0)
}

/// The names as they are displayed, in order, each with the one that was found on the server.
pub(in crate::backends) fn by_shown_name(found: BTreeSet<String>) -> Vec<(LockName, String)> {
    let shown = |found: &str| LockName::new(found).unwrap_or_else(|_| LockName::escaped(found));
    let mut names: Vec<_> = found.into_iter().map(|found| (shown(&found), found)).collect();
    names.sort_unstable();
    names
}

/// The names of all locks with keys of ours on the server, in order, as stored there.
pub(in crate::backends) async fn lock_names(
    connection: &Connection,
    prefix: &Prefix,
    limit: Moment,
) -> Result<BTreeSet<String>, StoreError> {
    refuse_layout_1(connection, &prefix.layout_1_locks(), LAYOUT_1_LOCKS, limit).await?;
    let mut names = BTreeSet::new();
    for pattern in prefix.patterns() {
        names.extend(scan(connection, &pattern, None, |key| prefix.name_in(key), limit).await?);
    }
    Ok(names)
}

/// The type of the keys of layout 1, and what would be lost with them.
const LAYOUT_1_LOCKS: (&str, &str) = ("string", "tokens must start above those in these keys");
pub(super) const LAYOUT_1_RECORDS: (&str, &str) = ("hash", RECORDS_LOST);

/// Refuses to list a server with keys of layout 1, which the list would leave out.
pub(super) async fn refuse_layout_1(
    connection: &Connection,
    pattern: &str,
    (kind, lost): (&'static str, &str),
    limit: Moment,
) -> Result<(), StoreError> {
    let found = scan(connection, pattern, Some(kind), |key| Some(key.to_owned()), limit).await?;
    if found.is_empty() { Ok(()) } else { Err(layout_error("1", lost, connection.shown())) }
}

/// The names in all keys that match a pattern and have this type, in order.
pub(super) async fn scan<T: Ord>(
    connection: &Connection,
    pattern: &str,
    kind: Option<&'static str>,
    name_of: impl Fn(&str) -> Option<T>,
    limit: Moment,
) -> Result<BTreeSet<T>, StoreError> {
    let mut names = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        if let Some(kind) = kind {
            scan.arg("TYPE").arg(kind);
        }
        let reply = connection.command(&scan, limit).await?;
        let (next, keys): (u64, Vec<Vec<u8>>) =
            from_redis_value(reply.value).map_err(|_| unexpected_reply("list"))?;
        let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
        names.extend(keys.filter_map(&name_of));
        cursor = next;
        if cursor == 0 {
            return Ok(names);
        }
    }
}
