//! Looks for records whose time is over, and takes them away.
//!
//! A client that uses records also looks for those whose time is over, whether or not it finishes any: two
//! directories at a time, seconds apart, a few records at once, so that no heartbeat has to wait behind them. It looks at
//! twice as many as it has made since, and goes on where it finds some that are over: so they go faster than new
//! ones come. How many may go is a matter of the leader's clock (time.rs). Nobody waits for a sweep.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use tokio::task::JoinHandle;

use super::error::readable;
use super::session::Session;
use super::shared::Shared;
use crate::backend::StoreError;

/// How often a client that finishes looks, and how often one that does not.
const PAUSE: Duration = Duration::from_secs(5);
const IDLE_PAUSE: Duration = Duration::from_mins(1);
/// At how many directories, and at how many records of one at least.
const SHELVES: usize = 2;
const LOOKED_AT: usize = 16;
/// How many records are read at once. Each may have 64 KiB.
const BUNCH: usize = 8;

/// How the sweeps of this client stand.
#[derive(Default)]
pub(super) struct Sweeps {
    /// It has used records.
    used: bool,
    /// How many it has finished since the last one.
    finished: usize,
    last: Option<Moment>,
    /// The directory that was looked at last.
    shelf: Option<String>,
    task: Option<JoinHandle<()>>,
    /// The client is closing.
    over: bool,
}

impl Sweeps {
    /// How many records of a directory to look at, if it is time.
    fn due(&mut self, now: Moment) -> Option<usize> {
        let pause = if self.finished > 0 { PAUSE } else { IDLE_PAUSE };
        let rested = self.last.is_none_or(|last| now.since(last) >= pause);
        let busy = self.task.as_ref().is_some_and(|task| !task.is_finished());
        if !self.used || self.over || busy || !rested {
            return None;
        }
        self.last = Some(now);
        Some(LOOKED_AT.max(2 * std::mem::take(&mut self.finished)))
    }
}

impl Shared {
    /// This client uses records, and has finished this many more of them.
    pub(super) fn uses_records(&self, finished: usize) {
        let mut sweeps = self.sweeps();
        sweeps.used = true;
        sweeps.finished += finished;
    }

    /// Looks for records that are over, in the background, if it is time.
    pub(super) fn sweep_if_due(self: &Arc<Self>) {
        let mut sweeps = self.sweeps();
        let Some(count) = sweeps.due(self.now()) else { return };
        let shared = Arc::clone(self);
        sweeps.task = Some(self.around.runtime.spawn(async move {
            if let Err(error) = shared.sweep_records(count).await {
                tracing::debug!(%error, "records were not swept");
            }
        }));
    }

    /// No sweep from now on. One that is under way is left where it is; it uses nothing any more when this resolves.
    pub(super) async fn stop_sweeps(&self) {
        let task = {
            let mut sweeps = self.sweeps();
            sweeps.over = true;
            sweeps.task.take()
        };
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// Looks at this many records of each of two directories, the next ones in turn.
    pub(super) async fn sweep_records(&self, count: usize) -> Result<(), StoreError> {
        let (session, records) = (self.control(), self.records());
        let mut shelves = self.children_now(&session, &records).await?;
        shelves.retain(|shelf| shelf.len() == 2);
        shelves.sort_unstable();
        let last = self.sweeps().shelf.clone();
        let first = match &last {
            Some(last) => shelves.iter().position(|shelf| shelf > last).unwrap_or(0),
            None => somewhere(shelves.len()),
        };
        let turn = shelves.iter().cycle().skip(first).take(SHELVES.min(shelves.len()));
        for shelf in turn {
            self.sweeps().shelf = Some(shelf.clone());
            self.sweep_shelf(&session, &format!("{records}/{shelf}"), count).await?;
        }
        Ok(())
    }

    async fn sweep_shelf(
        &self,
        session: &Session,
        shard: &str,
        count: usize,
    ) -> Result<(), StoreError> {
        let Some(nodes) = readable(session.children(shard).await)? else { return Ok(()) };
        let first = somewhere(nodes.len());
        let turn: Vec<_> = nodes.iter().cycle().skip(first).take(nodes.len()).cloned().collect();
        let (mut looked, mut gone) = (0, 0);
        for bunch in turn.chunks(BUNCH) {
            let Some(found) = self.read_some(session, shard, bunch).await? else { break };
            let (_, over, may) = self.part(session, found, &mut gone).await?;
            looked += bunch.len();
            self.bury(session, shard, over.generation, &over.nodes(shard, may)).await?;
            if may < over.records.len() || (looked >= count && over.records.is_empty()) {
                break;
            }
        }
        Ok(())
    }
}

/// Where to begin among so many, so that each gets its turn.
fn somewhere(count: usize) -> usize {
    let mut bits = [0; 4];
    // Without random numbers it is always the first: worse, and no harm.
    let _ = getrandom::fill(&mut bits);
    u32::from_ne_bytes(bits) as usize % count.max(1)
}

#[cfg(test)]
mod tests {
    use fencepost_core::{LockName, Token};
    use fencepost_testbed::ZooKeeper as Server;

    use super::super::ledger::tests::{claim_of, finish_of, open, open_at};
    use super::super::record::Site;
    use super::super::time::Reading;
    use super::*;
    use crate::backend::{Backend as _, BoxFuture};
    use crate::backends::zookeeper::ZooKeeper;
    use crate::clock::{BootClock, Clock};
    use crate::ledger::{Claim, Claimed, Finish, Outcome};

    const HOUR: Duration = Duration::from_hours(1);

