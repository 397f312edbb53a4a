//! Records, for as long as this process lives.

use std::collections::BTreeMap;

use fencepost_core::records::{self, Decision, Past, Record};
use fencepost_core::{LockName, Moment, Token};

use crate::ledger::{Claim, Claimed, Completion, RecordInfo};

/// Every record, some of which may have expired.
#[derive(Default)]
pub(super) struct RecordTable {
    records: BTreeMap<LockName, Stored>,
    /// The number of records at which expired ones are removed.
    gc_at: usize,
}

struct Stored {
    record: Record,
    since: Moment,
}

impl Stored {
    fn ends(&self) -> Moment {
        self.since + self.record.retention
    }

    fn info(&self, name: &LockName, now: Moment) -> RecordInfo {
        let Record { state, token, label, result, .. } = self.record.clone();
        let (since, kept_for) = (now.since(self.since), self.ends().since(now));
        RecordInfo::new(name.clone(), state, token, label)
            .with_result(result)
            .with_times(since, kept_for)
    }
}

impl RecordTable {
    pub(super) fn get(&self, name: &LockName, now: Moment) -> Option<RecordInfo> {
        let stored = self.records.get(name).filter(|stored| stored.ends() > now)?;
        Some(stored.info(name, now))
    }

    fn carry_out<T>(&mut self, name: LockName, decision: Decision<T>, now: Moment) -> T {
        match decision {
            Decision::Answer(answer) => answer,
            Decision::Write(record, answer) => {
                if self.records.len() >= self.gc_at {
                    self.records.retain(|_, stored| stored.ends() > now);
                    self.gc_at = 64 + 2 * self.records.len();
                }
                self.records.insert(name, Stored { record, since: now });
                answer
            }
            Decision::Remove(answer) => {
                self.records.remove(&name);
                answer
            }
        }
    }

    pub(super) fn claim(&mut self, claim: Claim, now: Moment) -> Claimed {
        let decision = records::claim(self.get(&claim.name, now), &claim);
        self.carry_out(claim.name, decision, now)
    }

    pub(super) fn finish(&mut self, finish: Completion, now: Moment) -> bool {
        let found = self.get(&finish.name, now);
        let decision = records::finish(found.as_ref(), Past::default(), &finish);
        self.carry_out(finish.name, decision, now)
    }

    pub(super) fn list_records(&self, prefix: &str, now: Moment) -> Vec<RecordInfo> {
        let live = self
            .records
            .iter()
            .filter(|(name, stored)| name.as_str().starts_with(prefix) && stored.ends() > now);
        live.map(|(name, stored)| stored.info(name, now).with_result(Vec::new())).collect()
    }

    pub(super) fn forget(&mut self, name: &LockName, token: Token, now: Moment) -> bool {
        let there = self.get(name, now).is_some_and(|record| record.token == token);
        there && self.records.remove(name).is_some()
    }
}
