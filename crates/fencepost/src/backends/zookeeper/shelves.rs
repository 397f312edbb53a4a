//! The directories of records: made once, listed, and rid of what is over.
//!
//! Whoever removes records sets their directory in the same step: ledger.rs tells why.
//!
//! *Sweeps:* a client that uses records also looks for those whose time is over, whether or not it finishes any: two
//! directories at a time, seconds apart, a few records at once, so that no heartbeat has to wait behind them. It looks at
//! twice as many as it has made since, and goes on where it finds some that are over: so they go faster than new
//! ones come. How many may go is a matter of the leader's clock (time.rs). Nobody waits for a sweep.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::faults::{Code, Fault};
use super::names::name_of_part;
use super::ops::{Make, Op};
use super::record::Record;
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::ledger::Entry;

/// How often a client that finishes looks, and how often one that does not.
const PAUSE: Duration = Duration::from_secs(5);
const IDLE_PAUSE: Duration = Duration::from_mins(1);
/// At how many directories, and at how many records of one at least.
const SHELVES: usize = 2;
const LOOKED_AT: usize = 16;
/// How many records are read at once, in a sweep and for a list. Each may have 64 KiB.
const BUNCH: usize = 8;
const AT_ONCE: usize = 16;
/// How many go in one step.
const BURIED: usize = 64;

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

/// Some records of a directory.
struct Shelved {
    /// The directory's version, read before them.
    shelf: i32,
    records: Vec<(String, LockName, Record, Stat)>,
}

impl Shelved {
    /// At most so many of their nodes, with their versions.
    fn nodes(&self, shard: &str, most: usize) -> Vec<(String, i32)> {
        let node = |(node, _, _, stat): &(String, LockName, Record, Stat)| {
            (format!("{shard}/{node}"), stat.version)
        };
        self.records.iter().take(most).map(node).collect()
    }
}

impl Shared {
    /// Makes a directory of records, and what is missing above it: to stay, since the version of one that was
    /// made anew would begin anew.
    pub(super) async fn make_shelf(&self, session: &Session, dir: &str) -> Result<(), Fault> {
        self.make_path(session, dir, |_| Make::Persistent, self.access).await
    }

