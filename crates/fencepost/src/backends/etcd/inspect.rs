//! What `show`, `ls` and `watch` read.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{LockName, Moment};
use futures_util::future::{join, join_all};

use super::api;
use super::error::Refusal;
use super::layout::{Identity, label_key};
use super::queue::{PAGE, is_full, oldest_of};
use super::requests::range_of;
use super::{REWATCH_DELAY, Shared, token_from, ttl_from};
use crate::backend::{
    HolderInfo, LockInfo, LockVersion, Page, PageRequest, StoreError, StoreErrorKind, WaiterInfo,
};
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How many locks are looked up at once.
const BATCH: usize = 64;
/// How long an observer trusts its watch.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A lock at one revision.
struct LockSnapshot {
    info: LockInfo,
    revision: i64,
}

pub(super) async fn inspect(
    etcd: &Shared,
    name: LockName,
    limit: Moment,
) -> Result<LockInfo, StoreError> {
    etcd.prefix.check(&name)?;
    Ok(look(etcd, &name, limit).await?.info)
}

async fn look(etcd: &Shared, name: &LockName, limit: Moment) -> Result<LockSnapshot, StoreError> {
    let keys = etcd.prefix.keys(name);
    let mut range = api::RangeRequest { limit: PAGE, ..oldest_of(&keys) };
    let mut contenders = Vec::new();
    let revision = loop {
        let page = etcd.connection.range(&range, limit).await?;
        let last = page.kvs.last().map(|kv| kv.create_revision);
        contenders.extend(page.kvs.into_iter().filter(|kv| keys.contends(kv)));
        // All pages show the same moment.
        range.revision = page.header.map_or(0, |header| header.revision).max(range.revision);
        match last {
            Some(last) if page.more => range.min_create_revision = last + 1,
            _ => break range.revision,
        }
    };
    // Read the identities of only the waiters that are shown.
    let shown = contenders.iter().take(LockInfo::SHOWN_WAITERS + 1);
    let asked = shown.map(|kv| async move {
        let whole = api::RangeRequest { revision, ..range_of((kv.key.clone(), Vec::new())) };
        etcd.connection.range(&whole, limit).await.map(|mut answer| answer.kvs.pop())
    });
    let shown: Vec<_> = join_all(asked).await.into_iter().collect::<Result<_, _>>()?;
    let mut shown = shown.into_iter().flatten();
    let holder = match shown.next() {
        Some(kv) => Some(holder_info(etcd, &kv, limit).await?),
        None => None,
    };
    let shown: Vec<_> = shown.collect();
    let mut waiters = Vec::new();
    for waiter in join_all(shown.iter().map(|kv| identify(etcd, kv, limit))).await {
        waiters.push(WaiterInfo::new(waiter?.label));
    }
    let waiting = contenders.len().saturating_sub(1);
    let info = LockInfo::free(name.clone()).with_holder(holder).with_waiters(waiting, waiters);
    Ok(LockSnapshot { info, revision })
}

pub(super) async fn list(
    etcd: &Shared,
    request: PageRequest,
    limit: Moment,
) -> Result<Page, StoreError> {
    // The oldest key of each lock, and the number of its keys.
    let mut locks: BTreeMap<LockName, (api::KeyValue, usize)> = BTreeMap::new();
    let mut revision = 0;
    for (mut key, range_end) in etcd.prefix.all() {
        loop {
            let page = api::RangeRequest {
                keys_only: true,
                limit: PAGE,
                revision,
                ..range_of((key.clone(), range_end.clone()))
            };
            let page = etcd.connection.range(&page, limit).await?;
            // All pages show the same moment.
            revision = page.header.map_or(0, |header| header.revision).max(revision);
            let last = page.kvs.last().map(|kv| kv.key.clone());
            for kv in page.kvs {
                let Some(name) = etcd.prefix.lock_of(&kv) else { continue };
                let (oldest, count) = locks.entry(name).or_insert_with(|| (kv.clone(), 0));
                *count += 1;
                if kv.create_revision < oldest.create_revision {
                    *oldest = kv;
                }
            }
            match last {
                Some(last) if page.more => key = [&*last, &[0]].concat(),
                _ => break,
            }
        }
    }
    let (locks, next) = request.cut(locks, |(name, _)| name);
    let mut infos = Vec::with_capacity(locks.len());
    // In batches: one after the other is slow, all at once would flood the member.
    for batch in locks.chunks(BATCH) {
        let asked = batch.iter().map(|(name, (oldest, count))| async move {
            let range = range_of((oldest.key.clone(), Vec::new()));
            let Some(kv) = etcd.connection.range(&range, limit).await?.kvs.pop() else {
                // The key is gone by now: inspect the lock as it is, unless its name is invalid.
                if !etcd.prefix.keys(name).contends(oldest) {
                    return Ok(LockInfo::free(name.clone()));
                }
                return look(etcd, name, limit).await.map(|seen| seen.info);
            };
            let holder = Some(holder_info(etcd, &kv, limit).await?);
            let info = LockInfo::free(name.clone()).with_holder(holder);
            Ok(info.with_waiters(count - 1, Vec::new()))
        });
        for info in join_all(asked).await {
            let info = info?;
            if info.holder.is_some() || info.waiting > 0 {
                infos.push(LockInfo { waiters: Vec::new(), ..info });
            }
        }
    }
    Ok(Page::new(infos, next))
}

