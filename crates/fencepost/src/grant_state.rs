//! The state of one grant, shared by its guard, the heartbeat and the backend's loss signal.
//!
//! P4: from the deadline on the status is `Lost`, by this machine's clock alone. Every read checks the clock first, so a
//! process that was frozen learns of its loss from its first read, whether or not the heartbeat has woken yet. `Lost` and
//! `Released` are final.

mod near_miss;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost_core::{Moment, Token, Ttl};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{GrantId, LossCause};
use crate::clock::Clock;
use crate::error::Error;
use crate::metrics::{Counters, increment};

/// What a guard says of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardStatus {
    /// The lease runs and is renewed.
    Held,
    /// Renewals fail; the lease still runs. It turns `Held` again, or `Lost` at the deadline.
    RenewalFailing,
    /// The grant can no longer be trusted. Final.
    Lost(LossCause),
    /// The guard was released. Final.
    Released,
}

/// What bounds a holder that hangs, and what its grant is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    /// Two holders would corrupt data: a fence should check the token.
    pub(crate) for_correctness: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) state: GuardStatus,
    /// The guard is lost from here on.
    pub(crate) deadline: Moment,
    /// When `max_hold` is reached.
    hold_limit: Moment,
    /// When to warn that this is near; never once that is done.
    hold_warning: Moment,
    pub(crate) ttl: Ttl,
    /// When the request left that the deadline counts from.
    pub(crate) sent: Moment,
    /// Since when the store keeps a shorter lease: a request that left before that counts for no more than this.
    cap: Option<(Moment, Ttl)>,
}

impl Status {
    /// The deadline and the TTL that a request earns which left at `sent` and was granted `ttl`.
    fn promised(&self, sent: Moment, ttl: Ttl) -> (Moment, Ttl) {
        match self.cap {
            Some((at, cap)) if sent < at => {
                (deadline(sent, ttl).min(deadline(at, cap)), ttl.min(cap))
            }
            _ => (deadline(sent, ttl), ttl),
        }
    }

    /// When the guard is lost if no renewal succeeds until then.
    pub(crate) fn end(&self) -> Moment {
        self.deadline.min(self.hold_limit)
    }

    /// When the next renewal is due.
    pub(crate) fn renewal_due(&self) -> Moment {
        self.sent + self.ttl.as_duration() / 3
    }

    /// When the heartbeat has something to do for this grant, if nothing goes wrong.
    pub(crate) fn next_event(&self) -> Moment {
        self.renewal_due().min(self.hold_warning).min(self.end())
    }

    pub(crate) fn over(&self) -> bool {
        matches!(self.state, GuardStatus::Lost(_) | GuardStatus::Released)
    }
}

#[derive(Debug)]
pub(crate) struct GrantState {
    pub(crate) id: u64,
    pub(crate) grant: GrantId,
    token: OnceLock<Token>,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
    status: watch::Sender<Status>,
    last_progress: AtomicU64,
    renewal_error: Mutex<Option<String>>,
    /// Where the heartbeat's timer queue has this grant; written only under the queue's lock.
    pub(crate) slot: AtomicU64,
    /// The store notified us that the grant may have ended: renew it at once.
    pub(crate) renew_asked: AtomicBool,
    counters: Arc<Counters>,
    /// The renewal that a warning was logged for.
    late_renewal_logged: AtomicU64,
    /// The fencing token was given out.
    fencing_used: AtomicBool,
}

