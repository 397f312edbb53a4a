//! Records of what was done, in etcd (record.rs).
//!
//! *Why one success is recorded:* a step reads the record through the cluster, decides, and writes what it
//! decided only if the key is still at the revision that it read; else it begins anew. So steps happen one
//! after the other. A record is settled only where it is running with the runner's own token, and whoever
//! overtook it claimed it under a higher one. It is in the log of a majority before anybody is told.
//! *When it ends:* each state has a lease of its own, which nobody renews; when it ends, etcd deletes the key. Every
//! change of leaders gives a lease its full time again, so a record may stay longer than was asked, never
//! shorter. How old it is comes from what is left of the lease: in whole seconds, and from the last change of
//! leaders at most. No clock of a client has a part in it.
//! *Why a call can be sent twice:* every write has a lease that nobody else has. A write that is found undone is
//! looked for by that.
//! *What may be left:* a lease without a key, until its time is over, of a client that was killed between the
//! two, or that could not reach etcd long enough to end it. When nobody knows whether the end of a run was
//! written, neither its lease is ended nor that of the claim: a record may go with it.
//! *Where that ends:* a cluster that is restored from a backup has the records of that time, and what was done
//! since is done again.

use std::sync::Arc;

use fencepost_core::records::{self, Decision, Past};
use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::api;
use super::calls::{changed_at, delete, found, get, put, range_of};
use super::faults::Fault;
use super::record::{Left, Record, Seen};
use super::{Desk, Etcd, OUTAGE, PATIENCE, UnderWay};
use crate::backend::BoxFuture;
use crate::backends::bridge::Ledger;
use crate::error::Result;
use crate::ledger::{Claim, Claimed, Entry, Finish, nobody_knows};

/// How often a step begins anew because somebody else changed the record.
const TRIES: usize = 16;
/// How many records are read at once: with the longest results they fit into one message.
const PAGE: i64 = 32;

/// What becomes of a record of which nobody knows whether it was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InDoubt {
    /// It goes: nobody was told of it.
    Drop,
    /// It stays.
    Keep,
}

/// What came of a write.
struct Wrote {
    done: bool,
    /// It was sent more than once, so it may have been done and undone.
    again: bool,
}

impl Desk {
    async fn seen(&self, name: &LockName, limit: Moment) -> Result<Seen, Fault> {
        let range = range_of((self.prefix.record(name), Vec::new()));
        Seen::of(self.link.range(&range, limit).await?.kvs.first())
    }

    /// Reads, decides and writes, until nobody came in between. `decide` is told whether something that it
    /// decided before may have been written.
    async fn step<T>(
        self: &Arc<Self>,
        name: &LockName,
        in_doubt: InDoubt,
        decide: impl Fn(&Seen, bool) -> Result<Decision<T>, Fault>,
    ) -> Result<(T, Seen), Fault> {
        let limit = self.now() + PATIENCE;
        let mut again = false;
        for _ in 0..TRIES {
            let seen = self.seen(name, limit).await?;
            let (wrote, answer) = match decide(&seen, again)? {
                Decision::Answer(answer) => return Ok((answer, seen)),
                Decision::Write(record, answer) => {
                    let record = Record::of(record);
                    (self.replace(name, &seen, record, in_doubt, limit).await?, answer)
                }
                Decision::Remove(answer) => (self.remove(name, &seen, limit).await?, answer),
            };
            // The lease of what was there has no key any more, and would stay for as long as that was to be kept.
            if (wrote.done || wrote.again) && seen.lease != 0 {
                self.let_go(self.under_way(seen.lease).await);
            }
            if wrote.done {
                return Ok((answer, seen));
            }
            again |= wrote.again;
        }
        Err(changes_again_and_again(name))
    }

