//! Waiting: a position in the queue, and what is ahead of it.
//!
//! A position is a key under a lease of its own. It is first when no older key of the lock is there; else it
//! watches the youngest of the older ones, and only that one. A watch that is opened "from now on" is
//! served at once; one that starts at an old revision waits for etcd 3.4 to come round, up to 100 ms. So we
//! open it from now on, and look again if anything happened in between.
//!
//! A position keeps its lease alive while it waits. Before it is believed to be first, the same read that finds
//! no older key also finds our own, made at the same revision: a position whose lease died is none
//! (etcd#11456).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::api::{self, range_request::SortOrder, range_request::SortTarget};
use super::layout::{LockKeys, lease_of};
use super::locks::granted;
use super::requests::{Watch, deletion_of, found, get, range_of};
use super::{REWATCH_DELAY, Shared, ttl_from};
use crate::backend::{Acquired, Reply, Request, StoreError, StoreResult};
use crate::outage::Outage;
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How many keys are read at once.
pub(super) const PAGE: i64 = 1000;
/// By how much the last read of a waiter may overrun its limit.
const OVERTIME: Duration = Duration::from_millis(100);

/// What an owner has at etcd.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) lease: i64,
    /// The revision that made its key: the token.
    pub(super) made: i64,
    pub(super) ttl: Ttl,
    /// When the lease was asked for, or renewed.
    pub(super) sent: Moment,
    pub(super) ahead: Ahead,
}

/// What is ahead of a position.
#[derive(Debug)]
pub(super) enum Ahead {
    Nothing,
    /// This key is, as of this revision.
    Key {
        key: Vec<u8>,
        revision: i64,
    },
    /// Not known, or not any more.
    Unknown,
}

/// How a wait ended.
enum Waited {
    First,
    /// The position is gone.
    Gone,
    TooLate,
}

/// The positions that were taken and are not waited at yet.
#[derive(Default)]
pub(super) struct Positions(Mutex<HashMap<i64, Position>>);

impl Positions {
    pub(super) fn insert(&self, position: Position, now: Moment) {
        let mut positions = self.0.lock();
        // Their owners neither waited nor released.
        positions.retain(|_, old| now < old.sent + old.ttl.as_duration());
        positions.insert(position.lease, position);
    }

    pub(super) fn remove(&self, lease: i64) -> Option<Position> {
        self.0.lock().remove(&lease)
    }
}

/// When our own key was made and what is ahead of it, as the transaction answers that makes it or finds it there. `None`
/// if the key is not ours.
pub(super) fn position(
    keys: &LockKeys,
    lease: i64,
    answer: api::TxnResponse,
) -> Option<(i64, Ahead)> {
    let fresh = answer.succeeded;
    let revision = answer.header.map_or(0, |header| header.revision);
    let mut kvs = found(answer).pop().unwrap_or_default().into_iter();
    let own = kvs.next().filter(|own| own.lease == lease && keys.contends(own))?;
    let ahead = match kvs.next() {
        _ if !fresh => Ahead::Unknown,
        None => Ahead::Nothing,
        Some(next) if keys.contends(&next) => Ahead::Key { key: next.key, revision },
        Some(_) => Ahead::Unknown,
    };
    Some((own.create_revision, ahead))
}

/// What is ahead of this position now, and in which term. `None` if the position is gone.
pub(super) async fn look(
    etcd: &Shared,
    keys: &LockKeys,
    (lease, made): (i64, i64),
    limit: Moment,
) -> Result<(Option<Ahead>, u64), StoreError> {
    let own = range_of((keys.key(lease), Vec::new()));
    let mut older =
        api::RangeRequest { limit: 1, max_create_revision: made - 1, ..youngest_of(keys) };
    loop {
        let txn = api::TxnRequest {
            success: vec![get(own.clone()), get(older.clone())],
            ..api::TxnRequest::default()
        };
        let answer = etcd.connection.txn(&txn, limit).await?.value;
        let header = answer.header.unwrap_or_default();
        let (revision, term) = (header.revision, header.raft_term);
        let mut found = found(answer).into_iter();
        let own = found.next().unwrap_or_default().pop();
        let still_ours = |own: &api::KeyValue| own.create_revision == made && keys.contends(own);
        if !own.as_ref().is_some_and(still_ours) {
            return Ok((None, term));
        }
        let ahead = found.next().unwrap_or_default();
        let next = ahead.iter().find(|kv| keys.contends(kv));
        if let Some(next) = next {
            return Ok((Some(Ahead::Key { key: next.key.clone(), revision }), term));
        }
        // Keys of other locks may lie among those of this one: `a/b/...` among `a/...`.
        match ahead.last() {
            Some(last) if is_full(&ahead, older.limit) => {
                older.max_create_revision = last.create_revision - 1;
                older.limit = PAGE;
            }
            _ => return Ok((Some(Ahead::Nothing), term)),
        }
    }
}

