//! Garbage collection of records: every write reads a few others and removes the expired ones.
//!
//! Only a write can add a record, so the writes pay: each reads up to four records of a directory and removes the expired
//! ones. A run of `once` adds one record and writes twice. So expired records stay a fraction of the live ones: in a
//! simulation, 15% to 40% with 1,000 live records or more, and one or two records per directory with few. If each record
//! is written only once, about twice that much. A directory without new records does not grow.
//!
//! ZooKeeper cannot list a part of a directory. So a client lists the directory of some key that it uses, and its next
//! writes go through that list, from a random start, since many clients write only once or twice. All of this travels with
//! the requests of the write itself: there is no task, no timer, and no additional round trip.
//!
//! *Why no live record is removed:* the time is that of our own write, by the leader's clock, and was read after the
//! records. A record that changed since, or was created again, is not removed: see [`removal`]. If the leader's clock is
//! wrong, each write removes only a few; if it has jumped, none (time.rs).

use std::future::Future;

use super::protocol::Op;
use super::record::Site;
use super::record_dirs::{ListedRecords, read_some};
use super::session::Session;
use super::shared::Shared;
use crate::random;

/// How many records a write checks, and how many of a directory a list removes.
pub(super) const FEW: usize = 4;

/// The records that the next writes check.
#[derive(Default)]
pub(super) struct Neighbours {
    shard: String,
    nodes: Vec<String>,
}

