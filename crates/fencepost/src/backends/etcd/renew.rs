//! Renewals: a keep-alive, and the proof that it counts.
//!
//! A keep-alive is answered from the memory of a member that considers itself the leader. A leader that was paused
//! while another was elected answers it too, although the lease is no longer its own. So after the reply we read our
//! own key through the cluster. Each reply carries the term of the last entry that its member had applied. A read
//! through the cluster comes after an entry of the present leader's own term. So if the keep-alive carries the same
//! term, it was answered under that leader, which still led when we read. If the terms differ, the renewal does not
//! count, and we retry.
//!
//! A leader's proclamation is a renewal, and then a put of its key that is compared with what the renewal read.

use std::sync::atomic::Ordering;

use fencepost_core::{Moment, Ttl};
use futures_util::future::{join, join_all};

use super::api;
use super::error::Refusal;
use super::layout::lease_of;
use super::locks::why_lost;
use super::requests::{delete, get, made_at, range_of, ranges_of};
use super::values::proclaim;
use super::{Shared, token_from, ttl_from};
use crate::backend::{
    BoxFuture, GrantId, LossCause, NotHeld, Renewal, Renewals, Renewed, Reply, StoreError,
    StoreErrorKind, StoreResult, short,
};

/// How many times in a row the terms may differ.
const ATTEMPTS: usize = 3;

/// The result of a renewal for one lease.
struct KeptAlive {
    ttl: i64,
    key: Option<api::KeyValue>,
    sent: Moment,
}

pub(super) async fn renew(etcd: &Shared, batch: Vec<Renewal>, limit: Moment) -> Renewals {
    // The caller waits until its limit: by then our error must say what each member answered.
    let now = etcd.now();
    let limit = now + limit.since(now) * 9 / 10;
    // In parts: a follower forwards the keep-alives of a stream one after the other.
    let most = etcd.most_ops.load(Ordering::Relaxed);
    let parts = batch.chunks(most).map(|part| renew_part(etcd, part, limit));
    join_all(parts).await.into_iter().flatten().collect()
}

fn renew_part<'a>(etcd: &'a Shared, part: &'a [Renewal], limit: Moment) -> BoxFuture<'a, Renewals> {
    Box::pin(async move {
        let kept = match keep_alive(etcd, part, limit).await {
            Ok(kept) => kept,
            // An error of one lease, or of the size of the batch, does not concern all others: renew it in halves.
            Err(error) if error.kind() == StoreErrorKind::Refused && part.len() > 1 => {
                let (left, right) = part.split_at(part.len() / 2);
                if Refusal::behind(&error) == Some(Refusal::TooManyOperations) {
                    etcd.most_ops.fetch_min(right.len(), Ordering::Relaxed);
                }
                let (mut left, right) =
                    join(renew_part(etcd, left, limit), renew_part(etcd, right, limit)).await;
                left.extend(right);
                return left;
            }
            Err(error) => {
                let failed = |each: &Renewal| (each.grant.clone(), Err(error.clone()));
                return part.iter().map(failed).collect();
            }
        };
        let judged = part.iter().zip(kept).map(|(each, kept)| async move {
            (each.grant.clone(), judge(etcd, each, kept, limit).await)
        });
        join_all(judged).await.into_iter().collect()
    })
}

/// Keeps the leases of a batch alive, and reads their keys.
async fn keep_alive(
    etcd: &Shared,
    batch: &[Renewal],
    limit: Moment,
) -> Result<Vec<KeptAlive>, StoreError> {
    let leases: Vec<_> = batch.iter().map(|each| lease_of(&each.grant)).collect();
    let reads = batch.iter().zip(&leases).map(|(each, lease)| {
        get(range_of((etcd.prefix.keys(&each.grant.name).key(*lease), Vec::new())))
    });
    let txn = api::TxnRequest { success: reads.collect(), ..api::TxnRequest::default() };
    for _ in 0..ATTEMPTS {
        let kept_alive = etcd.connection.lease_keep_alive(&leases, limit).await?;
        let answer = etcd.connection.txn(&txn, limit).await?.value;
        let read_in = answer.header.map(|header| header.raft_term);
        if kept_alive
            .value
            .iter()
            .all(|reply| reply.header.map(|header| header.raft_term) == read_in)
        {
            let keys = ranges_of(answer).into_iter().map(|mut kvs| kvs.pop());
            let each = kept_alive.value.iter().zip(keys);
            let sent = kept_alive.sent;
            return Ok(each.map(|(reply, key)| KeptAlive { ttl: reply.ttl, key, sent }).collect());
        }
    }
    Err(StoreError::unavailable("etcd keeps changing its leader: retry"))
}

async fn judge(
    etcd: &Shared,
    renewal: &Renewal,
    kept: KeptAlive,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant, ttl: asked, token: granted, value } = renewal;
    let GrantId { name, .. } = grant;
    let answer = |renewed| Ok(Reply::new(renewed, kept.sent));
    let Some(key) = kept.key.filter(|_| kept.ttl > 0) else {
        let cause = match why_lost(etcd, lease_of(grant), limit).await {
            None if kept.ttl > 0 => Some(LossCause::Broken),
            // A guard renews only while its lease should run: so the lease was revoked.
            None => granted.map(|_| LossCause::SessionGone),
            cause => cause,
        };
        return answer(Err(NotHeld(cause)));
    };
    let ttl = ttl_from(kept.ttl)?;
    if let Some(asked) = asked.filter(|asked| *asked > ttl) {
        return Err(longer_refused(asked, ttl));
    }
    let token = token_from(key.create_revision)?;
    // Somebody created the key again, which is a new position, or detached it from its lease, so that it no
    // longer counts.
    let tied = etcd.prefix.keys(name).contends(&key);
    if !tied || granted.is_some_and(|granted| granted != token) {
        if !tied {
            let stray = api::TxnRequest {
                compare: vec![made_at(key.key.clone(), key.create_revision)],
                success: vec![delete(key.key)],
                ..api::TxnRequest::default()
            };
            let _ = etcd.connection.txn(&stray, limit).await;
        }
        return answer(Err(NotHeld(Some(LossCause::TakenOver))));
    }
    if let Some(value) = value
        && let Err(not_held) = proclaim(etcd, name, key, value, limit).await?
    {
        return answer(Err(not_held));
    }
    answer(Ok(Renewed { token, ttl }))
}

fn longer_refused(asked: Ttl, ttl: Ttl) -> StoreError {
    StoreError::refused(format!(
        "an etcd lease keeps the TTL it was granted with, {}: to have {}, release the lock and acquire it \
         with that",
        short(ttl.as_duration()),
        short(asked.as_duration()),
    ))
}
