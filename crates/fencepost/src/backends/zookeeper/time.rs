//! What time it is, by the ensemble's leader.
//!
//! ZooKeeper can not be asked for the time, but it writes it into whatever is written: `mtime` is the wall clock of
//! the leader that carried the write out. A step that writes a record reads it there; for those that only read there is
//! one node that is written for nothing else. What was read is used for a while, with our own monotonic clock added to
//! it: counted from when we heard of it, so it is never ahead of the leader's. Before anything is taken for over it is
//! read anew, since another leader may have another clock.
//!
//! A leader whose clock is ahead makes live records look over. A client can not tell what time it is, but it can tell
//! a jump: between two readings the leader's clock must have moved as far as our own. After a jump no records are removed
//! that nobody asked for, until the readings have agreed for a while. A clock that was wrong before the client
//! came, and stays so, is not noticed: so few go at a time (`record_gc.rs`).
//!
//! Only records go by it. No lease does.

use std::time::Duration;

use fencepost_core::Moment;

use super::error::{Code, code, found};
use super::ops::Make;
use super::session::Session;
use super::shared::Shared;
use crate::backend::StoreError;

/// For how long a reading is used.
const USED: Duration = Duration::from_secs(5);
/// How often the node may vanish before our eyes.
const VANISHED: usize = 8;
/// By how much the leader's clock and ours may differ from one reading to the next.
const SLACK: Duration = Duration::from_mins(1);
/// For how long readings must have agreed after a jump before records are removed.
const AFTER_A_JUMP: Duration = Duration::from_mins(10);

/// What the leader's clock said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// In milliseconds.
    time: i64,
    asked: Moment,
    heard: Moment,
    /// When a reading last did not agree with the one before it.
    jumped: Option<Moment>,
}

impl Reading {
    pub(super) fn new(time: i64, asked: Moment, heard: Moment) -> Self {
        Self { time, asked, heard, jumped: None }
    }

    /// The next one, or the last if that was asked for later.
    fn after(self, last: Option<Self>) -> Self {
        let Some(last) = last else { return self };
        if last.asked > self.asked {
            return last;
        }
        // Each was written at some moment between our asking and our hearing.
        let step = i128::from(self.time) - i128::from(last.time);
        let slack = SLACK.as_millis().cast_signed();
        let low = self.asked.since(last.heard).as_millis().cast_signed() - slack;
        let high = self.heard.since(last.asked).as_millis().cast_signed() + slack;
        if (low..=high).contains(&step) {
            return Self { jumped: last.jumped, ..self };
        }
        tracing::warn!(
            moved_ms = step,
            expected_ms = high - slack,
            "the clock of ZooKeeper's leader has jumped: records that are over are left for now. Set the \
             servers' clocks right"
        );
        Self { jumped: Some(self.heard), ..self }
    }

    /// Whether records may be removed by it that nobody asked for.
    fn may_remove(&self) -> bool {
        self.jumped.is_none_or(|jumped| self.heard.since(jumped) >= AFTER_A_JUMP)
    }
}

impl Shared {
    /// The leader's time, in milliseconds; a little late, if anything.
    pub(super) async fn leader_time(&self, session: &Session) -> Result<i64, StoreError> {
        let reading = *self.reading();
        match reading.map(|it| (it.time, self.now().since(it.heard))) {
            Some((time, age)) if age < USED => {
                Ok(time.saturating_add(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
            }
            _ => self.leader_time_now(session).await,
        }
    }

    /// The same, asked for now.
    pub(super) async fn leader_time_now(&self, session: &Session) -> Result<i64, StoreError> {
        let node = format!("{}/clock", self.records());
        for _ in 0..VANISHED {
            let asked = self.now();
            if let Some((stat, _)) = found(session.set(&node, b"").await)? {
                self.take_reading(stat.mtime, asked);
                return Ok(stat.mtime);
            }
            self.make_shelf(session, &self.records()).await?;
            match session.create(&node, b"", Make::Persistent, self.access).await {
                Err(error) if code(&error) != Some(Code::NodeExists) => return Err(error),
                _ => {}
            }
        }
        Err(StoreError::busy(format!("the node {node} keeps vanishing")))
    }

    /// A write that was asked for then, and of which we have just heard, was carried out at this time of the leader's.
    pub(super) fn take_reading(&self, time: i64, asked: Moment) {
        let read = Reading::new(time, asked, self.now());
        let mut reading = self.reading();
        *reading = Some(read.after(*reading));
    }

    /// Whether records may be removed that nobody asked for.
    pub(super) fn may_remove(&self) -> bool {
        self.reading().is_some_and(|reading| reading.may_remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading this many seconds after the start, at which the leader's clock said so many.
    fn read(last: Option<Reading>, at: u64, said: i64) -> Reading {
        let at = Moment::default() + Duration::from_secs(at);
        Reading::new(said * 1000, at, at).after(last)
    }

    #[test]
    fn records_go_by_a_clock_that_is_steady() {
        let first = read(None, 100, 5000);
        assert!(first.may_remove());
        let second = read(Some(first), 101, 5001);
        assert!(second.may_remove());
        let third = read(Some(second), 161, 5061);
        assert!(third.may_remove());
        // A little wrong is not wrong.
        assert!(read(Some(third), 200, 5159).may_remove());
    }

    #[test]
    fn none_go_after_a_jump_until_it_was_steady_again_for_long() {
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

    /// An answer that came late, since we stood still, is no jump of theirs.
    #[test]
    fn our_own_pause_is_no_jump() {
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let first = Reading::new(0, at(0), at(0));
        for said in [0, 3600] {
            let late = Reading::new(said * 1000, at(0), at(3600)).after(Some(first));
            assert_eq!(late.jumped, None);
            let next = Reading::new((said + 10) * 1000, at(3610), at(3610)).after(Some(late));
            assert_eq!(next.jumped, None, "{said}");
        }
        // One that was asked for before the last one tells nothing new.
        let last = Reading::new(10_000, at(10), at(10)).after(Some(first));
        assert_eq!(Reading::new(0, at(1), at(11)).after(Some(last)).time, 10_000);
    }
}
