//! The state of one grant, shared by its guard, the keeper and the backend's loss signal.
//!
//! What must hold (P4): from `deadline` on, measured on the clock and without asking anybody, the state is
//! `Lost`. Every reader settles that question itself, so a process that was frozen learns the truth from
//! its first look, whether or not the keeper has woken yet. `Lost` and `Released` are final.

mod rails;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost_core::{Moment, Token, Ttl};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{GrantId, LossCause};
use crate::clock::Clock;
use crate::counts::{Tally, up};
use crate::error::Error;

/// Where a guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardState {
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
    /// Two holders would corrupt: somebody should check the token.
    pub(crate) for_correctness: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) state: GuardState,
    /// The guard is lost from here on.
    pub(crate) deadline: Moment,
    /// When `max_hold` is reached.
    until: Moment,
    /// When that is near; never once it was told.
    near: Moment,
    pub(crate) ttl: Ttl,
    /// When the request left that the deadline counts from.
    pub(crate) sent: Moment,
    /// From when on the store keeps a shorter lease: what was sent before counts for no more than this.
    cap: Option<(Moment, Ttl)>,
}

impl Status {
    /// What a request counts for that left at `sent` and was promised `ttl`.
    fn promised(&self, sent: Moment, ttl: Ttl) -> (Moment, Ttl) {
        match self.cap {
            Some((at, cap)) if sent < at => {
                (deadline(sent, ttl).min(deadline(at, cap)), ttl.min(cap))
            }
            _ => (deadline(sent, ttl), ttl),
        }
    }

    /// When the guard ends if nothing more happens.
    pub(crate) fn end(&self) -> Moment {
        self.deadline.min(self.until)
    }

    /// When the next renewal is due.
    pub(crate) fn renewal_due(&self) -> Moment {
        self.sent + self.ttl.as_duration() / 3
    }

    /// When the keeper should look at this hold, if nothing goes wrong.
    pub(crate) fn next_look(&self) -> Moment {
        self.renewal_due().min(self.near).min(self.end())
    }

    pub(crate) fn over(&self) -> bool {
        matches!(self.state, GuardState::Lost(_) | GuardState::Released)
    }
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: u64,
    pub(crate) grant: GrantId,
    token: OnceLock<Token>,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
    status: watch::Sender<Status>,
    last_progress: AtomicU64,
    renewal_error: Mutex<Option<String>>,
    /// Where the keeper's wheel has this hold; written only under the wheel's lock.
    pub(crate) slot: AtomicU64,
    /// The store said that the grant may have ended: its next renewal is due at once.
    pub(crate) renew_asked: AtomicBool,
    tally: Arc<Tally>,
    /// The renewal that was told to be too old.
    told_late: AtomicU64,
    token_read: AtomicBool,
}

