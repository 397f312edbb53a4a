//! The holder and the waiters, of one lock or of all.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment};
use tokio::sync::oneshot;

use super::client::Session;
use super::error::{Code, code, if_exists, readable};
use super::layout::{Contender, RESERVED, holder, in_order, label, name_of, path_of};
use super::shared::Shared;
use crate::backend::{
    HolderInfo, LockInfo, LockVersion, Page, PageRequest, StoreError, StoreResult, WaiterInfo,
};
use crate::race::race;
use crate::retry::CALL_TIMEOUT;

/// How many directories are read at once.
const AT_ONCE: usize = 64;
/// How long an observer trusts a watch.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

impl Shared {
    /// One lock, with the node of its holder.
    pub(super) async fn look(
        &self,
        name: &LockName,
        limit: Moment,
    ) -> StoreResult<(LockInfo, Option<String>)> {
        let dir = &*path_of(&self.chroot, name);
        self.call(limit, |control| async move {
            let children = self.children_now(&control, dir).await?;
            let queue = in_order(&children);
            self.info(&control, name.clone(), dir, &queue, LockInfo::SHOWN_WAITERS).await
        })
        .await
    }

    async fn info(
        &self,
        control: &Session,
        name: LockName,
        dir: &str,
        queue: &[Contender],
        shown: usize,
    ) -> Result<(LockInfo, Option<String>), StoreError> {
        let path = |one: &Contender| format!("{dir}/{}", one.node);
        // Of the nodes that are not read, those without a known client's name may not be contenders.
        let unnamed = queue.iter().skip(shown + 1).filter(|one| !one.has_a_known_name());
        let unnamed: Vec<_> = unnamed.map(|one| control.exists(&path(one))).collect();
        let reads: Vec<_> =
            queue.iter().take(shown + 1).map(|one| control.data(&path(one))).collect();
        let mut found = Vec::new();
        let mut left = queue.len();
        for (one, answer) in queue.iter().zip(reads) {
            let (data, stat) = match answer.await {
                Ok((data, stat)) => (Some((data, stat)), Some(stat)),
                Err(error) => match code(&error) {
                    Some(Code::NoNode) => (None, None),
                    Some(Code::NoAuth) => (None, control.exists(&path(one)).await?),
                    _ => return Err(error),
                },
            };
            match stat {
                Some(stat) if stat.ends() => found.push((one, data)),
                // Gone since the list was read; or it is persistent, and so no contender, whatever its name.
                _ => left -= 1,
            }
        }
        for answer in unnamed {
            left -= usize::from(answer.await?.is_none_or(|stat| !stat.ends()));
        }
        let held_by = found.first().map(|(one, _)| path(one));
        // None of those that were read is one: there may be one after them.
        if found.is_empty() && queue.len() > shown + 1 {
            let rest = Box::pin(self.info(control, name, dir, &queue[shown + 1..], shown));
            return rest.await;
        }
        let mut found = found.into_iter();
        let first = found.next().map(|(node, data)| match data {
            Some((data, stat)) => holder(node, &data, &stat),
            None => HolderInfo::third_party(),
        });
        let waiters = found.map(|(node, data)| {
            let label = match data {
                Some((data, _)) => label(node, &data),
                None => HolderInfo::third_party().label,
            };
            WaiterInfo { label, waiting_for: None }
        });
        let waiters = waiters.collect();
        let waiting = left.saturating_sub(usize::from(first.is_some()));
        Ok((LockInfo { name, holder: first, waiting, waiters }, held_by))
    }

    /// The locks below the chroot: every directory has to be read.
    pub(super) async fn list(&self, page: &PageRequest, limit: Moment) -> StoreResult<Page> {
        let reply = self.call(limit, |control| self.walk(control)).await?;
        Ok(reply.map(|locks| {
            let (locks, next) = page.cut(locks, |info| &info.name);
            Page::new(locks, next)
        }))
    }

