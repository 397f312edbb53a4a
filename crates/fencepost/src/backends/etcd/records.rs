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

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::records::{self, Decision, Past};
use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::api;
use super::completion::to_completion;
use super::layout::fresh_lease;
use super::record::{Left, Record, Seen};
use super::requests::{changed_at, delete, found, get, put, range_of};
use super::{Etcd, Shared};
use crate::backend::{Outcome, StoreCall, StoreError, StoreResult};
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, nobody_knows};

/// How often a step begins anew because somebody else changed the record.
const ATTEMPTS: usize = 16;
/// How many records are read at once: with the longest results they fit into one message.
const PAGE: i64 = 32;
/// How long we try to end a lease that carries nothing: else it stays for as long as its record was to be kept.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(15);

/// What becomes of a record of which nobody knows whether it was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InDoubt {
    /// It goes: nobody was told of it.
    Drop,
    /// It stays.
    Keep,
}

async fn seen(etcd: &Shared, name: &LockName, limit: Moment) -> Result<Seen, StoreError> {
    let range = range_of((etcd.prefix.record(name), Vec::new()));
    Seen::of(etcd.connection.range(&range, limit).await?.kvs.first())
}

/// Reads, decides and writes, until nobody came in between. `decide` is told whether something that it
/// decided before may have been written.
async fn step<T>(
    etcd: &Arc<Shared>,
    name: &LockName,
    in_doubt: InDoubt,
    limit: Moment,
    decide: impl Fn(&Seen, bool) -> Result<Decision<T>, StoreError>,
) -> Result<(T, Seen), StoreError> {
    let mut retried = false;
    for _ in 0..ATTEMPTS {
        let seen = seen(etcd, name, limit).await?;
        let (wrote, answer) = match decide(&seen, retried)? {
            Decision::Answer(answer) => return Ok((answer, seen)),
            Decision::Write(record, answer) => {
                let record = Record::of(record);
                (replace(etcd, name, &seen, record, in_doubt, limit).await?, answer)
            }
            Decision::Remove(answer) => (remove(etcd, name, &seen, limit).await?, answer),
        };
        // The lease of what was there has no key any more, and would stay for as long as that was to be kept.
        if (wrote.value || wrote.retried) && seen.lease != 0 {
            let_go(etcd, seen.lease);
        }
        if wrote.value {
            return Ok((answer, seen));
        }
        retried |= wrote.retried;
    }
    Err(changes_again_and_again(name))
}

/// Writes over what was seen. False if that is not there any more.
async fn replace(
    etcd: &Arc<Shared>,
    name: &LockName,
    seen: &Seen,
    mut record: Record,
    in_doubt: InDoubt,
    limit: Moment,
) -> StoreResult<bool> {
    let lease = fresh_lease()?;
    match etcd.connection.lease_grant(lease, record.seconds, limit).await {
        // `None` if the answer to our first attempt got lost.
        Ok(granted) => record.seconds = granted.value.unwrap_or(record.seconds),
        Err(error) => {
            let_go(etcd, lease);
            return Err(error);
        }
    }
    let key = etcd.prefix.record(name);
    let txn = written_over(seen, key.clone(), put(key, record.write(), lease));
    let wrote = etcd.connection.txn(&txn, limit).await.map(|wrote| {
        // The answer to our first attempt may have been lost.
        let ours = |kv: api::KeyValue| kv.lease == lease;
        wrote.map(|answer| answer.succeeded || found(answer).into_iter().flatten().any(ours))
    });
    let may_be_used = match &wrote {
        Ok(wrote) => wrote.value,
        Err(error) => error.outcome() == Outcome::Unknown && in_doubt == InDoubt::Keep,
    };
    if !may_be_used {
        let_go(etcd, lease);
    }
    wrote
}

/// Removes what was seen. False if that is not there any more.
async fn remove(etcd: &Shared, name: &LockName, seen: &Seen, limit: Moment) -> StoreResult<bool> {
    let key = etcd.prefix.record(name);
    let removed = etcd.connection.txn(&written_over(seen, key.clone(), delete(key)), limit).await?;
    let gone = |answer| found(answer).into_iter().flatten().next().is_none();
    // The answer to our first attempt may have been lost.
    let retried = removed.retried;
    Ok(removed.map(|answer| answer.succeeded || retried && gone(answer)))
}

/// Ends a lease that carries nothing, in the background. A client that closes waits for that.
fn let_go(etcd: &Arc<Shared>, lease: i64) {
    let shared = Arc::clone(etcd);
    let revoke = async move {
        // If it cannot be told, the lease ends by itself.
        let _ = shared.connection.lease_revoke(lease, shared.now() + LET_GO_TIMEOUT).await;
    };
    etcd.around.tasks.spawn_on(revoke, &etcd.around.runtime);
}

