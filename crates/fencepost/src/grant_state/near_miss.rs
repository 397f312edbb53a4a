//! Near misses of a grant: a late renewal, the end of `max_hold` that is near, a grant for correctness without a fence.
//! Each is logged once per episode, and counted; none changes anything.

use std::sync::atomic::Ordering;

use fencepost_core::Moment;

use super::GrantState;
use crate::backend::short;
use crate::metrics::{NEAR_MISS, increment};

impl GrantState {
    /// Warns, once each, that the last renewal is old and that the end of `max_hold` is near.
    pub(crate) fn warn_if_late(&self) {
        let (status, now) = (self.status(), self.clock.now());
        if status.over() {
            return;
        }
        let (ttl, name) = (status.ttl.as_duration(), &self.grant.name);
        let since = now.since(status.sent);
        let sent = status.sent.as_nanos();
        if since >= ttl / 3 * 2 && self.late_renewal_logged.swap(sent, Ordering::Relaxed) != sent {
            increment(&self.counters.late_renewals);
            let advice = match self.renewal_error() {
                Some(error) => format!("the last one failed: {error}"),
                None => "use a longer TTL if this happens often".to_owned(),
            };
            tracing::warn!(
                target: NEAR_MISS,
                %name,
                "not renewed for {}, and the TTL is {}: without a renewal the lock is lost in {}; {advice}",
                short(since),
                short(ttl),
                short(status.end().since(now)),
            );
        }
        if now >= status.hold_warning {
            self.status.send_if_modified(|status| {
                status.hold_warning = Moment::NEVER;
                false
            });
            increment(&self.counters.near_max_hold);
            tracing::warn!(
                target: NEAR_MISS,
                %name,
                "its max_hold is nearly reached: the lock is lost in {}; finish the work, or raise max_hold",
                short(status.hold_limit.since(now)),
            );
        }
    }

    /// The caller has the name and the token for a fence.
    pub(crate) fn fencing_used(&self) {
        self.fencing_used.store(true, Ordering::Relaxed);
    }

    /// The guard was released: warns, once, if it was for correctness and no fence can have checked its token.
    pub(crate) fn warn_if_unfenced(&self) {
        let granted = self.token().is_some();
        if granted
            && self.bounds.for_correctness
            && !self.fencing_used.swap(true, Ordering::Relaxed)
        {
            increment(&self.counters.unfenced_grants);
            tracing::warn!(
                target: NEAR_MISS,
                name = %self.grant.name,
                "was acquired for correctness, but neither fencing() nor check() was called: nothing stops a holder \
                 that freezes past its lease; pass its fencing token to a fence at the resource",
            );
        }
    }
}
