//! Garbage collection of records: every write looks at a few others and removes those whose time is over.
//!
//! Only a write can add a record, so the writes pay: each reads up to four records of a directory and removes those that
//! are over. A run of `once` adds one record and writes twice. So what is over stays bounded by what is not:
//! in a simulation, 15% to 40% of it with 1,000 live records or more, and one or two records a directory with few. If each
//! record is written only once, about twice that much. A directory to which nobody adds anything does not grow.
//!
//! ZooKeeper can not list a part of a directory. So a client lists the directory of some key that it uses, and its next
//! writes go through that list; from anywhere in it, since many clients write only once or twice. All this travels with
//! the requests of the step itself: there is no task, no timer, and no round trip more.
//!
//! *Why no live record goes:* the time is that of our own write, by the leader's clock, and was read after the records. A
//! record that changed since, or was made anew, is not removed: see [`removal`]. If the leader's clock is wrong, few
//! go with each write; if it has jumped, none do (time.rs).

use std::future::Future;

use super::ops::Op;
use super::record::Site;
use super::record_dirs::{Shelved, read_some};
use super::session::Session;
use super::shared::Shared;

/// How many records a write looks at, and how many of a directory a list removes.
pub(super) const FEW: usize = 4;

/// The records that the next writes look at.
#[derive(Default)]
pub(super) struct Neighbours {
    shard: String,
    nodes: Vec<String>,
}

/// Removes records of a directory, all or none, if they and the directory have still these versions; that of the
/// directory was read before them. It gets another one, so that nobody takes a later record for one of these (records.rs).
pub(super) fn removal<'a>(
    shard: &str,
    generation: i32,
    records: impl IntoIterator<Item = (&'a Site, i32)>,
) -> Vec<Op> {
    let delete = |(site, version): (&Site, i32)| Op::delete_version(&site.node, version);
    let set = Op::set_version(shard, b"", generation);
    std::iter::once(set).chain(records.into_iter().map(delete)).collect()
}

impl Shared {
    /// Lists the neighbours of a record, if there are none left to look at.
    pub(super) fn list_neighbours(
        &self,
        session: &Session,
        shard: &str,
    ) -> impl Future<Output = ()> + Send {
        let asked = self.neighbours.lock().nodes.is_empty().then(|| session.children(shard));
        async move {
            if let Some(asked) = asked
                && let Ok(mut nodes) = asked.await
            {
                let mut bits = [0; 4];
                // Without random numbers it is always the first: worse, and no harm.
                let _ = getrandom::fill(&mut bits);
                let first = u32::from_ne_bytes(bits) as usize % nodes.len().max(1);
                nodes.rotate_left(first);
                *self.neighbours.lock() = Neighbours { shard: shard.to_owned(), nodes };
            }
        }
    }

    /// Asks for the next few of them.
    pub(super) fn read_neighbours(
        &self,
        session: &Session,
    ) -> impl Future<Output = Option<Shelved>> + Send + use<> {
        let asked = {
            let mut left = self.neighbours.lock();
            // The last ones alone: one that can not go, since somebody put a node below it, keeps those with it.
            let few = left.nodes.len().div_ceil(2).min(FEW);
            let rest = left.nodes.len() - few;
            let nodes = left.nodes.split_off(rest);
            (few > 0).then(|| read_some(session, &left.shard, &nodes))
        };
        async move { asked?.await.ok().flatten() }
    }

    /// Removes those whose time is over, at most so many. How many these are.
    pub(super) fn remove_expired(
        &self,
        session: &Session,
        found: &Shelved,
        now: i64,
        most: usize,
    ) -> usize {
        let most = if self.may_remove() { most } else { 0 };
        let over: Vec<_> = found.over(now).take(most).collect();
        if let [(site, _), ..] = &over[..] {
            let removal = removal(&site.shard, found.generation, over.iter().copied());
            self.remove_later(session, &removal);
        }
        over.len()
    }