impl GrantState {
    pub(crate) fn new(
        grant: GrantId,
        ttl: Ttl,
        bounds: Bounds,
        clock: Arc<dyn Clock>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = clock.now();
        let never = Moment::NEVER;
        let (state, cap) = (GuardStatus::Held, None);
        let (deadline, hold_limit, hold_warning) = (never, never, never);
        let status = Status { state, deadline, hold_limit, hold_warning, ttl, sent: now, cap };
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            grant,
            token: OnceLock::new(),
            bounds,
            clock,
            status: watch::Sender::new(status),
            last_progress: AtomicU64::new(now.as_nanos()),
            renewal_error: Mutex::default(),
            slot: AtomicU64::new(0),
            renew_asked: AtomicBool::new(false),
            counters,
            late_renewal_logged: AtomicU64::new(u64::MAX),
            fencing_used: AtomicBool::new(false),
        })
    }

    /// Granted: the deadline counts from when the granted request left.
    pub(crate) fn start(&self, token: Token, sent: Moment, ttl: Ttl) {
        let _ = self.token.set(token);
        let now = self.clock.now();
        self.last_progress.store(now.as_nanos(), Ordering::Relaxed);
        self.status.send_modify(|status| {
            (status.deadline, status.ttl) = status.promised(sent, ttl);
            if let Some(max) = self.bounds.max_hold {
                (status.hold_limit, status.hold_warning) = (now + max, now + max / 5 * 4);
            }
            status.sent = sent;
        });
    }

    /// `None` until it is granted.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token.get().copied()
    }

    pub(crate) fn renewed(&self, sent: Moment, ttl: Ttl) {
        self.expire_if_due();
        self.status.send_if_modified(|status| {
            if status.over() {
                return false;
            }
            status.state = GuardStatus::Held;
            *self.renewal_error.lock() = None;
            let (deadline, ttl) = status.promised(sent, ttl);
            status.ttl = ttl;
            // Replies can arrive out of order. The newest request counts.
            if sent > status.sent {
                (status.sent, status.deadline) = (sent, deadline);
            }
            true
        });
    }

    /// The store keeps a shorter lease from now on: a request that left before `sent` counts until `sent + ttl` at most,
    /// whenever it is answered. Returns the deadline of a guard that is not over.
    pub(crate) fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.status.send_if_modified(|status| {
            status.cap = Some((sent, ttl));
            // Before the grant there is no deadline to lower.
            let granted = self.token.get().is_some();
            if granted {
                status.deadline = status.deadline.min(deadline(sent, ttl));
                status.ttl = status.ttl.min(ttl);
            }
            granted
        });
        let status = self.status();
        (!status.over()).then(|| status.end())
    }

    pub(crate) fn renewal_failed(&self, error: &Error) {
        *self.renewal_error.lock() = Some(error.one_line());
        self.status.send_if_modified(|status| {
            let first = status.state == GuardStatus::Held;
            if first {
                status.state = GuardStatus::RenewalFailing;
            }
            first
        });
    }

    pub(crate) fn renewal_error(&self) -> Option<String> {
        self.renewal_error.lock().clone()
    }

    /// Turns the guard lost, unless it is over already. Returns whether this call did.
    pub(crate) fn lose(&self, cause: LossCause) -> bool {
        let lost = self.end(GuardStatus::Lost(cause));
        if lost {
            // A guard that was never granted is not a loss.
            if self.token.get().is_some() {
                increment(&self.counters.losses);
            }
            tracing::warn!(name = %self.grant.name, cause = cause.as_str(), "lost");
        }
        lost
    }

    pub(crate) fn released(&self) {
        self.end(GuardStatus::Released);
    }

    /// The first end is final. Returns whether it was this one.
    fn end(&self, state: GuardStatus) -> bool {
        self.status.send_if_modified(|status| {
            let first = !status.over();
            if first {
                status.state = state;
            }
            first
        })
    }

    /// Turns the guard lost if its time has come.
    pub(crate) fn expire_if_due(&self) {
        let cause = {
            let status = self.status.borrow();
            let now = self.clock.now();
            if status.over() || now < status.end() {
                return;
            }
            if now >= status.hold_limit && status.hold_limit <= status.deadline {
                LossCause::MaxHold
            } else if self.progress_overdue(status.renewal_due()) {
                LossCause::NoProgress
            } else if status.state == GuardStatus::RenewalFailing {
                LossCause::StoreUnreachable
            } else {
                LossCause::Expired
            }
        };
        self.lose(cause);
    }

    pub(crate) fn status(&self) -> Status {
        self.expire_if_due();
        self.status.borrow().clone()
    }

    /// When the guard is lost if no renewal succeeds, and its TTL. Unlike every other read it does not check the clock.
    pub(crate) fn end_and_ttl(&self) -> (Moment, Ttl) {
        let status = self.status.borrow();
        (status.end(), status.ttl)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.expire_if_due();
        self.status.borrow().over()
    }

    pub(crate) fn remaining(&self) -> Duration {
        let status = self.status();
        if status.over() { Duration::ZERO } else { status.end().since(self.clock.now()) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Status> {
        self.expire_if_due();
        self.status.subscribe()
    }

    pub(crate) fn progress(&self) {
        self.last_progress.store(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// Whether the holder's last progress is too old at `now`.
    pub(crate) fn progress_overdue(&self, now: Moment) -> bool {
        let last = Moment::from_nanos(self.last_progress.load(Ordering::Relaxed));
        self.bounds.progress_within.is_some_and(|within| last + within <= now)
    }
}

/// When a guard is lost: before the store can grant the lock again, by 1% of the TTL and 2 ms.
fn deadline(sent: Moment, ttl: Ttl) -> Moment {
    let ttl = ttl.as_duration();
    sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use fencepost_core::{LockName, OwnerId};

    use super::*;
    use crate::clock::ManualClock;

    fn grant_state(ttl: Ttl) -> (Arc<GrantState>, Moment) {
        let (name, owner) = (LockName::new("a").unwrap(), OwnerId::from_bits(1));
        let grant = GrantId { name, owner };
        let (bounds, counters) = (Bounds::default(), Arc::default());
        // It starts at one hour, whatever the uptime of this machine.
        let clock = ManualClock::new();
        let now = clock.now();
        (GrantState::new(grant, ttl, bounds, Arc::new(clock), counters), now)
    }

    #[test]
    fn shorter_lease_applies_at_once_and_to_renewals_in_flight() {
        let [long, short] = [60, 6].map(|s| Ttl::new(Duration::from_secs(s)).unwrap());
        let (grant_state, now) = grant_state(long);
        let token = Token::new(1).unwrap();
        // A waiter has no deadline yet.
        let at = now + Duration::from_secs(1);
        assert_eq!(grant_state.shorten(at, short), Some(Moment::NEVER));
        grant_state.start(token, now, long);
        assert_eq!(
            (grant_state.status().deadline, grant_state.status().ttl),
            (deadline(at, short), short)
        );
        let sent = now + Duration::from_millis(500);
        grant_state.renewed(sent, long);
        assert_eq!(
            (grant_state.status().deadline, grant_state.status().ttl),
            (deadline(at, short), short)
        );
        // It never extends the lease; but a renewal that left later has its whole lease.
        assert_eq!(
            grant_state.shorten(at + Duration::from_secs(2), long),
            Some(deadline(at, short))
        );
        let sent = at + Duration::from_secs(3);
        grant_state.renewed(sent, long);
        assert_eq!(
            (grant_state.status().deadline, grant_state.status().ttl),
            (deadline(sent, long), long)
        );
        // If the shortened lease has already ended, the guard is lost.
        assert_eq!(grant_state.shorten(now.back(Duration::from_mins(1)), short), None);
        assert!(grant_state.is_over());
    }
}
