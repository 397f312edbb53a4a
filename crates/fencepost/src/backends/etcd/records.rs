//! The records of `once` in etcd (record.rs).
//!
//! *Why one success is recorded:* a step reads the record through the cluster, decides, and writes only if the key is
//! still at the revision that it read; otherwise it starts over. So steps happen one after the other. A record is
//! finished only if it is running with the runner's own token, and a runner that overtook it has claimed it under a
//! higher one. The write is in the log of a majority before it is reported.
//! *When it ends:* each state has a lease of its own, which nobody renews; when it ends, etcd deletes the key. Every
//! change of leader gives a lease its full time again, so a record may stay longer than requested, never shorter. Its
//! age is computed from the rest of the lease: in whole seconds, and since the last change of leader at most. No
//! client's clock is used.
//! *Why a call can be sent twice:* every write has a lease of its own. A retry finds an earlier write by that lease.
//! *What may be left:* a lease without a key, until it expires, of a client that was killed between the grant of the
//! lease and the write, or that could not reach etcd to revoke it. If it is unknown whether the end of a run was
//! written, neither its lease nor that of the claim is revoked: that could delete the record.
//! *Where that ends:* a cluster that is restored from a backup has the records of that time, and work that was done
//! since runs again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::records::{self, Decision, Past};
use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::api;
use super::completion::to_completion;
use super::layout::fresh_lease;
use super::record::{LeaseRemaining, Record, RecordSnapshot};
use super::requests::{changed_at, delete, get, put, range_of, ranges_of};
use super::{Etcd, Shared};
use crate::backend::{Outcome, StoreCall, StoreError, StoreResult};
use crate::ledger::{
    Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName, outcome_unknown,
};
use crate::retry::replied;

/// How often a step starts over because another client changed the record.
const ATTEMPTS: usize = 16;
/// How many records are read at once: with the longest results they fit into one message.
const PAGE: i64 = 32;
/// How long we try to revoke a lease without a key: otherwise it stays for the retention of its record.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(15);

/// What to do about a write whose outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InDoubt {
    /// Revoke its lease, so that the record goes: the write was not reported.
    Drop,
    /// Keep it.
    Keep,
}

async fn read_snapshot(
    etcd: &Shared,
    name: &LockName,
    limit: Moment,
) -> Result<RecordSnapshot, StoreError> {
    let range = range_of((etcd.prefix.record(name), Vec::new()));
    RecordSnapshot::of(etcd.connection.range(&range, limit).await?.kvs.first())
}

