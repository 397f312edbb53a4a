//! The moment from which a confirmed request extends the session.
//!
//! The leader ends a session when it has had no sign of it for the timeout. A client's request to the leader counts at
//! once. A follower notes the request and reports it with its answer to the leader's next ping, every half tick; the
//! client gets its reply long before. So a write that was committed through a follower at `s` proves that the session
//! was alive then, and that the follower was connected to the leader, but not that the leader counts from `s`. It does
//! prove that a request to the *same* follower half a tick earlier has been reported: that connection keeps order, and
//! a ping's answer went over it in between. "Earlier" is measured at the reply, since the request may have been delayed.
//! A quarter of the timeout is at least half a tick if servers grant no timeout below two ticks, which is the default;
//! `server_info.rs` checks whether it was changed. An observer may be two hops away from the leader, and needs four.
//!
//! Hence, for a write sent at `s`:
//!
//! - `base` is the latest send on this connection whose reply came a quarter of the timeout before `s`, or
//!   this connection's handshake, which always goes to the leader;
//! - the write is credited with `min(s, base + timeout / 3)`.
//!
//! A lease is two thirds of the timeout, so it ends no later than `base + timeout`: not after the session.
//! Credit of an earlier connection does not count, since its server may have been cut off when it answered.
//!
//! *Where that ends:* a leader that was paused may end sessions before it receives the pings that it missed. If it was
//! paused for more than a quarter of the timeout less half a tick, `base` may not have arrived. The same holds if the
//! leader's pings take that long to reach the follower, because it was paused or the network was slow, and the link
//! between the two breaks before the follower answers. Tokens still rise then; the fence must stop the old holder.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_core::Moment;

/// The requests that were confirmed on one connection.
#[derive(Clone, Debug)]
pub(super) struct LeaseCredit {
    handshake: Moment,
    timeout: Duration,
    /// When each was sent and answered, in order, at most [`LeaseCredit::KEPT`] for each timeout.
    confirmed: VecDeque<(Moment, Moment)>,
}

impl LeaseCredit {
    /// How many confirmed sends are kept. One in between counts from the one before it.
    const KEPT: u32 = 64;

    pub(super) fn new(handshake: Moment, timeout: Duration) -> Self {
        Self { handshake, timeout, confirmed: VecDeque::new() }
    }

    /// A request of any kind that left at `sent` was answered at `heard`.
    pub(super) fn confirm(&mut self, sent: Moment, heard: Moment) {
        let last = self.confirmed.back().map_or(self.handshake, |(last, _)| *last);
        if sent < last + self.timeout / Self::KEPT {
            return;
        }
        self.confirmed.push_back((sent, heard));
        // Of those that are old enough to be a base only the latest is needed: every later credit is for a
        // request that was sent after this one.
        while self.confirmed.get(1).is_some_and(|(_, heard)| *heard + self.timeout / 4 <= sent) {
            self.confirmed.pop_front();
        }
    }

    /// A moment at which the leader certainly had a sign of the session.
    pub(super) fn handshake(&self) -> Moment {
        self.handshake
    }

    /// The moment from which a write that left at `sent`, and was answered, counts.
    pub(super) fn credit(&self, sent: Moment) -> Moment {
        let old = |(_, heard): &&(Moment, Moment)| *heard + self.timeout / 4 <= sent;
        let base = self.confirmed.iter().rev().find(old);
        let base = base.map_or(self.handshake, |(base, _)| (*base).max(self.handshake));
        sent.min(base + self.timeout / 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(12);
    const LEASE: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(1_000_000 + ms)
    }

    fn lease_credit() -> LeaseCredit {
        LeaseCredit::new(at(0), TIMEOUT)
    }

    /// With an immediate reply.
    fn confirm(lease_credit: &mut LeaseCredit, sent: Moment) {
        lease_credit.confirm(sent, sent);
    }

    #[test]
    fn write_after_the_handshake_counts_from_its_send() {
        assert_eq!(lease_credit().credit(at(5)), at(5));
        assert_eq!(lease_credit().credit(at(4_000)), at(4_000));
    }

    #[test]
    fn frequent_requests_lose_no_credit() {
        let mut lease_credit = lease_credit();
        for ms in (1_000..60_000).step_by(1_000) {
            confirm(&mut lease_credit, at(ms));
            assert_eq!(lease_credit.credit(at(ms)), at(ms));
            assert!(lease_credit.confirmed.len() < 8, "{}", lease_credit.confirmed.len());
        }
    }

    #[test]
    fn heartbeat_after_a_pause_counts_from_before_the_pause() {
        // A pause of 0.9 timeouts: the follower may not have told the leader anything since.
        let mut lease_credit = lease_credit();
        confirm(&mut lease_credit, at(3_000));
        let woke = at(3_000 + 10_800);
        confirm(&mut lease_credit, woke);
        assert_eq!(lease_credit.credit(woke), at(3_000 + 4_000));
        // The next heartbeat, a moment later, gets no more credit; one a quarter of a timeout later gets all.
        assert_eq!(lease_credit.credit(woke + Duration::from_millis(100)), at(7_000));
        let later = woke + Duration::from_secs(3);
        assert_eq!(lease_credit.credit(later), later);
    }

    #[test]
    fn recent_send_is_no_base() {
        let mut lease_credit = lease_credit();
        confirm(&mut lease_credit, at(5_000));
        // 2,999 ms earlier: the leader may not know of it yet.
        assert_eq!(lease_credit.credit(at(7_999)), at(4_000));
        assert_eq!(lease_credit.credit(at(8_000)), at(8_000));
    }

    #[test]
    fn late_reply_makes_no_earlier_base() {
        let mut lease_credit = lease_credit();
        // The reply took six seconds, so the leader may have learned of the request as late as we got the reply.
        lease_credit.confirm(at(5_000), at(11_000));
        assert_eq!(lease_credit.credit(at(8_000)), at(4_000));
        assert_eq!(lease_credit.credit(at(13_999)), at(4_000));
        assert_eq!(lease_credit.credit(at(14_000)), at(9_000));
    }

    #[test]
    fn lease_ends_before_the_session() {
        // Always: credit + lease <= base + timeout. The base is a send whose reply is a quarter of the timeout old,
        // or the handshake.
        let mut sends = vec![(at(0), at(0))];
        let (mut lease_credit, mut now, mut step) = (lease_credit(), 0_u64, 7_u64);
        for _ in 0..2_000 {
            step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 1;
            now += step % 5_000;
            let heard = at(now + step / 5_000 % 4_000);
            lease_credit.confirm(at(now), heard);
            let old = sends.iter().rev().find(|(_, heard)| *heard + TIMEOUT / 4 <= at(now));
            let base = old.map_or(at(0), |(sent, _)| *sent);
            sends.push((at(now), heard));
            assert!(lease_credit.credit(at(now)) + LEASE <= base + TIMEOUT, "at {now}");
            assert!(lease_credit.credit(at(now)) <= at(now));
        }
    }
}
