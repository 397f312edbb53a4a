//! Renews grants, turns guards lost in time (P4), and releases what dropped guards leave behind (P6).
//!
//! One timer queue per client has the next event of every grant: its renewal, a third of the TTL after the last success,
//! or its end. It runs on the client's own thread, so a caller whose executor is blocked keeps its locks. A renewal that
//! fails, hangs or panics is retried until the deadline; no single error ends the heartbeat.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::backend::{
    GrantId, LossCause, LossSignal, NotHeld, OnLoss, Renewal, Renewed, Reply, StoreResult,
};
use crate::bounded_store::{BoundedStore, RenewalAnswers};
use crate::clock::Clock;
use crate::error::Error;
use crate::grant_state::GrantState;
use crate::race::race;

pub(crate) struct Heartbeat {
    store: Arc<BoundedStore>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    /// Work that completes after its caller is gone: releases, ends of runs.
    tasks: TaskTracker,
    timer_queue: Mutex<TimerQueue>,
    earlier: Notify,
}

/// Receives a store's notifications about one grant.
#[derive(Debug)]
struct Notified {
    grant_state: Weak<GrantState>,
    heartbeat: Weak<Heartbeat>,
}

impl Notified {
    fn both(&self) -> Option<(Arc<GrantState>, Arc<Heartbeat>)> {
        Some((self.grant_state.upgrade()?, self.heartbeat.upgrade()?))
    }
}

impl OnLoss for Notified {
    fn renew_now(&self) {
        if let Some((grant_state, heartbeat)) = self.both() {
            heartbeat.renew_now(&grant_state);
        }
    }

    fn lose(&self, cause: LossCause) {
        if let Some((grant_state, heartbeat)) = self.both() {
            heartbeat.lose(&grant_state, cause);
        }
    }

    fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.grant_state.upgrade()?.shorten(sent, ttl)
    }

    fn expire_if_due(&self) {
        if let Some(grant_state) = self.grant_state.upgrade() {
            grant_state.expire_if_due();
        }
    }

    fn is_connected(&self) -> bool {
        self.grant_state.strong_count() > 0
    }
}

/// The next event of every grant.
struct TimerQueue {
    events: BTreeMap<(Moment, u64), Arc<GrantState>>,
    /// When the loop wakes next. Not moved when that event is removed: to wake once for nothing is cheaper than to be
    /// woken by every lock that follows a release.
    awake_at: Moment,
}

impl TimerQueue {
    fn remove(&mut self, grant_state: &GrantState) {
        let slot = Moment::from_nanos(grant_state.slot.swap(0, Ordering::Relaxed));
        self.events.remove(&(slot, grant_state.id));
    }
}

impl Heartbeat {
    pub(crate) fn start(
        store: Arc<BoundedStore>,
        clock: Arc<dyn Clock>,
        runtime: &Handle,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let heartbeat = Arc::new(Self {
            store,
            clock,
            runtime: runtime.clone(),
            tasks,
            timer_queue: Mutex::new(TimerQueue {
                events: BTreeMap::new(),
                awake_at: Moment::NEVER,
            }),
            earlier: Notify::new(),
        });
        let supervised = Arc::clone(&heartbeat);
        runtime.spawn(async move {
            // The timer queue outlives a panic of the loop; only the runtime's end ends the loop for good.
            while let Err(ended) = tokio::spawn(Arc::clone(&supervised).run()).await {
                if ended.is_cancelled() {
                    break;
                }
                tracing::error!("the heartbeat loop panicked; starting it again");
            }
        });
        heartbeat
    }

    /// The signal by which a backend notifies this grant.
    pub(crate) fn loss_signal(self: &Arc<Self>, grant_state: &Arc<GrantState>) -> LossSignal {
        let (grant_state, heartbeat) = (Arc::downgrade(grant_state), Arc::downgrade(self));
        LossSignal::to(Arc::new(Notified { grant_state, heartbeat }))
    }

    /// Renews `grant_state` from now on, until it is over or forgotten.
    pub(crate) fn add(&self, grant_state: &Arc<GrantState>) {
        let asked = grant_state.renew_asked.load(Ordering::SeqCst);
        let next = if asked { self.clock.now() } else { grant_state.status().next_event() };
        self.schedule(grant_state, next);
    }

    /// Renews `grant_state` at once, or as soon as it is granted.
    pub(crate) fn renew_now(&self, grant_state: &Arc<GrantState>) {
        grant_state.renew_asked.store(true, Ordering::SeqCst);
        if grant_state.token().is_some() {
            self.add(grant_state);
        }
    }

    /// Stops renewing `grant_state`.
    pub(crate) fn forget(&self, grant_state: &GrantState) {
        self.timer_queue.lock().remove(grant_state);
    }

    fn schedule(&self, grant_state: &Arc<GrantState>, at: Moment) {
        let mut timer_queue = self.timer_queue.lock();
        timer_queue.remove(grant_state);
        // Checked under the lock: a release after this finds the slot and clears it.
        if grant_state.is_over() {
            return;
        }
        grant_state.slot.store(at.as_nanos(), Ordering::Relaxed);
        timer_queue.events.insert((at, grant_state.id), Arc::clone(grant_state));
        if at < timer_queue.awake_at {
            timer_queue.awake_at = at;
            drop(timer_queue);
            self.earlier.notify_one();
        }
    }

