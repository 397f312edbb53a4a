//! What was done, as long as this process lives.

use std::collections::BTreeMap;

use fencepost_core::records::{self, Decision, Past, Record};
use fencepost_core::{LockName, Moment, Token};

use super::Memory;
use crate::backend::StoreCall;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};

/// Every record, some of which may be over.
#[derive(Default)]
pub(super) struct Book {
    records: BTreeMap<LockName, Stored>,
    /// How many there may be before those that are over are swept out.
    sweep_at: usize,
}

struct Stored {
    record: Record,
    since: Moment,
}

impl Stored {
    fn ends(&self) -> Moment {
        self.since + self.record.retention
    }

    fn entry(&self, name: &LockName, now: Moment) -> Entry {
        let Record { state, token, label, result, .. } = self.record.clone();
        let (since, kept_for) = (now.since(self.since), self.ends().since(now));
        Entry { name: name.clone(), state, token, label, result, since, kept_for }
    }
}

impl Book {
    fn get(&self, name: &LockName, now: Moment) -> Option<Entry> {
        let stored = self.records.get(name).filter(|stored| stored.ends() > now)?;
        Some(stored.entry(name, now))
    }

    fn carry_out<T>(&mut self, name: LockName, decision: Decision<T>, now: Moment) -> T {
        match decision {
            Decision::Answer(answer) => answer,
            Decision::Write(record, answer) => {
                if self.records.len() >= self.sweep_at {
                    self.records.retain(|_, stored| stored.ends() > now);
                    self.sweep_at = 64 + 2 * self.records.len();
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

    fn claim(&mut self, claim: Claim, now: Moment) -> Claimed {
        let decision = records::claim(self.get(&claim.name, now), &claim);
        self.carry_out(claim.name, decision, now)
    }

    fn finish(&mut self, finish: Finish, now: Moment) -> bool {
        let found = self.get(&finish.name, now);
        let decision = records::finish(found.as_ref(), Past::default(), &finish);
        self.carry_out(finish.name, decision, now)
    }
}

impl Ledger for Memory {
    fn claim(&self, claim: Claim, _limit: Moment) -> StoreCall<'_, Claimed> {
        self.answer(|state, now| state.records.claim(claim, now))
    }

    fn finish(&self, finish: Finish, _limit: Moment) -> StoreCall<'_, bool> {
        self.answer(|state, now| state.records.finish(finish, now))
    }

    fn look_up(&self, name: LockName, _limit: Moment) -> StoreCall<'_, Option<Entry>> {
        self.answer(move |state, now| state.records.get(&name, now))
    }

    fn entries(&self, prefix: &str, _limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        self.answer(move |state, now| {
            let all = state.records.records.iter();
            let all = all.filter(|(name, _)| name.as_str().starts_with(&prefix));
            all.filter(|(_, stored)| stored.ends() > now)
                .map(|(name, stored)| Entry { result: Vec::new(), ..stored.entry(name, now) })
                .collect()
        })
    }

    fn forget(&self, name: LockName, token: Token, _limit: Moment) -> StoreCall<'_, bool> {
        self.answer(move |state, now| {
            let book = &mut state.records;
            let there = book.get(&name, now).is_some_and(|entry| entry.token == token);
            there && book.records.remove(&name).is_some()
        })
    }
}
