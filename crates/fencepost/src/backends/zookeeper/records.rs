//! Records of what was done once per key, as nodes that stay (record.rs is the map).
//!
//! *Why one success is recorded:* every step is one write that the leader carries out whole, or not at all. A record
//! that is not there is created, which only one can do. A record that is there is replaced only if its node has
//! still the version that was read, so nothing happened to it since the rules were asked. Versions begin anew with
//! a node: so whoever removes records sets their directory in the same step, and whoever replaces one asks in the
//! same step whether the directory has still the version that was read *before* the record. These directories are
//! made to stay, at most 256 of them, so their versions never begin anew.
//! *Retries:* if the answer is lost, the record is read again and the rules are asked again. They give the same
//! answer to the same token, so what was done already is found done.
//! *Time* is the leader's wall clock (time.rs), never a client's. A leader whose clock is wrong, or jumps, keeps
//! records for too long or not long enough; it does not let two settle one.
//! *Where that ends:* with the data, as for the locks: servers that come back without their latest writes have lost
//! the records in them. And a server that was cut off with a leader that is none any more may show, for as long
//! as it does not know, a record as it was.
//!
//! *What is left behind:* a record whose time is over is removed by whoever asks for it or lists it, and each write
//! removes a few others (`record_gc.rs`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::records::{self, Decision, Past};
use fencepost_core::{LockName, Moment, Token};

use super::ZooKeeper;
use super::error::{Code, code, found as there, retry_if_unavailable, server_error};
use super::names::RESERVED;
use super::ops::{Make, Op};
use super::record::{Record, Site};
use super::record_gc::{FEW, removal};
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::backend::{self, StoreCall, StoreError, StoreResult};
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};

/// The version of a node is not the one that was read; there is none; there is one.
const LATE: [i32; 3] = [-103, -101, -110];
/// How often in a row a step begins again at once, since another client was faster.
const CONFLICTS: usize = 16;

/// A record as it was read.
struct Found {
    /// Of the directory, read before.
    generation: Option<i32>,
    /// Of the node, if there is one.
    version: Option<i32>,
    /// Unless its time is over.
    record: Option<(Record, Stat)>,
    /// Who settled it, if its time is over.
    settled_by: Option<Token>,
    now: i64,
}

impl Shared {
    pub(super) fn records(&self) -> String {
        format!("{}/{RESERVED}/records", self.chroot)
    }

    /// Reads the record, asks what is to be done, and does it if nothing has happened meanwhile.
    async fn step<T>(
        &self,
        name: &LockName,
        limit: Moment,
        decide: impl Fn(Option<Entry>, Past) -> Decision<T>,
    ) -> StoreResult<T> {
        let site = &Site::of(&self.records(), name);
        // A write was sent and not answered, here or in an attempt before.
        let (unanswered, decide) = (&AtomicBool::new(false), &decide);
        self.record_call(limit, |session| async move {
            for _ in 0..CONFLICTS {
                let found = self.read_record(&session, site).await?;
                let entry = found.record.as_ref();
                let entry = entry.map(|(record, stat)| record.entry(name, stat, found.now));
                let retried = unanswered.load(Ordering::Relaxed);
                let decision = decide(entry, Past { retried, finished_by: found.settled_by });
                let writes = !matches!(decision, Decision::Answer(_));
                // Before it leaves: this attempt may be dropped at any await.
                unanswered.store(retried || writes, Ordering::Relaxed);
                let carried_out = self.carry_out(&session, site, &found, decision).await;
                if !carried_out.as_ref().is_err_and(may_be_applied) {
                    unanswered.store(retried, Ordering::Relaxed);
                }
                // If another client was faster, what it did decides.
                if let Some(answer) = carried_out? {
                    return Ok(answer);
                }
            }
            Err(StoreError::busy(format!(
                "the record of \"{name}\" keeps changing at ZooKeeper: try again"
            )))
        })
        .await
    }

    /// As [`Shared::call`], with the errors of records.
    pub(super) async fn record_call<T, F>(
        &self,
        limit: Moment,
        ask: impl Fn(Arc<Session>) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.call(limit, |session| {
            // Boxed: several layers would each have a copy of it.
            let asked = Box::pin(ask(session));
            async move { asked.await.map_err(|error| self.refusal(error)) }
        })
        .await
    }

