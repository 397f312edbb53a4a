//! What was done, as long as this process lives.

use std::collections::BTreeMap;

use fencepost_core::{Label, LockName, Moment, Token};

use super::Memory;
use crate::backend::BoxFuture;
use crate::error::Result;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State};

/// Every record whose time is not over.
#[derive(Default)]
pub(super) struct Book(BTreeMap<LockName, Record>);

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
    fn tidy(&mut self, now: Moment) {
        self.0.retain(|_, record| record.ends > now);
    }

    fn claim(&mut self, claim: Claim, now: Moment) -> Claimed {
        match self.0.get(&claim.name) {
            Some(record) if record.state != State::Running => {
                return Claimed::Settled(record.entry(&claim.name, now));
            }
            Some(record) if record.token > claim.token => return Claimed::Overtaken,
            _ => {}
        }
        let Claim { name, token, label, keep } = claim;
        let (state, result) = (State::Running, Vec::new());
        self.0.insert(name, Record { state, token, label, result, since: now, ends: now + keep });
        Claimed::Ours
    }

    fn finish(&mut self, finish: Finish, now: Moment) -> bool {
        let Finish { name, token, label, outcome, keep, over } = finish;
        let allowed = match (over, self.0.get(&name)) {
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
                    self.0.remove(&name);
                    return true;
                }
            };
            let record = Record { state, token, label, result, since: now, ends: now + keep };
            self.0.insert(name, record);
        }
        allowed
    }
}

impl Memory {
    fn book<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Book, Moment) -> T,
    ) -> BoxFuture<'_, Result<T>> {
        let (mut state, now) = self.state();
        state.records.tidy(now);
        let answer = act(&mut state.records, now);
        Box::pin(std::future::ready(Ok(answer)))
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
        self.book(|book, now| book.0.get(&name).map(|record| record.entry(&name, now)))
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        self.book(|book, now| {
            let all = book.0.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
            all.map(|(name, record)| Entry { result: Vec::new(), ..record.entry(name, now) })
                .collect()
        })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        self.book(|book, _| {
            let there = book.0.get(&name).is_some_and(|record| record.token == token);
            there && book.0.remove(&name).is_some()
        })
    }
}
