//! What was done, as long as this process lives.

use std::collections::BTreeMap;

use fencepost_core::{Label, LockName, Moment, Token};

use super::Memory;
use crate::backend::BoxFuture;
use crate::error::Result;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State};

/// Every record, some of which may be over.
#[derive(Default)]
pub(super) struct Book {
    records: BTreeMap<LockName, Record>,
    /// How many there may be before those that are over are swept out.
    sweep_at: usize,
}

struct Record {
    state: State,
    token: Token,
    label: Label,
    result: Vec<u8>,
    since: Moment,
    ends: Moment,
}

impl Record {
    fn entry(&self, name: &LockName, now: Moment) -> Entry {
        Entry {
            name: name.clone(),
            state: self.state,
            token: self.token,
            label: self.label.clone(),
            result: self.result.clone(),
            since: now.since(self.since),
            kept_for: self.ends.since(now),
        }
    }
}

impl Book {
    fn get(&self, name: &LockName, now: Moment) -> Option<&Record> {
        self.records.get(name).filter(|record| record.ends > now)
    }

    fn insert(&mut self, name: LockName, record: Record, now: Moment) {
        if self.records.len() >= self.sweep_at {
            self.records.retain(|_, record| record.ends > now);
            self.sweep_at = 64 + 2 * self.records.len();
        }
        self.records.insert(name, record);
    }

    fn claim(&mut self, claim: Claim, now: Moment) -> Claimed {
        match self.get(&claim.name, now) {
            Some(record) if record.state != State::Running => {
                return Claimed::Settled(record.entry(&claim.name, now));
            }
            Some(record) if record.token > claim.token => return Claimed::Overtaken,
            _ => {}
        }
        let Claim { name, token, label, keep } = claim;
        let (state, result) = (State::Running, Vec::new());
        let record = Record { state, token, label, result, since: now, ends: now + keep };
        self.insert(name, record, now);
        Claimed::Ours
    }

    fn finish(&mut self, finish: Finish, now: Moment) -> bool {
        let Finish { name, token, label, outcome, keep, over } = finish;
        let allowed = match (over, self.get(&name, now)) {
            // Settled by us already: the answer to that got lost.
            (Over::OwnClaim, Some(record))
                if record.token == token && record.state != State::Running =>
            {
                return true;
            }
            (Over::OwnClaim, Some(record)) => record.token == token,
            (Over::OwnClaim, None) => outcome == Outcome::Abandoned,
            (Over::Older, record) => record.is_none_or(|record| record.token <= token),
        };
        if allowed {
            let (state, result) = match outcome {
                Outcome::Done(result) => (State::Done, result),
                Outcome::Failed(message) => (State::Failed, message),
                Outcome::Abandoned => {
                    self.records.remove(&name);
                    return true;
                }
            };
            let record = Record { state, token, label, result, since: now, ends: now + keep };
            self.insert(name, record, now);
        }
        allowed
    }
}

impl Memory {
    /// When it is awaited, and not before.
    fn book<'a, T>(
        &'a self,
        act: impl FnOnce(&mut Book, Moment) -> T + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let (mut state, now) = self.state();
            Ok(act(&mut state.records, now))
        })
    }
}

impl Ledger for Memory {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        self.book(|book, now| book.claim(claim, now))
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        self.book(|book, now| book.finish(finish, now))
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(
            self.book(move |book, now| book.get(&name, now).map(|record| record.entry(&name, now))),
        )
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        self.book(move |book, now| {
            let all = book.records.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
            all.filter(|(_, record)| record.ends > now)
                .map(|(name, record)| Entry { result: Vec::new(), ..record.entry(name, now) })
                .collect()
        })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        self.book(move |book, now| {
            let there = book.get(&name, now).is_some_and(|record| record.token == token);
            there && book.records.remove(&name).is_some()
        })
    }
}
