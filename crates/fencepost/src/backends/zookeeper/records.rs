//! The records of `once`, as persistent nodes (record.rs has the format).
//!
//! *Why one success is recorded:* every step is one write that the leader applies whole, or not at all. A record that
//! does not exist is created, which only one client can do. An existing record is replaced only if its node still has
//! the version that was read, so nothing happened to it since the decision. Versions restart with a node: so a removal
//! also sets the directory in the same step, and a replacement checks in the same step that the directory still has the
//! version that was read *before* the record. These directories are persistent, at most 256 of them, so their versions
//! never restart.
//! *Retries:* if the reply is lost, the record is read again and the rules decide again. They give the same answer to
//! the same token, so a step that was applied counts as done.
//! *Time* is the leader's wall clock (time.rs), never a client's. A leader whose clock is wrong, or jumps, keeps
//! records for too long or not long enough; it does not let two runs finish one.
//! *Where that ends:* with the data, as for the locks: servers that come back without their latest writes have lost
//! those records. And a server that was cut off together with a deposed leader may show an old state of a record until
//! it notices.
//!
//! *What is left behind:* an expired record is removed by the next client that uses or lists it, and each write removes
//! a few others (`record_gc.rs`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::records::{self, Decision, Past};
use fencepost_core::{LockName, Moment, Token};

use super::ZooKeeper;
use super::error::{Code, code, if_exists as there, retry_if_unavailable, server_error};
use super::names::RESERVED;
use super::protocol::{CreateMode, Op};
use super::record::{Record, Site};
use super::record_gc::{FEW, removal};
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::backend::{self, StoreCall, StoreError, StoreResult};
use crate::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName};

/// The errors of a condition: another version; no such node; the node exists.
const LATE: [i32; 3] = [-103, -101, -110];
/// How many times in a row a step starts over at once because another client was faster.
const CONFLICTS: usize = 16;

/// A record as it was read.
struct StoredRecord {
    /// The version of the directory, read first.
    generation: Option<i32>,
    /// The version of the node, if it exists.
    version: Option<i32>,
    /// Unless it has expired.
    record: Option<(Record, Stat)>,
    /// The run that finished it, if it has expired.
    finished_by: Option<Token>,
    now: i64,
}

impl StoredRecord {
    /// As the servers show it, before its time is looked at.
    fn read(
        site: &Site,
        generation: Option<(Vec<u8>, Stat)>,
        node: Option<(Vec<u8>, Stat)>,
    ) -> Result<Self, StoreError> {
        let record = node.map(|(data, stat)| {
            let record = Record::read(&data).ok_or_else(|| {
                StoreError::refused(format!(
                    "the record {} has another layout or is damaged: update fencepost, or delete the node if its work may \
                     run again",
                    site.node
                ))
            });
            Ok::<_, StoreError>((record?, stat))
        });
        let (generation, record) = (generation.map(|(_, stat)| stat.version), record.transpose()?);
        let version = record.as_ref().map(|(_, stat)| stat.version);
        Ok(Self { generation, version, record, finished_by: None, now: 0 })
    }

    fn is_over(&self, now: i64) -> bool {
        self.record.as_ref().is_some_and(|(record, stat)| record.is_over(stat, now))
    }

    /// Takes a record whose time is over for none.
    fn judge(&mut self, now: i64) {
        self.now = now;
        if self.is_over(now) {
            self.finished_by = self.record.take().and_then(|(record, _)| record.finished_by());
        }
    }
}

impl Shared {
    pub(super) fn records(&self) -> String {
        format!("{}/{RESERVED}/records", self.chroot)
    }

