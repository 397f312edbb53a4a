//! Keeps grants alive, tells guards of their end in time, and undoes what was left behind.
//!
//! One wheel per client holds the next event of every grant: its renewal, a third of the TTL after the
//! last one that counted, or its end. It runs on the client's own thread, so a caller whose executor is
//! blocked keeps its locks. A renewal that fails, hangs or panics is tried again until the deadline; no
//! single error ends the keeper.

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

use crate::backend::{GrantId, LossCause, LossSignal, NotHeld, OnLoss, Renewal, Renewed, Reply};
use crate::bounded_store::BoundedStore;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::race::race;

pub(crate) struct Keeper {
    store: Arc<BoundedStore>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    /// What goes on after its caller is gone: releases, ends of runs.
    tasks: TaskTracker,
    wheel: Mutex<Wheel>,
    earlier: Notify,
}

/// What a store's notification about one grant reaches.
#[derive(Debug)]
struct Notified {
    hold: Weak<Hold>,
    heartbeat: Weak<Keeper>,
}

impl Notified {
    fn both(&self) -> Option<(Arc<Hold>, Arc<Keeper>)> {
        Some((self.hold.upgrade()?, self.heartbeat.upgrade()?))
    }
}

impl OnLoss for Notified {
    fn renew_now(&self) {
        if let Some((hold, heartbeat)) = self.both() {
            heartbeat.renew_now(&hold);
        }
    }

    fn lose(&self, cause: LossCause) {
        if let Some((hold, heartbeat)) = self.both() {
            heartbeat.lose(&hold, cause);
        }
    }

    fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.hold.upgrade()?.shorten(sent, ttl)
    }

    fn settle(&self) {
        if let Some(hold) = self.hold.upgrade() {
            hold.settle();
        }
    }

    fn is_connected(&self) -> bool {
        self.hold.strong_count() > 0
    }
}

/// The next event of every hold.
struct Wheel {
    events: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// Until when the loop sleeps. It is left as it is when the event goes away: to be woken once for
    /// nothing is cheaper than to be woken by every lock that comes after one that was released.
    awake_at: Moment,
}

impl Wheel {
    fn remove(&mut self, hold: &Hold) {
        let slot = Moment::from_nanos(hold.slot.swap(0, Ordering::Relaxed));
        self.events.remove(&(slot, hold.id));
    }
}

impl Keeper {
    pub(crate) fn start(
        store: Arc<BoundedStore>,
        clock: Arc<dyn Clock>,
        runtime: &Handle,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let keeper = Arc::new(Self {
            store,
            clock,
            runtime: runtime.clone(),
            tasks,
            wheel: Mutex::new(Wheel { events: BTreeMap::new(), awake_at: Moment::NEVER }),
            earlier: Notify::new(),
        });
        let supervised = Arc::clone(&keeper);
        runtime.spawn(async move {
            // The wheel outlives a panic of the loop; only the runtime's end ends the loop for good.
            while let Err(ended) = tokio::spawn(Arc::clone(&supervised).attend()).await {
                if ended.is_cancelled() {
                    break;
                }
                tracing::error!("the heartbeat loop panicked; starting it again");
            }
        });
        keeper
    }

    /// By which the store notifies a grant.
    pub(crate) fn loss_signal(self: &Arc<Self>, hold: &Arc<Hold>) -> LossSignal {
        let (hold, heartbeat) = (Arc::downgrade(hold), Arc::downgrade(self));
        LossSignal::to(Arc::new(Notified { hold, heartbeat }))
    }

