//! Reads of locks on several nodes.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_base::redis::error::is_wrong_type;
use fencepost_core::{LockName, Moment};

use super::Redlock;
use super::nodes::NodeReplies;
use crate::backend::{HolderInfo, LockInfo, Page, PageRequest, StoreError};
use crate::backends::redis::{
    Keys, Listed, LockSnapshot, OPERATIONS, by_shown_name, listed, lock_names,
};

/// A lock as a majority reports it.
pub(super) struct Look {
    pub(super) info: LockInfo,
    /// The lock's value at a majority.
    pub(super) value: Option<Vec<u8>>,
    /// Above every last token and every time that was seen.
    pub(super) floor: u64,
}

/// A majority's answers about a lock.
pub(super) async fn look(
    redlock: &Redlock,
    keys: Keys<'_>,
    name: &LockName,
    shown: usize,
    limit: Moment,
) -> Result<Look, StoreError> {
    let (seen, node_replies) = snapshots(redlock, keys, shown, limit).await;
    if seen.len() < redlock.nodes.quorum() {
        return Err(node_replies.error(&cannot_inspect(name)));
    }
    Ok(sum_up(redlock, name, seen))
}

async fn snapshots(
    redlock: &Redlock,
    keys: Keys<'_>,
    shown: usize,
    limit: Moment,
) -> (Vec<LockSnapshot>, NodeReplies) {
    let call = OPERATIONS.inspect.on(keys).arg(shown);
    let looks = redlock.nodes.connections().map(|connection| async {
        LockSnapshot::read(&connection.call(&call, limit).await?.value)
    });
    redlock.nodes.most(looks, "answered", limit).await
}

fn cannot_inspect(name: &LockName) -> String {
    format!("\"{name}\" cannot be inspected")
}

fn sum_up(redlock: &Redlock, name: &LockName, seen: Vec<LockSnapshot>) -> Look {
    let quorum = redlock.nodes.quorum();
    let tokens = seen.iter().filter_map(|look| Some(Listed::parse(look.state.as_deref()?)?.last));
    let floor = tokens.chain(seen.iter().map(|look| look.time)).max().unwrap_or(0) + 1;
    let mut values: BTreeMap<&[u8], usize> = BTreeMap::new();
    for value in seen.iter().filter_map(|look| look.value.as_deref()) {
        *values.entry(value).or_default() += 1;
    }
    let value = values.into_iter().find(|(_, count)| *count >= quorum);
    let value = value.map(|(value, _)| value.to_vec());
    let waiting = seen.iter().map(|look| look.waiting).max().unwrap_or(0);
    // Not every node has the holder's latest value, but one of any majority has.
    let candidate_value = seen.iter().filter(|look| value.is_some() && look.value == value);
    let candidate_value = candidate_value
        .filter_map(|look| look.candidate_value.clone())
        .max_by_key(|candidate_value| candidate_value.number);
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
    let value_said = candidate_value.map(|candidate_value| candidate_value.value);
    let holder = agreed(&holders, quorum);
    let holder = holder.map(|holder| holder.with_value(value_said));
    let info = LockInfo::free(name.clone()).with_holder(holder).with_waiters(waiting, waiters);
    Look { info, value, floor }
}

/// The locks that a majority has, or that have waiters.
pub(super) async fn list(
    redlock: &Redlock,
    page: &PageRequest,
    limit: Moment,
) -> Result<Page, StoreError> {
    let lists = redlock.nodes.connections();
    let lists = lists.map(|connection| lock_names(connection, &redlock.prefix, limit));
    let (lists, node_replies) = redlock.nodes.most(lists, "answered", limit).await;
    if lists.len() < redlock.nodes.quorum() {
        return Err(node_replies.error("the locks cannot be listed"));
    }
    let names: BTreeSet<String> = lists.into_iter().flatten().collect();
    let (names, next) = page.cut(by_shown_name(names), |(shown, _)| shown);
    let mut locks = Vec::new();
    for (name, found) in names {
        let keys = redlock.prefix.keys_unchecked(&found);
        let (seen, node_replies) = snapshots(redlock, keys, 0, limit).await;
        if seen.len() >= redlock.nodes.quorum() {
            locks.extend(listed(sum_up(redlock, &name, seen).info));
        } else if !node_replies.refused_since(is_wrong_type) {
            return Err(node_replies.error(&cannot_inspect(&name)));
        }
    }
    Ok(Page::new(locks, next))
}

/// The holder as a majority reports it: the token that enough of them have accepted, and the lease that enough of them
/// will keep.
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
