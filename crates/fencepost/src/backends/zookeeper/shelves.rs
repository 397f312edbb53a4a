//! The directories of records: made once, listed, and rid of what is over.
//!
//! Whoever removes records sets their directory in the same step: ledger.rs tells why.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::faults::{Code, Fault};
use super::names::name_of_part;
use super::nodes::hex;
use super::ops::{Make, Op};
use super::record::{Record, Site};
use super::session::Session;
use super::shared::Shared;
use crate::counted::Counted;
use crate::ledger::Entry;

/// How many records a finish looks at in each directory: more than it makes, so that what is over goes faster than
/// new ones come.
const SWEPT: usize = 4;
/// How many other directories it looks at, and how often at most.
const SHELVES: u8 = 16;
const PAUSE: Duration = Duration::from_millis(250);

/// When others were last looked at, and from which one on.
pub(super) type Swept = (Moment, u8);
/// How many nodes are read at once. Each may have 64 KiB.
const AT_ONCE: usize = 64;

impl Shared {
    /// Makes a directory of records, and what is missing above it: to stay, since the version of one that was
    /// made anew would begin anew.
    pub(super) async fn make_shelf(&self, session: &Session, dir: &str) -> Result<(), Fault> {
        self.make_path(session, dir, |_| Make::Persistent, self.access).await
    }

    /// Takes records away whose time is over, in the background, unless something happens to them first.
    pub(super) fn bury(
        self: &Arc<Self>,
        session: &Arc<Session>,
        shard: &str,
        generation: i32,
        over: &[(String, i32)],
    ) {
        if over.is_empty() {
            return;
        }
        let mut ops = vec![Op::set_version(shard, b"", generation)];
        ops.extend(over.iter().map(|(node, version)| Op::delete_version(node, *version)));
        let (asked, counted) = (session.multi(&ops), Counted::new(&self.closing));
        self.around.runtime.spawn(async move {
            let _counted = counted;
            // Whoever meets them next tries again.
            let _ = asked.await;
        });
    }

    /// After a finish: looks at a few records of the same directory and, now and then, of some others, in the
    /// background. Where it begins is a matter of the token, which comes once: so all get their turn.
    pub(super) fn sweep_records(self: &Arc<Self>, name: &LockName, token: Token) {
        let turn = token.get().wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        let (shared, records) = (Arc::clone(self), self.records());
        let mut shards = vec![Site::of(&records, name).shard];
        let others = self.shelves_due(turn[0]).into_iter();
        shards.extend(others.map(|number| format!("{records}/{}", hex(&[number]))));
        let counted = Counted::new(&self.closing);
        self.around.runtime.spawn(async move {
            let _counted = counted;
            let session = shared.control();
            let first = usize::from(u16::from_be_bytes([turn[1], turn[2]]));
            let few = |all: &[String]| {
                let some = all.iter().cycle().skip(first % all.len().max(1));
                some.take(SWEPT.min(all.len())).cloned().collect()
            };
            // Nobody waits for it, and the next one does as much.
            join_all(shards.iter().map(|shard| shared.read_shelf(&session, shard, few))).await;
        });
    }

    /// Which other directories it is time to look at.
    fn shelves_due(&self, begin: u8) -> Vec<u8> {
        let (mut swept, now) = (self.swept(), self.now());
        let next = match *swept {
            Some((last, _)) if now.since(last) < PAUSE => return Vec::new(),
            Some((_, last)) => last.wrapping_add(SHELVES),
            None => begin,
        };
        *swept = Some((now, next));
        (0..SHELVES).map(|number| next.wrapping_add(number)).collect()
    }

    /// Reads those records of a directory that are `wanted`; those whose time is over are left out, and go.
    async fn read_shelf(
        self: &Arc<Self>,
        session: &Arc<Session>,
        shard: &str,
        wanted: impl Fn(&[String]) -> Vec<String>,
    ) -> Result<Vec<Entry>, Fault> {
        let (synced, generation, nodes) =
            (session.sync(shard), session.data(shard), session.children(shard));
        let (synced, generation, nodes) =
            (synced.await, there(generation.await)?, there(nodes.await)?);
        synced?;
        let (Some((_, generation)), Some(nodes)) = (generation, nodes) else {
            return Ok(Vec::new());
        };
        let (mut entries, mut over) = (Vec::new(), Vec::new());
        for bunch in wanted(&nodes).chunks(AT_ONCE) {
            let asked = bunch.iter().map(|node| session.data(&format!("{shard}/{node}")));
            for (node, answer) in bunch.iter().zip(join_all(asked).await) {
                let Some((data, stat)) = there(answer)? else { continue };
                // What is none of ours is left alone.
                let Some((record, name)) = Record::read(&data).zip(name_of_part(node)) else {
                    continue;
                };
                let now = self.leader_time(session).await?;
                if record.is_over(&stat, now) {
                    over.push((format!("{shard}/{node}"), record, stat));
                } else {
                    entries.push(Entry { result: Vec::new(), ..record.entry(&name, &stat, now) });
                }
            }
        }
        if !over.is_empty() {
            let now = self.leader_time_now(session).await?;
            over.retain(|(_, record, stat)| record.is_over(stat, now));
            let over = over.into_iter().map(|(node, _, stat)| (node, stat.version));
            // A request may not be too long; what is left goes next time.
            let over: Vec<_> = over.take(AT_ONCE).collect();
            self.bury(session, shard, generation.version, &over);
        }
        Ok(entries)
    }

    pub(super) async fn all_entries(self: &Arc<Self>, prefix: &str) -> Result<Vec<Entry>, Fault> {
        let (session, records) = (self.control(), self.records());
        let shards = self.children_now(&session, &records).await?;
        let mut entries = Vec::new();
        let wanted = |nodes: &[String]| {
            let named = |node: &&String| {
                name_of_part(node).is_some_and(|name| name.as_str().starts_with(prefix))
            };
            nodes.iter().filter(named).cloned().collect()
        };
        for shard in shards.iter().filter(|shard| shard.len() == 2) {
            let shard = format!("{records}/{shard}");
            entries.extend(self.read_shelf(&session, &shard, wanted).await?);
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}

/// An answer, or none if there is no such node.
pub(super) fn there<T>(answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Fault::Said(Code::NoNode)) => Ok(None),
        Err(fault) => Err(fault),
    }
}