    /// The system's clock, an hour ahead: it has an hour of past even where the machine has just booted.
    #[derive(Debug)]
    struct HourAhead;

    impl Clock for HourAhead {
        fn now(&self) -> Moment {
            BootClock.now() + HOUR
        }

        fn alarm(&self, at: Moment) -> BoxFuture<'static, ()> {
            BootClock.alarm(at.back(HOUR))
        }
    }

    /// Records that are over, as many as asked for, all in one directory.
    async fn fill(store: &ZooKeeper, count: usize) -> (String, Vec<String>) {
        let records = store.shared.records();
        let all = (0..).map(|number| LockName::new(&format!("once/{number}")).unwrap());
        let shard = Site::of(&records, &LockName::new("once/0").unwrap()).shard;
        let names = all.filter(|name| Site::of(&records, name).shard == shard).take(count);
        let token = Token::new(1).unwrap();
        for name in names {
            let claim = Claim { name: name.clone(), token, ..claim_of(1) };
            assert_eq!(store.claims(claim).await, Claimed::Ours);
            let keep = Duration::from_millis(1);
            let finish = Finish { name, keep, ..finish_of(1, Outcome::Done(Vec::new())) };
            assert!(store.finishes(finish).await);
        }
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
        let nodes = store.shared.control().children(&shard).await.unwrap();
        (shard, nodes)
    }

    async fn left(store: &ZooKeeper, shard: &str) -> usize {
        store.shared.control().children(shard).await.unwrap().len()
    }

    /// The client has read the leader's clock for an hour; then it was so many milliseconds behind what it is now.
    async fn steady(store: &ZooKeeper, behind: i64) {
        let shared = &store.shared;
        let session = shared.control();
        let now = shared.leader_time_now(&session).await.unwrap();
        let then = shared.now().back(HOUR);
        let span = i64::try_from(HOUR.as_millis()).unwrap();
        *shared.reading() = Some(Reading::new(now - span - behind, then, then));
    }

    /// More than go in one step; one has a child, and one has changed.
    #[tokio::test]
    async fn what_can_not_go_keeps_nothing_else() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        // Nothing is swept meanwhile.
        store.shared.stop_sweeps().await;
        let (shard, nodes) = fill(&store, 150).await;
        assert_eq!(nodes.len(), 150);
        server.create(&format!("{shard}/{}/below", nodes[3]), "").unwrap();
        let session = store.shared.control();
        let shelf = session.data(&shard).await.unwrap().1.version;
        let mut over = Vec::new();
        for node in &nodes {
            let path = format!("{shard}/{node}");
            let version = session.data(&path).await.unwrap().1.version;
            over.push((path, version));
        }
        over[70].1 += 1;
        store.shared.bury(&session, &shard, shelf, &over).await.unwrap();
        let mut left = session.children(&shard).await.unwrap();
        left.sort();
        let mut expected = vec![nodes[3].clone(), nodes[70].clone()];
        expected.sort();
        assert_eq!(left, expected);
    }

    /// Few go by a clock that is not known yet, all by one that has been steady, none by one that has jumped.
    #[tokio::test]
    async fn a_clock_that_jumped_removes_nothing_that_nobody_asked_for() {
        let server = Server::builder().start().unwrap();
        let store = open_at(server.address(), Arc::new(HourAhead)).await;
        store.shared.stop_sweeps().await;
        let (shard, nodes) = fill(&store, 40).await;
        assert_eq!(nodes.len(), 40);
        for ahead in [2 * 60_000, -2 * 60_000] {
            steady(&store, ahead).await;
            store.shared.sweep_records(1).await.unwrap();
            assert!(store.lists().await.is_empty());
            store.shared.sweep_records(1).await.unwrap();
            assert_eq!(left(&store, &shard).await, 40, "{ahead}");
        }
        // What is asked for by its name is judged all the same, and goes.
        let found = store.looks_up(&LockName::new("once/0").unwrap()).await;
        assert_eq!(found, None);
        let end = BootClock.now() + Duration::from_secs(30);
        while left(&store, &shard).await > 39 {
            assert!(BootClock.now() < end, "it did not go");
        }
        *store.shared.reading() = None;
        store.shared.sweep_records(1).await.unwrap();
        assert_eq!(left(&store, &shard).await, 35);
        steady(&store, 0).await;
        store.shared.sweep_records(1).await.unwrap();
        assert_eq!(left(&store, &shard).await, 0);
    }

    /// A sweep that hangs is left, and the session that it uses is closed.
    #[tokio::test]
    async fn closing_does_not_wait_for_a_sweep() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        let session = store.shared.control();
        store.shared.sweeps().task = Some(tokio::spawn(async move {
            let _used = session;
            std::future::pending::<()>().await;
        }));
        store.drained().await;
        assert!(store.shared.sessions.lock().is_empty());
    }

    #[test]
    fn sweeps_are_seconds_apart() {
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let mut sweeps = Sweeps::default();
        assert_eq!(sweeps.due(at(100)), None, "it has used no records");
        sweeps.used = true;
        assert_eq!(sweeps.due(at(100)), Some(LOOKED_AT));
        sweeps.finished = 50;
        assert_eq!(sweeps.due(at(104)), None);
        assert_eq!(sweeps.due(at(105)), Some(100));
        assert_eq!(sweeps.due(at(164)), None, "it finishes nothing");
        assert_eq!(sweeps.due(at(165)), Some(LOOKED_AT));
        sweeps.over = true;
        assert_eq!(sweeps.due(at(1000)), None);
    }
}
