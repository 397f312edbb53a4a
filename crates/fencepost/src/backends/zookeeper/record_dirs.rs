//! The directories of records: created once, read, and listed.

use std::future::Future;
use std::sync::Arc;

use fencepost_core::{LockName, Moment};

use super::error::readable;
use super::names::name_of_part;
use super::protocol::CreateMode;
use super::record::{Record, Site};
use super::record_gc::FEW;
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::backend::{StoreError, StoreResult};
use crate::ledger::RecordInfo;

/// How many records are read at once for a list. Each may have 64 KiB.
const AT_ONCE: usize = 16;

/// Some records of a directory.
pub(super) struct ListedRecords {
    /// The directory's version, read before them.
    pub(super) generation: i32,
    pub(super) records: Vec<(Site, LockName, Record, Stat)>,
}

impl ListedRecords {
    /// The expired ones, with the versions of their nodes.
    pub(super) fn over(&self, now: i64) -> impl Iterator<Item = (&Site, i32)> {
        let over =
            self.records.iter().filter(move |(_, _, record, stat)| record.is_over(stat, now));
        over.map(|(site, _, _, stat)| (site, stat.version))
    }
}

/// Reads those of these nodes that are readable records; `None` if the directory cannot be read.
pub(super) fn read_some(
    session: &Session,
    shard: &str,
    nodes: &[String],
) -> impl Future<Output = Result<Option<ListedRecords>, StoreError>> + Send + use<> {
    let generation = session.data(shard);
    let ask = |node: &String| {
        let site = Site { shard: shard.to_owned(), node: format!("{shard}/{node}") };
        Some((name_of_part(node)?, session.data(&site.node), site))
    };
    let asked: Vec<_> = nodes.iter().filter_map(ask).collect();
    async move {
        let Some((_, generation)) = readable(generation.await)? else { return Ok(None) };
        let mut records = Vec::new();
        for (name, answer, site) in asked {
            let Some((data, stat)) = readable(answer.await)? else { continue };
            records.extend(Record::read(&data).map(|record| (site, name, record, stat)));
        }
        Ok(Some(ListedRecords { generation: generation.version, records }))
    }
}

impl Shared {
    /// Creates a directory of records, and its missing parents. It is persistent, since the version of a directory that
    /// was created again would restart.
    pub(super) async fn make_record_dir(
        &self,
        session: &Session,
        dir: &str,
    ) -> Result<(), StoreError> {
        self.make_path(session, dir, |_| CreateMode::Persistent, self.access).await
    }

    pub(super) async fn list_records(
        &self,
        prefix: &str,
        limit: Moment,
    ) -> StoreResult<Vec<RecordInfo>> {
        let root = &self.records();
        let list = |session: Arc<Session>| async move { self.children_now(&session, root).await };
        let dirs = self.record_call(limit, list).await?;
        let mut records = Vec::new();
        for dir in dirs.value.iter().filter(|dir| dir.len() == 2) {
            let dir = &format!("{root}/{dir}");
            let read =
                |session: Arc<Session>| async move { self.records_in(&session, dir, prefix).await };
            records.extend(self.record_call(limit, read).await?.value);
        }
        records.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(dirs.map(|_| records))
    }

    /// The records of a directory whose names have this prefix. Removes a few of the expired ones.
    async fn records_in(
        &self,
        session: &Session,
        shard: &str,
        prefix: &str,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let nodes = readable(self.children_now(session, shard).await)?.unwrap_or_default();
        let named = |node: &String| {
            name_of_part(node).is_some_and(|name| name.as_str().starts_with(prefix))
        };
        let wanted: Vec<_> = nodes.into_iter().filter(named).collect();
        let (mut records, mut may_go) = (Vec::new(), FEW);
        for batch in wanted.chunks(AT_ONCE) {
            let Some(found) = read_some(session, shard, batch).await? else { break };
            let mut now = self.leader_time(session).await?;
            if found.over(now).next().is_some() {
                now = self.leader_time_now(session).await?;
                may_go -= self.remove_expired(session, &found, now, may_go);
            }
            let live =
                found.records.iter().filter(|(_, _, record, stat)| !record.is_over(stat, now));
            let brief = |record: RecordInfo| record.with_result(Vec::new());
            records.extend(live.map(|(_, name, record, stat)| brief(record.info(name, stat, now))));
        }
        Ok(records)
    }
}