async fn claim(etcd: &Arc<Shared>, claim: Claim, limit: Moment) -> Result<Claimed, StoreError> {
    // At which revision there was one that keeps us from it and whose time is over.
    let mut over = None;
    for _ in 0..ATTEMPTS {
        // Who fails to claim it runs nothing, so the record may go.
        let step = step(etcd, &claim.name, InDoubt::Drop, limit, |seen, _| {
            let found = seen.entry(&claim.name).filter(|_| over != Some(seen.changed));
            Ok(records::claim(found, &claim))
        });
        let (claimed, seen) = step.await?;
        if claimed == Claimed::Ours {
            return Ok(claimed);
        }
        let changed = seen.changed;
        // How it stands by now, which may be another way.
        match entry(etcd, &claim.name, seen, limit).await? {
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

async fn finish(etcd: &Arc<Shared>, finish: Finish, limit: Moment) -> Result<bool, StoreError> {
    let step = step(etcd, &finish.name, InDoubt::Keep, limit, |seen, retried| {
        let past = Past { retried, ..Past::default() };
        match records::finish(seen.entry(&finish.name).as_ref(), past, &finish) {
            // It may have been written, and have gone since.
            Decision::Answer(false) if retried && seen.record.is_none() => {
                let error = StoreError::unavailable(nobody_knows(&finish.name));
                Err(error.with_outcome(Outcome::Unknown))
            }
            decision => Ok(decision),
        }
    });
    Ok(step.await?.0)
}

async fn forget(
    etcd: &Arc<Shared>,
    name: LockName,
    token: Token,
    limit: Moment,
) -> Result<bool, StoreError> {
    let step = step(etcd, &name, InDoubt::Keep, limit, |seen, _| {
        Ok(match &seen.record {
            Some(record) if record.token == token => Decision::Remove(true),
            _ => Decision::Answer(false),
        })
    });
    Ok(step.await?.0)
}

async fn look_up(
    etcd: &Shared,
    name: LockName,
    limit: Moment,
) -> Result<Option<Entry>, StoreError> {
    let seen = seen(etcd, &name, limit).await?;
    entry(etcd, &name, seen, limit).await
}

/// A record with its age. `None` if there is none, or its time is over.
async fn entry(
    etcd: &Shared,
    name: &LockName,
    mut record: Seen,
    limit: Moment,
) -> Result<Option<Entry>, StoreError> {
    for _ in 0..ATTEMPTS {
        let Some(found) = record.record.clone() else { return Ok(None) };
        let left = etcd.connection.lease_time_to_live(record.lease, limit).await?;
        let left = match Left::of(&left) {
            Left::Seconds(left) => left,
            Left::Over => return Ok(None),
            Left::Unknown => {
                // The lease is gone, and the record with it, unless it has another one by now.
                let again = seen(etcd, name, limit).await?;
                if again.changed != record.changed {
                    record = again;
                    continue;
                }
                // It is there: that member was wrong, or somebody took it off its lease.
                0
            }
        };
        return Ok(Some(found.entry(name, left)));
    }
    Err(changes_again_and_again(name))
}

async fn entries(etcd: &Shared, prefix: &str, limit: Moment) -> Result<Vec<Entry>, StoreError> {
    let (mut key, range_end) = etcd.prefix.records(prefix);
    let mut entries = Vec::new();
    loop {
        let range = range_of((key.clone(), range_end.clone()));
        let page = api::RangeRequest { limit: PAGE, ..range };
        let page = etcd.connection.range(&page, limit).await?;
        let mut readable = Vec::new();
        for kv in &page.kvs {
            let Some(name) = etcd.prefix.name_of_record(&kv.key) else { continue };
            match Seen::of(Some(kv)) {
                Ok(seen) => readable.push((name, seen)),
                Err(error) => tracing::warn!(%error, "left out of a list"),
            }
        }
        let asked = readable
            .into_iter()
            .map(|(name, seen)| async move { entry(etcd, &name, seen, limit).await });
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

/// An act on a key, if that is as it was seen; else what it is.
fn written_over(seen: &Seen, key: Vec<u8>, act: api::RequestOp) -> api::TxnRequest {
    api::TxnRequest {
        compare: vec![changed_at(key.clone(), seen.changed)],
        success: vec![act],
        failure: vec![get(range_of((key, Vec::new())))],
    }
}

fn changes_again_and_again(name: &LockName) -> StoreError {
    StoreError::unavailable(format!("the record of \"{name}\" changes again and again"))
}

impl Etcd {
    /// Completes a step even if its caller drops it: no lease is left without a key.
    fn record_step<T: Send + 'static, F>(
        &self,
        step: impl FnOnce(Arc<Shared>) -> F,
    ) -> StoreCall<'_, T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let step = step(Arc::clone(&self.0));
        Box::pin(self.0.replied(to_completion(&self.0.around, step)))
    }
}

impl Ledger for Etcd {
    fn claim(&self, asked: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        self.record_step(move |etcd| async move { claim(&etcd, asked, limit).await })
    }

    fn finish(&self, asked: Finish, limit: Moment) -> StoreCall<'_, bool> {
        self.record_step(move |etcd| async move { finish(&etcd, asked, limit).await })
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(self.0.replied(look_up(&self.0, name, limit)))
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.replied(entries(&self.0, &prefix, limit)).await })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.record_step(move |etcd| async move { forget(&etcd, name, token, limit).await })
    }
}

#[cfg(test)]
mod tests;