    /// Writes over what was seen, unless that is not there any more.
    async fn replace(
        self: &Arc<Self>,
        name: &LockName,
        seen: &Seen,
        mut record: Record,
        in_doubt: InDoubt,
        limit: Moment,
    ) -> Result<Wrote, Fault> {
        let lease = fresh_lease()?;
        // From before it is there: a client that closes waits until it has its key or is gone.
        let under_way = self.under_way(lease).await;
        match self.link.grant(lease, record.seconds, limit).await {
            Ok(granted) => record.seconds = granted.value.ttl,
            // The answer to our first try got lost.
            Err(Fault::LeaseExists) => {}
            Err(fault) => {
                self.let_go(under_way);
                return Err(fault);
            }
        }
        let key = self.prefix.record(name);
        let txn = written_over(seen, key.clone(), put(key, record.write(), lease));
        let mut again = false;
        let answer = match self.link.txn_noting(&txn, limit, &mut again).await {
            Ok(answer) => answer.value,
            Err(fault) => {
                if !again || in_doubt == InDoubt::Drop {
                    self.let_go(under_way);
                }
                return Err(fault);
            }
        };
        // The answer to our first try may have been lost.
        let ours = |kv: api::KeyValue| kv.lease == lease;
        let done = answer.succeeded || found(answer).into_iter().flatten().any(ours);
        if !done {
            self.let_go(under_way);
        }
        Ok(Wrote { done, again })
    }

    /// Removes what was seen, unless that is not there any more.
    async fn remove(&self, name: &LockName, seen: &Seen, limit: Moment) -> Result<Wrote, Fault> {
        let key = self.prefix.record(name);
        let answer = self.link.txn(&written_over(seen, key.clone(), delete(key)), limit).await?;
        let again = answer.again;
        let gone = |answer| found(answer).into_iter().flatten().next().is_none();
        // The answer to our first try may have been lost.
        let done = answer.value.succeeded || again && gone(answer.value);
        Ok(Wrote { done, again })
    }

    /// Ends a lease that carries nothing, in the background. A client that closes waits for that.
    fn let_go(self: &Arc<Self>, under_way: UnderWay) {
        let desk = Arc::clone(self);
        self.around.runtime.spawn(async move {
            let limit = desk.now() + OUTAGE;
            // If it can not be told, the lease ends by itself.
            let _ = desk.link.revoke(under_way.lease, limit).await;
            drop(under_way);
        });
    }

    async fn claim(self: &Arc<Self>, claim: Claim) -> Result<Claimed, Fault> {
        // At which revision there was one that keeps us from it and whose time is over.
        let mut over = None;
        for _ in 0..TRIES {
            // Who fails to claim it runs nothing, so the record may go.
            let step = self.step(&claim.name, InDoubt::Drop, |seen, _| {
                let found = seen.entry(&claim.name).filter(|_| over != Some(seen.changed));
                Ok(records::claim(found, &claim))
            });
            let (claimed, seen) = step.await?;
            if claimed == Claimed::Ours {
                return Ok(claimed);
            }
            let changed = seen.changed;
            // How it stands by now, which may be another way.
            match self.entry(&claim.name, seen, self.now() + PATIENCE).await? {
                None => over = Some(changed),
                found => {
                    if let Decision::Answer(claimed) = records::claim(found, &claim) {
                        return Ok(claimed);
                    }
                }
            }
        }
        Err(changes_again_and_again(&claim.name))
    }

    async fn finish(self: &Arc<Self>, finish: Finish) -> Result<bool, Fault> {
        let step = self.step(&finish.name, InDoubt::Keep, |seen, retried| {
            let past = Past { retried, ..Past::default() };
            match records::finish(seen.entry(&finish.name).as_ref(), past, &finish) {
                // It may have been written, and have gone since.
                Decision::Answer(false) if retried && seen.record.is_none() => {
                    Err(Fault::Unreachable(nobody_knows(&finish.name)))
                }
                decision => Ok(decision),
            }
        });
        Ok(step.await?.0)
    }