    /// Reads the record, decides, and applies the decision if the record has not changed meanwhile.
    async fn step<T>(
        &self,
        name: &LockName,
        limit: Moment,
        decide: impl Fn(Option<RecordInfo>, Past) -> Decision<T>,
    ) -> StoreResult<T> {
        let site = &Site::of(&self.records(), name);
        // A write was sent and not answered, here or in an earlier attempt.
        let (unanswered, decide) = (&AtomicBool::new(false), &decide);
        self.record_call(limit, |session| async move {
            for _ in 0..CONFLICTS {
                let found = self.read_record(&session, site).await?;
                let record = found.record.as_ref();
                let record = record.map(|(record, stat)| record.info(name, stat, found.now));
                let retried = unanswered.load(Ordering::Relaxed);
                let decision = decide(record, Past { retried, finished_by: found.finished_by });
                let writes = !matches!(decision, Decision::Answer(_));
                // Before it leaves: this attempt may be dropped at any await.
                unanswered.store(retried || writes, Ordering::Relaxed);
                let carried_out = self.carry_out(&session, site, &found, decision).await;
                if !carried_out.as_ref().is_err_and(may_be_applied) {
                    unanswered.store(retried, Ordering::Relaxed);
                }
                // If another client was faster, its write decides.
                if let Some(answer) = carried_out? {
                    return Ok(answer);
                }
            }
            Err(StoreError::busy(format!(
                "other clients keep changing the record of \"{name}\" at ZooKeeper: retry"
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

    /// The same error, about records.
    fn refusal(&self, error: StoreError) -> StoreError {
        match code(&error) {
            Some(Code::NoAuth) => StoreError::refused(format!(
                "ZooKeeper denied access to the records in {}, which other credentials created: write those as \
                USER:PASSWORD@ before the hosts in the URL, or widen the ACL (setAcl)",
                self.records()
            )),
            _ if may_be_applied(&error) => error.with_outcome(backend::Outcome::Unknown),
            _ => retry_if_unavailable(error),
        }
    }

    /// The records under these names, all asked for at once.
    async fn look_up_records(
        &self,
        names: &[LockName],
        limit: Moment,
    ) -> StoreResult<RecordsByName> {
        let (records, mut sites) = (self.records(), Vec::with_capacity(names.len()));
        sites.extend(names.iter().map(|name| Site::of(&records, name)));
        let sites = &sites[..];
        self.record_call(limit, |session| async move {
            let found = self.read_records(&session, sites).await?;
            let mut records = RecordsByName::with_capacity(names.len());
            for ((name, site), found) in names.iter().zip(sites).zip(found) {
                self.remove_if_over(&session, site, &found);
                if let Some((record, stat)) = &found.record {
                    records.insert(name.clone(), record.info(name, stat, found.now));
                }
            }
            Ok(records)
        })
        .await
    }

    /// Reads records: one round trip for all, and one more for the time if it is not known.
    async fn read_records(
        &self,
        session: &Session,
        sites: &[Site],
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let Some(first) = sites.first() else { return Ok(Vec::new()) };
        // In this order: a session is answered in the order in which it asks.
        let synced = session.sync(&first.node);
        let ask = |site: &Site| (session.data(&site.shard), session.data(&site.node));
        let asked: Vec<_> = sites.iter().map(ask).collect();
        let neighbours = self.list_neighbours(session, &first.shard);
        synced.await?;
        let mut found = Vec::with_capacity(sites.len());
        for (site, (generation, node)) in sites.iter().zip(asked) {
            let (generation, node) = (there(generation.await)?, there(node.await)?);
            found.push(StoredRecord::read(site, generation, node)?);
        }
        neighbours.await;
        if found.iter().any(|found| found.record.is_some()) {
            let mut now = self.leader_time(session).await?;
            if found.iter().any(|found| found.is_over(now)) {
                now = self.leader_time_now(session).await?;
            }
            for found in &mut found {
                found.judge(now);
            }
        }
        Ok(found)
    }

    async fn read_record(
        &self,
        session: &Session,
        site: &Site,
    ) -> Result<StoredRecord, StoreError> {
        let found = self.read_records(session, std::slice::from_ref(site)).await?.pop();
        found.ok_or_else(|| StoreError::refused("no record was asked for"))
    }

    /// Removes a record whose time is over.
    fn remove_if_over(&self, session: &Session, site: &Site, found: &StoredRecord) {
        let known = found.generation.zip(found.version).filter(|_| found.record.is_none());
        if let Some((generation, version)) = known {
            self.remove_later(session, &removal(&site.shard, generation, [(site, version)]));
        }
    }

    /// `None` if the record has changed since it was read.
    async fn carry_out<T>(
        &self,
        session: &Session,
        site: &Site,
        found: &StoredRecord,
        decision: Decision<T>,
    ) -> Result<Option<T>, StoreError> {
        let known = found.generation.zip(found.version);
        match (decision, known) {
            (Decision::Answer(answer), _) => {
                self.remove_if_over(session, site, found);
                Ok(Some(answer))
            }
            (Decision::Write(record, answer), known) => {
                if found.generation.is_none() {
                    self.make_record_dir(session, &site.shard).await?;
                }
                let data = Record(record).bytes();
                let ops = match known {
                    None => {
                        vec![Op::create(&site.node, &data, CreateMode::Persistent, self.access)]
                    }
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

/// Whether a write with this error may have been applied: also if its session ended before the reply, since a record
/// outlives the session that wrote it.
fn may_be_applied(error: &StoreError) -> bool {
    error.outcome() == backend::Outcome::Unknown || code(error) == Some(Code::SessionGone)
}

/// Whether a multi was applied. If not, something changed since its versions were read.
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

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let decide =
                |found: Option<RecordInfo>, past| records::finish(found.as_ref(), past, &finish);
            self.shared.step(&finish.name, limit, decide).await
        })
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        Box::pin(async move { self.shared.look_up_records(&names, limit).await })
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.shared.list_records(&prefix, limit).await })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let decide = |found: Option<RecordInfo>, past: Past| match found {
                Some(record) if record.token == token => Decision::Remove(true),
                // After a retry: our first request may have deleted it, and another record may have been created.
                _ => Decision::Answer(past.retried),
            };
            self.shared.step(&name, limit, decide).await
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use fencepost_core::Label;
    use fencepost_testkit::{Mode, Proxy, ZooKeeper as Server};

    use super::*;
    use crate::backend::BackendContext;
    use crate::backends::zookeeper::ZooKeeperOptions;
    use crate::clock::{BootClock, Clock};
    use crate::ledger::Outcome;

    impl ZooKeeper {
        pub(crate) async fn claims(&self, claim: Claim) -> Claimed {
            self.claim(claim, Moment::NEVER).await.unwrap().value
        }

        pub(crate) async fn finishes(&self, finish: Completion) -> bool {
            self.finish(finish, Moment::NEVER).await.unwrap().value
        }

        pub(crate) async fn looks_up(&self, name: &LockName) -> Option<RecordInfo> {
            let names = vec![name.clone()];
            self.look_up(names, Moment::NEVER).await.unwrap().value.remove(name)
        }

        pub(crate) async fn lists(&self) -> Vec<RecordInfo> {
            self.list_records("", Moment::NEVER).await.unwrap().value
        }

        async fn forgets(&self, name: &LockName, token: Token) -> bool {
            self.forget(name.clone(), token, Moment::NEVER).await.unwrap().value
        }
    }

    /// A server, and a client of it.
    pub(crate) async fn start() -> (Server, Arc<ZooKeeper>) {
        let server = Server::builder().start().unwrap();
        let store = open(server.address()).await;
        (server, store)
    }

    pub(crate) async fn open(address: SocketAddr) -> Arc<ZooKeeper> {
        let options = ZooKeeperOptions::new([address.to_string()]).chroot("/t");
        let (clock, runtime) = (Arc::new(BootClock), tokio::runtime::Handle::current());
        let context = BackendContext::new(clock, runtime);
        ZooKeeper::open(options, &context).await.unwrap()
    }

    pub(crate) fn claim_of(number: u64) -> Claim {
        let (name, token) = (LockName::new("once/a").unwrap(), Token::new(number).unwrap());
        Claim::new(name, token, Label::new("me").unwrap(), Duration::from_hours(1))
    }

    pub(crate) fn finish_of(number: u64, outcome: Outcome) -> Completion {
        let Claim { name, token, label, retention, .. } = claim_of(number);
        Completion::new(name, token, label, outcome, retention)
    }

    /// A client reads a record and freezes. Meanwhile the record is removed and another is created with the same
    /// version: the client must not overwrite it.
    #[tokio::test]
    async fn recreated_record_is_not_overwritten() {
        let (server, slow) = start().await;
        let quick = open(server.address()).await;
        let site = Site::of(&slow.shared.records(), &claim_of(1).name);
        assert_eq!(quick.claims(claim_of(1)).await, Claimed::Ours);
        let session = slow.shared.control();
        let read = slow.shared.read_record(&session, &site).await.unwrap();
        let (record, stat) = read.record.as_ref().unwrap();
        let seen = record.info(&claim_of(2).name, stat, read.now);
        assert!(quick.finishes(finish_of(1, Outcome::Abandoned)).await);
        assert_eq!(quick.claims(claim_of(3)).await, Claimed::Ours);
        let next = records::claim(Some(seen), &claim_of(2));
        assert!(matches!(next, Decision::Write(..)));
        let carried = slow.shared.carry_out(&session, &site, &read, next).await.unwrap();
        assert_eq!(carried, None, "it wrote over a record that it had not read");
        assert_eq!(slow.claims(claim_of(2)).await, Claimed::Overtaken);
        assert!(quick.finishes(finish_of(3, Outcome::Done(b"x".to_vec()))).await);
        assert!(!slow.finishes(finish_of(1, Outcome::Done(b"y".to_vec()))).await);
        // A retry gives the same result; another token is refused.
        assert!(quick.finishes(finish_of(3, Outcome::Done(b"z".to_vec()))).await);
        let record = slow.looks_up(&claim_of(1).name).await.unwrap();
        assert_eq!((record.token.get(), &*record.result), (3, &b"x"[..]));
        assert!(!slow.forgets(&record.name, Token::new(2).unwrap()).await);
        assert!(slow.forgets(&record.name, record.token).await);
        assert!(!slow.forgets(&record.name, record.token).await);
    }

    /// All servers refuse connections for a while, as during an election: the step succeeds later.
    #[tokio::test]
    async fn step_is_retried_while_servers_are_unreachable() {
        let server = Server::builder().start().unwrap();
        let proxy = Proxy::to(server.address()).unwrap();
        let store = open(proxy.address()).await;
        assert_eq!(store.claims(claim_of(1)).await, Claimed::Ours);
        let (name, done) = (claim_of(1).name, Outcome::Done(b"x".to_vec()));
        for away in 0..3 {
            proxy.set_mode(Mode::Refuse);
            let away = async || {
                // Until every step has been refused at least once.
                BootClock.alarm(BootClock.now() + Duration::from_millis(300 + 100 * away)).await;
                proxy.set_mode(Mode::Pass);
            };
            let steps = async {
                let finished = store.finishes(finish_of(1, done.clone())).await;
                let records = store.lists().await;
                (finished, store.looks_up(&name).await, records)
            };
            let ((finished, found, records), ()) = tokio::join!(steps, away());
            assert!(finished);
            assert_eq!(found.unwrap().result, b"x");
            assert_eq!(records.len(), 1);
        }
    }

    /// A finish that is retried after its record has expired gives the same result.
    #[tokio::test]
    async fn finish_with_a_short_retention_is_found_done() {
        let (_server, store) = start().await;
        assert_eq!(store.claims(claim_of(1)).await, Claimed::Ours);
        let brief = |number| {
            let mut finish = finish_of(number, Outcome::Done(b"x".to_vec()));
            finish.retention = Duration::from_millis(1);
            finish
        };
        assert!(store.finishes(brief(1)).await);
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
        assert!(store.finishes(brief(1)).await, "it was recorded");
    }

    /// No lock serializes them: each that claims with the highest token so far runs, and only one finish is recorded.
    #[tokio::test]
    async fn one_of_many_concurrent_finishes_is_recorded() {
        let (server, first) = start().await;
        let stores = [first, open(server.address()).await, open(server.address()).await];
        for round in 0..5 {
            let name = LockName::new(&format!("once/{round}")).unwrap();
            let tasks: Vec<_> = (1..=16)
                .map(|number| {
                    let (store, name) = (Arc::clone(&stores[number % 3]), name.clone());
                    tokio::spawn(async move {
                        let token = u64::try_from(number).unwrap();
                        let mut claim = claim_of(token);
                        claim.name = name.clone();
                        if store.claims(claim).await != Claimed::Ours {
                            return None;
                        }
                        let outcome = Outcome::Done(token.to_string().into_bytes());
                        let mut finish = finish_of(token, outcome);
                        finish.name = name;
                        store.finishes(finish).await.then_some(token)
                    })
                })
                .collect();
            let mut done = Vec::new();
            for task in tasks {
                done.extend(task.await.unwrap());
            }
            let record = stores[0].looks_up(&name).await.unwrap();
            assert_eq!(done, [record.token.get()], "round {round}");
            assert_eq!(record.result, record.token.to_string().into_bytes());
        }
    }
}
