//! What people see of locks, and what operators do to them.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::api;
use super::calls::{Sight, range_of};
use super::faults::Fault;
use super::keys::broken_key;
use super::line::{PAGE, oldest_of, token_from};
use super::{BREATH, Desk, OUTAGE, PATIENCE};
use crate::backend::{Broken, Glimpse, LockInfo, WaiterInfo};
use crate::race::{First, race};

/// How many locks are asked about at once.
const BUNCH: usize = 64;
/// How many seconds a note stays of a grant that was broken, at least.
const NOTE: i64 = 60;
/// The longest lease that we make, in seconds.
const DAY: i64 = 24 * 60 * 60;
/// How long an observer trusts its watch.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How often a break looks whether its holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(20);

/// A lock as it was at one revision.
pub(super) struct Seen {
    pub(super) info: LockInfo,
    revision: i64,
}

impl Desk {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Seen, Fault> {
        let limit = self.now() + PATIENCE;
        let queue = self.prefix.queue(name);
        let mut range = api::RangeRequest { limit: PAGE, ..oldest_of(&queue) };
        let mut line = Vec::new();
        let revision = loop {
            let page = self.link.range(&range, limit).await?;
            let last = page.kvs.last().map(|kv| kv.create_revision);
            line.extend(page.kvs.into_iter().filter(|kv| queue.contends(kv)));
            // All pages show the same moment.
            range.revision = page.header.map_or(0, |header| header.revision).max(range.revision);
            match last {
                Some(last) if page.more => range.min_create_revision = last + 1,
                _ => break range.revision,
            }
        };
        // Who they are is read of those alone that are shown.
        let shown = line.iter().take(LockInfo::SHOWN_WAITERS + 1);
        let asked = shown.map(|kv| async move {
            let whole = api::RangeRequest { revision, ..range_of((kv.key.clone(), Vec::new())) };
            self.link.range(&whole, limit).await.map(|mut answer| answer.kvs.pop())
        });
        let mut shown = Vec::new();
        for kv in join_all(asked).await {
            shown.extend(kv?);
        }
        let mut shown = shown.into_iter();
        let holder = match shown.next() {
            Some(kv) => Some(self.holder_info(&kv, limit).await?),
            None => None,
        };
        let shown: Vec<_> = shown.collect();
        let mut waiters = Vec::new();
        for waiter in join_all(shown.iter().map(|kv| self.identify(kv, limit))).await {
            waiters.push(WaiterInfo { label: waiter?.label, waiting_for: None });
        }
        let waiting = line.len().saturating_sub(1);
        let info = LockInfo { name: name.clone(), holder, waiting, waiters };
        Ok(Seen { info, revision })
    }

    pub(super) async fn list(&self) -> Result<Vec<LockInfo>, Fault> {
        let limit = self.now() + OUTAGE;
        // The oldest key of each lock, and how many there are.
        let mut locks: BTreeMap<LockName, (api::KeyValue, usize)> = BTreeMap::new();
        let mut revision = 0;
        for (mut key, range_end) in self.prefix.all() {
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
        }
        let mut infos = Vec::with_capacity(locks.len());
        // In bunches: one after the other is slow, all at once would flood the member.
        for bunch in locks.into_iter().collect::<Vec<_>>().chunks(BUNCH) {
            let asked = bunch.iter().map(|(name, (oldest, count))| async move {
                let range = range_of((oldest.key.clone(), Vec::new()));
                let Some(kv) = self.link.range(&range, limit).await?.kvs.pop() else {
                    // It went meanwhile; what there is now is one lock's matter, unless no call can name it.
                    if !self.prefix.queue(name).contends(oldest) {
                        let (name, waiters) = (name.clone(), Vec::new());
                        return Ok(LockInfo { name, holder: None, waiting: 0, waiters });
                    }
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

    pub(super) async fn break_lock(
        &self,
        name: &LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> Result<Option<Broken>, Fault> {
        let limit = self.now() + PATIENCE;
        // Whom it is to hit is looked up first: asked again after a cut, it must not hit the next one.
        let Some(kv) = self.holder(name, limit).await? else { return Ok(None) };
        if token.is_some() && token != token_from(kv.create_revision).ok() {
            return Ok(None);
        }
        let identity = self.identify(&kv, limit).await?;
        // Until its holder has asked for a renewal, which may be a TTL away.
        let ttl = self.link.time_to_live(kv.lease, limit).await?.granted_ttl;
        let note = self.link.grant(0, ttl.clamp(NOTE, DAY), limit).await?.value.id;
        if !self.break_key(&kv, note, limit).await? {
            let _ = self.link.revoke(note, limit).await;
            return Ok(None);
        }
        // A third-party client looks for no note, and its lease may carry more than this lock.
        let confirmed = identity.ours && self.confirmed(&kv, note, limit, confirm_until).await;
        Ok(Some(Broken {
            label: identity.label,
            token: token_from(kv.create_revision).ok(),
            // Whoever waits has its token already: the next revision may be one of theirs.
            floor: token_from(kv.create_revision + 1)?,
            confirmed,
        }))
    }

    /// Revokes the lease of a broken grant, and waits until its holder has taken the note away.
    async fn confirmed(
        &self,
        broken: &api::KeyValue,
        note: i64,
        limit: Moment,
        confirm_until: Moment,
    ) -> bool {
        if let Err(Fault::NoLease { again: false }) = self.link.revoke(broken.lease, limit).await {
            // The holder was faster, so it knows, and needs no note.
            let _ = self.link.revoke(note, limit).await;
            return true;
        }
        let key = broken_key(broken.lease, broken.create_revision);
        let note = api::RangeRequest { keys_only: true, ..range_of((key, Vec::new())) };
        while self.now() < confirm_until {
            match self.link.range(&note, confirm_until).await {
                Ok(found) if found.kvs.is_empty() => return true,
                Ok(_) => self.clock().alarm(self.now() + CONFIRM_POLL).await,
                Err(_) => return false,
            }
        }
        false
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
