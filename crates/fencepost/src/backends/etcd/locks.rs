//! Acquire, release and break.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join;
use tokio::sync::watch;

use super::api;
use super::completion::to_completion;
use super::error::Refusal;
use super::holder_watch::watch_holder;
use super::inspect::{holder, holder_info, identify};
use super::layout::{broken_key, broken_prefix, fresh_lease, label_key, lease_of, value_of};
use super::queue::{Ahead, Position, look, position, youngest_of};
use super::requests::{delete, get, made_at, put, range_of, ranges_of};
use super::values::check_value;
use super::{Shared, token_from, ttl_from};
use crate::backend::{
    Acquired, Broken, Grant, GrantId, HolderInfo, LossCause, NotHeld, Queue, Reply, Request,
    StoreError, StoreResult,
};

/// The minimum time that the note of a broken grant stays, in seconds.
const NOTE: i64 = 60;
/// The longest lease that we grant, in seconds.
const DAY: i64 = 24 * 60 * 60;
/// How often a break checks whether the holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(20);

/// The leases of acquires and releases in flight. Calls about one lease run one after the other.
#[derive(Clone, Default)]
pub(super) struct InFlight(watch::Sender<HashSet<i64>>);

/// Keeps a lease on the list until it is dropped.
struct InFlightLease {
    in_flight: InFlight,
    lease: i64,
}

impl InFlight {
    async fn enter(&self, lease: i64) -> InFlightLease {
        while !self.0.send_if_modified(|leases| leases.insert(lease)) {
            // The sender lives as long as we do, so waiting cannot fail.
            let _ = self.0.subscribe().wait_for(|leases| !leases.contains(&lease)).await;
        }
        InFlightLease { in_flight: self.clone(), lease }
    }
}

impl Drop for InFlightLease {
    fn drop(&mut self) {
        self.in_flight.0.send_modify(|leases| {
            leases.remove(&self.lease);
        });
    }
}