    /// The error of one that came of asking for records.
    fn refusal(&self, error: StoreError) -> StoreError {
        match code(&error) {
            Some(Code::NoAuth) => StoreError::refused(format!(
                "ZooKeeper does not let us use the records in {}, which are somebody else's: write their \
                 USER:PASSWORD@ before the hosts in the URL, or widen their ACL (setAcl)",
                self.records()
            )),
            _ if may_be_applied(&error) => error.with_outcome(backend::Outcome::Unknown),
            _ => retry_if_unavailable(error),
        }
    }

    async fn read_record(&self, session: &Session, site: &Site) -> Result<Found, StoreError> {
        // In this order: a session is answered in the order in which it asks.
        let synced = session.sync(&site.node);
        let (generation, node) = (session.data(&site.shard), session.data(&site.node));
        let neighbours = self.list_neighbours(session, &site.shard);
        let (synced, generation, node) =
            (synced.await, there(generation.await)?, there(node.await)?);
        synced?;
        neighbours.await;
        let generation = generation.map(|(_, stat)| stat.version);
        let mut found = Found { generation, version: None, record: None, settled_by: None, now: 0 };
        if let Some((data, stat)) = node {
            let record = Record::read(&data).ok_or_else(|| {
                StoreError::refused(format!(
                    "the node {} is no record of ours: remove it, or use another path",
                    site.node
                ))
            })?;
            found.version = Some(stat.version);
            found.now = self.leader_time(session).await?;
            if record.is_over(&stat, found.now) {
                found.now = self.leader_time_now(session).await?;
            }
            if record.is_over(&stat, found.now) {
                found.settled_by = record.settled_by();
            } else {
                found.record = Some((record, stat));
            }
        }
        Ok(found)
    }

    /// None if something happened to the record since it was read.
    async fn carry_out<T>(
        &self,
        session: &Session,
        site: &Site,
        found: &Found,
        decision: Decision<T>,
    ) -> Result<Option<T>, StoreError> {
        let known = found.generation.zip(found.version);
        match (decision, known) {
            (Decision::Answer(answer), known) => {
                if let Some((generation, version)) = known.filter(|_| found.record.is_none()) {
                    let removal = removal(&site.shard, generation, [(site, version)]);
                    self.remove_later(session, &removal);
                }
                Ok(Some(answer))
            }
            (Decision::Write(record, answer), known) => {
                if found.generation.is_none() {
                    self.make_shelf(session, &site.shard).await?;
                }
                let data = Record::of(record).bytes();
                let ops = match known {
                    None => vec![Op::create(&site.node, &data, Make::Persistent, self.access)],
                    Some((generation, version)) => vec![
                        Op::check(&site.shard, generation),
                        Op::set_version(&site.node, &data, version),
                    ],
                };
                let (neighbours, asked) = (self.read_neighbours(session), self.now());
                let (written, stat) = (session.multi(&ops), session.exists(&site.node));
                if !applied(written.await?)? {
                    return Ok(None);
                }
                let neighbours = neighbours.await;
                if let Ok(Some(stat)) = stat.await {
                    self.take_reading(stat.mtime, asked);
                    if let Some(found) = neighbours {
                        self.remove_expired(session, &found, stat.mtime, FEW);
                    }
                }
                Ok(Some(answer))
            }
            (Decision::Remove(answer), Some((generation, version))) => {
                let removal = removal(&site.shard, generation, [(site, version)]);
                Ok(applied(session.multi(&removal).await?)?.then_some(answer))
            }
            (Decision::Remove(_), None) => Ok(None),
        }
    }
}

/// Whether a write that failed so may have been carried out: also if its session ended before the answer, since a record
/// outlives the session that wrote it.
fn may_be_applied(error: &StoreError) -> bool {
    error.outcome() == backend::Outcome::Unknown || code(error) == Some(Code::SessionGone)
}

/// Whether a multi was carried out. If not, something happened since its versions were read.
fn applied(failed: Option<(usize, i32)>) -> Result<bool, StoreError> {
    match failed {
        None => Ok(true),
        Some((_, error)) if LATE.contains(&error) => Ok(false),
        Some((_, error)) => Err(server_error(error, "the server")),
    }
}

