//! Notifies the holders of this client when their key goes, whoever deleted it.
//!
//! One stream per client carries a watch on the key of each grant that has been held for a moment ([`SETTLED`]): a
//! short cycle of acquire and release costs no call. A deletion makes the heartbeat renew that grant at once, and the
//! answer decides (renew.rs). So nothing depends on a watch: where there is none, the next renewal tells.
//!
//! A first watch starts right behind the revision that made the key, so it misses nothing. One that is restored on a new
//! stream starts now: a far revision would cost the member a look through all that happened since. So the grant is
//! renewed once that watch is there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment};
use futures_util::stream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::{Request, Streaming};

use super::api::{self, watch_client::WatchClient, watch_request::RequestUnion};
use super::faults::Fault;
use super::line::{Place, deletion_of};
use super::{BREATH, Desk, PATIENCE};
use crate::backend::LossSignal;
use crate::race::{First, race};

/// How long a grant is held before its key is watched.
const SETTLED: Duration = Duration::from_millis(100);
/// New grants are gathered for this long.
const BATCH: Duration = Duration::from_millis(20);
/// How often grants that nobody has any more are dropped, and the stream is checked.
const GC_EVERY: Duration = Duration::from_secs(5);
/// How long to leave the members alone at most after a stream failed.
const LONGEST_BREATH: Duration = Duration::from_secs(2);
/// A stream on which a watch was refused is replaced after this long: its login may have ended.
const REFUSED_FOR: Duration = Duration::from_mins(1);

/// The grants of this client. A watch has the id of its grant's lease.
#[derive(Default)]
pub(super) struct HolderWatch {
    grants: Mutex<Grants>,
    /// The first grant is there after there was none that is new.
    added: Notify,
}

#[derive(Default)]
struct Grants {
    /// Its task has been started.
    running: bool,
    by_lease: HashMap<i64, Held>,
    /// Those that are not watched yet, and from when on they are to be, in order. Some have gone since.
    new: VecDeque<(Moment, i64)>,
    /// Those that have gone and are still watched.
    gone: Vec<i64>,
}

struct Held {
    key: Vec<u8>,
    /// The revision that made the key.
    made: i64,
    loss: LossSignal,
    watched: bool,
    /// It was watched before, on a stream that is no more: it is renewed once it is watched again.
    restored: bool,
}

/// An open stream.
struct Open {
    requests: UnboundedSender<api::WatchRequest>,
    answers: Streaming<api::WatchResponse>,
    at: usize,
    /// Of the link, when it was opened.
    failures: usize,
    replace_at: Moment,
}

impl HolderWatch {
    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock()
    }

    /// This lease's grant is being released: its key will go, and nobody is to be notified of that.
    pub(super) fn remove(&self, lease: i64) {
        let mut grants = self.grants();
        if grants.by_lease.remove(&lease).is_some_and(|held| held.watched) {
            grants.gone.push(lease);
        }
    }
}

impl Grants {
    /// What is to be sent now, and when to come back.
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

    /// All that were watched on a stream that is no more.
    fn restore(&mut self) -> Vec<api::WatchRequest> {
        self.gone.clear();
        let watched = self.by_lease.iter_mut().filter(|(_, held)| held.watched);
        let restored = watched.map(|(lease, held)| {
            held.restored = true;
            held.create(*lease, 0)
        });
        restored.collect()
    }

    /// Drops the grants of guards that are no more. Whether any is left.
    fn gc(&mut self) -> bool {
        let unheard = self.by_lease.extract_if(|_, held| !held.loss.is_heard());
        self.gone.extend(unheard.filter(|(_, held)| held.watched).map(|(lease, _)| lease));
        !self.by_lease.is_empty()
    }