/// Takes the lock if it is free; otherwise takes a position in the queue, and leaves it at once unless it may wait.
pub(super) async fn try_acquire(
    etcd: &Arc<Shared>,
    request: Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Acquired> {
    etcd.prefix.check(&request.grant.name)?;
    let lease = lease_of(&request.grant);
    let in_flight = etcd.in_flight.enter(lease).await;
    let shared = Arc::clone(etcd);
    // Completed even if the caller drops it: a release of the same owner comes after that.
    to_completion(&etcd.context, async move {
        let (etcd, _in_flight) = (shared, in_flight);
        if queue == Queue::Skip {
            // A try that fails writes nothing: a lease, a key and their end would be three commits.
            let sent = etcd.now();
            if let Some(kv) = other_holder(&etcd, &request.grant.name, lease, limit).await? {
                let info = holder_info(&etcd, &kv, limit).await.ok();
                return Ok(Reply::new(Acquired::Held(info), sent));
            }
        }
        let Reply { value, sent, retried } = take_position(&etcd, &request, lease, limit).await?;
        let acquired = match value {
            None => Acquired::PositionLost,
            Some((position, old)) if matches!(position.ahead, Ahead::Nothing) => {
                granted(&etcd, &request, &position, old)?
            }
            Some((position, _)) if queue == Queue::Join => {
                etcd.positions.insert(position, etcd.now());
                Acquired::Queued { ahead: 1 }
            }
            Some(_) => Acquired::Held(withdraw(&etcd, &request.grant.name, lease, limit).await?),
        };
        Ok(Reply { value: acquired, sent, retried })
    })
    .await
}

/// The holder of a lock, unless this owner has a key there.
async fn other_holder(
    etcd: &Shared,
    name: &LockName,
    lease: i64,
    limit: Moment,
) -> Result<Option<api::KeyValue>, StoreError> {
    let Some(holder) = holder(etcd, name, limit).await?.filter(|kv| kv.lease != lease) else {
        return Ok(None);
    };
    // Read after the holder: an earlier request of this owner may have come in between.
    let own = range_of((etcd.prefix.keys(name).key(lease), Vec::new()));
    let own = etcd.connection.range(&api::RangeRequest { keys_only: true, ..own }, limit).await?;
    Ok(own.kvs.is_empty().then_some(holder))
}

/// Takes a position, or finds the one that this owner has: a lease, then one transaction. The reply also says whether
/// the lease may be older than this call, and is `None` if the position was gone as soon as it was there.
async fn take_position(
    etcd: &Shared,
    request: &Request,
    lease: i64,
    limit: Moment,
) -> StoreResult<Option<(Position, bool)>> {
    let keys = etcd.prefix.keys(&request.grant.name);
    let seconds = i64::from(request.ttl.as_millis().div_ceil(1000));
    let key = keys.key(lease);
    // The key that was just created is the youngest, so the one before it is the predecessor.
    let last_two = api::RangeRequest { limit: 2, ..youngest_of(&keys) };
    let mut made = match &request.value {
        None => vec![put(key.clone(), value_of(&request.label), lease)],
        // All clients read the value as the candidate's proposal, so the label, which shows that it is ours, goes into
        // another key.
        Some(value) => {
            check_value(value)?;
            let label = request.label.as_str().as_bytes().to_vec();
            let beside = put(label_key(lease), label, lease);
            vec![put(key.clone(), value.as_bytes().to_vec(), lease), beside]
        }
    };
    made.push(get(last_two));
    let txn = api::TxnRequest {
        compare: vec![made_at(key.clone(), 0)],
        success: made,
        failure: vec![get(range_of((key, Vec::new())))],
    };
    // One after the other: sent together, the key sometimes arrives first, is refused because its
    // lease does not exist yet, and costs one more sync than was saved (measured).
    let asked = etcd.now();
    let leased = etcd.connection.lease_grant(lease, seconds, limit).await?;
    let old = leased.retried || leased.value.is_none();
    let ttl = ttl_from(leased.value.unwrap_or(seconds))?;
    let mut reply = leased.map(|_| None);
    // The first request may have been granted and have expired by now, and etcd may have more than
    // one revoke of it under way: never use an id again.
    if old && etcd.now().since(asked) >= request.ttl.as_duration() {
        return Ok(reply);
    }
    let entered = match etcd.connection.txn(&txn, limit).await {
        Err(error) if Refusal::behind(&error) == Some(Refusal::LeaseNotFound) => return Ok(reply),
        entered => entered?,
    };
    reply.retried |= entered.retried;
    // A lease that was granted is in the log: each leader keeps it for a TTL from then on.
    let term = entered.value.header.map(|header| header.raft_term).filter(|_| !old);
    let Some((made, mut ahead)) = position(&keys, lease, entered.value) else { return Ok(reply) };
    if matches!(ahead, Ahead::Unknown) {
        let (Some(seen), _) = look(etcd, &keys, (lease, made), None, limit).await? else {
            return Ok(reply);
        };
        ahead = seen;
    }
    reply.value = Some((Position { lease, made, ttl, sent: reply.sent, term, ahead }, old));
    Ok(reply)
}

/// The grant of the first in the queue. From now on its guard is notified when its key is deleted.
pub(super) fn granted(
    etcd: &Arc<Shared>,
    request: &Request,
    position: &Position,
    needs_confirmation: bool,
) -> Result<Acquired, StoreError> {
    let token = token_from(position.made)?;
    let key = etcd.prefix.keys(&request.grant.name).key(position.lease);
    watch_holder(etcd, position.lease, key, position.made, request.loss.clone());
    let grant = Grant::new(token, position.ttl).with_needs_confirmation(needs_confirmation);
    Ok(Acquired::Granted(grant))
}

/// Leaves the queue, and says who has the lock.
async fn withdraw(
    etcd: &Shared,
    name: &LockName,
    lease: i64,
    limit: Moment,
) -> Result<Option<HolderInfo>, StoreError> {
    let holder = async {
        match holder(etcd, name, limit).await?.filter(|kv| kv.lease != lease) {
            Some(kv) => holder_info(etcd, &kv, limit).await.map(Some),
            None => Ok(None),
        }
    };
    let (left, holder) = join(etcd.connection.lease_revoke(lease, limit), holder).await;
    left?;
    Ok(holder.unwrap_or_default())
}

/// Ends what the owner has, or what an acquire in flight may still give it.
pub(super) async fn release(
    etcd: &Arc<Shared>,
    grant: GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    etcd.prefix.check(&grant.name)?;
    let shared = Arc::clone(etcd);
    to_completion(&etcd.context, async move { end(&shared, lease_of(&grant), limit).await }).await
}

async fn end(etcd: &Shared, lease: i64, limit: Moment) -> StoreResult<Result<(), NotHeld>> {
    // An acquire that its caller dropped completes first.
    let _in_flight = etcd.in_flight.enter(lease).await;
    etcd.holders.remove(lease);
    etcd.positions.remove(lease);
    let revoked = etcd.connection.lease_revoke(lease, limit).await?;
    if revoked.value {
        return Ok(revoked.map(|_| Ok(())));
    }
    let notes = notes(etcd, lease, limit).await;
    for note in &notes {
        // This confirms the break. If the note cannot be deleted now, it ends with its lease.
        let _ = etcd.connection.lease_revoke(note.lease, limit).await;
    }
    let cause = (!notes.is_empty()).then_some(LossCause::Broken);
    Ok(revoked.map(|_| Err(NotHeld(cause))))
}

pub(super) async fn break_lock(
    etcd: &Shared,
    name: LockName,
    token: Option<Token>,
    confirm_until: Moment,
    limit: Moment,
) -> Result<Option<Broken>, StoreError> {
    etcd.prefix.check(&name)?;
    // The holder is looked up first: a retry after a broken connection must not break the next grant.
    let Some(kv) = holder(etcd, &name, limit).await? else { return Ok(None) };
    if token.is_some() && token != token_from(kv.create_revision).ok() {
        return Ok(None);
    }
    let identity = identify(etcd, &kv, limit).await?;
    // Until the holder's next renewal, which may be a TTL away.
    let ttl = etcd.connection.lease_time_to_live(kv.lease, limit).await?.granted_ttl;
    let note = fresh_lease()?;
    etcd.connection.lease_grant(note, ttl.clamp(NOTE, DAY), limit).await?;
    if !break_key(etcd, &kv, note, limit).await? {
        let _ = etcd.connection.lease_revoke(note, limit).await;
        return Ok(None);
    }
    // A third-party client reads no note, and other keys may be tied to its lease.
    let confirmed = identity.ours && confirmed(etcd, &kv, note, limit, confirm_until).await;
    Ok(Some(Broken {
        label: identity.label,
        token: token_from(kv.create_revision).ok(),
        // Waiters have their tokens already: the next revision may be one of theirs.
        floor: token_from(kv.create_revision + 1)?,
        confirmed,
    }))
}

/// Deletes this key, and leaves a note for its owner. False if the key was gone before.
async fn break_key(
    etcd: &Shared,
    kv: &api::KeyValue,
    note: i64,
    limit: Moment,
) -> Result<bool, StoreError> {
    let marker = broken_key(kv.lease, kv.create_revision);
    let txn = api::TxnRequest {
        compare: vec![made_at(kv.key.clone(), kv.create_revision)],
        success: vec![delete(kv.key.clone()), put(marker.clone(), Vec::new(), note)],
        failure: vec![get(range_of((marker, Vec::new())))],
    };
    let broken = etcd.connection.txn(&txn, limit).await?;
    if broken.value.succeeded {
        return Ok(true);
    }
    // The reply to our first attempt may have been lost.
    let notes = ranges_of(broken.value).pop().unwrap_or_default();
    Ok(broken.retried && notes.iter().any(|kv| kv.lease == note))
}

/// Revokes the lease of a broken grant, and waits until its holder has deleted the note.
async fn confirmed(
    etcd: &Shared,
    broken: &api::KeyValue,
    note: i64,
    limit: Moment,
    confirm_until: Moment,
) -> bool {
    if let Ok(Reply { value: false, retried: false, .. }) =
        etcd.connection.lease_revoke(broken.lease, limit).await
    {
        // The holder was faster, so it knows, and needs no note.
        let _ = etcd.connection.lease_revoke(note, limit).await;
        return true;
    }
    let key = broken_key(broken.lease, broken.create_revision);
    let note = api::RangeRequest { keys_only: true, ..range_of((key, Vec::new())) };
    while etcd.now() < confirm_until {
        match etcd.connection.range(&note, confirm_until).await {
            Ok(found) if found.kvs.is_empty() => return true,
            Ok(_) => etcd.clock().alarm(etcd.now() + CONFIRM_POLL).await,
            Err(_) => return false,
        }
    }
    false
}

/// Why a lease is missing: an operator broke its grant, or the cause is unknown.
pub(super) async fn why_lost(etcd: &Shared, lease: i64, limit: Moment) -> Option<LossCause> {
    (!notes(etcd, lease, limit).await.is_empty()).then_some(LossCause::Broken)
}

/// The notes of broken grants of this lease that can be read.
async fn notes(etcd: &Shared, lease: i64, limit: Moment) -> Vec<api::KeyValue> {
    let notes = etcd.connection.range(&range_of(broken_prefix(lease)), limit).await;
    notes.map(|found| found.kvs).unwrap_or_default()
}