    async fn forget(self: &Arc<Self>, name: LockName, token: Token) -> Result<bool, Fault> {
        let step = self.step(&name, InDoubt::Keep, |seen, _| {
            Ok(match &seen.record {
                Some(record) if record.token == token => Decision::Remove(true),
                _ => Decision::Answer(false),
            })
        });
        Ok(step.await?.0)
    }

    async fn look_up(&self, name: &LockName) -> Result<Option<Entry>, Fault> {
        let limit = self.now() + PATIENCE;
        let seen = self.seen(name, limit).await?;
        self.entry(name, seen, limit).await
    }

    /// A record with its age. `None` if there is none, or its time is over.
    async fn entry(
        &self,
        name: &LockName,
        mut seen: Seen,
        limit: Moment,
    ) -> Result<Option<Entry>, Fault> {
        for _ in 0..TRIES {
            let Some(record) = seen.record.clone() else { return Ok(None) };
            let left = match Left::of(&self.link.time_to_live(seen.lease, limit).await?) {
                Left::Seconds(left) => left,
                Left::Over => return Ok(None),
                Left::Unknown => {
                    // The lease is gone, and the record with it, unless it has another one by now.
                    let again = self.seen(name, limit).await?;
                    if again.changed != seen.changed {
                        seen = again;
                        continue;
                    }
                    // It is there: that member was wrong, or somebody took it off its lease.
                    0
                }
            };
            return Ok(Some(record.entry(name, left)));
        }
        Err(changes_again_and_again(name))
    }

    async fn entries(&self, prefix: &str) -> Result<Vec<Entry>, Fault> {
        let limit = self.now() + OUTAGE;
        let (mut key, range_end) = self.prefix.records(prefix);
        let mut entries = Vec::new();
        loop {
            let range = range_of((key.clone(), range_end.clone()));
            let page = self.link.range(&api::RangeRequest { limit: PAGE, ..range }, limit).await?;
            let mut readable = Vec::new();
            for kv in &page.kvs {
                let Some(name) = self.prefix.name_of_record(&kv.key) else { continue };
                match Seen::of(Some(kv)) {
                    Ok(seen) => readable.push((name, seen)),
                    Err(fault) => tracing::warn!(error = %fault.into_error(), "left out of a list"),
                }
            }
            let asked = readable
                .into_iter()
                .map(|(name, seen)| async move { self.entry(&name, seen, limit).await });
            for entry in join_all(asked).await {
                entries.extend(entry?.map(|entry| Entry { result: Vec::new(), ..entry }));
            }
            match page.kvs.last() {
                Some(last) if page.more => key = [&*last.key, &[0]].concat(),
                _ => break,
            }
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}

/// An act on a key, if that is as it was seen; else what it is.
fn written_over(seen: &Seen, key: Vec<u8>, act: api::RequestOp) -> api::TxnRequest {
    api::TxnRequest {
        compare: vec![changed_at(key.clone(), seen.changed)],
        success: vec![act],
        failure: vec![get(range_of((key, Vec::new())))],
    }
}

fn changes_again_and_again(name: &LockName) -> Fault {
    Fault::Unreachable(format!("the record of \"{name}\" changes again and again"))
}

/// The id of a lease that nobody else has.
fn fresh_lease() -> Result<i64, Fault> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|error| {
        Fault::Unreachable(format!("the system gives no random numbers: {error}"))
    })?;
    // Zero would have etcd choose one.
    Ok((i64::from_be_bytes(id) & i64::MAX).max(1))
}

impl Ledger for Etcd {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        let desk = Arc::clone(&self.0);
        // To its end, even if nobody waits for it any more: no lease is left without a key.
        let step = self.0.through(async move { desk.claim(claim).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        let desk = Arc::clone(&self.0);
        let step = self.0.through(async move { desk.finish(finish).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move { self.0.look_up(&name).await.map_err(Fault::into_error) })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.entries(&prefix).await.map_err(Fault::into_error) })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        let desk = Arc::clone(&self.0);
        let step = self.0.through(async move { desk.forget(name, token).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }
}

#[cfg(test)]
mod tests;