    async fn walk(&self, control: Arc<Session>) -> Result<Vec<LockInfo>, StoreError> {
        let root = if self.chroot.is_empty() { "/" } else { &self.chroot };
        control.sync(root).await?;
        let (mut locks, mut level) = (Vec::new(), vec![self.chroot.clone()]);
        while !level.is_empty() {
            let mut below = Vec::new();
            for batch in level.chunks(AT_ONCE) {
                self.list_batch(&control, batch, &mut locks, &mut below).await?;
            }
            level = below;
        }
        locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(locks)
    }

    async fn list_batch(
        &self,
        control: &Session,
        batch: &[String],
        locks: &mut Vec<LockInfo>,
        below: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let path = |dir: &String| if dir.is_empty() { "/".to_owned() } else { dir.clone() };
        let reads: Vec<_> = batch.iter().map(|dir| control.children(&path(dir))).collect();
        let mut found = Vec::new();
        for (dir, answer) in batch.iter().zip(reads) {
            // Gone since, or not readable for us.
            let Some(children) = readable(answer.await)? else { continue };
            let queue = in_order(&children);
            let top = *dir == self.chroot;
            let system = |child: &str| {
                top && (child == RESERVED || self.chroot.is_empty() && child == "zookeeper")
            };
            let others = children.iter().filter(|child| Contender::read(child).is_none());
            below.extend(others.filter(|it| !system(it)).map(|child| format!("{dir}/{child}")));
            // Other clients may use directories that are not valid names: these are shown escaped.
            let shown =
                || Some(LockName::escaped(dir.strip_prefix(&self.chroot)?.strip_prefix('/')?));
            if let Some(name) =
                name_of(&self.chroot, dir).or_else(shown).filter(|_| !queue.is_empty())
            {
                found.push((name, dir, queue));
            }
        }
        let reads =
            found.iter().map(|(name, dir, queue)| self.info(control, name.clone(), dir, queue, 0));
        for info in futures_util::future::join_all(reads).await {
            let (info, _) = info?;
            if info.holder.is_some() || info.waiting > 0 {
                locks.push(info);
            }
        }
        Ok(())
    }

    /// Resolves once the lock has changed.
    pub(super) async fn changed(
        &self,
        name: LockName,
        seen: Option<LockVersion>,
    ) -> StoreResult<LockInfo> {
        let dir = &*path_of(&self.chroot, &name);
        loop {
            // Before the read, so that nothing is missed in between.
            let limit = self.now() + CALL_TIMEOUT;
            let event = self.call(limit, |control| async move { watch(&control, dir).await });
            let mut event = event.await?.value;
            let reply = self.look(&name, self.now() + CALL_TIMEOUT).await?;
            if seen != Some(reply.value.0.version()) {
                return Ok(reply.map(|(info, _)| info));
            }
            let (info, held_by) = reply.value;
            let moved = race(&mut event, self.context.clock.alarm(self.now() + POLL_INTERVAL));
            let value = info.holder.and_then(|holder| holder.value);
            match value.zip(held_by) {
                Some((value, node)) => {
                    race(moved, self.value_changed(&node, value.as_bytes())).await;
                }
                // A plain lock has no value.
                None => {
                    moved.await;
                }
            }
        }
    }

    /// Resolves once the node's value has changed, or the watch is lost. Each heartbeat sets the node's data; only the
    /// value is read again then.
    async fn value_changed(&self, node: &str, value: &[u8]) {
        loop {
            match self.control().data_watched(node).await {
                Ok((data, set)) if data == value => drop(set.await),
                // We may not read it, so we do not follow it.
                Err(error) if code(&error) == Some(Code::NoAuth) => {
                    return std::future::pending().await;
                }
                Ok(_) => return,
                Err(error) if code(&error) == Some(Code::NoNode) => return,
                Err(_) => return self.pause().await,
            }
        }
    }
}

/// Resolves when contenders come or go, or the directory does.
async fn watch(control: &Session, dir: &str) -> Result<oneshot::Receiver<()>, StoreError> {
    loop {
        if let Some((_, _, event)) = if_exists(control.children_watched(dir).await)? {
            return Ok(event);
        }
        // If the directory was created since, this watch would not see its contenders.
        if let (None, event) = control.exists_watched(dir).await? {
            return Ok(event);
        }
    }
}
