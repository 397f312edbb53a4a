//! What candidates publish: the value of their key.

use fencepost_core::{LockName, Moment, Value};

use super::Shared;
use super::api;
use super::error::Refusal;
use super::layout::may_be_published;
use super::locks::why_lost;
use super::requests::{changed_at, get, put, range_of, ranges_of};
use crate::backend::{LossCause, NotHeld, StoreError};

/// How often another client may change the key in between.
const ATTEMPTS: usize = 12;

/// Refuses a value that readers would not recognize as one.
pub(super) fn check_value(value: &Value) -> Result<(), StoreError> {
    if may_be_published(value) {
        return Ok(());
    }
    Err(StoreError::refused(
        "on etcd a value must not end with a line \"fencepost 1\", because that line identifies a plain lock: \
        leave it out",
    ))
}

/// Changes the value of a grant's key, on the condition that the key is unchanged since it was read. So it cannot
/// change the key of a later grant, and an older value that arrives late cannot replace a newer one. The key stays
/// tied to its own lease: otherwise it would not be a position.
pub(super) async fn proclaim(
    etcd: &Shared,
    name: &LockName,
    mut key: api::KeyValue,
    value: &Value,
    limit: Moment,
) -> Result<Result<(), NotHeld>, StoreError> {
    check_value(value)?;
    let (made, lease) = (key.create_revision, key.lease);
    // A put keeps the key's create_revision, whatever lease it ties the key to.
    let keys = etcd.prefix.keys(name);
    let ours = |now: &api::KeyValue| now.create_revision == made && keys.contends(now);
    let gone = |cause| Ok(Err(NotHeld(Some(cause))));
    for _ in 0..ATTEMPTS {
        let txn = api::TxnRequest {
            compare: vec![changed_at(key.key.clone(), key.mod_revision)],
            success: vec![put(key.key.clone(), value.as_bytes().to_vec(), lease)],
            failure: vec![get(range_of((key.key.clone(), Vec::new())))],
        };
        let answer = match etcd.connection.txn(&txn, limit).await {
            Err(error) if Refusal::behind(&error) == Some(Refusal::LeaseNotFound) => {
                return gone(LossCause::SessionGone);
            }
            answer => answer?.value,
        };
        if answer.succeeded {
            return Ok(Ok(()));
        }
        match ranges_of(answer).into_iter().flatten().next() {
            // The reply to our first attempt was lost.
            Some(now) if ours(&now) && now.value == value.as_bytes() => return Ok(Ok(())),
            Some(now) if ours(&now) => key = now,
            Some(_) => return gone(LossCause::TakenOver),
            None => {
                let cause = why_lost(etcd, lease, limit).await;
                return gone(cause.unwrap_or(LossCause::SessionGone));
            }
        }
    }
    Err(StoreError::unavailable(format!("too many clients proclaim \"{name}\" at once: retry")))
}
