//! Notifies the holders of this client when their key is deleted, whoever deleted it.
//!
//! One stream per client carries a watch on the key of each grant that has been held for a moment ([`SETTLED`]): a
//! short cycle of acquire and release costs no call. A deletion makes the heartbeat renew that grant at once, and the
//! reply decides (renew.rs). So nothing depends on a watch: without one, the next renewal finds the loss.
//!
//! A first watch starts right after the revision that created the key, so it misses nothing. A watch that is restored on a
//! new stream starts now: from an old revision the member would have to scan everything since. So the grant is renewed once
//! that watch is open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use futures_util::stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::api::{self, watch_request::RequestUnion};
use super::requests::{WatchStream, deletion_of};
use super::{REWATCH_DELAY, Shared};
use crate::backend::{LossSignal, StoreError};
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How long a grant is held before its key is watched.
const SETTLED: Duration = Duration::from_millis(100);
/// New grants are collected for this long before they are watched.
const BATCH: Duration = Duration::from_millis(20);
/// How often grants without a guard are dropped, and the stream is checked.
const GC_EVERY: Duration = Duration::from_secs(5);
/// The longest pause after a stream failed.
const MAX_REWATCH_DELAY: Duration = Duration::from_secs(2);
/// A stream on which a watch was refused is replaced after this long: its login may have ended.
const REFUSED_FOR: Duration = Duration::from_mins(1);

/// The grants of this client. A watch has the id of its grant's lease.
#[derive(Default)]
pub(super) struct HolderWatch {
    grants: Mutex<Grants>,
    /// Notified when a new grant comes and there was none.
    added: Notify,
}

#[derive(Default)]
struct Grants {
    /// The task has been started.
    running: bool,
    by_lease: HashMap<i64, Held>,
    /// Grants that are not watched yet, in order, with when to start. Some may be gone since.
    new: VecDeque<(Moment, i64)>,
    /// Grants that are gone and are still watched.
    gone: Vec<i64>,
}

struct Held {
    key: Vec<u8>,
    /// The revision that created the key.
    made: i64,
    loss: LossSignal,
    watched: bool,
    /// It was watched before, on a stream that has ended: it is renewed once it is watched again.
    restored: bool,
}

/// An open stream.
struct Open<'a> {
    requests: UnboundedSender<api::WatchRequest>,
    answers: WatchStream<'a>,
    replace_at: Moment,
}

impl HolderWatch {
    /// The grant of this lease is being released: its key will be deleted, which is not a loss.
    pub(super) fn remove(&self, lease: i64) {
        let mut grants = self.grants.lock();
        if grants.by_lease.remove(&lease).is_some_and(|held| held.watched) {
            grants.gone.push(lease);
        }
    }
}

impl Grants {
    /// The requests to send now, and when to check again.
    fn due(&mut self, now: Moment) -> (Vec<api::WatchRequest>, Option<Moment>) {
        let mut due: Vec<_> = self.gone.drain(..).map(cancel).collect();
        while let Some((_, lease)) = self.new.pop_front_if(|(at, _)| *at <= now) {
            if let Some(held) = self.by_lease.get_mut(&lease).filter(|held| !held.watched) {
                held.watched = true;
                due.push(held.create(lease, held.made + 1));
            }
        }
        (due, self.new.front().map(|(at, _)| (*at).max(now + BATCH)))
    }

    /// Queues all grants that were watched on a stream that has ended.
    fn restore(&mut self) -> Vec<api::WatchRequest> {
        self.gone.clear();
        let watched = self.by_lease.iter_mut().filter(|(_, held)| held.watched);
        let restored = watched.map(|(lease, held)| {
            held.restored = true;
            held.create(*lease, 0)
        });
        restored.collect()
    }

    /// Drops the grants whose guards are gone. Returns whether any is left.
    fn gc(&mut self) -> bool {
        let disconnected = self.by_lease.extract_if(|_, held| !held.loss.is_connected());
        self.gone.extend(disconnected.filter(|(_, held)| held.watched).map(|(lease, _)| lease));
        !self.by_lease.is_empty()
    }

    /// Handles a response about a watch. Returns what to send, or that the watch was refused.
    fn on_response(
        &mut self,
        answer: &api::WatchResponse,
    ) -> Result<Option<api::WatchRequest>, ()> {
        // A watch that was never created has no id.
        if answer.created && answer.canceled {
            return Err(());
        }
        let lease = answer.watch_id;
        // For a grant that is gone by now.
        let Some(held) = self.by_lease.get_mut(&lease).filter(|held| held.watched) else {
            return Ok(None);
        };
        if answer.compact_revision > 0 {
            held.restored = true;
            return Ok(Some(held.create(lease, 0)));
        }
        if answer.canceled {
            return Err(());
        }
        let restored = answer.created && std::mem::take(&mut held.restored);
        if restored || !answer.events.is_empty() {
            held.loss.renew_now();
        }
        Ok(None)
    }
}

