//! Three servers for a test to break. Java starts slowly, so the ensemble is repaired after each test and reused.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_testkit::{Slot, Victim, ZooKeeper, ZooKeeperEnsemble, ZooKeeperMember, shared};
use parking_lot::{Mutex, MutexGuard};

use super::common::LEASE;

type Pool = Mutex<Vec<ZooKeeperEnsemble>>;

/// An ensemble that no other test uses now, with a new chroot.
pub(crate) struct PooledEnsemble {
    ensemble: Option<ZooKeeperEnsemble>,
    pub(crate) chroot: String,
    // The servers end, and their files are removed, with the last test.
    pool: Arc<Pool>,
}

impl PooledEnsemble {
    pub(crate) fn take() -> Self {
        static POOL: Slot<Pool> = Slot::new(Weak::new());
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let pool = shared(&POOL, || Ok(Pool::default())).unwrap();
        let free = lock(&pool).pop();
        let ensemble = free.unwrap_or_else(|| {
            let builder = ZooKeeper::builder().tick_time(300).max_session_timeout(200_000);
            ZooKeeperEnsemble::with(&builder).unwrap()
        });
        let chroot = format!("/e{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { ensemble: Some(ensemble), chroot, pool }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.deref().url(), self.chroot)
    }

    /// The nodes in this lock's queue, as this member sees them.
    pub(crate) fn queue(&self, member: usize, name: &str) -> Vec<String> {
        let path = format!("{}/{name}", self.chroot);
        let mut line = self.members()[member].children(&path).unwrap_or_default();
        line.sort_by_key(|node| node[node.len().saturating_sub(10)..].to_owned());
        line
    }

    pub(crate) fn all(&self, act: impl Fn(&ZooKeeperMember)) {
        self.members().iter().for_each(act);
    }
}

impl Deref for PooledEnsemble {
    type Target = ZooKeeperEnsemble;

    fn deref(&self) -> &ZooKeeperEnsemble {
        self.ensemble.as_ref().expect("it is there until the drop")
    }
}

impl Drop for PooledEnsemble {
    fn drop(&mut self) {
        let Some(ensemble) = self.ensemble.take() else { return };
        // A failed test may have left it broken: it is not used again.
        if std::thread::panicking() {
            return;
        }
        for member in ensemble.members() {
            member.heal();
            // Fails if the member was killed, or runs already.
            let _ = member.resume();
            let _ = member.launch();
        }
        if ensemble.wait_until_healthy().and_then(|()| ensemble.leader()).is_ok() {
            lock(&self.pool).push(ensemble);
        }
    }
}

fn lock(pool: &Pool) -> MutexGuard<'_, Vec<ZooKeeperEnsemble>> {
    pool.lock()
}

pub(crate) type Fixture = fencepost_testkit::Fixture<PooledEnsemble>;

pub(crate) async fn fixture(victim: Victim, ttls: &[Duration]) -> Fixture {
    let three = PooledEnsemble::take();
    let (url, victim) = (three.url(), victim.under(three.leader().unwrap()));
    Fixture::with(three, &url, victim, [ttls, &[LEASE]]).await
}

pub(crate) fn victim_of(fixture: &Fixture) -> &ZooKeeperMember {
    &fixture.three.members()[fixture.victim]
}
