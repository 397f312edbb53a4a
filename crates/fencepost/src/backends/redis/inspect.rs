//! Looking at locks: one, or all that a server has anything of ours of.

use std::collections::BTreeSet;

use fencepost_core::{LockName, Moment};
use futures_util::future::join_all;
use redis::from_redis_value;

use super::Redis;
use super::connection::Connection;
use super::layout::{Keys, Prefix};
use super::reply::{Seen, odd};
use super::scripts::STEPS;
use crate::backend::{LockInfo, Reply, StoreError, StoreResult};

/// How many names are asked about at once: one after the other is slow, all at once would flood the server.
pub(super) const BATCH: usize = 64;

pub(super) async fn inspect(
    redis: &Redis,
    keys: Keys<'_>,
    name: LockName,
    shown: usize,
    limit: Moment,
) -> StoreResult<LockInfo> {
    let reply = redis.connection.call(&STEPS.inspect.on(keys).arg(shown), limit).await?;
    reply.try_map(|reply| Ok(Seen::read(&reply)?.into_info(name)))
}

pub(super) async fn list(redis: &Redis, limit: Moment) -> StoreResult<Vec<LockInfo>> {
    let sent = redis.clock.now();
    let names = lock_names(&redis.connection, &redis.prefix, limit).await?;
    let mut locks = Vec::new();
    for batch in names.into_iter().collect::<Vec<_>>().chunks(BATCH) {
        let asked = batch
            .iter()
            .map(|name| inspect(redis, redis.prefix.found(name), shown_name(name), 0, limit));
        for info in join_all(asked).await {
            locks.extend(listed(info.map(|reply| reply.value))?);
        }
    }
    Ok(Reply::new(locks, sent))
}

/// A lock as it stands in a list, if it does.
pub(in crate::backends) fn listed(
    info: Result<LockInfo, StoreError>,
) -> Result<Option<LockInfo>, StoreError> {
    match info {
        Ok(info) => Ok(Some(info).filter(|info| info.holder.is_some() || info.waiting > 0)),
        Err(error) if error.is_transient() => Err(error),
        // A name that holds something else by now is no lock.
        Err(_) => Ok(None),
    }
}

/// A lock's name as it was found on the server, to be shown.
pub(in crate::backends) fn shown_name(found: &str) -> LockName {
    LockName::new(found).unwrap_or_else(|_| LockName::escaped(found))
}

/// The names of all locks that a server has anything of ours of, in order, as they are on the server.
pub(in crate::backends) async fn lock_names(
    connection: &Connection,
    prefix: &Prefix,
    limit: Moment,
) -> Result<BTreeSet<String>, StoreError> {
    let mut names = BTreeSet::new();
    for pattern in prefix.patterns() {
        names.extend(scan(connection, &pattern, |key| prefix.name_in(key), limit).await?);
    }
    Ok(names)
}

/// The names of all keys that fit a pattern and are of something, in order.
pub(super) async fn scan<T: Ord>(
    connection: &Connection,
    pattern: &str,
    name_of: impl Fn(&str) -> Option<T>,
    limit: Moment,
) -> Result<BTreeSet<T>, StoreError> {
    let mut names = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        let reply = connection.command(&scan, limit).await?;
        let (next, keys): (u64, Vec<Vec<u8>>) =
            from_redis_value(reply.value).map_err(|_| odd("list"))?;
        let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
        names.extend(keys.filter_map(&name_of));
        cursor = next;
        if cursor == 0 {
            return Ok(names);
        }
    }
}