    /// Sends a removal. Nobody waits for it: whoever meets the record next tries again.
    pub(super) fn remove_later(&self, session: &Session, removal: &[Op]) {
        self.around.runtime.spawn(session.multi(removal));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::LockName;
    use fencepost_testkit::ZooKeeper as Server;

    use super::super::records::tests::{claim_of, finish_of, open};
    use super::super::time::Reading;
    use super::*;
    use crate::backend::Backend as _;
    use crate::backends::zookeeper::ZooKeeper;
    use crate::clock::{BootClock, Clock};
    use crate::ledger::{Claim, Claimed, Finish, Outcome};

    const HOUR: Duration = Duration::from_hours(1);
    const BRIEF: Duration = Duration::from_millis(1);

    /// Names whose records lie in one directory, and that directory.
    fn names(store: &ZooKeeper) -> (String, impl Iterator<Item = LockName>) {
        let records = store.shared.records();
        let mut all = (0..).map(|number| LockName::new(&format!("once/{number}")).unwrap());
        let shard = Site::of(&records, &all.next().unwrap()).shard;
        let same = shard.clone();
        (shard, all.filter(move |name| Site::of(&records, name).shard == same))
    }

    async fn claim(store: &ZooKeeper, name: &LockName) {
        let claim = Claim { name: name.clone(), ..claim_of(1) };
        assert_eq!(store.claims(claim).await, Claimed::Ours);
    }

    async fn run(store: &ZooKeeper, name: LockName, keep: Duration) {
        claim(store, &name).await;
        let finish = Finish { name, keep, ..finish_of(1, Outcome::Done(Vec::new())) };
        assert!(store.finishes(finish).await);
    }

    /// Records that are over, as many as asked for, and another name, all of one directory. The clock has jumped, so
    /// none of them go.
    async fn fill(store: &ZooKeeper, count: usize) -> (String, Vec<LockName>, LockName) {
        let (shard, mut names) = names(store);
        steady(store, 2 * 60_000).await;
        let over: Vec<_> = names.by_ref().take(count).collect();
        for name in &over {
            run(store, name.clone(), BRIEF).await;
        }
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
        assert_eq!(left(store, &shard).await.len(), count);
        *store.shared.neighbours.lock() = Neighbours::default();
        (shard, over, names.next().unwrap())
    }

    /// Asked for behind all removals.
    async fn left(store: &ZooKeeper, shard: &str) -> Vec<String> {
        store.shared.control().children(shard).await.unwrap()
    }

    /// The client read the leader's clock ten seconds ago, when it was so many milliseconds behind what it is now.
    async fn steady(store: &ZooKeeper, behind: i64) {
        let shared = &store.shared;
        let now = shared.leader_time_now(&shared.control()).await.unwrap();
        let then = shared.now().back(Duration::from_secs(10));
        *shared.reading() = Some(Reading::new(now - 10_000 - behind, then, then));
    }

    /// And the control: by a clock that has jumped none go, and they do pile up.
    #[tokio::test]
    async fn records_that_are_over_do_not_pile_up() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, mut names) = names(&store);
        for name in names.by_ref().take(100) {
            run(&store, name, BRIEF).await;
        }
        let remaining = left(&store, &shard).await.len();
        assert!(remaining < 20, "{remaining}");
        steady(&store, 2 * 60_000).await;
        for name in names.take(50) {
            run(&store, name, BRIEF).await;
        }
        let remaining = left(&store, &shard).await.len();
        assert!(remaining >= 50, "{remaining}");
    }

    /// However often others are written beside it.
    #[tokio::test]
    async fn a_record_stays_for_its_retention() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, mut names) = names(&store);
        let kept: Vec<_> = names.by_ref().take(10).collect();
        for name in &kept {
            run(&store, name.clone(), HOUR).await;
        }
        for name in names.take(50) {
            run(&store, name, BRIEF).await;
        }
        for name in &kept {
            assert!(store.looks_up(name).await.is_some(), "{name}");
        }
        let remaining = left(&store, &shard).await.len();
        assert!(remaining < 30, "{remaining}");
    }

    /// One has a child, and one has changed since it was read.
    #[tokio::test]
    async fn what_can_not_go_keeps_nothing_else() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, _, other) = fill(&store, 40).await;
        let nodes = left(&store, &shard).await;
        server.create(&format!("{shard}/{}/below", nodes[3]), "").unwrap();
        let session = store.shared.control();
        steady(&store, 0).await;
        let mut found = read_some(&session, &shard, &nodes[4..8]).await.unwrap().unwrap();
        found.records[2].3.version += 1;
        assert_eq!(store.shared.remove_expired(&session, &found, i64::MAX, FEW), FEW);
        assert_eq!(left(&store, &shard).await.len(), 40);
        for _ in 0..100 {
            claim(&store, &other).await;
        }
        let left = left(&store, &shard).await;
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left.contains(&nodes[3]));
        assert!(store.looks_up(&other).await.is_some());
    }

    /// Between the look and the removal it was removed, and another came to stand there with the same version.
    #[tokio::test]
    async fn a_record_that_was_made_anew_stays() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, over, _) = fill(&store, 4).await;
        let nodes = left(&store, &shard).await;
        let session = store.shared.control();
        for name in &over {
            steady(&store, 2 * 60_000).await;
            let found = read_some(&session, &shard, &nodes).await.unwrap().unwrap();
            assert_eq!(store.looks_up(name).await, None);
            run(&store, name.clone(), HOUR).await;
            steady(&store, 0).await;
            let now = store.shared.leader_time_now(&session).await.unwrap();
            assert!(store.shared.remove_expired(&session, &found, now, FEW) > 0);
            assert!(store.looks_up(name).await.is_some(), "{name}");
        }
    }

    /// Few go by a clock that is not known yet, none by one that has jumped, and all in the end by one that is steady.
    #[tokio::test]
    async fn a_clock_that_jumped_removes_nothing_that_nobody_asked_for() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, over, other) = fill(&store, 40).await;
        for ahead in [2 * 60_000, -2 * 60_000] {
            steady(&store, ahead).await;
            claim(&store, &other).await;
            assert_eq!(store.lists().await.len(), 1);
            claim(&store, &other).await;
            assert_eq!(left(&store, &shard).await.len(), 41, "{ahead}");
        }
        // What is asked for by its name is judged all the same, and goes.
        assert_eq!(store.looks_up(&over[0]).await, None);
        assert_eq!(left(&store, &shard).await.len(), 40);
        let finish = Finish { name: other.clone(), ..finish_of(1, Outcome::Abandoned) };
        assert!(store.finishes(finish).await);
        *store.shared.reading() = None;
        *store.shared.neighbours.lock() = Neighbours::default();
        claim(&store, &other).await;
        assert_eq!(left(&store, &shard).await.len(), 35 + 1);
        *store.shared.reading() = None;
        assert_eq!(store.lists().await.len(), 1);
        assert_eq!(left(&store, &shard).await.len(), 31 + 1);
        steady(&store, 0).await;
        for _ in 0..20 {
            claim(&store, &other).await;
        }
        assert_eq!(left(&store, &shard).await.len(), 1);
    }

    /// Removals are on their way, and nobody has to wait for them.
    #[tokio::test]
    async fn closing_does_not_wait_for_removals() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (shard, _, other) = fill(&store, 8).await;
        steady(&store, 0).await;
        claim(&store, &other).await;
        store.drained().await;
        assert!(store.shared.sessions.lock().is_empty());
        assert_eq!(left(&store, &shard).await.len(), 4 + 1);
    }

    #[tokio::test]
    async fn a_list_is_for_several_writes() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let (_, _, other) = fill(&store, 12).await;
        for remaining in [8, 4, 2, 1, 0, 9, 5, 2, 1, 0, 9] {
            claim(&store, &other).await;
            assert_eq!(store.shared.neighbours.lock().nodes.len(), remaining);
        }
    }
}