/// Reads, decides and writes, until no other client came in between. `decide` gets whether an earlier decision may
/// have been written.
async fn step<T>(
    etcd: &Arc<Shared>,
    name: &LockName,
    in_doubt: InDoubt,
    limit: Moment,
    decide: impl Fn(&RecordSnapshot, bool) -> Result<Decision<T>, StoreError>,
) -> Result<(T, RecordSnapshot), StoreError> {
    let mut retried = false;
    for _ in 0..ATTEMPTS {
        let seen = read_snapshot(etcd, name, limit).await?;
        let (wrote, answer) = match decide(&seen, retried)? {
            Decision::Answer(answer) => return Ok((answer, seen)),
            Decision::Write(record, answer) => {
                let record = Record::of(record);
                (replace(etcd, name, &seen, record, in_doubt, limit).await?, answer)
            }
            Decision::Remove(answer) => (remove(etcd, name, &seen, limit).await?, answer),
        };
        // The lease of the previous state has no key any more, and would stay for the rest of its time.
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

/// Replaces the record that was read. False if it has changed since.
async fn replace(
    etcd: &Arc<Shared>,
    name: &LockName,
    seen: &RecordSnapshot,
    mut record: Record,
    in_doubt: InDoubt,
    limit: Moment,
) -> StoreResult<bool> {
    let lease = fresh_lease()?;
    match etcd.connection.lease_grant(lease, record.seconds, limit).await {
        // `None` if the reply to our first attempt was lost.
        Ok(granted) => record.seconds = granted.value.unwrap_or(record.seconds),
        Err(error) => {
            let_go(etcd, lease);
            return Err(error);
        }
    }
    let key = etcd.prefix.record(name);
    let txn = written_over(seen, key.clone(), put(key, record.write(), lease));
    let wrote = etcd.connection.txn(&txn, limit).await.map(|wrote| {
        // The reply to our first attempt may have been lost.
        let ours = |kv: api::KeyValue| kv.lease == lease;
        wrote.map(|answer| answer.succeeded || ranges_of(answer).into_iter().flatten().any(ours))
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

/// Removes the record that was read. False if it has changed since.
async fn remove(
    etcd: &Shared,
    name: &LockName,
    seen: &RecordSnapshot,
    limit: Moment,
) -> StoreResult<bool> {
    let key = etcd.prefix.record(name);
    let removed = etcd.connection.txn(&written_over(seen, key.clone(), delete(key)), limit).await?;
    let gone = |answer| ranges_of(answer).into_iter().flatten().next().is_none();
    // The reply to our first attempt may have been lost.
    let retried = removed.retried;
    Ok(removed.map(|answer| answer.succeeded || retried && gone(answer)))
}

/// Revokes a lease without a key, in the background. A client that closes waits for that.
fn let_go(etcd: &Arc<Shared>, lease: i64) {
    let shared = Arc::clone(etcd);
    let revoke = async move {
        // If etcd cannot be reached, the lease ends by itself.
        let _ = shared.connection.lease_revoke(lease, shared.now() + REVOKE_TIMEOUT).await;
    };
    etcd.context.tasks.spawn_on(revoke, &etcd.context.runtime);
}

async fn claim(etcd: &Arc<Shared>, claim: Claim, limit: Moment) -> Result<Claimed, StoreError> {
    // The revision of an expired record that refused this claim.
    let mut over = None;
    for _ in 0..ATTEMPTS {
        // A caller whose claim fails runs nothing, so the record may go.
        let step = step(etcd, &claim.name, InDoubt::Drop, limit, |seen, _| {
            let found = seen.info(&claim.name).filter(|_| over != Some(seen.changed));
            Ok(records::claim(found, &claim))
        });
        let (claimed, seen) = step.await?;
        if claimed == Claimed::Ours {
            return Ok(claimed);
        }
        let changed = seen.changed;
        // Read the state again: it may have changed.
        match info(etcd, &claim.name, seen, limit).await? {
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

async fn finish(etcd: &Arc<Shared>, finish: Completion, limit: Moment) -> Result<bool, StoreError> {
    let step = step(etcd, &finish.name, InDoubt::Keep, limit, |seen, retried| {
        let past = Past { retried, ..Past::default() };
        match records::finish(seen.info(&finish.name).as_ref(), past, &finish) {
            // It may have been written, and be gone since.
            Decision::Answer(false) if retried && seen.record.is_none() => {
                let error = StoreError::unavailable(outcome_unknown(&finish.name));
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

/// Reads records, all at once: as one transaction, they might be too long for a message.
async fn look_up(
    etcd: &Shared,
    names: Vec<LockName>,
    limit: Moment,
) -> Result<RecordsByName, StoreError> {
    let asked = names.iter().map(|name| async move {
        let seen = read_snapshot(etcd, name, limit).await?;
        info(etcd, name, seen, limit).await
    });
    let found = join_all(asked).await;
    let mut records = RecordsByName::with_capacity(names.len());
    for (name, found) in names.into_iter().zip(found) {
        records.extend(found?.map(|record| (name, record)));
    }
    Ok(records)
}

/// A record with its age. `None` if there is none, or it has expired.
async fn info(
    etcd: &Shared,
    name: &LockName,
    mut record: RecordSnapshot,
    limit: Moment,
) -> Result<Option<RecordInfo>, StoreError> {
    for _ in 0..ATTEMPTS {
        let Some(found) = record.record.clone() else { return Ok(None) };
        let left = etcd.connection.lease_time_to_live(record.lease, limit).await?;
        let left = match LeaseRemaining::of(&left) {
            LeaseRemaining::Seconds(left) => left,
            LeaseRemaining::Over => return Ok(None),
            LeaseRemaining::Unknown => {
                // The lease is gone, and the record with it, unless it has another one by now.
                let again = read_snapshot(etcd, name, limit).await?;
                if again.changed != record.changed {
                    record = again;
                    continue;
                }
                // The record exists: that member was wrong, or somebody detached it from its lease.
                0
            }
        };
        return Ok(Some(found.info(name, left)));
    }
    Err(changes_again_and_again(name))
}

async fn list_records(
    etcd: &Shared,
    prefix: &str,
    limit: Moment,
) -> Result<Vec<RecordInfo>, StoreError> {
    let (mut key, range_end) = etcd.prefix.records(prefix);
    let mut records = Vec::new();
    loop {
        let range = range_of((key.clone(), range_end.clone()));
        let page = api::RangeRequest { limit: PAGE, ..range };
        let page = etcd.connection.range(&page, limit).await?;
        let mut readable = Vec::new();
        for kv in &page.kvs {
            let Some(name) = etcd.prefix.name_of_record(&kv.key) else { continue };
            match RecordSnapshot::of(Some(kv)) {
                Ok(seen) => readable.push((name, seen)),
                Err(error) => tracing::warn!(%error, "left out of a list"),
            }
        }
        let asked = readable
            .into_iter()
            .map(|(name, seen)| async move { info(etcd, &name, seen, limit).await });
        for record in join_all(asked).await {
            records.extend(record?.map(|record| record.with_result(Vec::new())));
        }
        match page.kvs.last() {
            Some(last) if page.more => key = [&*last.key, &[0]].concat(),
            _ => break,
        }
    }
    records.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(records)
}

/// Runs an operation on a key if its revision is unchanged; otherwise returns the key as it is.
fn written_over(seen: &RecordSnapshot, key: Vec<u8>, act: api::RequestOp) -> api::TxnRequest {
    api::TxnRequest {
        compare: vec![changed_at(key.clone(), seen.changed)],
        success: vec![act],
        failure: vec![get(range_of((key, Vec::new())))],
    }
}

fn changes_again_and_again(name: &LockName) -> StoreError {
    StoreError::unavailable(format!("other clients keep changing the record of \"{name}\": retry"))
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
        Box::pin(replied(self.0.clock(), to_completion(&self.0.context, step)))
    }
}

impl Ledger for Etcd {
    fn claim(&self, asked: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        self.record_step(move |etcd| async move { claim(&etcd, asked, limit).await })
    }

    fn finish(&self, asked: Completion, limit: Moment) -> StoreCall<'_, bool> {
        self.record_step(move |etcd| async move { finish(&etcd, asked, limit).await })
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        Box::pin(replied(self.0.clock(), look_up(&self.0, names, limit)))
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        Box::pin(
            async move { replied(self.0.clock(), list_records(&self.0, &prefix, limit)).await },
        )
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.record_step(move |etcd| async move { forget(&etcd, name, token, limit).await })
    }
}

#[cfg(test)]
mod tests;
