//! Three servers for a test to break. Java starts slowly, so what a test has broken is mended when it is done,
//! and the next test takes the same three.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_testbed::{Mode, Proxy, ZooKeeper, ZooKeeperEnsemble, ZooKeeperMember};

use super::common::{LEASE, SOON, connect};

type Pool = Mutex<Vec<ZooKeeperEnsemble>>;

/// An ensemble that nobody else uses, and a chroot that nobody has used.
pub(crate) struct Three {
    ensemble: Option<ZooKeeperEnsemble>,
    pub(crate) chroot: String,
    // The servers end, and their files go, with the last test that uses them.
    pool: Arc<Pool>,
}

impl Three {
    pub(crate) fn take() -> Self {
        static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let pool = {
            let mut slot = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let pool = slot.upgrade().unwrap_or_default();
            *slot = Arc::downgrade(&pool);
            pool
        };
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

    /// The nodes in the line for this lock, as this member knows them from the leader.
    pub(crate) fn line(&self, member: usize, name: &str) -> Vec<String> {
        let path = format!("{}/{name}", self.chroot);
        let mut line = self.members()[member].children(&path).unwrap_or_default();
        line.sort_by_key(|node| node[node.len().saturating_sub(10)..].to_owned());
        line
    }

    pub(crate) fn all(&self, act: impl Fn(&ZooKeeperMember)) {
        self.members().iter().for_each(act);
    }
}

impl Deref for Three {
    type Target = ZooKeeperEnsemble;

    fn deref(&self) -> &ZooKeeperEnsemble {
        self.ensemble.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        let Some(ensemble) = self.ensemble.take() else { return };
        // One that a test failed on may be the reason: it is not used again.
        if std::thread::panicking() {
            return;
        }
        for member in ensemble.members() {
            member.heal();
            // One that was killed can not be resumed, and one that runs not be launched.
            let _ = member.resume();
            let _ = member.launch();
        }
        if ensemble.wait_until_healthy().and_then(|()| ensemble.leader()).is_ok() {
            lock(&self.pool).push(ensemble);
        }
    }
}

fn lock(pool: &Pool) -> MutexGuard<'_, Vec<ZooKeeperEnsemble>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One client's ways to the members of an ensemble.
pub(crate) struct Ways {
    ways: Vec<Proxy>,
    chroot: String,
}

impl Ways {
    pub(crate) fn to(three: &Three) -> Self {
        let ways = three.members().iter().map(|member| Proxy::to(member.address()).unwrap());
        Self { ways: ways.collect(), chroot: three.chroot.clone() }
    }

    /// A client that knows all members, and whose sessions for these TTLs hang on this one until it fails.
    pub(crate) async fn client_at(&self, at: usize, ttls: &[Duration]) -> Fencepost {
        self.shut_but(at);
        let client = connect(&self.url()).await;
        for ttl in ttls {
            let lock = client.lock("warm").ttl(*ttl).acquire_within(SOON).await;
            lock.unwrap().release().await.unwrap();
        }
        self.set(Mode::Pass);
        assert!((0..self.ways.len()).all(|index| self.used(index) == (index == at)));
        client
    }

    /// Shuts all ways but the one to this member.
    pub(crate) fn shut_but(&self, at: usize) {
        let others = self.ways.iter().enumerate().filter(|(index, _)| *index != at);
        others.for_each(|(_, way)| way.set_mode(Mode::Refuse));
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.ways.iter().for_each(|way| way.set_mode(mode));
    }

    /// Whether the client is connected to this member.
    pub(crate) fn used(&self, at: usize) -> bool {
        self.ways[at].connections() > 0
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.ways.iter().map(|way| way.address().to_string()).collect();
        format!("zookeeper://{}{}", hosts.join(","), self.chroot)
    }
}

/// Three members, which one is to fail, a client that hangs on that one, and a client that does not.
pub(crate) struct Scene {
    pub(crate) three: Three,
    pub(crate) victim: usize,
    pub(crate) ways: Ways,
    pub(crate) ours: Fencepost,
    pub(crate) theirs: Fencepost,
    _other_ways: Ways,
}

/// Who is to fail.
#[derive(Clone, Copy)]
pub(crate) enum Victim {
    Leader,
    Follower,
}

impl Scene {
    pub(crate) async fn set(victim: Victim, ttls: &[Duration]) -> Self {
        let three = Three::take();
        let leader = three.leader().unwrap();
        let victim = match victim {
            Victim::Leader => leader,
            Victim::Follower => (leader + 1) % 3,
        };
        let (ways, other_ways) = (Ways::to(&three), Ways::to(&three));
        let ours = ways.client_at(victim, ttls).await;
        let theirs = other_ways.client_at((victim + 1) % 3, &[LEASE]).await;
        Self { three, victim, ways, ours, theirs, _other_ways: other_ways }
    }

    pub(crate) fn victim(&self) -> &ZooKeeperMember {
        &self.three.members()[self.victim]
    }

    /// Our client asks another member by now.
    pub(crate) fn has_moved_on(&self) -> bool {
        (0..3).any(|at| at != self.victim && self.ways.used(at))
    }
}