impl Ledger for ZooKeeper {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move {
            self.shared.step(&claim.name, limit, |found, _| records::claim(found, &claim)).await
        })
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let decide =
                |found: Option<Entry>, past| records::finish(found.as_ref(), past, &finish);
            self.shared.step(&finish.name, limit, decide).await
        })
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(
            async move { self.shared.step(&name, limit, |found, _| Decision::Answer(found)).await },
        )
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.shared.entries(&prefix, limit).await })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let decide = |found: Option<Entry>, past: Past| match found {
                Some(entry) if entry.token == token => Decision::Remove(true),
                // If we asked before, it may have gone by that, and another have come.
                _ => Decision::Answer(past.retried),
            };
            self.shared.step(&name, limit, decide).await
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio_util::task::TaskTracker;

    use std::net::SocketAddr;
    use std::time::Duration;

    use fencepost_core::Label;
    use fencepost_testkit::{Mode, Proxy, ZooKeeper as Server};

    use super::*;
    use crate::backend::Surroundings;
    use crate::backends::zookeeper::ZooKeeperUrl;
    use crate::clock::{BootClock, Clock};
    use crate::ledger::{Outcome, Over};

    impl ZooKeeper {
        pub(crate) async fn claims(&self, claim: Claim) -> Claimed {
            self.claim(claim, Moment::NEVER).await.unwrap().value
        }

        pub(crate) async fn finishes(&self, finish: Finish) -> bool {
            self.finish(finish, Moment::NEVER).await.unwrap().value
        }

        pub(crate) async fn looks_up(&self, name: &LockName) -> Option<Entry> {
            self.look_up(name.clone(), Moment::NEVER).await.unwrap().value
        }

        pub(crate) async fn lists(&self) -> Vec<Entry> {
            self.entries("", Moment::NEVER).await.unwrap().value
        }

        async fn forgets(&self, name: &LockName, token: Token) -> bool {
            self.forget(name.clone(), token, Moment::NEVER).await.unwrap().value
        }
    }

    pub(crate) async fn open(server: &Server) -> Arc<ZooKeeper> {
        open_at(server.address(), Arc::new(BootClock)).await
    }

    pub(crate) async fn open_at(address: SocketAddr, clock: Arc<dyn Clock>) -> Arc<ZooKeeper> {
        let url = ZooKeeperUrl::parse(&format!("//{address}/t")).unwrap();
        let runtime = tokio::runtime::Handle::current();
        let around = Surroundings { clock, runtime, tasks: TaskTracker::new(), create: true };
        ZooKeeper::open(url, &around).await.unwrap()
    }

    pub(crate) fn claim_of(number: u64) -> Claim {
        Claim {
            name: LockName::new("once/a").unwrap(),
            token: Token::new(number).unwrap(),
            label: Label::new("me").unwrap(),
            keep: Duration::from_hours(1),
        }
    }

    pub(crate) fn finish_of(number: u64, outcome: Outcome) -> Finish {
        let Claim { name, token, label, keep } = claim_of(number);
        Finish { name, token, label, outcome, keep, over: Over::OwnClaim }
    }

    /// One that read a record and then stood still, while the record was removed and another came to stand there
    /// with the same version: it must not write over that.
    #[tokio::test]
    async fn a_record_that_was_made_anew_is_another() {
        let server = Server::builder().start().unwrap();
        let (slow, quick) = (open(&server).await, open(&server).await);
        let site = Site::of(&slow.shared.records(), &claim_of(1).name);
        assert_eq!(quick.claims(claim_of(1)).await, Claimed::Ours);
        let session = slow.shared.control();
        let read = slow.shared.read_record(&session, &site).await.unwrap();
        let (record, stat) = read.record.as_ref().unwrap();
        let seen = record.entry(&claim_of(2).name, stat, read.now);
        assert!(quick.finishes(finish_of(1, Outcome::Abandoned)).await);
        assert_eq!(quick.claims(claim_of(3)).await, Claimed::Ours);
        let next = records::claim(Some(seen), &claim_of(2));
        assert!(matches!(next, Decision::Write(..)));
        let carried = slow.shared.carry_out(&session, &site, &read, next).await.unwrap();
        assert_eq!(carried, None, "it wrote over a record that it had not read");
        assert_eq!(slow.claims(claim_of(2)).await, Claimed::Overtaken);
        assert!(quick.finishes(finish_of(3, Outcome::Done(b"x".to_vec()))).await);
        assert!(!slow.finishes(finish_of(1, Outcome::Done(b"y".to_vec()))).await);
        // Asked again, it says the same; another's token is another's.
        assert!(quick.finishes(finish_of(3, Outcome::Done(b"z".to_vec()))).await);
        let entry = slow.looks_up(&claim_of(1).name).await.unwrap();
        assert_eq!((entry.token.get(), &*entry.result), (3, &b"x"[..]));
        assert!(!slow.forgets(&entry.name, Token::new(2).unwrap()).await);
        assert!(slow.forgets(&entry.name, entry.token).await);
        assert!(!slow.forgets(&entry.name, entry.token).await);
    }

    /// Nobody takes us for a while, as while a leader is elected: the step is not lost by that.
    #[tokio::test]
    async fn a_step_is_tried_again_while_servers_are_away() {
        let server = Server::builder().start().unwrap();
        let proxy = Proxy::to(server.address()).unwrap();
        let store = open_at(proxy.address(), Arc::new(BootClock)).await;
        assert_eq!(store.claims(claim_of(1)).await, Claimed::Ours);
        let (name, done) = (claim_of(1).name, Outcome::Done(b"x".to_vec()));
        for away in 0..3 {
            proxy.set_mode(Mode::Refuse);
            let away = async || {
                // Until all who asked have been turned away at least once.
                BootClock.alarm(BootClock.now() + Duration::from_millis(300 + 100 * away)).await;
                proxy.set_mode(Mode::Pass);
            };
            let steps = async {
                let finished = store.finishes(finish_of(1, done.clone())).await;
                let entries = store.lists().await;
                (finished, store.looks_up(&name).await, entries)
            };
            let ((finished, found, entries), ()) = tokio::join!(steps, away());
            assert!(finished);
            assert_eq!(found.unwrap().result, b"x");
            assert_eq!(entries.len(), 1);
        }
    }

    /// Sent again after its time is over, a finish says what it said.
    #[tokio::test]
    async fn a_finish_that_was_kept_for_a_moment_is_found_done() {
        let server = Server::builder().start().unwrap();
        let store = open(&server).await;
        assert_eq!(store.claims(claim_of(1)).await, Claimed::Ours);
        let brief = |number| Finish {
            keep: Duration::from_millis(1),
            ..finish_of(number, Outcome::Done(b"x".to_vec()))
        };
        assert!(store.finishes(brief(1)).await);
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
        assert!(store.finishes(brief(1)).await, "it was recorded");
    }

    /// Without a lock between them: each that claims with the highest token yet runs, and of all who finish one is
    /// recorded.
    #[tokio::test]
    async fn of_many_who_finish_at_once_one_is_recorded() {
        let server = Server::builder().start().unwrap();
        let stores = [open(&server).await, open(&server).await, open(&server).await];
        for round in 0..5 {
            let name = LockName::new(&format!("once/{round}")).unwrap();
            let tasks: Vec<_> = (1..=16)
                .map(|number| {
                    let (store, name) = (Arc::clone(&stores[number % 3]), name.clone());
                    tokio::spawn(async move {
                        let token = u64::try_from(number).unwrap();
                        let claim = Claim { name: name.clone(), ..claim_of(token) };
                        if store.claims(claim).await != Claimed::Ours {
                            return None;
                        }
                        let outcome = Outcome::Done(token.to_string().into_bytes());
                        let finish = Finish { name, ..finish_of(token, outcome) };
                        store.finishes(finish).await.then_some(token)
                    })
                })
                .collect();
            let mut done = Vec::new();
            for task in tasks {
                done.extend(task.await.unwrap());
            }
            let entry = stores[0].looks_up(&name).await.unwrap();
            assert_eq!(done, [entry.token.get()], "round {round}");
            assert_eq!(entry.result, entry.token.to_string().into_bytes());
        }
    }
}
