//! A place in line: how it is taken, how one waits in it, how it is left.
//!
//! A place is a key under a lease of its own. It is first when no older key of the lock is there; else it
//! watches the youngest of the older ones, and only that one. A watch that is opened "from now on" is
//! served at once; one that starts at an old revision waits for etcd 3.4 to come round, up to 100 ms. So we
//! open it from now on, and look again if anything happened in between.
//!
//! A place keeps its lease alive while it waits. Before it is believed to be first, the same read that finds
//! no older key also finds our own, made at the same revision: a place whose lease died is no place
//! (etcd#11456).

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join;

use super::api::{self, range_request::SortOrder, range_request::SortTarget};
use super::calls::{Sight, delete, found, get, made_at, put, range_of};
use super::faults::Fault;
use super::keys::{Identity, Queue, broken_key, label_key, may_be_said, value_of};
use super::{BREATH, Desk, OUTAGE, OVERTIME, ttl_from};
use crate::backend::HolderInfo;
use crate::backends::bridge::Request;
use crate::race::{First, race};

/// How many keys are read at once.
pub(super) const PAGE: i64 = 1000;

/// What an acquisition has at etcd.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) lease: i64,
    /// When its key was made: the token.
    pub(super) made: i64,
    /// In seconds.
    pub(super) ttl: i64,
    /// When the lease was asked for.
    pub(super) sent: Moment,
    /// It may be older than this call.
    pub(super) old: bool,
    /// What was seen last.
    view: View,
}

impl Place {
    pub(super) fn is_first(&self) -> bool {
        matches!(self.view, View::First)
    }
}

/// What is ahead of a place.
#[derive(Debug)]
enum View {
    /// Nothing.
    First,
    /// This key is, as of this revision.
    Behind { key: Vec<u8>, revision: i64 },
    /// Not known yet.
    Unknown,
    /// The place itself is gone.
    Gone,
}

/// How waiting ended.
pub(super) enum Waited {
    First,
    /// The place is gone.
    Gone,
    /// The limit came.
    TooLate,
}

impl Desk {
    /// Takes a place, or finds the one that this owner has. `None` if it was gone as soon as it was there.
    pub(super) async fn enter(
        &self,
        request: &Request,
        lease: i64,
        limit: Moment,
    ) -> Result<Option<Place>, Fault> {
        let queue = self.prefix.queue(&request.name);
        let seconds = i64::from(request.ttl.as_millis().div_ceil(1000));
        let key = queue.key(lease);
        // What was just made is the youngest, and the one before it is the next.
        let last_two = api::RangeRequest { limit: 2, ..youngest_of(&queue) };
        let mut made = match &request.value {
            None => vec![put(key.clone(), value_of(&request.label), lease)],
            // The value is what it says, for all makes to read: that it is ours must stand elsewhere.
            Some(value) if may_be_said(value) => {
                let label = request.label.as_str().as_bytes().to_vec();
                let beside = put(label_key(lease), label, lease);
                vec![put(key.clone(), value.as_bytes().to_vec(), lease), beside]
            }
            Some(_) => return Err(unspeakable()),
        };
        made.push(get(last_two));
        let txn = api::TxnRequest {
            compare: vec![made_at(key.clone(), 0)],
            success: made,
            failure: vec![get(range_of((key.clone(), Vec::new())))],
        };
        // One after the other: sent at once, the key comes first every few times, is refused for want of
        // its lease, and costs one more sync than was won (measured).
        let asked = self.now();
        let (ttl, sent, old) = match self.link.grant(lease, seconds, limit).await {
            Ok(granted) => (granted.value.ttl, granted.sent, granted.again),
            Err(Fault::LeaseExists) => (seconds, self.now(), true),
            Err(fault) => return Err(fault),
        };
        // What was asked for first may have been granted and have run out by now, and etcd may have more
        // than one revoke of it under way: an id is not used again.
        if old && self.now().since(asked) >= request.ttl.as_duration() {
            return Ok(None);
        }
        let answer = match self.link.txn(&txn, limit).await {
            Err(Fault::NoLease { .. }) => return Ok(None),
            answer => answer?.value,
        };
        let fresh = answer.succeeded;
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut kvs = found(answer).pop().unwrap_or_default().into_iter();
        let Some(own) = kvs.next().filter(|own| own.key == key && queue.contends(own)) else {
            return Ok(None);
        };
        let made = own.create_revision;
        let view = match kvs.next() {
            _ if !fresh => View::Unknown,
            None => View::First,
            Some(next) if queue.contends(&next) => View::Behind { key: next.key, revision },
            Some(_) => View::Unknown,
        };
        Ok(Some(Place { lease, made, ttl, sent, old, view }))
    }

    /// Finds out what is ahead of a place, if that is not known.
    pub(super) async fn see(
        &self,
        name: &LockName,
        place: &mut Place,
        limit: Moment,
    ) -> Result<(), Fault> {
        if matches!(place.view, View::Unknown) {
            (place.view, _) = self.look(&self.prefix.queue(name), place, limit).await?;
        }
        Ok(())
    }

