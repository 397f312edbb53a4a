//! What people see of locks, and what operators do to them.

use std::collections::BTreeMap;

use fencepost_core::LockName;
use futures_util::future::join_all;

use super::api::{self, range_request::SortOrder, range_request::SortTarget};
use super::calls::{Sight, range_of};
use super::faults::Fault;
use super::keys::{is_ours, label_of};
use super::line::token_from;
use super::{BREATH, Desk, OUTAGE, PATIENCE};
use crate::backend::{Broken, Glimpse, LockInfo, WaiterInfo};
use crate::race::{First, race};

/// How many keys are read at once.
const PAGE: i64 = 1000;
/// How many locks are asked about at once.
const BUNCH: usize = 64;
/// How many seconds a note stays of a grant that was broken.
const NOTE: i64 = 60;
/// How long an observer trusts its watch.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// A lock as it was at one revision.
pub(super) struct Seen {
    pub(super) info: LockInfo,
    revision: i64,
}

impl Desk {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Seen, Fault> {
        let limit = self.now() + PATIENCE;
        let queue = self.prefix.queue(name);
        let range = api::RangeRequest {
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..range_of(queue.range())
        };
        let answer = self.link.range(&range, limit).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut line = answer.kvs.into_iter().filter(|kv| queue.contends(kv));
        let holder = match line.next() {
            Some(kv) => Some(self.holder_info(&kv, limit).await?),
            None => None,
        };
        let waiting: Vec<_> = line.collect();
        let waiters = waiting
            .iter()
            .take(LockInfo::SHOWN_WAITERS)
            .map(|kv| WaiterInfo { label: label_of(kv), waiting_for: None });
        let waiters = waiters.collect();
        let info = LockInfo { name: name.clone(), holder, waiting: waiting.len(), waiters };
        Ok(Seen { info, revision })
    }

    pub(super) async fn list(&self) -> Result<Vec<LockInfo>, Fault> {
        let limit = self.now() + OUTAGE;
        let (mut key, range_end) = self.prefix.all();
        // The oldest key of each lock, and how many there are.
        let mut locks: BTreeMap<LockName, (api::KeyValue, usize)> = BTreeMap::new();
        let mut revision = 0;
        loop {
            let page = api::RangeRequest {
                keys_only: true,
                limit: PAGE,
                revision,
                ..range_of((key.clone(), range_end.clone()))
            };
            let page = self.link.range(&page, limit).await?;
            // All pages show the same moment.
            revision = page.header.map_or(0, |header| header.revision).max(revision);
            let last = page.kvs.last().map(|kv| kv.key.clone());
            for kv in page.kvs {
                let Some(name) = self.prefix.lock_of(&kv) else { continue };
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
        let mut infos = Vec::with_capacity(locks.len());
        // In bunches: one after the other is slow, all at once would flood the member.
        for bunch in locks.into_iter().collect::<Vec<_>>().chunks(BUNCH) {
            let asked = bunch.iter().map(|(name, (oldest, count))| async move {
                let range = range_of((oldest.key.clone(), Vec::new()));
                let Some(kv) = self.link.range(&range, limit).await?.kvs.pop() else {
                    // It went meanwhile; what there is now is one lock's matter.
                    return self.inspect(name).await.map(|seen| seen.info);
                };
                let holder = Some(self.holder_info(&kv, limit).await?);
                let (waiting, waiters) = (count - 1, Vec::new());
                Ok(LockInfo { name: name.clone(), holder, waiting, waiters })
            });
            for info in join_all(asked).await {
                let info = info?;
                if info.holder.is_some() || info.waiting > 0 {
                    infos.push(LockInfo { waiters: Vec::new(), ..info });
                }
            }
        }
        Ok(infos)
    }

    pub(super) async fn break_lock(&self, name: &LockName) -> Result<Option<Broken>, Fault> {
        let limit = self.now() + PATIENCE;
        // Whom it is to hit is looked up first: asked again after a cut, it must not hit the next one.
        let Some(kv) = self.holder(name, limit).await? else { return Ok(None) };
        let note = self.link.grant(0, NOTE, limit).await?.value.id;
        if !self.break_key(&kv, note, limit).await? {
            let _ = self.link.revoke(note, limit).await;
            return Ok(None);
        }
        if is_ours(&kv) {
            // Its lease is of this one grant. Another make's may carry more than this lock.
            let _ = self.link.revoke(kv.lease, limit).await;
        }
        Ok(Some(Broken {
            label: label_of(&kv),
            token: token_from(kv.create_revision).ok(),
            // Whoever waits has its token already: the next revision may be one of theirs.
            floor: token_from(kv.create_revision + 1)?,
        }))
    }

    pub(super) async fn changed(
        &self,
        name: &LockName,
        glimpse: Option<Glimpse>,
    ) -> Result<LockInfo, Fault> {
        let mut sight = None;
        loop {
            let seen = self.inspect(name).await?;
            if glimpse != Some(seen.info.glimpse()) {
                return Ok(seen.info);
            }
            let (key, range_end) = self.prefix.queue(name).range();
            let what =
                api::WatchCreateRequest { key, range_end, ..api::WatchCreateRequest::default() };
            let watched = async {
                let open = match sight.take().filter(Sight::is_good) {
                    Some(open) => open,
                    None => self.link.watch(what).await?,
                };
                let missed = open.since > seen.revision;
                let open = sight.insert(open);
                open.since = 0;
                if missed { Ok(()) } else { open.changed().await }
            };
            let alarm = self.clock().alarm(self.now() + LOOK_AGAIN);
            if let First::Left(Err(fault)) = race(watched, alarm).await {
                sight = None;
                match fault {
                    Fault::Elsewhere(_) => self.clock().alarm(self.now() + BREATH).await,
                    fault => return Err(fault),
                }
            }
        }
    }
}