/// Waits at the position that this owner has.
pub(super) async fn wait(
    etcd: &Arc<Shared>,
    request: Request,
    limit: Moment,
) -> StoreResult<Acquired> {
    let etcd = Arc::clone(etcd);
    let runtime = etcd.around.runtime.clone();
    // On the client's thread: a position is kept though the caller's executor is blocked.
    let waiting = runtime.spawn(async move {
        let (keys, lease) = (etcd.prefix.keys(&request.grant.name), lease_of(&request.grant));
        let position = match etcd.positions.remove(lease) {
            Some(position) => Some(position),
            None => find(&etcd, &keys, lease, request.ttl).await?,
        };
        let Some(mut position) = position else {
            return Ok(Reply::new(Acquired::PlaceLost, etcd.now()));
        };
        let acquired = match wait_at(&etcd, &request, &keys, &mut position, limit).await? {
            // The renewal that found it first confirms the grant.
            Waited::First => granted(&etcd, &request, &position, false)?,
            Waited::Gone => Acquired::PlaceLost,
            Waited::TooLate => Acquired::Queued { ahead: 1 },
        };
        Ok(Reply::new(acquired, position.sent))
    });
    let panicked = |_| Err(StoreError::unavailable("waiting for etcd panicked"));
    AbortOnDropHandle::new(waiting).await.unwrap_or_else(panicked)
}

/// A position of which only the owner is known.
async fn find(
    etcd: &Shared,
    keys: &LockKeys,
    lease: i64,
    ttl: Ttl,
) -> Result<Option<Position>, StoreError> {
    let (sent, own) = (etcd.now(), range_of((keys.key(lease), Vec::new())));
    let own = etcd.connection.range(&own, sent + CALL_TIMEOUT).await?.kvs.pop();
    let own = own.filter(|own| keys.contends(own));
    let ahead = Ahead::Unknown;
    Ok(own.map(|own| Position { lease, made: own.create_revision, ttl, sent, ahead }))
}

/// Waits until this position is first, or gone, or the limit has come. An outage does not end the wait.
async fn wait_at(
    etcd: &Shared,
    request: &Request,
    keys: &LockKeys,
    position: &mut Position,
    limit: Moment,
) -> Result<Waited, StoreError> {
    let (mut watch, mut outage) = (None, Outage::default());
    loop {
        match step(etcd, keys, position, &mut watch, limit).await {
            Ok(Some(waited)) => return Ok(waited),
            Ok(None) => outage.end(),
            Err(error) if error.is_transient() && etcd.now() < limit => {
                outage.log(etcd.now(), &request.grant.name, &error);
                position.ahead = Ahead::Unknown;
                etcd.clock().alarm((etcd.now() + REWATCH_DELAY).min(limit)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Renews the lease if that is due, and then waits until there is a reason to look again.
async fn step<'a>(
    etcd: &'a Shared,
    keys: &LockKeys,
    position: &mut Position,
    watch: &mut Option<Watch<'a>>,
    limit: Moment,
) -> Result<Option<Waited>, StoreError> {
    let now = etcd.now();
    if now >= position.renewal_due() || matches!(position.ahead, Ahead::Unknown) {
        // A renewal, as renew.rs has it: if our turn has come, it is confirmed.
        let call_limit = (now + CALL_TIMEOUT).min(limit + OVERTIME);
        let kept = etcd.connection.lease_keep_alive(&[position.lease], call_limit).await?;
        let answer = kept.value.into_iter().next().unwrap_or_default();
        let place = (position.lease, position.made);
        let (ahead, term) = look(etcd, keys, place, call_limit).await?;
        let Some(ahead) = ahead else { return Ok(Some(Waited::Gone)) };
        if answer.header.is_none_or(|header| header.raft_term != term) {
            // Not in one term: nobody knows who answered.
            position.ahead = Ahead::Unknown;
            return Ok(None);
        }
        if answer.ttl <= 0 {
            return Ok(Some(Waited::Gone));
        }
        (position.sent, position.ttl, position.ahead) = (kept.sent, ttl_from(answer.ttl)?, ahead);
    }
    let Ahead::Key { key, revision } = &position.ahead else { return Ok(Some(Waited::First)) };
    if now >= limit {
        return Ok(Some(Waited::TooLate));
    }
    let changed = etcd.connection.changed_since(watch, deletion_of(key.clone()), *revision);
    let alarm = etcd.clock().alarm(position.renewal_due().min(limit));
    match race(changed, alarm).await {
        First::Left(Err(error)) if error.is_interrupted() => {
            etcd.clock().alarm((etcd.now() + REWATCH_DELAY).min(limit)).await;
        }
        First::Left(Err(error)) => return Err(error),
        First::Right(()) if etcd.now() >= limit => return Ok(Some(Waited::TooLate)),
        First::Left(Ok(())) | First::Right(()) => {}
    }
    position.ahead = Ahead::Unknown;
    Ok(None)
}

impl Position {
    fn renewal_due(&self) -> Moment {
        self.sent + self.ttl.as_duration() / 3
    }
}

/// Without values, the youngest first.
pub(super) fn youngest_of(keys: &LockKeys) -> api::RangeRequest {
    api::RangeRequest {
        keys_only: true,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Create.into(),
        ..range_of(keys.range())
    }
}

/// Without values, the oldest first.
pub(super) fn oldest_of(keys: &LockKeys) -> api::RangeRequest {
    api::RangeRequest { sort_order: SortOrder::Ascend.into(), ..youngest_of(keys) }
}

/// Whether there may be more than this many.
pub(super) fn is_full(kvs: &[api::KeyValue], limit: i64) -> bool {
    i64::try_from(kvs.len()) == Ok(limit)
}

#[cfg(test)]
mod tests;
