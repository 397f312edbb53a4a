//! Looking at locks that lie on several nodes.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{LockName, Moment};

use super::Redlock;
use crate::backend::{HolderInfo, LockInfo, StoreError};
use crate::backends::redis::{Keys, Listed, STEPS, Seen, listed, lock_names, shown_name};

/// A lock as a majority shows it.
pub(super) struct Look {
    pub(super) info: LockInfo,
    /// What a majority has as the lock's value.
    pub(super) value: Option<Vec<u8>>,
    /// Above every mark and every time that was seen.
    pub(super) floor: u64,
}

/// What a majority says of a lock.
pub(super) async fn look(
    redlock: &Redlock,
    keys: Keys<'_>,
    name: &LockName,
    shown: usize,
    limit: Moment,
) -> Result<Look, StoreError> {
    let call = STEPS.inspect.on(keys).arg(shown);
    let looks = redlock
        .nodes
        .connections()
        .map(|connection| async { Seen::read(&connection.call(&call, limit).await?.value) });
    let (seen, words) = redlock.nodes.most(looks, "answered", limit).await;
    if seen.len() < redlock.nodes.quorum() {
        return Err(words.error(&format!("\"{name}\" can not be looked at")));
    }
    Ok(sum_up(redlock, name, seen))
}

fn sum_up(redlock: &Redlock, name: &LockName, seen: Vec<Seen>) -> Look {
    let quorum = redlock.nodes.quorum();
    let marks = seen.iter().filter_map(|look| Some(Listed::parse(look.record.as_deref()?)?.last));
    let floor = marks.chain(seen.iter().map(|look| look.time)).max().unwrap_or(0) + 1;
    let mut values: BTreeMap<&[u8], usize> = BTreeMap::new();
    for value in seen.iter().filter_map(|look| look.value.as_deref()) {
        *values.entry(value).or_default() += 1;
    }
    let value = values.into_iter().find(|(_, count)| *count >= quorum);
    let value = value.map(|(value, _)| value.to_vec());
    let waiting = seen.iter().map(|look| look.waiting).max().unwrap_or(0);
    // Not every node has heard the holder's last word, but one of any majority has.
    let said = seen.iter().filter(|look| value.is_some() && look.value == value);
    let said = said.filter_map(|look| look.said.clone()).max_by_key(|said| said.number);
    let mut holders: Vec<HolderInfo> = Vec::new();
    let mut waiters = Vec::new();
    for look in seen {
        let held = value.is_some() && look.value == value;
        let info = look.into_info(name.clone());
        holders.extend(info.holder.filter(|_| held));
        if info.waiters.len() > waiters.len() {
            waiters = info.waiters;
        }
    }
    let value_said = said.map(|said| said.value);
    let holder = agreed(&holders, quorum);
    let holder = holder.map(|holder| HolderInfo { value: value_said, ..holder });
    let info = LockInfo { name: name.clone(), holder, waiting, waiters };
    Look { info, value, floor }
}

/// Every lock that a majority has, or that is waited for.
pub(super) async fn list(redlock: &Redlock, limit: Moment) -> Result<Vec<LockInfo>, StoreError> {
    let lists = redlock.nodes.connections();
    let lists = lists.map(|connection| lock_names(connection, &redlock.prefix, limit));
    let (lists, words) = redlock.nodes.most(lists, "answered", limit).await;
    if lists.len() < redlock.nodes.quorum() {
        return Err(words.error("the locks can not be listed"));
    }
    let names: BTreeSet<String> = lists.into_iter().flatten().collect();
    let mut locks = Vec::new();
    for name in names {
        let keys = redlock.prefix.found(&name);
        let look = look(redlock, keys, &shown_name(&name), 0, limit).await;
        locks.extend(listed(look.map(|look| look.info))?);
    }
    Ok(locks)
}

/// The holder as a majority describes it: the token that enough of them have accepted, and the lease that
/// enough of them will keep.
fn agreed(holders: &[HolderInfo], quorum: usize) -> Option<HolderInfo> {
    let count = |token| holders.iter().filter(|holder| holder.token == token).count();
    let mut holder = holders.iter().max_by_key(|holder| count(holder.token))?.clone();
    if count(holder.token) < quorum {
        holder.token = None;
    }
    let mut left: Vec<_> = holders.iter().map(|holder| holder.remaining).collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    holder.remaining = left.get(quorum - 1).copied().flatten();
    Some(holder)
}