impl Held {
    fn create(&self, lease: i64, start_revision: i64) -> api::WatchRequest {
        let what = deletion_of(self.key.clone());
        let create = api::WatchCreateRequest { start_revision, watch_id: lease, ..what };
        api::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    }
}

fn cancel(lease: i64) -> api::WatchRequest {
    let cancel = api::WatchCancelRequest { watch_id: lease };
    api::WatchRequest { request_union: Some(RequestUnion::CancelRequest(cancel)) }
}

/// From now on this grant's guard is notified when its key is deleted.
pub(super) fn watch_holder(
    etcd: &Arc<Shared>,
    lease: i64,
    key: Vec<u8>,
    made: i64,
    loss: LossSignal,
) {
    let mut grants = etcd.holders.grants.lock();
    let watched = grants.by_lease.get(&lease).is_some_and(|old| old.watched);
    grants.by_lease.insert(lease, Held { key, made, loss, watched, restored: false });
    if grants.new.is_empty() {
        etcd.holders.added.notify_one();
    }
    grants.new.push_back((etcd.now() + SETTLED, lease));
    if !std::mem::replace(&mut grants.running, true) {
        let shared = Arc::clone(etcd);
        etcd.context.runtime.spawn(async move { watch_holders(&shared).await });
    }
}

/// Maintains the watches, for as long as the client's runtime lives.
async fn watch_holders(etcd: &Shared) {
    let mut open: Option<Open<'_>> = None;
    let (mut delay, mut opened_at) = (REWATCH_DELAY, etcd.now());
    let mut gc_at = etcd.now() + GC_EVERY;
    loop {
        let now = etcd.now();
        let mut needed = true;
        if now >= gc_at {
            gc_at = now + GC_EVERY;
            needed = etcd.holders.grants.lock().gc();
        }
        let good = |open: &Open<'_>| open.answers.is_good() && now < open.replace_at;
        open = open.filter(|open| needed && good(open));
        let (requests, next) = {
            let mut grants = etcd.holders.grants.lock();
            let restored = if open.is_none() { grants.restore() } else { Vec::new() };
            let (due, next) = grants.due(now);
            ([restored, due].concat(), next)
        };
        match &open {
            Some(open) => requests.into_iter().for_each(|each| drop(open.requests.send(each))),
            None if requests.is_empty() => {}
            None => match open_stream(etcd, requests).await {
                Ok(opened) => (open, opened_at) = (Some(opened), etcd.now()),
                Err(error) => {
                    tracing::debug!(%error, "holders are not watched");
                    etcd.clock().alarm(etcd.now() + delay).await;
                    delay = (delay * 2).min(MAX_REWATCH_DELAY);
                    continue;
                }
            },
        }
        let Some(stream) = &mut open else {
            // Nothing is watched, and only new grants will be.
            match next {
                Some(next) => etcd.clock().alarm(next).await,
                None => etcd.holders.added.notified().await,
            }
            continue;
        };
        let alarm = etcd.clock().alarm(next.map_or(gc_at, |next| next.min(gc_at)));
        let resting = race(etcd.holders.added.notified(), alarm);
        match race(stream.answers.next(), resting).await {
            First::Left(Ok(answer)) => match etcd.holders.grants.lock().on_response(&answer) {
                Ok(None) => {}
                Ok(Some(again)) => drop(stream.requests.send(again)),
                Err(()) => {
                    tracing::debug!(reason = answer.cancel_reason, "a watch was refused");
                    stream.replace_at = stream.replace_at.min(now + REFUSED_FOR);
                }
            },
            // The member is gone, or has no leader.
            First::Left(Err(_)) => {
                open = None;
                // Without a pause, a stream that ends as soon as it is open would be reopened in a tight loop.
                if etcd.now().since(opened_at) > MAX_REWATCH_DELAY {
                    delay = REWATCH_DELAY;
                } else {
                    etcd.clock().alarm(etcd.now() + delay).await;
                    delay = (delay * 2).min(MAX_REWATCH_DELAY);
                }
            }
            First::Right(_) => {}
        }
    }
}

async fn open_stream(etcd: &Shared, first: Vec<api::WatchRequest>) -> Result<Open<'_>, StoreError> {
    let (requests, mut sent) = unbounded_channel();
    for each in first {
        drop(requests.send(each));
    }
    let sent = stream::poll_fn(move |context| sent.poll_recv(context));
    let limit = etcd.clock().alarm(etcd.now() + CALL_TIMEOUT);
    match race(etcd.connection.watch_stream(sent), limit).await {
        First::Left(answers) => Ok(Open { requests, answers: answers?, replace_at: Moment::NEVER }),
        First::Right(()) => Err(StoreError::no_reply("no answer to a watch")),
    }
}
