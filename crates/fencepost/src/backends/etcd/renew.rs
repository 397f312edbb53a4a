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

use fencepost_core::{LockName, Moment, Ttl, Value};
use futures_util::future::{join, join_all};

use super::api;
use super::calls::{changed_at, delete, found, get, made_at, put, range_of};
use super::faults::Fault;
use super::keys::{broken_prefix, lease_of, may_be_said};
use super::line::{token_from, unspeakable};
use super::{Desk, PATIENCE, ttl_from};
use crate::backend::{BoxFuture, LossCause, short};
use crate::backends::bridge::{Renewal, Renewed};
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
        // Whoever keeps a grant alive gives a renewal a third of its TTL: by then the next member was asked,
        // and we have said what each of them answered.
        let patience =
            batch.iter().filter_map(|each| each.ttl).map(|ttl| ttl.as_duration() * 3 / 10);
        let limit = self.now() + patience.min().unwrap_or(PATIENCE).min(PATIENCE);
        // In parts: a member that follows passes the keep-alives of a stream on one after the other.
        let most = self.most_ops.load(Ordering::Relaxed);
        let parts = batch.chunks(most).map(|part| self.renew_part(part, limit));
        join_all(parts).await.into_iter().flatten().collect()
    }

    fn renew_part<'a>(
        &'a self,
        part: &'a [Renewal],
        limit: Moment,
    ) -> BoxFuture<'a, Vec<Result<Renewed>>> {
        Box::pin(async move {
            let kept = match self.keep(part, limit).await {
                Ok(kept) => kept,
                // What is refused to one, or to so many at once, is not refused to each.
                Err(fault @ (Fault::TooMany | Fault::Refused(_))) if part.len() > 1 => {
                    let (left, right) = part.split_at(part.len() / 2);
                    if matches!(fault, Fault::TooMany) {
                        self.most_ops.fetch_min(right.len(), Ordering::Relaxed);
                    }
                    let (mut left, right) =
                        join(self.renew_part(left, limit), self.renew_part(right, limit)).await;
                    left.extend(right);
                    return left;
                }
                Err(fault) => {
                    return part.iter().map(|_| Err(fault.clone().into_error())).collect();
                }
            };
            let judged = part.iter().zip(kept).map(|(each, kept)| self.judge(each, kept, limit));
            join_all(judged).await
        })
    }

    /// Keeps the leases of a batch alive, and reads their keys.
    async fn keep(&self, batch: &[Renewal], limit: Moment) -> Result<Vec<Kept>, Fault> {
        let leases: Vec<_> = batch.iter().map(|each| lease_of(&each.name, each.owner)).collect();
        let reads = batch.iter().zip(&leases).map(|(each, lease)| {
            get(range_of((self.prefix.queue(&each.name).key(*lease), Vec::new())))
        });
        let txn = api::TxnRequest { success: reads.collect(), ..api::TxnRequest::default() };
        for _ in 0..TRIES {
            let beats = self.link.keep_alive(&leases, limit).await?;
            let answer = self.link.txn(&txn, limit).await?.value;
            let read_in = term(answer.header.as_ref());
            if beats.value.iter().all(|beat| term(beat.header.as_ref()) == read_in) {
                let keys = found(answer).into_iter().map(|mut kvs| kvs.pop());
                let each = beats.value.iter().zip(keys);
                let sent = beats.sent;
                return Ok(each.map(|(beat, key)| Kept { ttl: beat.ttl, key, sent }).collect());
            }
        }
        Err(Fault::Unreachable("etcd changes its leader again and again".into()))
    }

    async fn judge(&self, renewal: &Renewal, kept: Kept, limit: Moment) -> Result<Renewed> {
        let Renewal { name, owner, ttl: asked, token: granted, value } = renewal;
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
        // Somebody made the key again, which was a new place in line, or took it off its lease, so that it
        // counts no more.
        let tied = self.prefix.queue(name).contends(&key);
        if !tied || granted.is_some_and(|granted| granted != token) {
            if !tied {
                let stray = api::TxnRequest {
                    compare: vec![made_at(key.key.clone(), key.create_revision)],
                    success: vec![delete(key.key)],
                    ..api::TxnRequest::default()
                };
                let _ = self.link.txn(&stray, limit).await;
            }
            return Err(Error::not_held(name, Some(LossCause::TakenOver)));
        }
        if let Some(value) = value {
            self.proclaim(name, key, value, limit).await?;
        }
        Ok(Renewed { token, ttl, sent: kept.sent })
    }

    /// Has the key of a grant, which contends, say something else. Compared with what was read: neither can it
    /// touch the key of a later grant, nor can a word that comes late replace a later one. It stays tied to its
    /// own lease: a key that is not is nobody's place in line.
    async fn proclaim(
        &self,
        name: &LockName,
        mut key: api::KeyValue,
        value: &Value,
        limit: Moment,
    ) -> Result<()> {
        if !may_be_said(value) {
            return Err(unspeakable().into_error());
        }
        let (made, lease) = (key.create_revision, key.lease);
        // A put keeps the time at which a key was made, whatever lease it ties it to, or none.
        let queue = self.prefix.queue(name);
        let ours = |now: &api::KeyValue| now.create_revision == made && queue.contends(now);
        let gone = |cause| Err(Error::not_held(name, Some(cause)));
        for _ in 0..TRIES * 4 {
            let txn = api::TxnRequest {
                compare: vec![changed_at(key.key.clone(), key.mod_revision)],
                success: vec![put(key.key.clone(), value.as_bytes().to_vec(), lease)],
                failure: vec![get(range_of((key.key.clone(), Vec::new())))],
            };
            let answer = match self.link.txn(&txn, limit).await {
                Ok(answer) => answer.value,
                Err(Fault::NoLease { .. }) => return gone(LossCause::SessionGone),
                Err(fault) => return Err(fault.into_error()),
            };
            if answer.succeeded {
                return Ok(());
            }
            match found(answer).into_iter().flatten().next() {
                // The answer to our first try got lost.
                Some(now) if ours(&now) && now.value == value.as_bytes() => return Ok(()),
                Some(now) if ours(&now) => key = now,
                Some(_) => return gone(LossCause::TakenOver),
                None => {
                    let cause = self.why_not(lease, limit).await;
                    return gone(cause.unwrap_or(LossCause::SessionGone));
                }
            }
        }
        Err(Error::unreachable(format!("\"{name}\" is proclaimed by too many at once: try again")))
    }

    /// Why a lease that should be there is not: an operator broke its grant, or nobody knows.
    pub(super) async fn why_not(&self, lease: i64, limit: Moment) -> Option<LossCause> {
        let note = self.link.range(&range_of(broken_prefix(lease)), limit).await.ok()?;
        (!note.kvs.is_empty()).then_some(LossCause::Broken)
    }

    /// The same for a release: it takes the note away, so that whoever broke the grant sees that its holder knows.
    pub(super) async fn confirm_broken(&self, lease: i64, limit: Moment) -> Option<LossCause> {
        let notes = self.link.range(&range_of(broken_prefix(lease)), limit).await.ok()?.kvs;
        for note in &notes {
            // If it cannot be taken away now, it goes with its lease.
            let _ = self.link.revoke(note.lease, limit).await;
        }
        (!notes.is_empty()).then_some(LossCause::Broken)
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
