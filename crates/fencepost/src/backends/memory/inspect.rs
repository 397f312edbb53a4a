//! What can be seen of the machine, and when it changes.

use fencepost_core::{Lease, LockName, Moment};

use super::{Memory, State};
use crate::backend::{Glimpse, HolderInfo, LockInfo, Reply, WaiterInfo};
use crate::race::race;

impl State {
    pub(super) fn holder_info(&self, name: &LockName, now: Moment) -> Option<HolderInfo> {
        let grant = self.machine.holder(name)?;
        let owner = self.owners.get(&grant.owner);
        let since = owner.map_or(now, |owner| owner.since);
        let deadline = self.wheel.deadline(Lease::Held(grant.token)).unwrap_or(now);
        Some(HolderInfo {
            label: grant.label.clone(),
            token: Some(grant.token),
            ttl: Some(grant.ttl),
            held_for: Some(now.since(since)),
            remaining: Some(deadline.since(now)),
            endless: false,
            value: owner.and_then(|owner| owner.value.clone()),
        })
    }

    pub(super) fn info(&self, name: &LockName, now: Moment, shown: usize) -> LockInfo {
        let since = |owner| self.owners.get(owner).map_or(now, |owner| owner.since);
        let waiters = self.machine.waiters(name).take(shown).map(|waiter| WaiterInfo {
            label: waiter.label.clone(),
            waiting_for: Some(now.since(since(&waiter.owner))),
        });
        LockInfo {
            name: name.clone(),
            holder: self.holder_info(name, now),
            waiting: self.machine.waiting(name),
            waiters: waiters.collect(),
        }
    }
}

pub(super) fn list(state: &State, now: Moment) -> Vec<LockInfo> {
    let mut names: Vec<_> = state.machine.locks().map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    names.iter().map(|name| state.info(name, now, 0)).collect()
}

pub(super) async fn changed(
    store: &Memory,
    name: LockName,
    seen: Option<Glimpse>,
) -> Reply<LockInfo> {
    let mut change = store.state.lock().changed.subscribe();
    loop {
        change.mark_unchanged();
        let (info, now, next) = {
            let (state, now) = store.state();
            let info = state.info(&name, now, LockInfo::SHOWN_WAITERS);
            (info, now, state.wheel.next().unwrap_or(Moment::NEVER))
        };
        if seen != Some(info.glimpse()) {
            return Reply::new(info, now);
        }
        // A lease that ends unrenewed changes the state without anybody's call.
        race(change.changed(), store.clock.alarm(next)).await;
    }
}