/// Removes records of a directory, all or none, if they and the directory still have these versions; that of the
/// directory was read first. The directory gets a new version, so that no later record is mistaken for one of these
/// (records.rs).
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
    /// Lists the neighbours of a record, if the list is used up.
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
                let first = random::below(nodes.len());
                nodes.rotate_left(first);
                *self.neighbours.lock() = Neighbours { shard: shard.to_owned(), nodes };
            }
        }
    }

    /// Reads the next few of them.
    pub(super) fn read_neighbours(
        &self,
        session: &Session,
    ) -> impl Future<Output = Option<ListedRecords>> + Send + use<> {
        let asked = {
            let mut left = self.neighbours.lock();
            // The last ones one by one: a record that cannot be deleted, because it has a child node, blocks its batch.
            let few = left.nodes.len().div_ceil(2).min(FEW);
            let rest = left.nodes.len() - few;
            let nodes = left.nodes.split_off(rest);
            (few > 0).then(|| read_some(session, &left.shard, &nodes))
        };
        async move { asked?.await.ok().flatten() }
    }

    /// Removes the expired ones, up to a maximum. Returns how many.
    pub(super) fn remove_expired(
        &self,
        session: &Session,
        found: &ListedRecords,
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

    /// Sends a removal, without waiting for the reply: the next client that finds the record retries.
    pub(super) fn remove_later(&self, session: &Session, removal: &[Op]) {
        self.context.runtime.spawn(session.multi(removal));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::LockName;

    use super::super::records::tests::{claim_of, finish_of, start};
    use super::super::time::Reading;
    use super::*;
    use crate::backends::zookeeper::ZooKeeper;
    use crate::clock::{BootClock, Clock};
    use crate::ledger::{Claimed, Outcome};

    const HOUR: Duration = Duration::from_hours(1);
    const BRIEF: Duration = Duration::from_millis(1);

    /// Names whose records are in one directory, and that directory.
    fn names(store: &ZooKeeper) -> (String, impl Iterator<Item = LockName>) {
        let records = store.shared.records();
        let mut all = (0..).map(|number| LockName::new(&format!("once/{number}")).unwrap());
        let shard = Site::of(&records, &all.next().unwrap()).shard;
        let same = shard.clone();
        (shard, all.filter(move |name| Site::of(&records, name).shard == same))
    }

    async fn claim(store: &ZooKeeper, name: &LockName) {
        let mut claim = claim_of(1);
        claim.name = name.clone();
        assert_eq!(store.claims(claim).await, Claimed::Ours);
    }

    async fn run(store: &ZooKeeper, name: LockName, retention: Duration) {
        claim(store, &name).await;
        let mut finish = finish_of(1, Outcome::Done(Vec::new()));
        (finish.name, finish.retention) = (name, retention);
        assert!(store.finishes(finish).await);
    }

    /// That many expired records and one other name, all in one directory. The clock has jumped, so none of them is
    /// removed.
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

    /// This request comes after all removals.
    async fn left(store: &ZooKeeper, shard: &str) -> Vec<String> {
        store.shared.control().children(shard).await.unwrap()
    }

    /// Pretends that the client read the leader's clock ten seconds ago, when it was this many milliseconds behind.
    async fn steady(store: &ZooKeeper, behind: i64) {
        let shared = &store.shared;
        let now = shared.leader_time_now(&shared.control()).await.unwrap();
        let then = shared.now().back(Duration::from_secs(10));
        *shared.reading.lock() = Some(Reading::new(now - 10_000 - behind, then, then));
    }

    /// Control: after a clock jump none is removed, and they accumulate.
    #[tokio::test]
    async fn expired_records_are_removed() {
        let (_server, store) = start().await;
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

    /// Writes of other records do not remove it.
    #[tokio::test]
    async fn record_stays_for_its_retention() {
        let (_server, store) = start().await;
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
    async fn record_that_cannot_be_removed_keeps_no_other() {
        let (server, store) = start().await;
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

    /// Between the listing and the removal the record was removed, and another was created with the same version.
    #[tokio::test]
    async fn recreated_record_stays() {
        let (_server, store) = start().await;
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

    /// With an unknown clock a few are removed, after a jump none, and with a steady clock all in the end.
    #[tokio::test]
    async fn clock_jump_removes_only_records_that_are_read() {
        let (_server, store) = start().await;
        let (shard, over, other) = fill(&store, 40).await;
        for ahead in [2 * 60_000, -2 * 60_000] {
            steady(&store, ahead).await;
            claim(&store, &other).await;
            assert_eq!(store.lists().await.len(), 1);
            claim(&store, &other).await;
            assert_eq!(left(&store, &shard).await.len(), 41, "{ahead}");
        }
        // A record that is read by name is checked all the same, and removed.
        assert_eq!(store.looks_up(&over[0]).await, None);
        assert_eq!(left(&store, &shard).await.len(), 40);
        let mut finish = finish_of(1, Outcome::Abandoned);
        finish.name = other.clone();
        assert!(store.finishes(finish).await);
        *store.shared.reading.lock() = None;
        *store.shared.neighbours.lock() = Neighbours::default();
        claim(&store, &other).await;
        assert_eq!(left(&store, &shard).await.len(), 35 + 1);
        *store.shared.reading.lock() = None;
        assert_eq!(store.lists().await.len(), 1);
        assert_eq!(left(&store, &shard).await.len(), 31 + 1);
        steady(&store, 0).await;
        for _ in 0..20 {
            claim(&store, &other).await;
        }
        assert_eq!(left(&store, &shard).await.len(), 1);
    }

    /// Removals are in flight, and nothing has to wait for them.
    #[tokio::test]
    async fn closing_does_not_wait_for_removals() {
        let (_server, store) = start().await;
        let (shard, _, other) = fill(&store, 8).await;
        steady(&store, 0).await;
        claim(&store, &other).await;
        let context = &store.shared.context;
        context.closing.cancel();
        context.tasks.close();
        context.tasks.wait().await;
        assert!(store.shared.sessions.lock().is_empty());
        assert_eq!(left(&store, &shard).await.len(), 4 + 1);
    }

    #[tokio::test]
    async fn one_listing_serves_several_writes() {
        let (_server, store) = start().await;
        let (_, _, other) = fill(&store, 12).await;
        for remaining in [8, 4, 2, 1, 0, 9, 5, 2, 1, 0, 9] {
            claim(&store, &other).await;
            assert_eq!(store.shared.neighbours.lock().nodes.len(), remaining);
        }
    }
}