impl Hold {
    pub(crate) fn new(
        grant: GrantId,
        ttl: Ttl,
        bounds: Bounds,
        clock: Arc<dyn Clock>,
        tally: Arc<Tally>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = clock.now();
        let never = Moment::NEVER;
        let (state, cap) = (GuardState::Held, None);
        let (deadline, until, near) = (never, never, never);
        let status = Status { state, deadline, until, near, ttl, sent: now, cap };
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
            tally,
            told_late: AtomicU64::new(u64::MAX),
            token_read: AtomicBool::new(false),
        })
    }

    /// The grant is there: its deadline counts from the request that it answers.
    pub(crate) fn start(&self, token: Token, sent: Moment, ttl: Ttl) {
        let _ = self.token.set(token);
        self.progress();
        let now = self.clock.now();
        self.status.send_modify(|status| {
            (status.deadline, status.ttl) = status.promised(sent, ttl);
            if let Some(max) = self.bounds.max_hold {
                (status.until, status.near) = (now + max, now + max / 5 * 4);
            }
            status.sent = sent;
        });
    }

    /// What the grant was made with, once it is there.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token.get().copied()
    }

    pub(crate) fn renewed(&self, sent: Moment, ttl: Ttl) {
        self.settle();
        self.status.send_if_modified(|status| {
            if status.over() {
                return false;
            }
            status.state = GuardState::Held;
            *self.renewal_error.lock() = None;
            let (deadline, ttl) = status.promised(sent, ttl);
            status.ttl = ttl;
            // Answers may overtake each other; the later request's word stands.
            if sent > status.sent {
                (status.sent, status.deadline) = (sent, deadline);
            }
            true
        });
    }

    /// The store keeps a shorter lease from now on: whatever was or will be answered to a request that left
    /// before `sent` counts until `sent + ttl` at most. Gives the deadline of a guard that is not over.
    pub(crate) fn shorten(&self, sent: Moment, ttl: Ttl) -> Option<Moment> {
        self.status.send_if_modified(|status| {
            status.cap = Some((sent, ttl));
            // One that is not granted yet has no deadline to lower.
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
        *self.renewal_error.lock() = Some(error.to_string());
        self.status.send_if_modified(|status| {
            let first = status.state == GuardState::Held;
            if first {
                status.state = GuardState::RenewalFailing;
            }
            first
        });
    }

    pub(crate) fn renewal_error(&self) -> Option<String> {
        self.renewal_error.lock().clone()
    }

    /// Turns the guard lost, unless it is over already. Whether it was this call that did.
    pub(crate) fn lose(&self, cause: LossCause) -> bool {
        let lost = self.end(GuardState::Lost(cause));
        if lost {
            // One that was never granted had nothing to lose.
            if self.token.get().is_some() {
                up(&self.tally.losses);
            }
            tracing::warn!(name = %self.grant.name, cause = cause.word(), "lost");
        }
        lost
    }

    pub(crate) fn released(&self) {
        self.end(GuardState::Released);
    }

    /// The first end is final. Whether it was this call's.
    fn end(&self, state: GuardState) -> bool {
        self.status.send_if_modified(|status| {
            let first = !status.over();
            if first {
                status.state = state;
            }
            first
        })
    }

    /// Turns the guard lost if its time has come.
    pub(crate) fn settle(&self) {
        let cause = {
            let status = self.status.borrow();
            let now = self.clock.now();
            if status.over() || now < status.end() {
                return;
            }
            if now >= status.until && status.until <= status.deadline {
                LossCause::MaxHold
            } else if self.progress_overdue(status.renewal_due()) {
                LossCause::NoProgress
            } else if status.state == GuardState::RenewalFailing {
                LossCause::StoreUnreachable
            } else {
                LossCause::Expired
            }
        };
        self.lose(cause);
    }

    pub(crate) fn status(&self) -> Status {
        self.settle();
        self.status.borrow().clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.settle();
        self.status.borrow().over()
    }

    pub(crate) fn remaining(&self) -> Duration {
        let status = self.status();
        if status.over() { Duration::ZERO } else { status.end().since(self.clock.now()) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Status> {
        self.settle();
        self.status.subscribe()
    }

    pub(crate) fn progress(&self) {
        self.last_progress.store(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// Whether, at `now`, the holder's last sign of progress lies too far back.
    pub(crate) fn progress_overdue(&self, now: Moment) -> bool {
        let last = Moment::from_nanos(self.last_progress.load(Ordering::Relaxed));
        self.bounds.progress_within.is_some_and(|within| last + within <= now)
    }
}

/// When a guard turns lost: before the store can give the lock away, by 1% of the TTL and 2 ms.
fn deadline(sent: Moment, ttl: Ttl) -> Moment {
    let ttl = ttl.as_duration();
    sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use fencepost_core::{LockName, OwnerId};

    use super::*;
    use crate::clock::ManualClock;

    fn hold(ttl: Ttl) -> (Arc<Hold>, Moment) {
        let (name, owner) = (LockName::new("a").unwrap(), OwnerId::from_bits(1));
        let grant = GrantId { name, owner };
        let (bounds, tally) = (Bounds::default(), Arc::default());
        // It shows an hour, whatever the uptime of this machine.
        let clock = ManualClock::new();
        let now = clock.now();
        (Hold::new(grant, ttl, bounds, Arc::new(clock), tally), now)
    }

    #[test]
    fn a_shorter_lease_counts_at_once_and_for_what_was_under_way() {
        let [long, short] = [60, 6].map(|s| Ttl::new(Duration::from_secs(s)).unwrap());
        let (hold, now) = hold(long);
        let token = Token::new(1).unwrap();
        // A waiter has no deadline yet.
        let at = now + Duration::from_secs(1);
        assert_eq!(hold.shorten(at, short), Some(Moment::NEVER));
        hold.start(token, now, long);
        assert_eq!((hold.status().deadline, hold.status().ttl), (deadline(at, short), short));
        let sent = now + Duration::from_millis(500);
        hold.renewed(sent, long);
        assert_eq!((hold.status().deadline, hold.status().ttl), (deadline(at, short), short));
        // Never raised by it; but a renewal that left later has its whole lease.
        assert_eq!(hold.shorten(at + Duration::from_secs(2), long), Some(deadline(at, short)));
        let sent = at + Duration::from_secs(3);
        hold.renewed(sent, long);
        assert_eq!((hold.status().deadline, hold.status().ttl), (deadline(sent, long), long));
        // One that is over already is lost.
        assert_eq!(hold.shorten(now.back(Duration::from_mins(1)), short), None);
        assert!(hold.is_over());
    }
}