    /// Renews `hold` from now on, until it is over or forgotten.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let asked = hold.renew_asked.load(Ordering::SeqCst);
        let next = if asked { self.clock.now() } else { hold.status().next_look() };
        self.schedule(hold, next);
    }

    /// Renews `hold` at once, or as soon as it is granted.
    pub(crate) fn renew_now(&self, hold: &Arc<Hold>) {
        hold.renew_asked.store(true, Ordering::SeqCst);
        if hold.token().is_some() {
            self.keep(hold);
        }
    }

    /// Stops renewing `hold`.
    pub(crate) fn forget(&self, hold: &Hold) {
        self.wheel.lock().remove(hold);
    }

    fn schedule(&self, hold: &Arc<Hold>, at: Moment) {
        let mut wheel = self.wheel.lock();
        wheel.remove(hold);
        // Asked under the lock: a release that comes meanwhile finds the slot and clears it.
        if hold.is_over() {
            return;
        }
        hold.slot.store(at.as_nanos(), Ordering::Relaxed);
        wheel.events.insert((at, hold.id), Arc::clone(hold));
        if at < wheel.awake_at {
            wheel.awake_at = at;
            drop(wheel);
            self.earlier.notify_one();
        }
    }

    fn take_due(&self, now: Moment) -> (Vec<Arc<Hold>>, Moment) {
        let mut wheel = self.wheel.lock();
        let later = wheel.events.split_off(&(now, u64::MAX));
        let due: Vec<_> = std::mem::replace(&mut wheel.events, later).into_values().collect();
        for hold in &due {
            hold.slot.store(0, Ordering::Relaxed);
        }
        let next = wheel.events.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
        wheel.awake_at = next;
        (due, next)
    }

    async fn attend(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let (due, next) = self.take_due(now);
            let mut batch = Vec::new();
            for hold in due {
                if hold.is_over() {
                    continue;
                }
                hold.look_back();
                let asked = hold.renew_asked.swap(false, Ordering::SeqCst);
                if now < hold.status().renewal_due() && !asked {
                    // It was renewed meanwhile, or we came for the look alone.
                    self.keep(&hold);
                } else if hold.progress_overdue(now) {
                    self.retry_later(&hold);
                } else {
                    // While the renewal is under way the wheel still knows when the grant ends.
                    self.schedule(&hold, hold.status().end());
                    batch.push(hold);
                }
            }
            if !batch.is_empty() {
                let span = tracing::debug_span!("renew", grants = batch.len());
                self.runtime.spawn(Arc::clone(&self).renew(batch).instrument(span));
                continue; // what was scheduled just now may be the next event
            }
            race(self.earlier.notified(), self.clock.alarm(next)).await;
        }
    }

    async fn renew(self: Arc<Self>, batch: Vec<Arc<Hold>>) {
        let renewals = batch
            .iter()
            .map(|hold| Renewal {
                grant: hold.grant.clone(),
                ttl: Some(hold.status().ttl),
                token: hold.token(),
                value: None,
            })
            .collect();
        let shortest = batch.iter().map(|hold| hold.status().ttl).min().unwrap_or(Ttl::MIN);
        let (store, timeout) = (Arc::clone(&self.store), shortest.as_duration() / 3);
        // On a task of its own, so that a panic stays there.
        let call = self.runtime.spawn(async move { store.renew_batch(renewals, timeout).await });
        let mut outcomes = call.await.unwrap_or_default().into_iter();
        for hold in &batch {
            let outcome = outcomes
                .next()
                .unwrap_or_else(|| Err(Error::unreachable("the backend's renewal panicked")));
            self.renewal_answered(hold, outcome);
        }
    }

    fn renewal_answered(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        outcome: Result<Reply<Result<Renewed, NotHeld>>>,
    ) {
        // Warn first: a renewal that succeeds late is still a near miss.
        hold.look_back();
        let name = &hold.grant.name;
        match outcome {
            Ok(Reply { value: Ok(renewed), sent, .. }) => {
                hold.renewed(sent, renewed.ttl);
                tracing::trace!(%name, token = %renewed.token, "renewed");
                self.keep(hold);
            }
            Ok(Reply { value: Err(NotHeld(cause)), .. }) => {
                self.lose(hold, cause.unwrap_or(LossCause::Expired));
            }
            Err(error) => {
                hold.renewal_failed(&error);
                tracing::warn!(%name, %error, "renewal is failing");
                self.retry_later(hold);
            }
        }
    }

    /// The grant has ended at the store. One that was broken is released all the same: that confirms to whoever broke
    /// it that the holder knows.
    pub(crate) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, cause: LossCause) {
        let ttl = hold.status().ttl;
        let lost = hold.lose(cause);
        self.forget(hold);
        if lost && cause == LossCause::Broken {
            self.undo(hold.grant.clone(), ttl);
        }
    }

    fn retry_later(&self, hold: &Arc<Hold>) {
        let status = hold.status();
        self.schedule(hold, (self.clock.now() + retry_gap(status.ttl)).min(status.end()));
    }

    /// Releases in the background whatever the owner has or may have, for as long as a lease could last.
    pub(crate) fn undo(self: &Arc<Self>, grant: GrantId, ttl: Ttl) {
        let keeper = Arc::clone(self);
        let undo = async move {
            let (clock, name) = (&keeper.clock, &grant.name);
            let give_up = clock.now() + ttl.as_duration();
            while clock.now() < give_up {
                let timeout = (ttl.as_duration() / 3).min(CALL_LIMIT);
                let limit = (clock.now() + timeout).min(give_up);
                match keeper.store.release(&grant, Some(limit)).await {
                    Ok(_) => return,
                    // A refusal too: a failover or a changed right may end before the lease does.
                    Err(error) => {
                        tracing::warn!(%name, %error, "release failed; retrying");
                        clock.alarm(clock.now() + retry_gap(ttl)).await;
                    }
                }
            }
            tracing::warn!(%name, "gave up on a release; its lease has run out by itself");
        };
        self.tasks.spawn_on(undo, &self.runtime);
    }

    /// Carries `work` to its end on the client's own thread, whoever waits for it; a client that closes waits.
    pub(crate) fn see_through<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeper")
    }
}

/// How long one release in the background may take before it is sent again.
const CALL_LIMIT: Duration = Duration::from_secs(5);

fn retry_gap(ttl: Ttl) -> Duration {
    (ttl.as_duration() / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
}
