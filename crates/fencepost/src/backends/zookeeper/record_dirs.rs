//! The directories of records: made once, read, and listed.

use std::future::Future;
use std::sync::Arc;

use fencepost_core::{LockName, Moment};

use super::error::readable;
use super::names::name_of_part;
use super::ops::Make;
use super::record::{Record, Site};
use super::record_gc::FEW;
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::backend::{StoreError, StoreResult};
use crate::ledger::Entry;

/// How many records are read at once for a list. Each may have 64 KiB.
const AT_ONCE: usize = 16;

/// Some records of a directory.
pub(super) struct Shelved {
    /// The directory's version, read before them.
    pub(super) generation: i32,
    pub(super) records: Vec<(Site, LockName, Record, Stat)>,
}

impl Shelved {
    /// Those whose time is over, with the versions of their nodes.
    pub(super) fn over(&self, now: i64) -> impl Iterator<Item = (&Site, i32)> {
        let over =
            self.records.iter().filter(move |(_, _, record, stat)| record.is_over(stat, now));
        over.map(|(site, _, _, stat)| (site, stat.version))
    }
}

/// Asks for what can be read of these nodes and is ours; `None` if the directory can not be read.
pub(super) fn read_some(
    session: &Session,
    shard: &str,
    nodes: &[String],
) -> impl Future<Output = Result<Option<Shelved>, StoreError>> + Send + use<> {
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
        Ok(Some(Shelved { generation: generation.version, records }))
    }
}

impl Shared {
    /// Makes a directory of records, and what is missing above it: to stay, since the version of one that was
    /// made anew would begin anew.
    pub(super) async fn make_shelf(&self, session: &Session, dir: &str) -> Result<(), StoreError> {
        self.make_path(session, dir, |_| Make::Persistent, self.access).await
    }

    pub(super) async fn entries(&self, prefix: &str, limit: Moment) -> StoreResult<Vec<Entry>> {
        let records = &self.records();
        let list =
            |session: Arc<Session>| async move { self.children_now(&session, records).await };
        let dirs = self.record_call(limit, list).await?;
        let mut entries = Vec::new();
        for dir in dirs.value.iter().filter(|dir| dir.len() == 2) {
            let dir = &format!("{records}/{dir}");
            let read =
                |session: Arc<Session>| async move { self.entries_of(&session, dir, prefix).await };
            entries.extend(self.record_call(limit, read).await?.value);
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(dirs.map(|_| entries))
    }

    /// The records of a directory whose names start so. Of those whose time is over it removes a few.
    async fn entries_of(
        &self,
        session: &Session,
        shard: &str,
        prefix: &str,
    ) -> Result<Vec<Entry>, StoreError> {
        let nodes = readable(self.children_now(session, shard).await)?.unwrap_or_default();
        let named = |node: &String| {
            name_of_part(node).is_some_and(|name| name.as_str().starts_with(prefix))
        };
        let wanted: Vec<_> = nodes.into_iter().filter(named).collect();
        let (mut entries, mut may_go) = (Vec::new(), FEW);
        for batch in wanted.chunks(AT_ONCE) {
            let Some(found) = read_some(session, shard, batch).await? else { break };
            let mut now = self.leader_time(session).await?;
            if found.over(now).next().is_some() {
                now = self.leader_time_now(session).await?;
                may_go -= self.remove_expired(session, &found, now, may_go);
            }
            let live =
                found.records.iter().filter(|(_, _, record, stat)| !record.is_over(stat, now));
            entries.extend(live.map(|(_, name, record, stat)| Entry {
                result: Vec::new(),
                ..record.entry(name, stat, now)
            }));
        }
        Ok(entries)
    }
}
