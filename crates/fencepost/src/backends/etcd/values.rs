//! What candidates publish: the value of their key.

use fencepost_core::{LockName, Moment, Value};

use super::Shared;
use super::api;
use super::error::Refusal;
use super::layout::may_be_said;
use super::locks::why_lost;
use super::requests::{changed_at, found, get, put, range_of};
use crate::backend::{LossCause, NotHeld, StoreError};

/// How often somebody else may change the key in between.
const ATTEMPTS: usize = 12;

/// Refuses a value that would not be taken for one.
pub(super) fn check_value(value: &Value) -> Result<(), StoreError> {
    if may_be_said(value) {
        return Ok(());
    }
    Err(StoreError::refused(
        "on etcd a value must not end with a line \"fencepost 1\", which is how a lock that is no election is \
         told: leave that out",
    ))
}

/// Has the key of a grant, which contends, say something else. Compared with what was read: neither can it
/// touch the key of a later grant, nor can an older value that arrives late replace a newer one. It stays tied to its
/// own lease: a key that is not is nobody's position.
pub(super) async fn proclaim(
    etcd: &Shared,
    name: &LockName,
    mut key: api::KeyValue,
    value: &Value,
    limit: Moment,
) -> Result<Result<(), NotHeld>, StoreError> {
    check_value(value)?;
    let (made, lease) = (key.create_revision, key.lease);
    // A put keeps the time at which a key was made, whatever lease it ties it to, or none.
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
        match found(answer).into_iter().flatten().next() {
            // The answer to our first attempt got lost.
            Some(now) if ours(&now) && now.value == value.as_bytes() => return Ok(Ok(())),
            Some(now) if ours(&now) => key = now,
            Some(_) => return gone(LossCause::TakenOver),
            None => {
                let cause = why_lost(etcd, lease, limit).await;
                return gone(cause.unwrap_or(LossCause::SessionGone));
            }
        }
    }
    Err(StoreError::unavailable(format!("\"{name}\" is proclaimed by too many at once: try again")))
}
