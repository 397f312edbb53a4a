//! Renewals: a keep-alive, and the proof that it counts.
//!
//! A keep-alive is answered from the memory of whoever thinks it leads. A leader that stood still while
//! another was elected answers it too, though the lease is out of its hands. So after the answer we read our
//! own key through the cluster. If both answers are of the same term, then whoever leads in that term
//! renewed the lease and still led when we read; a term has one leader. If the terms differ, it does not
//! count, and we ask again.

use std::sync::atomic::Ordering;

use fencepost_core::{Moment, Ttl};

use super::api;
use super::calls::{found, get, range_of};
use super::faults::Fault;
use super::keys::{broken_prefix, lease_of};
use super::line::token_from;
use super::{Desk, PATIENCE, ttl_from};
use crate::backend::{LossCause, Renewal, Renewed, short};
use crate::error::{Error, Result};

/// How often terms may differ in a row.
const TRIES: usize = 3;

/// What a renewal found of one lease.
struct Kept {
    ttl: i64,
    key: Option<api::KeyValue>,
    sent: Moment,
}

impl Desk {
    pub(super) async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        if batch.is_empty() {
            return Vec::new();
        }
        // Whoever keeps a grant alive gives a renewal a third of its TTL: by then the next member was asked.
        let patience = batch.iter().filter_map(|each| each.ttl).map(|ttl| ttl.as_duration() / 3);
        let limit = self.now() + patience.min().unwrap_or(PATIENCE).min(PATIENCE);
        let kept = self.keep(batch, limit).await;
        let kept = match kept {
            Ok(kept) => kept,
            Err(fault) => {
                let each = batch.iter().map(|_| Err(fault.clone().into_error()));
                return each.collect();
            }
        };
        let mut answers = Vec::with_capacity(batch.len());
        for (renewal, kept) in batch.iter().zip(kept) {
            answers.push(self.judge(renewal, kept, limit).await);
        }
        answers
    }

    /// Keeps the leases of a batch alive, and reads their keys.
    async fn keep(&self, batch: &[Renewal], limit: Moment) -> Result<Vec<Kept>, Fault> {
        let leases: Vec<_> = batch.iter().map(|each| lease_of(&each.name, each.owner)).collect();
        let mut differed = 0;
        'again: while differed < TRIES {
            let beats = self.link.keep_alive(&leases, limit).await?;
            let mut terms: Vec<_> =
                beats.value.iter().map(|beat| term(beat.header.as_ref())).collect();
            let mut keys = Vec::with_capacity(batch.len());
            let most = self.most_ops.load(Ordering::Relaxed);
            for chunk in batch.chunks(most) {
                let reads = chunk.iter().map(|each| {
                    let queue = self.prefix.queue(&each.name);
                    get(range_of((queue.key(lease_of(&each.name, each.owner)), Vec::new())))
                });
                let txn =
                    api::TxnRequest { success: reads.collect(), ..api::TxnRequest::default() };
                let answer = match self.link.txn(&txn, limit).await {
                    // This cluster takes fewer (--max-txn-ops).
                    Err(Fault::TooMany) if most > 1 => {
                        self.most_ops.store(most / 2, Ordering::Relaxed);
                        continue 'again;
                    }
                    answer => answer?.value,
                };
                terms.push(term(answer.header.as_ref()));
                keys.extend(found(answer).into_iter().map(|mut kvs| kvs.pop()));
            }
            let first = terms.first().copied().flatten();
            if first.is_some() && terms.iter().all(|term| *term == first) {
                let each = beats.value.iter().zip(keys);
                let sent = beats.sent;
                return Ok(each.map(|(beat, key)| Kept { ttl: beat.ttl, key, sent }).collect());
            }
            differed += 1;
        }
        Err(Fault::Unreachable("etcd changes its leader again and again".into()))
    }

    async fn judge(&self, renewal: &Renewal, kept: Kept, limit: Moment) -> Result<Renewed> {
        let Renewal { name, owner, ttl: asked, token: granted } = renewal;
        let lease = lease_of(name, *owner);
        let Some(key) = kept.key.filter(|_| kept.ttl > 0) else {
            let cause = match self.why_not(lease, limit).await {
                None if kept.ttl > 0 => Some(LossCause::Broken),
                // A guard asks only while its lease should run: it was taken from it.
                None => granted.map(|_| LossCause::SessionGone),
                cause => cause,
            };
            return Err(Error::not_held(name, cause));
        };
        let ttl = ttl_from(kept.ttl).map_err(Fault::into_error)?;
        if let Some(asked) = asked.filter(|asked| *asked > ttl) {
            return Err(longer_refused(asked, ttl));
        }
        let token = token_from(key.create_revision).map_err(Fault::into_error)?;
        // Somebody deleted the key and made it again: that was a new place in line.
        if granted.is_some_and(|granted| granted != token) {
            return Err(Error::not_held(name, Some(LossCause::TakenOver)));
        }
        Ok(Renewed { token, ttl, sent: kept.sent })
    }

    /// Why a lease that should be there is not: an operator broke its grant, or nobody knows.
    pub(super) async fn why_not(&self, lease: i64, limit: Moment) -> Option<LossCause> {
        let note = self.link.range(&range_of(broken_prefix(lease)), limit).await.ok()?;
        (!note.kvs.is_empty()).then_some(LossCause::Broken)
    }
}

fn term(header: Option<&api::ResponseHeader>) -> Option<u64> {
    header.map(|header| header.raft_term)
}

fn longer_refused(asked: Ttl, ttl: Ttl) -> Error {
    Error::refused(format!(
        "an etcd lease keeps the TTL it was granted with, {}: to have {}, release the lock and acquire it \
         with that",
        short(ttl.as_duration()),
        short(asked.as_duration()),
    ))
}