pub(super) async fn changed(
    etcd: &Shared,
    name: LockName,
    version: Option<LockVersion>,
) -> Result<LockInfo, StoreError> {
    etcd.prefix.check(&name)?;
    let mut watch = None;
    loop {
        let seen = look(etcd, &name, etcd.now() + CALL_TIMEOUT).await?;
        if version != Some(seen.info.version()) {
            return Ok(seen.info);
        }
        let (key, range_end) = etcd.prefix.keys(&name).range();
        let what = api::WatchCreateRequest { key, range_end, ..api::WatchCreateRequest::default() };
        let changed = etcd.connection.changed_since(&mut watch, what, seen.revision);
        let alarm = etcd.clock().alarm(etcd.now() + POLL_INTERVAL);
        if let First::Left(Err(error)) = race(changed, alarm).await {
            if !error.is_interrupted() {
                return Err(error);
            }
            etcd.clock().alarm(etcd.now() + REWATCH_DELAY).await;
        }
    }
}

/// The holder, if there is one.
pub(super) async fn holder(
    etcd: &Shared,
    name: &LockName,
    limit: Moment,
) -> Result<Option<api::KeyValue>, StoreError> {
    let keys = etcd.prefix.keys(name);
    let mut range = api::RangeRequest { limit: 1, ..oldest_of(&keys) };
    loop {
        let kvs = etcd.connection.range(&range, limit).await?.kvs;
        let first = kvs.iter().find(|kv| keys.contends(kv));
        if let Some(first) = first {
            let whole = range_of((first.key.clone(), Vec::new()));
            let whole = etcd.connection.range(&whole, limit).await?.kvs.pop();
            return Ok(whole.filter(|kv| kv.create_revision == first.create_revision));
        }
        match kvs.last() {
            Some(last) if is_full(&kvs, range.limit) => {
                range.min_create_revision = last.create_revision + 1;
                range.limit = PAGE;
            }
            _ => return Ok(None),
        }
    }
}

pub(super) async fn holder_info(
    etcd: &Shared,
    kv: &api::KeyValue,
    limit: Moment,
) -> Result<HolderInfo, StoreError> {
    let asked =
        join(etcd.connection.lease_time_to_live(kv.lease, limit), identify(etcd, kv, limit));
    let (lease, identity) = asked.await;
    let lease = lease?;
    let Identity { label, value, .. } = identity?;
    let remaining = u64::try_from(lease.ttl).ok().map(Duration::from_secs);
    let ttl = ttl_from(lease.granted_ttl).ok();
    let remaining = remaining.map(|left| ttl.map_or(left, |ttl| left.min(ttl.as_duration())));
    Ok(HolderInfo::new(label)
        .with_token(token_from(kv.create_revision).ok())
        .with_ttl(ttl)
        .with_remaining(remaining)
        .with_value(value))
}

/// Who created a key. The label beside it is read at the revision of the key's value: so a candidate of ours that
/// is gone since is not shown as a third-party client.
pub(super) async fn identify(
    etcd: &Shared,
    kv: &api::KeyValue,
    limit: Moment,
) -> Result<Identity, StoreError> {
    if let Some(identity) = Identity::of_lock(kv) {
        return Ok(identity);
    }
    let beside = range_of((label_key(kv.lease), Vec::new()));
    let then = api::RangeRequest { revision: kv.mod_revision, ..beside.clone() };
    let answer = match etcd.connection.range(&then, limit).await {
        // The value is so old that etcd has compacted that revision.
        Err(error) if Refusal::behind(&error) == Some(Refusal::Compacted) => {
            etcd.connection.range(&beside, limit).await
        }
        answer => answer,
    };
    let beside = match answer {
        Ok(answer) => answer.kvs.into_iter().next(),
        // A user who may not read the label sees a candidate of ours as a third-party client.
        Err(error) if error.kind() == StoreErrorKind::Refused => None,
        Err(error) => return Err(error),
    };
    Ok(Identity::of_candidate(kv, beside.as_ref()))
}

#[cfg(test)]
mod tests;
