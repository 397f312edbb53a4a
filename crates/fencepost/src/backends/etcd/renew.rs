//! Renewals: a keep-alive, and the proof that it counts.
//!
//! A keep-alive is answered from the memory of whoever thinks it leads. A leader that stood still while
//! another was elected answers it too, though the lease is out of its hands. So after the answer we read our
//! own key through the cluster. The term that an answer carries is that of the last entry its member had
//! applied. A read through the cluster comes after an entry of the present leader's own term. So if the
//! keep-alive carries the same term, it was answered under that leader, who still led when we read. If the
//! terms differ, it does not count, and we ask again.
//!
//! A leader's proclamation is a renewal, and then a put of its key that is compared with what the renewal read.

use std::sync::atomic::Ordering;

use fencepost_core::{Moment, Ttl};
use futures_util::future::{join, join_all};

use super::api;
use super::error::Refusal;
use super::layout::lease_of;
use super::locks::why_lost;
use super::requests::{delete, found, get, made_at, range_of};
use super::values::proclaim;
use super::{Shared, token_from, ttl_from};
use crate::backend::{
    BoxFuture, GrantId, LossCause, NotHeld, Renewal, Renewals, Renewed, Reply, StoreError,
    StoreErrorKind, StoreResult, short,
};

/// How often terms may differ in a row.
const ATTEMPTS: usize = 3;

/// What a renewal found of one lease.
struct Kept {
    ttl: i64,
    key: Option<api::KeyValue>,
    sent: Moment,
}

pub(super) async fn renew(etcd: &Shared, batch: Vec<Renewal>, limit: Moment) -> Renewals {
    // Whoever waits for it does so until the limit: by then we have said what each member answered.
    let now = etcd.now();
    let limit = now + limit.since(now) * 9 / 10;
    // In parts: a member that follows passes the keep-alives of a stream on one after the other.
    let most = etcd.most_ops.load(Ordering::Relaxed);
    let parts = batch.chunks(most).map(|part| renew_part(etcd, part, limit));
    join_all(parts).await.into_iter().flatten().collect()
}

fn renew_part<'a>(etcd: &'a Shared, part: &'a [Renewal], limit: Moment) -> BoxFuture<'a, Renewals> {
    Box::pin(async move {
        let kept = match keep(etcd, part, limit).await {
            Ok(kept) => kept,
            // What is refused to one, or to so many at once, is not refused to each.
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
            Err(error) => return part.iter().map(|_| Err(error.clone())).collect(),
        };
        let judged = part.iter().zip(kept).map(|(each, kept)| judge(etcd, each, kept, limit));
        join_all(judged).await
    })
}

/// Keeps the leases of a batch alive, and reads their keys.
async fn keep(etcd: &Shared, batch: &[Renewal], limit: Moment) -> Result<Vec<Kept>, StoreError> {
    let leases: Vec<_> = batch.iter().map(|each| lease_of(&each.grant)).collect();
    let reads = batch.iter().zip(&leases).map(|(each, lease)| {
        get(range_of((etcd.prefix.keys(&each.grant.name).key(*lease), Vec::new())))
    });
    let txn = api::TxnRequest { success: reads.collect(), ..api::TxnRequest::default() };
    for _ in 0..ATTEMPTS {
        let beats = etcd.connection.lease_keep_alive(&leases, limit).await?;
        let answer = etcd.connection.txn(&txn, limit).await?.value;
        let read_in = term(answer.header.as_ref());
        if beats.value.iter().all(|beat| term(beat.header.as_ref()) == read_in) {
            let keys = found(answer).into_iter().map(|mut kvs| kvs.pop());
            let each = beats.value.iter().zip(keys);
            let sent = beats.sent;
            return Ok(each.map(|(beat, key)| Kept { ttl: beat.ttl, key, sent }).collect());
        }
    }
    Err(StoreError::unavailable("etcd changes its leader again and again"))
}

async fn judge(
    etcd: &Shared,
    renewal: &Renewal,
    kept: Kept,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant, ttl: asked, token: granted, value } = renewal;
    let GrantId { name, .. } = grant;
    let answer = |renewed| Ok(Reply::new(renewed, kept.sent));
    let Some(key) = kept.key.filter(|_| kept.ttl > 0) else {
        let cause = match why_lost(etcd, lease_of(grant), limit).await {
            None if kept.ttl > 0 => Some(LossCause::Broken),
            // A guard asks only while its lease should run: it was taken from it.
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
    // Somebody made the key again, which was a new position, or took it off its lease, so that it
    // counts no more.
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

fn term(header: Option<&api::ResponseHeader>) -> Option<u64> {
    header.map(|header| header.raft_term)
}

fn longer_refused(asked: Ttl, ttl: Ttl) -> StoreError {
    StoreError::refused(format!(
        "an etcd lease keeps the TTL it was granted with, {}: to have {}, release the lock and acquire it \
         with that",
        short(ttl.as_duration()),
        short(asked.as_duration()),
    ))
}
