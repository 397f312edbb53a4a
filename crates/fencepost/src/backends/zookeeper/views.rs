//! Who holds and who waits, for one lock and for all.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::LockName;
use tokio::sync::oneshot;

use super::faults::{Code, Fault};
use super::names::{RESERVED, name_of, path_of};
use super::nodes::{Contender, in_order};
use super::notes::{holder, label};
use super::session::Session;
use super::shared::{PATIENCE, Shared};
use crate::backend::{BoxFuture, Glimpse, HolderInfo, LockInfo, WaiterInfo};
use crate::error::Result;
use crate::race::race;

/// How many directories are asked for at once.
const AT_ONCE: usize = 64;
/// How long an observer trusts a watch.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Shared {
    /// One lock.
    pub(super) async fn inspect(&self, name: &LockName, shown: usize) -> Result<LockInfo> {
        self.look(name, shown).await.map(|(info, _)| info)
    }

    /// The same, with the node of who holds it.
    async fn look(&self, name: &LockName, shown: usize) -> Result<(LockInfo, Option<String>)> {
        let dir = path_of(&self.chroot, name);
        let dir = dir.as_str();
        self.persist(|control| {
            Box::pin(async move {
                let children = self.children_now(&control, dir).await?;
                self.info(&control, name.clone(), dir, &in_order(&children), shown).await
            })
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
    ) -> Result<(LockInfo, Option<String>), Fault> {
        let path = |one: &Contender| format!("{dir}/{}", one.node);
        // Of those that are not read, the ones that no make calls so may be none.
        let odd = line.iter().skip(shown + 1).filter(|one| !one.is_of_a_make());
        let odd: Vec<_> = odd.map(|one| control.exists(&path(one))).collect();
        let asked: Vec<_> =
            line.iter().take(shown + 1).map(|one| control.data(&path(one))).collect();
        let mut found = Vec::new();
        let mut left = line.len();
        for (one, answer) in line.iter().zip(asked) {
            match answer.await {
                // It stays, so it is no contender, whatever it is called.
                Ok((_, stat)) if !stat.ends() => left -= 1,
                Ok((data, stat)) => found.push((one, Some((data, stat)))),
                // Gone since the list was made.
                Err(Fault::Said(Code::NoNode)) => left -= 1,
                Err(Fault::Said(Code::NoAuth)) => match control.exists(&path(one)).await? {
                    Some(stat) if stat.ends() => found.push((one, None)),
                    _ => left -= 1,
                },
                Err(fault) => return Err(fault),
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
    pub(super) async fn list(&self) -> Result<Vec<LockInfo>> {
        self.persist(|control| Box::pin(self.walk(control))).await
    }

    async fn walk(&self, control: Arc<Session>) -> Result<Vec<LockInfo>, Fault> {
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
    ) -> Result<(), Fault> {
        let path = |dir: &String| if dir.is_empty() { "/".to_owned() } else { dir.clone() };
        let asked: Vec<_> = bunch.iter().map(|dir| control.children(&path(dir))).collect();
        let mut found = Vec::new();
        for (dir, answer) in bunch.iter().zip(asked) {
            let children = match answer.await {
                Ok(children) => children,
                // Gone since, or none of our business.
                Err(Fault::Said(Code::NoNode | Code::NoAuth)) => continue,
                Err(fault) => return Err(fault),
            };
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
    pub(super) async fn changed(&self, name: LockName, seen: Option<Glimpse>) -> Result<LockInfo> {
        let dir = path_of(&self.chroot, &name);
        loop {
            // Before the look, so that nothing is missed in between.
            let mut told = self.persist(|control| Box::pin(watch(control, dir.clone()))).await?;
            let (info, held_by) = self.look(&name, LockInfo::SHOWN_WAITERS).await?;
            if seen != Some(info.glimpse()) {
                return Ok(info);
            }
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
                Err(Fault::Said(Code::NoAuth)) => return std::future::pending().await,
                Ok(_) | Err(Fault::Said(Code::NoNode)) => return,
                Err(_) => return self.breathe().await,
            }
        }
    }

    /// Asks until there is an answer, over connections and sessions that break in between.
    pub(super) async fn persist<'a, T>(
        &self,
        ask: impl Fn(Arc<Session>) -> BoxFuture<'a, Result<T, Fault>>,
    ) -> Result<T> {
        let give_up = self.now() + PATIENCE;
        loop {
            match ask(self.control()).await {
                Ok(answer) => return Ok(answer),
                Err(Fault::Cut(_) | Fault::Gone) if self.now() < give_up => self.breathe().await,
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }
}

/// Tells when contenders come or go, or the directory does.
async fn watch(control: Arc<Session>, dir: String) -> Result<oneshot::Receiver<()>, Fault> {
    match control.children_watched(&dir).await {
        Ok((_, _, told)) => Ok(told),
        Err(Fault::Said(Code::NoNode)) => Ok(control.exists_watched(&dir).await?.1),
        Err(fault) => Err(fault),
    }
}
