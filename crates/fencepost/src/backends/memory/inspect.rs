//! Reads of the machine, and of its changes.

use fencepost_core::{Lease, LockName, Moment};

use super::{Memory, State};
use crate::backend::{HolderInfo, LockInfo, LockVersion, Page, PageRequest, Reply, WaiterInfo};
use crate::race::race;

impl State {
    pub(super) fn holder_info(&self, name: &LockName, now: Moment) -> Option<HolderInfo> {
        let grant = self.machine.holder(name)?;
        let owner = self.owners.get(&grant.owner);
        let since = owner.map_or(now, |owner| owner.since);
        let deadline = self.expiry_queue.deadline(Lease::Held(grant.token)).unwrap_or(now);
        Some(
            HolderInfo::new(grant.label.clone())
                .with_token(grant.token)
                .with_ttl(grant.ttl)
                .with_held_for(now.since(since))
                .with_remaining(deadline.since(now))
                .with_value(owner.and_then(|owner| owner.value.clone())),
        )
    }

    pub(super) fn info(&self, name: &LockName, now: Moment, shown: usize) -> LockInfo {
        let since = |owner| self.owners.get(owner).map_or(now, |owner| owner.since);
        let waiters = self.machine.waiters(name).take(shown).map(|waiter| {
            let waiting_for = now.since(since(&waiter.owner));
            WaiterInfo::new(waiter.label.clone()).with_waiting_for(waiting_for)
        });
        LockInfo::free(name.clone())
            .with_holder(self.holder_info(name, now))
            .with_waiters(self.machine.waiting(name), waiters.collect())
    }
}

pub(super) fn list(state: &State, page: &PageRequest, now: Moment) -> Page {
    let mut names: Vec<_> = state.machine.locks().map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    let (names, next) = page.cut(names, |name| name);
    Page::new(names.iter().map(|name| state.info(name, now, 0)).collect(), next)
}

pub(super) async fn changed(
    store: &Memory,
    name: LockName,
    seen: Option<LockVersion>,
) -> Reply<LockInfo> {
    let mut change = store.state.lock().changed.subscribe();
    loop {
        change.mark_unchanged();
        let (info, now, next) = {
            let (state, now) = store.state();
            let info = state.info(&name, now, LockInfo::SHOWN_WAITERS);
            (info, now, state.expiry_queue.next().unwrap_or(Moment::NEVER))
        };
        if seen != Some(info.version()) {
            return Reply::new(info, now);
        }
        // A lease that ends changes the state without a call.
        race(change.changed(), store.clock.alarm(next)).await;
    }
}
