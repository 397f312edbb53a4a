//! Who holds and who waits, for one lock and for all.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment};
use tokio::sync::oneshot;

use super::client::Session;
use super::error::{Code, code, found, readable};
use super::layout::{Contender, RESERVED, holder, in_order, label, name_of, path_of};
use super::shared::Shared;
use crate::backend::{Glimpse, HolderInfo, LockInfo, StoreError, StoreResult, WaiterInfo};
use crate::race::race;
use crate::retry::CALL_TIMEOUT;

/// How many directories are asked for at once.
const AT_ONCE: usize = 64;
/// How long an observer trusts a watch.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Shared {
    /// One lock, with the node of who holds it.
    pub(super) async fn look(
        &self,
        name: &LockName,
        limit: Moment,
    ) -> StoreResult<(LockInfo, Option<String>)> {
        let dir = &*path_of(&self.chroot, name);
        self.call(limit, |control| async move {
            let children = self.children_now(&control, dir).await?;
            let line = in_order(&children);
            self.info(&control, name.clone(), dir, &line, LockInfo::SHOWN_WAITERS).await
        })
        .await
    }

    async fn info(
        &self,
        control: &Session,
        name: LockName,
        dir: &str,
        line: &[Contender],
        shown: usize,
    ) -> Result<(LockInfo, Option<String>), StoreError> {
        let path = |one: &Contender| format!("{dir}/{}", one.node);
        // Of those that are not read, the ones that no make calls so may be none.
        let odd = line.iter().skip(shown + 1).filter(|one| !one.is_of_a_make());
        let odd: Vec<_> = odd.map(|one| control.exists(&path(one))).collect();
        let asked: Vec<_> =
            line.iter().take(shown + 1).map(|one| control.data(&path(one))).collect();
        let mut found = Vec::new();
        let mut left = line.len();
        for (one, answer) in line.iter().zip(asked) {
            let (said, stat) = match answer.await {
                Ok((data, stat)) => (Some((data, stat)), Some(stat)),
                Err(error) => match code(&error) {
                    Some(Code::NoNode) => (None, None),
                    Some(Code::NoAuth) => (None, control.exists(&path(one)).await?),
                    _ => return Err(error),
                },
            };
            match stat {
                Some(stat) if stat.ends() => found.push((one, said)),
                // Gone since the list was made; or it stays, so it is no contender, whatever it is called.
                _ => left -= 1,
            }
        }
        for answer in odd {
            left -= usize::from(answer.await?.is_none_or(|stat| !stat.ends()));
        }
        let held_by = found.first().map(|(one, _)| path(one));
        // None of those that were read: there may be one behind them.
        if found.is_empty() && line.len() > shown + 1 {
            let rest = Box::pin(self.info(control, name, dir, &line[shown + 1..], shown));
            return rest.await;
        }
        let mut found = found.into_iter();
        let first = found.next().map(|(node, said)| match said {
            Some((data, stat)) => holder(node, &data, &stat),
            None => HolderInfo::stranger(),
        });
        let waiters = found.map(|(node, said)| {
            let label = match said {
                Some((data, _)) => label(node, &data),
                None => HolderInfo::stranger().label,
            };
            WaiterInfo { label, waiting_for: None }
        });
        let waiters = waiters.collect();
        let waiting = left.saturating_sub(usize::from(first.is_some()));
        Ok((LockInfo { name, holder: first, waiting, waiters }, held_by))
    }

    /// All locks below the chroot: every directory has to be looked at.
    pub(super) async fn list(&self, limit: Moment) -> StoreResult<Vec<LockInfo>> {
        self.call(limit, |control| self.walk(control)).await
    }

    async fn walk(&self, control: Arc<Session>) -> Result<Vec<LockInfo>, StoreError> {
        let root = if self.chroot.is_empty() { "/" } else { &self.chroot };
        control.sync(root).await?;
        let (mut locks, mut level) = (Vec::new(), vec![self.chroot.clone()]);
        while !level.is_empty() {
            let mut below = Vec::new();
            for bunch in level.chunks(AT_ONCE) {
                self.list_bunch(&control, bunch, &mut locks, &mut below).await?;
            }
            level = below;
        }
        locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(locks)
    }

    async fn list_bunch(
        &self,
        control: &Session,
        bunch: &[String],
        locks: &mut Vec<LockInfo>,
        below: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let path = |dir: &String| if dir.is_empty() { "/".to_owned() } else { dir.clone() };
        let asked: Vec<_> = bunch.iter().map(|dir| control.children(&path(dir))).collect();
        let mut found = Vec::new();
        for (dir, answer) in bunch.iter().zip(asked) {
            // Gone since, or none of our business.
            let Some(children) = readable(answer.await)? else { continue };
            let line = in_order(&children);
            let top = *dir == self.chroot;
            let system = |child: &str| {
                top && (child == RESERVED || self.chroot.is_empty() && child == "zookeeper")
            };
            let others = children.iter().filter(|child| Contender::read(child).is_none());
            below.extend(others.filter(|it| !system(it)).map(|child| format!("{dir}/{child}")));
            // Other clients take directories that no name of ours has: these are shown escaped.
            let shown =
                || Some(LockName::escaped(dir.strip_prefix(&self.chroot)?.strip_prefix('/')?));
            if let Some(name) =
                name_of(&self.chroot, dir).or_else(shown).filter(|_| !line.is_empty())
            {
                found.push((name, dir, line));
            }
        }
        let asked =
            found.iter().map(|(name, dir, line)| self.info(control, name.clone(), dir, line, 0));
        for info in futures_util::future::join_all(asked).await {
            let (info, _) = info?;
            if info.holder.is_some() || info.waiting > 0 {
                locks.push(info);
            }
        }
        Ok(())
    }

    /// Resolves once the lock looks different.
    pub(super) async fn changed(
        &self,
        name: LockName,
        seen: Option<Glimpse>,
    ) -> StoreResult<LockInfo> {
        let dir = &*path_of(&self.chroot, &name);
        loop {
            // Before the look, so that nothing is missed in between.
            let limit = self.now() + CALL_TIMEOUT;
            let told = self.call(limit, |control| async move { watch(&control, dir).await });
            let mut told = told.await?.value;
            let reply = self.look(&name, self.now() + CALL_TIMEOUT).await?;
            if seen != Some(reply.value.0.glimpse()) {
                return Ok(reply.map(|(info, _)| info));
            }
            let (info, held_by) = reply.value;
            let moved = race(&mut told, self.around.clock.alarm(self.now() + LOOK_AGAIN));
            let value = info.holder.and_then(|holder| holder.value);
            match value.zip(held_by) {
                Some((value, node)) => {
                    race(moved, self.says_otherwise(&node, value.as_bytes())).await;
                }
                // A lock has nothing to say.
                None => {
                    moved.await;
                }
            }
        }
    }

    /// Resolves once the node says something else, or nothing is known of it. Each heartbeat sets its data:
    /// what it says is read again then, and no more.
    async fn says_otherwise(&self, node: &str, value: &[u8]) {
        loop {
            match self.control().data_watched(node).await {
                Ok((data, set)) if data == value => drop(set.await),
                // Not for us to read: then it is not for us to follow.
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

/// Tells when contenders come or go, or the directory does.
async fn watch(control: &Session, dir: &str) -> Result<oneshot::Receiver<()>, StoreError> {
    match found(control.children_watched(dir).await)? {
        Some((_, _, told)) => Ok(told),
        None => Ok(control.exists_watched(dir).await?.1),
    }
}