    /// What is ahead of this place now, and in which term.
    async fn look(
        &self,
        queue: &Queue,
        place: &Place,
        limit: Moment,
    ) -> Result<(View, u64), Fault> {
        let own = range_of((queue.key(place.lease), Vec::new()));
        let mut older = api::RangeRequest {
            limit: 1,
            max_create_revision: place.made - 1,
            ..youngest_of(queue)
        };
        loop {
            let txn = api::TxnRequest {
                success: vec![get(own.clone()), get(older.clone())],
                ..api::TxnRequest::default()
            };
            let answer = self.link.txn(&txn, limit).await?.value;
            let header = answer.header.unwrap_or_default();
            let (revision, term) = (header.revision, header.raft_term);
            let mut found = found(answer).into_iter();
            let own = found.next().unwrap_or_default().pop();
            let still_ours =
                |own: &api::KeyValue| own.create_revision == place.made && queue.contends(own);
            if !own.as_ref().is_some_and(still_ours) {
                return Ok((View::Gone, term));
            }
            let ahead = found.next().unwrap_or_default();
            let next = ahead.iter().find(|kv| queue.contends(kv));
            if let Some(next) = next {
                return Ok((View::Behind { key: next.key.clone(), revision }, term));
            }
            // Keys of other locks may lie among those of this one: `a/b/...` among `a/...`.
            match ahead.last() {
                Some(last) if is_full(&ahead, older.limit) => {
                    older.max_create_revision = last.create_revision - 1;
                    older.limit = PAGE;
                }
                _ => return Ok((View::First, term)),
            }
        }
    }

