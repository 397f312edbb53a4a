//! Waiting: a position in the queue, and what is ahead of it.
//!
//! A position is a key with a lease of its own. It is first when the lock has no older key; otherwise it watches the
//! youngest of the older ones, and only that one. A watch that is opened "from now on" is served at once; etcd 3.4
//! serves one that starts at an old revision only every 100 ms. So we open it from now on, and read again if anything
//! happened in between.
//!
//! A position keeps its lease alive while it waits, by renewals as in renew.rs. It counts as first only if the same read
//! that finds no older key also finds our own, with the same `create_revision`: a position whose lease ended does not
//! count (etcd#11456).
//!
//! *From when a grant counts:* from the last renewal of its position, or from the request of its lease if that is later.
//! A lease that was granted is in the log. A renewal is followed by a read that goes through the cluster, in the same term:
//! so the leader that answered it led then, and keeps the lease for a TTL from the renewal; a later leader keeps it for a
//! TTL from its own election. A position is renewed before it is granted if that term is over, if its lease may be older
//! than we know, or if less than two thirds of its lease are left.
//!
//! *The read that grants* is answered by the member alone, if that has reached the revision at which the key ahead was
//! deleted. It need not be newer: no older key can appear any more, and a position that was deleted before it became first
//! is gone at that revision too. One that is deleted after that was the holder's, as after any read; its watch reports it
//! (`holder_watch.rs`). A read through the cluster would wait for the requests that are being committed, which are those of
//! the process that has just released.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::api::{self, range_request::SortOrder, range_request::SortTarget};
use super::layout::{LockKeys, lease_of};
use super::locks::granted;
use super::requests::{Watch, deletion_of, get, range_of, ranges_of};
use super::{REWATCH_DELAY, Shared, ttl_from};
use crate::backend::{Acquired, Reply, Request, StoreError, StoreResult};
use crate::backends::{heartbeat_due, may_count_from};
use crate::outage::Outage;
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How many keys are read at once.
pub(super) const PAGE: i64 = 1000;
/// How far the last read of a waiter may overrun its limit.
const OVERTIME: Duration = Duration::from_millis(100);

/// What an owner has at etcd.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) lease: i64,
    /// The revision that created its key: the token.
    pub(super) made: i64,
    pub(super) ttl: Ttl,
    /// When the request of the lease or of its last renewal left.
    pub(super) sent: Moment,
    /// The term in which that was answered; `None` if the lease may be older than `sent`.
    pub(super) term: Option<u64>,
    pub(super) ahead: Ahead,
}

/// What is ahead of a position.
#[derive(Debug)]
pub(super) enum Ahead {
    Nothing,
    /// This key, as of this revision.
    Key {
        key: Vec<u8>,
        revision: i64,
    },
    /// Unknown. The key that was ahead may have gone by this revision, which the current member has reached.
    Changed {
        revision: i64,
    },
    /// Unknown, or no longer known.
    Unknown,
}

/// How a wait ended.
enum Waited {
    First,
    /// The position is gone.
    Gone,
    TooLate,
}

/// The positions that were taken, but whose wait has not begun yet.
#[derive(Default)]
pub(super) struct Positions(Mutex<HashMap<i64, Position>>);

impl Positions {
    pub(super) fn insert(&self, position: Position, now: Moment) {
        let mut positions = self.0.lock();
        // Their owners neither waited nor released them.
        positions.retain(|_, old| now < old.sent + old.ttl.as_duration());
        positions.insert(position.lease, position);
    }

    pub(super) fn remove(&self, lease: i64) -> Option<Position> {
        self.0.lock().remove(&lease)
    }
}

/// When our own key was created and what is ahead of it, from the reply of the transaction that creates or finds it.
/// `None` if the key is not ours.
pub(super) fn position(
    keys: &LockKeys,
    lease: i64,
    answer: api::TxnResponse,
) -> Option<(i64, Ahead)> {
    let fresh = answer.succeeded;
    let revision = answer.header.map_or(0, |header| header.revision);
    let mut kvs = ranges_of(answer).pop().unwrap_or_default().into_iter();
    let own = kvs.next().filter(|own| own.lease == lease && keys.contends(own))?;
    let ahead = match kvs.next() {
        _ if !fresh => Ahead::Unknown,
        None => Ahead::Nothing,
        Some(next) if keys.contends(&next) => Ahead::Key { key: next.key, revision },
        Some(_) => Ahead::Unknown,
    };
    Some((own.create_revision, ahead))
}

