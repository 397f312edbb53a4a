//! The clock of the ensemble's leader.
//!
//! ZooKeeper has no request for the time, but every write stores it: `mtime` is the wall clock of the leader that applied
//! the write. A step that writes a record reads it there; for steps that only read, there is one node that is written for
//! nothing else. A reading is used for a while, with our own monotonic clock added since the reply, so it is never ahead
//! of the leader's clock. It is read again before a record counts as expired, since another leader may have another clock.
//!
//! A leader whose clock is ahead makes live records look expired. A client cannot know the right time, but it can detect
//! a jump: between two readings the leader's clock must have moved as far as our own. After a jump, gc removes no records
//! until the readings have agreed for a while. A clock that was wrong before the client connected, and stays wrong, is not
//! detected: so gc removes only a few at a time (`record_gc.rs`).
//!
//! Only records use it. No lease does.

use std::time::Duration;

use fencepost_core::Moment;

use super::error::{Code, code, if_exists};
use super::protocol::CreateMode;
use super::session::Session;
use super::shared::Shared;
use crate::backend::StoreError;

/// For how long a reading is used.
const USED: Duration = Duration::from_secs(5);
/// How often the node may be deleted while we use it.
const VANISHED: usize = 8;
/// How far the leader's clock and ours may drift apart between two readings.
const TOLERANCE: Duration = Duration::from_mins(1);
/// For how long readings must have agreed after a jump before records are removed.
const AFTER_A_JUMP: Duration = Duration::from_mins(10);

/// A reading of the leader's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// In milliseconds.
    time: i64,
    sent: Moment,
    received: Moment,
    /// When a reading last disagreed with the one before it.
    jumped: Option<Moment>,
}

impl Reading {
    pub(super) fn new(time: i64, sent: Moment, received: Moment) -> Self {
        Self { time, sent, received, jumped: None }
    }

    /// The newer of two readings, by the time of their requests.
    fn after(self, last: Option<Self>) -> Self {
        let Some(last) = last else { return self };
        if last.sent > self.sent {
            return last;
        }
        // Each was written at some moment between our request and its reply.
        let step = i128::from(self.time) - i128::from(last.time);
        let tolerance = TOLERANCE.as_millis().cast_signed();
        let low = self.sent.since(last.received).as_millis().cast_signed() - tolerance;
        let high = self.received.since(last.sent).as_millis().cast_signed() + tolerance;
        if (low..=high).contains(&step) {
            return Self { jumped: last.jumped, ..self };
        }
        tracing::warn!(
            moved_ms = step,
            expected_ms = high - tolerance,
            "the clock of ZooKeeper's leader has jumped, so expired records are not deleted for now: \
            synchronize the servers' clocks"
        );
        Self { jumped: Some(self.received), ..self }
    }

    /// Whether gc may remove records by it.
    fn may_remove(&self) -> bool {
        self.jumped.is_none_or(|jumped| self.received.since(jumped) >= AFTER_A_JUMP)
    }
}

impl Shared {
    /// The leader's time, in milliseconds; never ahead of it.
    pub(super) async fn leader_time(&self, session: &Session) -> Result<i64, StoreError> {
        let reading = *self.reading.lock();
        match reading.map(|it| (it.time, self.now().since(it.received))) {
            Some((time, age)) if age < USED => {
                Ok(time.saturating_add(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
            }
            _ => self.leader_time_now(session).await,
        }
    }

    /// The same, read now.
    pub(super) async fn leader_time_now(&self, session: &Session) -> Result<i64, StoreError> {
        let node = format!("{}/clock", self.records());
        for _ in 0..VANISHED {
            let sent = self.now();
            if let Some((stat, _)) = if_exists(session.set(&node, b"").await)? {
                self.take_reading(stat.mtime, sent);
                return Ok(stat.mtime);
            }
            self.make_record_dir(session, &self.records()).await?;
            match session.create(&node, b"", CreateMode::Persistent, self.access).await {
                Err(error) if code(&error) != Some(Code::NodeExists) => return Err(error),
                _ => {}
            }
        }
        Err(StoreError::busy(format!("other clients keep deleting the node {node}: retry")))
    }

    /// The leader applied a write at this time by its clock; the write was requested then, and its reply has just come.
    pub(super) fn take_reading(&self, time: i64, sent: Moment) {
        let read = Reading::new(time, sent, self.now());
        let mut reading = self.reading.lock();
        *reading = Some(read.after(*reading));
    }

    /// Whether gc may remove records.
    pub(super) fn may_remove(&self) -> bool {
        self.reading.lock().is_some_and(|reading| reading.may_remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading this many seconds after the start, at which the leader's clock showed `said` seconds.
    fn read(last: Option<Reading>, at: u64, said: i64) -> Reading {
        let at = Moment::default() + Duration::from_secs(at);
        Reading::new(said * 1000, at, at).after(last)
    }

    #[test]
    fn records_are_removed_by_a_steady_clock() {
        let first = read(None, 100, 5000);
        assert!(first.may_remove());
        let second = read(Some(first), 101, 5001);
        assert!(second.may_remove());
        let third = read(Some(second), 161, 5061);
        assert!(third.may_remove());
        // A small error is tolerated.
        assert!(read(Some(third), 200, 5159).may_remove());
    }

    #[test]
    fn nothing_is_removed_after_a_jump_until_the_clock_is_steady() {
        let steady = read(Some(read(None, 0, 0)), 100, 100);
        assert!(steady.may_remove());
        for jumped in [100 + 62 + 3600, 100 - 60] {
            let mut last = read(Some(steady), 101, jumped);
            assert!(!last.may_remove());
            for later in (5..600).step_by(5) {
                last = read(Some(last), 101 + later, jumped + later.cast_signed());
                assert!(!last.may_remove(), "{later}");
            }
            last = read(Some(last), 701, jumped + 600);
            assert!(last.may_remove());
        }
    }

    /// A reply that is late because this process was frozen is no jump of the leader's clock.
    #[test]
    fn local_pause_is_not_a_jump() {
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let first = Reading::new(0, at(0), at(0));
        for said in [0, 3600] {
            let late = Reading::new(said * 1000, at(0), at(3600)).after(Some(first));
            assert_eq!(late.jumped, None);
            let next = Reading::new((said + 10) * 1000, at(3610), at(3610)).after(Some(late));
            assert_eq!(next.jumped, None, "{said}");
        }
        // A reading that was requested before the last one is ignored.
        let last = Reading::new(10_000, at(10), at(10)).after(Some(first));
        assert_eq!(Reading::new(0, at(1), at(11)).after(Some(last)).time, 10_000);
    }
}