    /// A member said this of a watch. What is to be sent for it; or that it refused.
    fn heard(&mut self, answer: &api::WatchResponse) -> Result<Option<api::WatchRequest>, ()> {
        // One that was never made has no id.
        if answer.created && answer.canceled {
            return Err(());
        }
        let lease = answer.watch_id;
        // Of a grant that has gone meanwhile.
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

impl Desk {
    /// From now on this grant's guard is notified when its key goes.
    pub(super) fn watch_holder(
        self: &Arc<Self>,
        name: &LockName,
        place: &Place,
        loss: &LossSignal,
    ) {
        let (key, made) = (self.prefix.queue(name).key(place.lease), place.made);
        let held = Held { key, made, loss: loss.clone(), watched: false, restored: false };
        let mut grants = self.holders.grants();
        let watched = grants.by_lease.get(&place.lease).is_some_and(|old| old.watched);
        grants.by_lease.insert(place.lease, Held { watched, ..held });
        if grants.new.is_empty() {
            self.holders.added.notify_one();
        }
        grants.new.push_back((self.now() + SETTLED, place.lease));
        if !std::mem::replace(&mut grants.running, true) {
            let desk = Arc::clone(self);
            self.around.runtime.spawn(async move { desk.watch_holders().await });
        }
    }

    /// Keeps the watches, for as long as the client's runtime lives.
    async fn watch_holders(&self) {
        let mut open: Option<Open> = None;
        let (mut breath, mut opened_at) = (BREATH, self.now());
        let mut gc_at = self.now() + GC_EVERY;
        loop {
            let now = self.now();
            let mut needed = true;
            if now >= gc_at {
                gc_at = now + GC_EVERY;
                needed = self.holders.grants().gc();
            }
            let good = |open: &Open| open.failures == self.link.failures() && now < open.replace_at;
            open = open.filter(|open| needed && good(open));
            let (requests, next) = {
                let mut grants = self.holders.grants();
                let restored = if open.is_none() { grants.restore() } else { Vec::new() };
                let (due, next) = grants.due(now);
                ([restored, due].concat(), next)
            };
            match &open {
                Some(open) => requests.into_iter().for_each(|each| drop(open.requests.send(each))),
                None if requests.is_empty() => {}
                None => match self.open_holder_stream(requests).await {
                    Ok(opened) => (open, opened_at) = (Some(opened), self.now()),
                    Err(fault) => {
                        tracing::debug!(?fault, "holders are not watched");
                        self.clock().alarm(self.now() + breath).await;
                        breath = (breath * 2).min(LONGEST_BREATH);
                        continue;
                    }
                },
            }
            let Some(stream) = &mut open else {
                // Nothing is watched, and nothing is to be but what is new.
                match next {
                    Some(next) => self.clock().alarm(next).await,
                    None => self.holders.added.notified().await,
                }
                continue;
            };
            let alarm = self.clock().alarm(next.map_or(gc_at, |next| next.min(gc_at)));
            let resting = race(self.holders.added.notified(), alarm);
            match race(stream.answers.message(), resting).await {
                First::Left(Ok(Some(answer))) => match self.holders.grants().heard(&answer) {
                    Ok(None) => {}
                    Ok(Some(again)) => drop(stream.requests.send(again)),
                    Err(()) => {
                        tracing::debug!(reason = answer.cancel_reason, "a watch was refused");
                        stream.replace_at = stream.replace_at.min(now + REFUSED_FOR);
                    }
                },
                // The member went, or has no leader.
                First::Left(Ok(None) | Err(_)) => {
                    self.link.leave(stream.at, stream.failures);
                    open = None;
                    // One that ends as soon as it is open would otherwise be opened again and again.
                    if self.now().since(opened_at) > LONGEST_BREATH {
                        breath = BREATH;
                    } else {
                        self.clock().alarm(self.now() + breath).await;
                        breath = (breath * 2).min(LONGEST_BREATH);
                    }
                }
                First::Right(_) => {}
            }
        }
    }

    /// Opens a stream. A member answers the call with the answer to the first request, so there must be one.
    async fn open_holder_stream(&self, first: Vec<api::WatchRequest>) -> Result<Open, Fault> {
        let (requests, mut sent) = unbounded_channel();
        for each in first {
            drop(requests.send(each));
        }
        let sent = stream::poll_fn(move |context| sent.poll_recv(context));
        let rpc = |channel, request: Request<_>| async move {
            WatchClient::new(channel).watch(request).await
        };
        let failures = self.link.failures();
        let limit = self.clock().alarm(self.now() + PATIENCE);
        match race(Box::pin(self.link.stream(sent, rpc)), limit).await {
            First::Left(Ok((answers, at))) => {
                Ok(Open { requests, answers, at, failures, replace_at: Moment::NEVER })
            }
            First::Left(Err(fault)) => Err(fault),
            First::Right(()) => Err(Fault::Elsewhere("no answer to a watch".into())),
        }
    }
}