    fn pop_due(&self, now: Moment) -> (Vec<Arc<GrantState>>, Moment) {
        let mut timer_queue = self.timer_queue.lock();
        let later = timer_queue.events.split_off(&(now, u64::MAX));
        let due: Vec<_> = std::mem::replace(&mut timer_queue.events, later).into_values().collect();
        // Each is scheduled again soon, so that a panic before its next event is set loses none.
        for grant_state in &due {
            let (end, ttl) = grant_state.end_and_ttl();
            let again = (now + retry_delay(ttl)).min(end);
            grant_state.slot.store(again.as_nanos(), Ordering::Relaxed);
            timer_queue.events.insert((again, grant_state.id), Arc::clone(grant_state));
        }
        let next = timer_queue.events.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
        timer_queue.awake_at = next;
        (due, next)
    }

    async fn run(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let (due, next) = self.pop_due(now);
            let mut batch = Vec::new();
            for grant_state in due {
                if grant_state.is_over() {
                    self.forget(&grant_state);
                    continue;
                }
                grant_state.warn_if_late();
                let asked = grant_state.renew_asked.swap(false, Ordering::SeqCst);
                if now < grant_state.status().renewal_due() && !asked {
                    // It was renewed meanwhile, or only a warning was due.
                    self.add(&grant_state);
                } else if grant_state.progress_overdue(now) {
                    self.retry_later(&grant_state);
                } else {
                    // While the renewal is in flight, the timer queue still has the end of the grant.
                    self.schedule(&grant_state, grant_state.status().end());
                    batch.push(grant_state);
                }
            }
            if !batch.is_empty() {
                let span = tracing::debug_span!("renew", grants = batch.len());
                self.runtime.spawn(Arc::clone(&self).renew(batch).instrument(span));
                continue; // what was just scheduled may be the next event
            }
            race(self.earlier.notified(), self.clock.alarm(next)).await;
        }
    }

    async fn renew(self: Arc<Self>, batch: Vec<Arc<GrantState>>) {
        let renewals = batch
            .iter()
            .map(|grant_state| {
                Renewal::new(grant_state.grant.clone())
                    .with_ttl(grant_state.status().ttl)
                    .with_token(grant_state.token())
            })
            .collect();
        let shortest =
            batch.iter().map(|grant_state| grant_state.status().ttl).min().unwrap_or(Ttl::MIN);
        let (store, timeout) = (Arc::clone(&self.store), shortest.as_duration() / 3);
        // On a task of its own, which contains a panic.
        let call = self.runtime.spawn(async move { store.renew_batch(renewals, timeout).await });
        let panicked = |_| RenewalAnswers::none("the backend's renewal panicked");
        let answers = call.await.unwrap_or_else(panicked);
        for grant_state in &batch {
            self.on_renewal(grant_state, answers.to(&grant_state.grant));
        }
    }

    fn on_renewal(
        self: &Arc<Self>,
        grant_state: &Arc<GrantState>,
        answer: StoreResult<Result<Renewed, NotHeld>>,
    ) {
        // Warn first: a renewal that succeeds late is still a near miss.
        grant_state.warn_if_late();
        let name = &grant_state.grant.name;
        match answer {
            Ok(Reply { value: Ok(renewed), sent, .. }) => {
                grant_state.renewed(sent, renewed.ttl);
                tracing::trace!(%name, token = %renewed.token, "renewed");
                self.add(grant_state);
            }
            Ok(Reply { value: Err(NotHeld(cause)), .. }) => {
                self.lose(grant_state, cause.unwrap_or(LossCause::Expired));
            }
            Err(error) => {
                let error = Error::from(error);
                grant_state.renewal_failed(&error);
                let error = error.one_line();
                tracing::warn!(%name, %error, "renewal is failing");
                self.retry_later(grant_state);
            }
        }
    }

    /// The grant has ended at the store. If it was broken, it is released all the same: that confirms to the operator that
    /// the holder knows.
    pub(crate) fn lose(self: &Arc<Self>, grant_state: &Arc<GrantState>, cause: LossCause) {
        let ttl = grant_state.status().ttl;
        let lost = grant_state.lose(cause);
        self.forget(grant_state);
        if lost && cause == LossCause::Broken {
            self.undo(grant_state.grant.clone(), ttl);
        }
    }

    fn retry_later(&self, grant_state: &Arc<GrantState>) {
        let status = grant_state.status();
        self.schedule(grant_state, (self.clock.now() + retry_delay(status.ttl)).min(status.end()));
    }

    /// Releases in the background whatever the owner holds or may hold, for as long as a lease can last.
    pub(crate) fn undo(self: &Arc<Self>, grant: GrantId, ttl: Ttl) {
        let heartbeat = Arc::clone(self);
        let undo = async move {
            let (clock, name) = (&heartbeat.clock, &grant.name);
            let give_up = clock.now() + ttl.as_duration();
            while clock.now() < give_up {
                let timeout = (ttl.as_duration() / 3).min(CALL_LIMIT);
                let limit = (clock.now() + timeout).min(give_up);
                match heartbeat.store.release(&grant, Some(limit)).await {
                    Ok(_) => return,
                    // Retry a refusal too: a failover or a missing permission may end before the lease does.
                    Err(error) => {
                        let error = error.one_line();
                        tracing::warn!(%name, %error, "release failed; retrying");
                        clock.alarm(clock.now() + retry_delay(ttl)).await;
                    }
                }
            }
            tracing::warn!(%name, "gave up on a release; the lease has expired by itself");
        };
        self.tasks.spawn_on(undo, &self.runtime);
    }

    /// Runs `work` to completion on the client's own thread, even if the caller drops it; a client that closes waits.
    pub(crate) fn spawn_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }
}

impl std::fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heartbeat")
    }
}

/// How long one release in the background may take before it is retried.
const CALL_LIMIT: Duration = Duration::from_secs(5);

fn retry_delay(ttl: Ttl) -> Duration {
    (ttl.as_duration() / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
}
