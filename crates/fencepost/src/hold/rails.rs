//! Near misses of a grant (R28): a renewal that comes late, the end of `max_hold` that comes near, a token that
//! nobody read. Each is told once per episode, and counted; none changes anything.

use std::sync::atomic::Ordering;

use fencepost_core::Moment;

use super::Hold;
use crate::backend::short;
use crate::counts::{RAILS, up};

impl Hold {
    /// Tells, once each, that the last renewal is old and that the end of `max_hold` is near.
    pub(crate) fn look_back(&self) {
        let (status, now) = (self.status(), self.clock.now());
        if status.over() {
            return;
        }
        let (ttl, name) = (status.ttl.as_duration(), &self.grant.name);
        let since = now.since(status.sent);
        let sent = status.sent.as_nanos();
        if since >= ttl / 3 * 2 && self.told_late.swap(sent, Ordering::Relaxed) != sent {
            up(&self.tally.late_renewals);
            let advice = match self.renewal_error() {
                Some(error) => format!("the last one failed: {error}"),
                None => "use a longer TTL if this happens often".to_owned(),
            };
            tracing::warn!(
                target: RAILS,
                %name,
                "held for {} without a renewal, of a TTL of {}: if no renewal comes the lock is lost in {}; {advice}",
                short(since),
                short(ttl),
                short(status.end().since(now)),
            );
        }
        if now >= status.near {
            self.status.send_if_modified(|status| {
                status.near = Moment::NEVER;
                false
            });
            up(&self.tally.near_max_hold);
            tracing::warn!(
                target: RAILS,
                %name,
                "its max_hold is nearly reached: the lock is lost in {}; finish, or allow more",
                short(status.until.since(now)),
            );
        }
    }

    /// Somebody has the token now who may show it to a fence.
    pub(crate) fn token_was_read(&self) {
        self.token_read.store(true, Ordering::Relaxed);
    }

    /// The guard is given back: tells, once, if it was for correctness and nobody can have checked its token.
    pub(crate) fn report_unread(&self) {
        let granted = self.token().is_some();
        if granted && self.bounds.for_correctness && !self.token_read.swap(true, Ordering::Relaxed)
        {
            up(&self.tally.unread_tokens);
            tracing::warn!(
                target: RAILS,
                name = %self.grant.name,
                "was taken for correctness and its token was never read: nothing keeps a holder out that \
                 froze past its lease; send the token along, and have the resource check it",
            );
        }
    }
}