/// What is ahead of this position now, and in which term. `None` if the position is gone. If the member has reached the
/// revision `reached`, it answers alone; otherwise the cluster does.
pub(super) async fn look(
    etcd: &Shared,
    keys: &LockKeys,
    (lease, made): (i64, i64),
    mut reached: Option<i64>,
    limit: Moment,
) -> Result<(Option<Ahead>, u64), StoreError> {
    let serializable = reached.is_some();
    let mut own = api::RangeRequest { serializable, ..range_of((keys.key(lease), Vec::new())) };
    let mut older = api::RangeRequest {
        limit: 1,
        max_create_revision: made - 1,
        serializable,
        ..youngest_of(keys)
    };
    loop {
        let txn = api::TxnRequest {
            success: vec![get(own.clone()), get(older.clone())],
            ..api::TxnRequest::default()
        };
        let answer = etcd.connection.txn(&txn, limit).await?.value;
        let header = answer.header.unwrap_or_default();
        let (revision, term) = (header.revision, header.raft_term);
        if reached.take_if(|reached| revision < *reached).is_some() {
            // Another member answered.
            (own.serializable, older.serializable) = (false, false);
            continue;
        }
        let mut found = ranges_of(answer).into_iter();
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
        // Keys of other locks may be among those of this one: `a/b/...` among `a/...`.
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
    let runtime = etcd.context.runtime.clone();
    // On the client's thread: the position is kept even if the caller's executor is blocked.
    let waiting = runtime.spawn(async move {
        let (keys, lease) = (etcd.prefix.keys(&request.grant.name), lease_of(&request.grant));
        let position = match etcd.positions.remove(lease) {
            Some(position) => Some(position),
            None => find(&etcd, &keys, lease, request.ttl).await?,
        };
        let Some(mut position) = position else {
            return Ok(Reply::new(Acquired::PositionLost, etcd.now()));
        };
        let acquired = match wait_at(&etcd, &request, &keys, &mut position, limit).await? {
            // It counts from the last renewal of the position.
            Waited::First => granted(&etcd, &request, &position, false)?,
            Waited::Gone => Acquired::PositionLost,
            Waited::TooLate => Acquired::Queued { ahead: 1 },
        };
        Ok(Reply::new(acquired, position.sent))
    });
    let panicked = |_| Err(StoreError::unavailable("waiting for etcd panicked"));
    AbortOnDropHandle::new(waiting).await.unwrap_or_else(panicked)
}

/// Finds a position of which only the owner is known.
async fn find(
    etcd: &Shared,
    keys: &LockKeys,
    lease: i64,
    ttl: Ttl,
) -> Result<Option<Position>, StoreError> {
    let (sent, own) = (etcd.now(), range_of((keys.key(lease), Vec::new())));
    let own = etcd.connection.range(&own, sent + CALL_TIMEOUT).await?.kvs.pop();
    let own = own.filter(|own| keys.contends(own));
    let (term, ahead) = (None, Ahead::Unknown);
    Ok(own.map(|own| Position { lease, made: own.create_revision, ttl, sent, term, ahead }))
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

/// Renews the lease if that is due, and then waits until there is a reason to read again.
async fn step<'a>(
    etcd: &'a Shared,
    keys: &LockKeys,
    position: &mut Position,
    watch: &mut Option<Watch<'a>>,
    limit: Moment,
) -> Result<Option<Waited>, StoreError> {
    let now = etcd.now();
    let due = !position.may_count(now);
    let reached = match position.ahead {
        Ahead::Changed { revision } if !due => Some(revision),
        _ => None,
    };
    if due || reached.is_some() || matches!(position.ahead, Ahead::Unknown) {
        let call_limit = (now + CALL_TIMEOUT).min(limit + OVERTIME);
        let renewal = if due {
            Some(etcd.connection.lease_keep_alive(&[position.lease], call_limit).await?)
        } else {
            None
        };
        let own_key = (position.lease, position.made);
        let (ahead, read_in) = look(etcd, keys, own_key, reached, call_limit).await?;
        let Some(ahead) = ahead else { return Ok(Some(Waited::Gone)) };
        let renewal =
            renewal.map(|kept| (kept.sent, kept.value.into_iter().next().unwrap_or_default()));
        let term = match &renewal {
            Some((_, answer)) => answer.header.map(|header| header.raft_term),
            None => position.term,
        };
        if term != Some(read_in) {
            // The renewal may have been answered by a deposed leader.
            (position.term, position.ahead) = (None, Ahead::Unknown);
            return Ok(None);
        }
        if let Some((sent, answer)) = renewal {
            if answer.ttl <= 0 {
                return Ok(Some(Waited::Gone));
            }
            (position.sent, position.ttl, position.term) = (sent, ttl_from(answer.ttl)?, term);
        }
        position.ahead = ahead;
    }
    let Ahead::Key { key, revision } = &position.ahead else {
        // Unless the read took until the next renewal is due.
        let counts = due || position.may_count(etcd.now());
        position.ahead = Ahead::Unknown;
        return Ok(counts.then_some(Waited::First));
    };
    if now >= limit {
        return Ok(Some(Waited::TooLate));
    }
    let changed = etcd.connection.changed_since(watch, deletion_of(key.clone()), *revision);
    let alarm = etcd.clock().alarm(heartbeat_due(position.sent, position.ttl).min(limit));
    position.ahead = match race(changed, alarm).await {
        First::Left(Ok(revision)) => Ahead::Changed { revision },
        First::Left(Err(error)) if error.is_interrupted() => {
            etcd.clock().alarm((etcd.now() + REWATCH_DELAY).min(limit)).await;
            Ahead::Unknown
        }
        First::Left(Err(error)) => return Err(error),
        First::Right(()) if etcd.now() >= limit => return Ok(Some(Waited::TooLate)),
        First::Right(()) => Ahead::Unknown,
    };
    Ok(None)
}

impl Position {
    /// Whether a grant may count from `sent`, if it is made in the same term.
    fn may_count(&self, now: Moment) -> bool {
        self.term.is_some() && may_count_from(self.sent, self.ttl, now)
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

/// Whether there may be more keys than this many.
pub(super) fn is_full(kvs: &[api::KeyValue], limit: i64) -> bool {
    i64::try_from(kvs.len()) == Ok(limit)
}

#[cfg(test)]
mod tests;
