//! From when a confirmed request keeps the session alive.
//!
//! The leader ends a session when it has heard nothing of it for the timeout. What a client says to the
//! leader counts at once. A follower notes it and passes it on with its answer to the leader's next ping,
//! every half tick; the client is answered long before. So a write that was committed through a follower at
//! `s` proves that the session was alive then, and that the follower's link to the leader worked, but not that
//! the leader counts from `s`. It does prove that what was said to the *same* follower half a tick earlier has
//! arrived: the link keeps order, and a ping's answer went over it in between. "Earlier" is by when its answer
//! was heard: what was sent may have lain on the way for long. A quarter of the timeout is half a tick at least
//! where a server grants no timeout below two ticks, which is its default; `server_info.rs` looks whether it was
//! changed. An observer may be two links away from the leader, and needs four.
//!
//! Hence, for a write sent at `s`:
//!
//! - `base` is the latest send on this connection whose answer was heard a quarter of the timeout before `s`, or
//!   this connection's handshake, which always goes to the leader;
//! - the write is credited with `min(s, base + timeout / 3)`.
//!
//! A lease is two thirds of the timeout, so it ends no later than `base + timeout`: not after the session.
//! Nothing is carried over from an earlier connection, whose server may have been cut off when it answered.
//!
//! *Where that ends:* a leader that stands still may come back, and end sessions, before the pings that it
//! missed. If it stood for more than a quarter of the timeout less half a tick, `base` may not have arrived.
//! The tokens hold then as well; for the rest there is the fence.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_core::Moment;

/// What was confirmed on one connection.
#[derive(Clone, Debug)]
pub(super) struct Beat {
    handshake: Moment,
    timeout: Duration,
    /// When each was sent and its answer heard, in order, at most [`Beat::KEPT`] to a timeout.
    confirmed: VecDeque<(Moment, Moment)>,
}

impl Beat {
    /// How finely confirmed sends are remembered. What lies between counts from the one before.
    const KEPT: u32 = 64;

    pub(super) fn new(handshake: Moment, timeout: Duration) -> Self {
        Self { handshake, timeout, confirmed: VecDeque::new() }
    }

    /// A request of any kind that left at `sent` was answered, as we `heard` then.
    pub(super) fn confirm(&mut self, sent: Moment, heard: Moment) {
        let last = self.confirmed.back().map_or(self.handshake, |(last, _)| *last);
        if sent < last + self.timeout / Self::KEPT {
            return;
        }
        self.confirmed.push_back((sent, heard));
        // Of those that are old enough to be a base only the latest is of use: whatever is credited from now
        // on was sent after this one.
        while self.confirmed.get(1).is_some_and(|(_, heard)| *heard + self.timeout / 4 <= sent) {
            self.confirmed.pop_front();
        }
    }

    /// When the leader heard of the session for sure.
    pub(super) fn handshake(&self) -> Moment {
        self.handshake
    }

    /// From when a write that left at `sent`, and was answered, counts.
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

    fn beat() -> Beat {
        Beat::new(at(0), TIMEOUT)
    }

    /// Answered at once.
    fn confirm(beat: &mut Beat, sent: Moment) {
        beat.confirm(sent, sent);
    }

    #[test]
    fn right_after_the_handshake_a_write_counts_from_its_send() {
        assert_eq!(beat().credit(at(5)), at(5));
        assert_eq!(beat().credit(at(4_000)), at(4_000));
    }

    #[test]
    fn a_session_that_is_touched_often_loses_nothing() {
        let mut beat = beat();
        for ms in (1_000..60_000).step_by(1_000) {
            confirm(&mut beat, at(ms));
            assert_eq!(beat.credit(at(ms)), at(ms));
            assert!(beat.confirmed.len() < 8, "{}", beat.confirmed.len());
        }
    }

    #[test]
    fn after_a_pause_a_beat_counts_from_before_it() {
        // Paused for 0.9 timeouts: the follower may have told the leader of nothing since.
        let mut beat = beat();
        confirm(&mut beat, at(3_000));
        let woke = at(3_000 + 10_800);
        confirm(&mut beat, woke);
        assert_eq!(beat.credit(woke), at(3_000 + 4_000));
        // The next one, a moment later, gets no more; one a quarter of a timeout later all.
        assert_eq!(beat.credit(woke + Duration::from_millis(100)), at(7_000));
        let later = woke + Duration::from_secs(3);
        assert_eq!(beat.credit(later), later);
    }

    #[test]
    fn a_recent_send_is_no_base() {
        let mut beat = beat();
        confirm(&mut beat, at(5_000));
        // 2,999 ms before: the leader may not have heard of it yet.
        assert_eq!(beat.credit(at(7_999)), at(4_000));
        assert_eq!(beat.credit(at(8_000)), at(8_000));
    }

    #[test]
    fn an_answer_that_came_late_makes_no_base_earlier() {
        let mut beat = beat();
        // It lay on the way for six seconds: the leader may have heard of it as late as we of the answer.
        beat.confirm(at(5_000), at(11_000));
        assert_eq!(beat.credit(at(8_000)), at(4_000));
        assert_eq!(beat.credit(at(13_999)), at(4_000));
        assert_eq!(beat.credit(at(14_000)), at(9_000));
    }

    #[test]
    fn the_lease_ends_before_the_session_does() {
        // Whatever is confirmed when: credit + lease <= base + timeout, base a send whose answer is a quarter
        // of the timeout old, or the handshake.
        let mut sends = vec![(at(0), at(0))];
        let (mut beat, mut now, mut step) = (beat(), 0_u64, 7_u64);
        for _ in 0..2_000 {
            step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 1;
            now += step % 5_000;
            let heard = at(now + step / 5_000 % 4_000);
            beat.confirm(at(now), heard);
            let old = sends.iter().rev().find(|(_, heard)| *heard + TIMEOUT / 4 <= at(now));
            let base = old.map_or(at(0), |(sent, _)| *sent);
            sends.push((at(now), heard));
            assert!(beat.credit(at(now)) + LEASE <= base + TIMEOUT, "at {now}");
            assert!(beat.credit(at(now)) <= at(now));
        }
    }
}