    /// Waits until this place is first, or gone, or the limit has come.
    pub(super) async fn wait(
        &self,
        name: &LockName,
        place: &mut Place,
        until: Moment,
    ) -> Result<Waited, Fault> {
        let queue = self.prefix.queue(name);
        let third = ttl_from(place.ttl)?.as_duration() / 3;
        let mut beat = place.sent + third;
        let mut sight: Option<(Vec<u8>, Sight<'_>)> = None;
        loop {
            let now = self.now();
            let limit = (now + OUTAGE).min(until + OVERTIME);
            if now >= beat || matches!(place.view, View::Unknown) {
                // A renewal, as renew.rs has it: if our turn has come, it is confirmed.
                let kept = self.link.keep_alive(&[place.lease], limit).await?;
                let answer = kept.value.into_iter().next().unwrap_or_default();
                beat = kept.sent + third;
                let (view, term) = self.look(&queue, place, limit).await?;
                place.view = view;
                let counts = answer.header.is_some_and(|header| header.raft_term == term);
                match place.view {
                    View::Gone => return Ok(Waited::Gone),
                    // Not in one term: nobody knows who answered.
                    _ if !counts => {
                        place.view = View::Unknown;
                        continue;
                    }
                    _ if answer.ttl <= 0 => return Ok(Waited::Gone),
                    _ => (place.sent, place.ttl) = (kept.sent, answer.ttl),
                }
            }
            let (key, revision) = match &place.view {
                View::First => return Ok(Waited::First),
                View::Gone => return Ok(Waited::Gone),
                View::Behind { key, revision } => (key, *revision),
                View::Unknown => continue,
            };
            if now >= until {
                return Ok(Waited::TooLate);
            }
            let alarm = self.clock().alarm(beat.min(until));
            let watched = async {
                let open =
                    match sight.take().filter(|(watched, open)| watched == key && open.is_good()) {
                        Some((_, open)) => open,
                        None => self.link.watch(deletion_of(key.clone())).await?,
                    };
                // If anything happened between our look and the watch, we look again with the watch open.
                let missed = open.since > revision;
                let (_, open) = sight.insert((key.clone(), open));
                if missed { Ok(()) } else { open.changed().await }
            };
            match race(watched, alarm).await {
                First::Left(Err(Fault::Elsewhere(_))) => {
                    sight = None;
                    self.clock().alarm((self.now() + BREATH).min(until)).await;
                }
                First::Left(Err(fault)) => return Err(fault),
                First::Left(Ok(())) => {
                    // What it had seen so far we shall have seen as well.
                    if let Some((_, open)) = &mut sight {
                        open.since = 0;
                    }
                }
                First::Right(()) if self.now() >= until => return Ok(Waited::TooLate),
                First::Right(()) => {}
            }
            place.view = View::Unknown;
        }
    }

    /// The holder, if there is one.
    pub(super) async fn holder(
        &self,
        name: &LockName,
        limit: Moment,
    ) -> Result<Option<api::KeyValue>, Fault> {
        let queue = self.prefix.queue(name);
        let mut range = api::RangeRequest { limit: 1, ..oldest_of(&queue) };
        loop {
            let kvs = self.link.range(&range, limit).await?.kvs;
            let first = kvs.iter().find(|kv| queue.contends(kv));
            if let Some(first) = first {
                let whole = range_of((first.key.clone(), Vec::new()));
                let whole = self.link.range(&whole, limit).await?.kvs.pop();
                return Ok(whole.filter(|kv| kv.create_revision == first.create_revision));
            }
            match kvs.last() {
                Some(last) if is_full(&kvs, range.limit) => {
                    range.min_create_revision = last.create_revision + 1;
                    range.limit = PAGE;
                }
                _ => return Ok(None),
            }
        }
    }

    pub(super) async fn holder_info(
        &self,
        kv: &api::KeyValue,
        limit: Moment,
    ) -> Result<HolderInfo, Fault> {
        let asked = join(self.link.time_to_live(kv.lease, limit), self.identify(kv, limit));
        let (lease, identity) = asked.await;
        let lease = lease?;
        let Identity { label, value, .. } = identity?;
        let remaining = u64::try_from(lease.ttl).ok().map(std::time::Duration::from_secs);
        let ttl = ttl_from(lease.granted_ttl).ok();
        Ok(HolderInfo {
            label,
            token: token_from(kv.create_revision).ok(),
            ttl,
            held_for: None,
            remaining: remaining.map(|left| ttl.map_or(left, |ttl| left.min(ttl.as_duration()))),
            endless: false,
            value,
        })
    }

    /// Who is behind a key. What stands beside it is read as it was when the key came to say what it says: a
    /// candidate of ours that has gone since is no stranger for that.
    pub(super) async fn identify(
        &self,
        kv: &api::KeyValue,
        limit: Moment,
    ) -> Result<Identity, Fault> {
        if let Some(identity) = Identity::of_lock(kv) {
            return Ok(identity);
        }
        let beside = range_of((label_key(kv.lease), Vec::new()));
        let then = api::RangeRequest { revision: kv.mod_revision, ..beside.clone() };
        let answer = match self.link.range(&then, limit).await {
            // It says so for so long that etcd does not know that time any more.
            Err(Fault::Compacted) => self.link.range(&beside, limit).await,
            answer => answer,
        };
        let beside = match answer {
            Ok(answer) => answer.kvs.into_iter().next(),
            // A user who may not read that sees a candidate of ours as another make's.
            Err(Fault::Refused(_)) => None,
            Err(fault) => return Err(fault),
        };
        Ok(Identity::of_candidate(kv, beside.as_ref()))
    }

    /// Ends the grant of this key, and says so where its owner can read it. False if it was gone before.
    pub(super) async fn break_key(
        &self,
        kv: &api::KeyValue,
        note: i64,
        limit: Moment,
    ) -> Result<bool, Fault> {
        let marker = broken_key(kv.lease, kv.create_revision);
        let txn = api::TxnRequest {
            compare: vec![made_at(kv.key.clone(), kv.create_revision)],
            success: vec![delete(kv.key.clone()), put(marker.clone(), Vec::new(), note)],
            failure: vec![get(range_of((marker, Vec::new())))],
        };
        let answer = self.link.txn(&txn, limit).await?;
        if answer.value.succeeded {
            return Ok(true);
        }
        // The answer to our first try may have been lost.
        let notes = found(answer.value).pop().unwrap_or_default();
        Ok(answer.again && notes.iter().any(|kv| kv.lease == note))
    }
}

/// What is said to a candidate whose words would not be taken for such.
pub(super) fn unspeakable() -> Fault {
    Fault::Refused(
        "on etcd a value must not end with a line \"fencepost 1\", which is how a lock that is no election is \
         told: leave that out"
            .into(),
    )
}

pub(super) fn deletion_of(key: Vec<u8>) -> api::WatchCreateRequest {
    let no_puts = api::watch_create_request::FilterType::Noput.into();
    api::WatchCreateRequest { key, filters: vec![no_puts], ..api::WatchCreateRequest::default() }
}

/// Without values, the youngest first.
fn youngest_of(queue: &Queue) -> api::RangeRequest {
    api::RangeRequest {
        keys_only: true,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Create.into(),
        ..range_of(queue.range())
    }
}

/// Without values, the oldest first.
pub(super) fn oldest_of(queue: &Queue) -> api::RangeRequest {
    api::RangeRequest { sort_order: SortOrder::Ascend.into(), ..youngest_of(queue) }
}

/// Whether there may be more than this many.
fn is_full(kvs: &[api::KeyValue], limit: i64) -> bool {
    i64::try_from(kvs.len()) == Ok(limit)
}

pub(super) fn token_from(revision: i64) -> Result<Token, Fault> {
    u64::try_from(revision).ok().and_then(|token| Token::new(token).ok()).ok_or_else(|| {
        Fault::Refused(format!("the revision {revision} of this etcd is too high for a token"))
    })
}

#[cfg(test)]
mod tests;