    /// Takes records away whose time is over, unless something happens to them first.
    pub(super) async fn bury(
        &self,
        session: &Session,
        shard: &str,
        mut shelf: i32,
        over: &[(String, i32)],
    ) -> Result<(), Fault> {
        for bunch in over.chunks(BURIED) {
            let mut bunch = bunch.to_vec();
            while !bunch.is_empty() {
                let mut ops = vec![Op::set_version(shard, b"", shelf)];
                ops.extend(bunch.iter().map(|(node, version)| Op::delete_version(node, *version)));
                match session.multi(&ops).await? {
                    None => {
                        shelf = shelf.wrapping_add(1);
                        break;
                    }
                    // It has changed, is gone, or somebody put a node below it: the others can go.
                    Some((failed @ 1.., _)) if failed <= bunch.len() => {
                        bunch.remove(failed - 1);
                    }
                    // Others remove records of this directory. Whoever meets these next tries again.
                    Some(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

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
            if let Err(fault) = shared.sweep_records(count).await {
                tracing::debug!(?fault, "records were not swept");
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
    pub(super) async fn sweep_records(&self, count: usize) -> Result<(), Fault> {
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

    async fn sweep_shelf(&self, session: &Session, shard: &str, count: usize) -> Result<(), Fault> {
        let Some(nodes) = readable(session.children(shard).await)? else { return Ok(()) };
        let first = somewhere(nodes.len());
        let turn: Vec<_> = nodes.iter().cycle().skip(first).take(nodes.len()).cloned().collect();
        let (mut looked, mut gone) = (0, 0);
        for bunch in turn.chunks(BUNCH) {
            let Some(found) = self.read_some(session, shard, bunch).await? else { break };
            let (_, over, may) = self.part(session, found, &mut gone).await?;
            looked += bunch.len();
            self.bury(session, shard, over.shelf, &over.nodes(shard, may)).await?;
            if may < over.records.len() || (looked >= count && over.records.is_empty()) {
                break;
            }
        }
        Ok(())
    }

    /// Which of these live, with the leader's time, and which are over; and how many of those may go, if so many of
    /// their directory went before.
    async fn part(
        &self,
        session: &Session,
        mut found: Shelved,
        gone: &mut usize,
    ) -> Result<(Vec<Entry>, Shelved, usize), Fault> {
        let (mut now, mut may) = (self.leader_time(session).await?, 0);
        if found.records.iter().any(|(_, _, record, stat)| record.is_over(stat, now)) {
            (now, may) = self.time_to_bury(session).await?;
            may = may.saturating_sub(*gone);
        }
        let live = found.records.extract_if(.., |(_, _, record, stat)| !record.is_over(stat, now));
        let live = live.map(|(_, name, record, stat)| record.entry(&name, &stat, now)).collect();
        *gone += may.min(found.records.len());
        Ok((live, found, may))
    }

    /// What can be read of these nodes and is ours; none if the directory can not be read.
    async fn read_some(
        &self,
        session: &Session,
        shard: &str,
        nodes: &[String],
    ) -> Result<Option<Shelved>, Fault> {
        let shelf = session.data(shard);
        let asked: Vec<_> =
            nodes.iter().map(|node| session.data(&format!("{shard}/{node}"))).collect();
        let Some((_, shelf)) = readable(shelf.await)? else { return Ok(None) };
        let mut records = Vec::new();
        for (node, answer) in nodes.iter().zip(join_all(asked).await) {
            let Some((data, stat)) = readable(answer)? else { continue };
            if let Some((record, name)) = Record::read(&data).zip(name_of_part(node)) {
                records.push((node.clone(), name, record, stat));
            }
        }
        Ok(Some(Shelved { shelf: shelf.version, records }))
    }

    pub(super) async fn all_entries(&self, prefix: &str) -> Result<Vec<Entry>, Fault> {
        let (session, records) = (self.control(), self.records());
        let shards = self.children_now(&session, &records).await?;
        let mut entries = Vec::new();
        for shard in shards.iter().filter(|shard| shard.len() == 2) {
            let shard = format!("{records}/{shard}");
            let (synced, nodes) = (session.sync(&shard), session.children(&shard));
            let (synced, nodes) = (synced.await, readable(nodes.await)?.unwrap_or_default());
            synced?;
            let named = |node: &&String| {
                name_of_part(node).is_some_and(|name| name.as_str().starts_with(prefix))
            };
            let wanted: Vec<_> = nodes.iter().filter(named).cloned().collect();
            let mut gone = 0;
            for bunch in wanted.chunks(AT_ONCE) {
                let Some(found) = self.read_some(&session, &shard, bunch).await? else { break };
                let (live, over, may) = self.part(&session, found, &mut gone).await?;
                entries.extend(live.into_iter().map(|it| Entry { result: Vec::new(), ..it }));
                self.bury(&session, &shard, over.shelf, &over.nodes(&shard, may)).await?;
            }
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}

/// Where to begin among so many, so that each gets its turn.
fn somewhere(count: usize) -> usize {
    let mut bits = [0; 4];
    // Without random numbers it is always the first: worse, and no harm.
    let _ = getrandom::fill(&mut bits);
    u32::from_ne_bytes(bits) as usize % count.max(1)
}

/// An answer, or none if there is no such node.
pub(super) fn there<T>(answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Fault::Said(Code::NoNode)) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The same, and none if it is not for us to read.
fn readable<T>(answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match answer {
        Err(Fault::Said(Code::NoAuth)) => Ok(None),
        answer => there(answer),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Token;
    use fencepost_testbed::ZooKeeper as Server;

    use super::super::ledger::tests::{claim_of, finish_of, open};
    use super::super::record::Site;
    use super::super::time::Reading;
    use super::*;
    use crate::backends::zookeeper::ZooKeeper;
    use crate::clock::{BootClock, Clock as _};
    use crate::ledger::{Claim, Claimed, Finish, Ledger as _, Outcome};

    /// Records that are over, as many as asked for, all in one directory.
    async fn fill(store: &ZooKeeper, count: usize) -> (String, Vec<String>) {
        let records = store.shared.records();
        let all = (0..).map(|number| LockName::new(&format!("once/{number}")).unwrap());
        let shard = Site::of(&records, &LockName::new("once/0").unwrap()).shard;
        let names = all.filter(|name| Site::of(&records, name).shard == shard).take(count);
        let token = Token::new(1).unwrap();
        for name in names {
            let claim = Claim { name: name.clone(), token, ..claim_of(1) };
            assert_eq!(store.claim(claim).await.unwrap(), Claimed::Ours);
            let keep = Duration::from_millis(1);
            let finish = Finish { name, keep, ..finish_of(1, Outcome::Done(Vec::new())) };
            assert!(store.finish(finish).await.unwrap());
        }
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
        let nodes = store.shared.control().children(&shard).await.unwrap();
        (shard, nodes)
    }

    async fn left(store: &ZooKeeper, shard: &str) -> usize {
        store.shared.control().children(shard).await.unwrap().len()
    }

    /// The client has read the leader's clock for so long; then it was so many milliseconds behind what it is now.
    async fn steady(store: &ZooKeeper, span: Duration, behind: i64) {
        let shared = &store.shared;
        let session = shared.control();
        let now = shared.leader_time_now(&session).await.unwrap();
        let then = shared.now().since(Moment::default() + span);
        let then = Moment::default() + then;
        let span = i64::try_from(span.as_millis()).unwrap();
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
        let store = open(&server).await;
        store.shared.stop_sweeps().await;
        let (shard, nodes) = fill(&store, 40).await;
        assert_eq!(nodes.len(), 40);
        let hour = Duration::from_hours(1);
        for ahead in [2 * 60_000, -2 * 60_000] {
            steady(&store, hour, ahead).await;
            store.shared.sweep_records(1).await.unwrap();
            assert!(store.entries("").await.unwrap().is_empty());
            store.shared.sweep_records(1).await.unwrap();
            assert_eq!(left(&store, &shard).await, 40, "{ahead}");
        }
        // What is asked for by its name is judged all the same, and goes.
        let found = store.look_up(LockName::new("once/0").unwrap()).await.unwrap();
        assert_eq!(found, None);
        let end = BootClock.now() + Duration::from_secs(30);
        while left(&store, &shard).await > 39 {
            assert!(BootClock.now() < end, "it did not go");
        }
        *store.shared.reading() = None;
        store.shared.sweep_records(1).await.unwrap();
        assert_eq!(left(&store, &shard).await, 35);
        steady(&store, hour, 0).await;
        store.shared.sweep_records(1).await.unwrap();
        assert_eq!(left(&store, &shard).await, 0);
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
