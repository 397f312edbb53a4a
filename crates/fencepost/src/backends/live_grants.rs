//! The grants of one client whose guards still exist, so that a notification of a break reaches the guard's
//! [`LossSignal`]. The heartbeat then renews the grant, and the reply decides.

use std::collections::HashMap;

use fencepost_core::OwnerId;
use parking_lot::Mutex;

use crate::backend::LossSignal;

/// With fewer grants than this, entries whose guard is gone are not removed.
const FEW: usize = 64;

/// By owner, with the other id by which a notification names a grant (`N`).
#[derive(Debug)]
pub(super) struct LiveGrants<N>(Mutex<Grants<N>>);

#[derive(Debug)]
struct Grants<N> {
    live: HashMap<OwnerId, (N, LossSignal)>,
    /// The number of grants at which entries without a guard are removed. Most are removed by their release, so the
    /// others are never more than the live ones.
    gc_at: usize,
}

impl<N> Default for LiveGrants<N> {
    fn default() -> Self {
        Self(Mutex::new(Grants { live: HashMap::new(), gc_at: FEW }))
    }
}

impl<N> LiveGrants<N> {
    /// Adds a grant, if it has a guard in this process. Returns whether it has one.
    pub(super) fn insert(&self, owner: OwnerId, named_by: N, signal: LossSignal) -> bool {
        if !signal.is_connected() {
            return false;
        }
        let mut grants = self.0.lock();
        if grants.live.len() >= grants.gc_at {
            grants.live.retain(|_, (_, signal)| signal.is_connected());
            grants.gc_at = (grants.live.len() * 2).max(FEW);
        }
        grants.live.insert(owner, (named_by, signal));
        true
    }

    /// Removes a released grant. Returns its other id, if it was one of ours.
    pub(super) fn remove(&self, owner: OwnerId) -> Option<N> {
        self.0.lock().live.remove(&owner).map(|(named_by, _)| named_by)
    }

    /// The owners of the grants whose guards still exist.
    #[cfg(any(feature = "postgres", all(feature = "sqlite", unix)))]
    pub(super) fn owners(&self) -> Vec<OwnerId> {
        let grants = self.0.lock();
        let live = grants.live.iter().filter(|(_, (_, signal))| signal.is_connected());
        live.map(|(owner, _)| *owner).collect()
    }

    /// Makes the heartbeat renew the grants that `meant` selects. Returns whether there is one. A break is rare, so all
    /// grants are scanned.
    pub(super) fn renew_now(&self, meant: impl Fn(&OwnerId, &N) -> bool) -> bool {
        let grants = self.0.lock();
        let hit = grants
            .live
            .iter()
            .filter(|(owner, (named_by, signal))| signal.is_connected() && meant(owner, named_by));
        let signals: Vec<_> = hit.map(|(_, (_, signal))| signal.clone()).collect();
        drop(grants);
        // Not under the lock: it calls into the heartbeat.
        signals.iter().for_each(LossSignal::renew_now);
        !signals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use fencepost_core::{LossCause, Moment, Ttl};

    use super::*;
    use crate::backend::OnLoss;

    #[derive(Debug, Default)]
    struct Guard {
        gone: AtomicBool,
        renewals: AtomicUsize,
    }

    impl OnLoss for Guard {
        fn renew_now(&self) {
            self.renewals.fetch_add(1, Ordering::SeqCst);
        }
        fn lose(&self, _: LossCause) {}
        fn shorten(&self, _: Moment, _: Ttl) -> Option<Moment> {
            None
        }
        fn expire_if_due(&self) {}
        fn is_connected(&self) -> bool {
            !self.gone.load(Ordering::SeqCst)
        }
    }

    fn owner(number: u128) -> OwnerId {
        OwnerId::from_bits(number + 1)
    }

    #[test]
    fn notification_renews_the_grant_that_it_names() {
        let (grants, guard) = (LiveGrants::default(), Arc::new(Guard::default()));
        assert!(grants.insert(owner(1), "a", LossSignal::to(guard.clone())));
        assert!(!grants.insert(owner(2), "b", LossSignal::disconnected()), "it has no guard");
        assert!(!grants.renew_now(|_, name| *name == "b"));
        assert!(grants.renew_now(|_, name| *name == "a"));
        assert!(grants.renew_now(|known, _| *known == owner(1)));
        assert_eq!(guard.renewals.load(Ordering::SeqCst), 2);
        assert_eq!(grants.remove(owner(1)), Some("a"));
        assert!(!grants.renew_now(|_, _| true));
        assert_eq!(grants.remove(owner(1)), None);
    }

    #[test]
    fn grants_without_a_guard_are_removed() {
        let (grants, lives) = (LiveGrants::default(), Arc::new(Guard::default()));
        grants.insert(owner(0), 0, LossSignal::to(lives.clone()));
        for number in 1..1000 {
            let guard = Arc::new(Guard::default());
            grants.insert(owner(number), number, LossSignal::to(guard.clone()));
            guard.gone.store(true, Ordering::SeqCst);
            assert!(grants.0.lock().live.len() <= FEW, "{number}");
        }
        assert!(!grants.renew_now(|_, number| *number == 999), "its guard is gone");
        assert!(grants.renew_now(|_, number| *number == 0));
        assert_eq!(lives.renewals.load(Ordering::SeqCst), 1);
    }
}
