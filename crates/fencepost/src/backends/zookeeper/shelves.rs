//! The directories of records: made once, listed, and rid of what is over.
//!
//! Whoever removes records sets their directory in the same step: ledger.rs tells why.

use fencepost_core::LockName;
use futures_util::future::join_all;

use super::error::readable;
use super::names::name_of_part;
use super::ops::{Make, Op};
use super::record::Record;
use super::session::Session;
use super::shared::Shared;
use super::wire::Stat;
use crate::backend::StoreError;
use crate::ledger::Entry;

/// How many records are read at once for a list. Each may have 64 KiB.
const AT_ONCE: usize = 16;
/// How many go in one step.
const BURIED: usize = 64;

/// Some records of a directory.
pub(super) struct Shelved {
    /// The directory's version, read before them.
    pub(super) generation: i32,
    pub(super) records: Vec<(String, LockName, Record, Stat)>,
}

impl Shelved {
    /// At most so many of their nodes, with their versions.
    pub(super) fn nodes(&self, shard: &str, most: usize) -> Vec<(String, i32)> {
        let node = |(node, _, _, stat): &(String, LockName, Record, Stat)| {
            (format!("{shard}/{node}"), stat.version)
        };
        self.records.iter().take(most).map(node).collect()
    }
}

impl Shared {
    /// Makes a directory of records, and what is missing above it: to stay, since the version of one that was
    /// made anew would begin anew.
    pub(super) async fn make_shelf(&self, session: &Session, dir: &str) -> Result<(), StoreError> {
        self.make_path(session, dir, |_| Make::Persistent, self.access).await
    }

    /// Takes records away whose time is over, unless something happens to them first.
    pub(super) async fn bury(
        &self,
        session: &Session,
        shard: &str,
        mut generation: i32,
        over: &[(String, i32)],
    ) -> Result<(), StoreError> {
        for bunch in over.chunks(BURIED) {
            let mut bunch = bunch.to_vec();
            while !bunch.is_empty() {
                let mut ops = vec![Op::set_version(shard, b"", generation)];
                ops.extend(bunch.iter().map(|(node, version)| Op::delete_version(node, *version)));
                match session.multi(&ops).await? {
                    None => {
                        generation = generation.wrapping_add(1);
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

    /// Which of these live, with the leader's time, and which are over; and how many of those may go, if so many of
    /// their directory went before.
    pub(super) async fn part(
        &self,
        session: &Session,
        mut found: Shelved,
        gone: &mut usize,
    ) -> Result<(Vec<Entry>, Shelved, usize), StoreError> {
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
    pub(super) async fn read_some(
        &self,
        session: &Session,
        shard: &str,
        nodes: &[String],
    ) -> Result<Option<Shelved>, StoreError> {
        let generation = session.data(shard);
        let asked: Vec<_> =
            nodes.iter().map(|node| session.data(&format!("{shard}/{node}"))).collect();
        let Some((_, generation)) = readable(generation.await)? else { return Ok(None) };
        let mut records = Vec::new();
        for (node, answer) in nodes.iter().zip(join_all(asked).await) {
            let Some((data, stat)) = readable(answer)? else { continue };
            if let Some((record, name)) = Record::read(&data).zip(name_of_part(node)) {
                records.push((node.clone(), name, record, stat));
            }
        }
        Ok(Some(Shelved { generation: generation.version, records }))
    }

    pub(super) async fn all_entries(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
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
                self.bury(&session, &shard, over.generation, &over.nodes(&shard, may)).await?;
            }
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}
