//! What time it is, by the ensemble's leader.
//!
//! ZooKeeper can not be asked for the time, but it writes it into whatever is written: `mtime` is the wall clock of
//! the leader that carried the write out. So there is one node that is written for nothing else. What was read
//! is used for a while, with our own monotonic clock added to it: counted from when we heard of it, so it is never
//! ahead of the leader's. Before anything is taken for over it is read anew, since another leader may have
//! another clock.
//!
//! A leader whose clock is ahead makes live records look over. A client can not tell what time it is, but it can tell
//! a jump: between two readings the leader's clock must have moved as far as our own. So records that nobody
//! asked for are removed by few at first, by many only once the readings have agreed for a while, and not at all for
//! a longer while after a jump. A clock that was wrong before the client came, and stays so, is not noticed.
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
/// For how long readings must have agreed before many records are removed, and after a jump any.
const STEADY: Duration = Duration::from_mins(1);
const AFTER_A_JUMP: Duration = Duration::from_mins(10);
/// How many are removed of one directory before that.
const FEW: usize = 4;

/// What the leader's clock said, and how well the readings have agreed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// In milliseconds.
    time: i64,
    asked: Moment,
    heard: Moment,
    /// The first of the readings in a row that agree, and how many they are.
    since: Moment,
    count: u32,
    /// There was one before that did not.
    jumped: bool,
}

impl Reading {
    pub(super) fn new(time: i64, asked: Moment, heard: Moment) -> Self {
        Self { time, asked, heard, since: heard, count: 1, jumped: false }
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
            let count = last.count.saturating_add(1);
            return Self { since: last.since, count, jumped: last.jumped, ..self };
        }
        tracing::warn!(
            moved_ms = step,
            expected_ms = high - slack,
            "the clock of ZooKeeper's leader has jumped: records that are over are left for now. Set the \
             servers' clocks right"
        );
        Self { jumped: true, ..self }
    }

    /// How many records of one directory may be removed by it that nobody asked for.
    fn may_bury(&self) -> usize {
        let steady = self.heard.since(self.since);
        match self.count {
            0 | 1 => 0,
            _ if self.jumped && steady < AFTER_A_JUMP => 0,
            _ if steady < STEADY => FEW,
            _ => usize::MAX,
        }
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
                let read = Reading::new(stat.mtime, asked, self.now());
                let mut reading = self.reading();
                *reading = Some(read.after(*reading));
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

    /// The leader's time, asked for now, and how many records of one directory may be removed by it that nobody
    /// asked for.
    pub(super) async fn time_to_bury(&self, session: &Session) -> Result<(i64, usize), StoreError> {
        loop {
            let now = self.leader_time_now(session).await?;
            // One reading alone says nothing of the clock.
            if let Some(reading) =
                self.reading().filter(|reading| reading.count > 1 || reading.jumped)
            {
                return Ok((now, reading.may_bury()));
            }
        }
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
    fn many_go_only_by_a_clock_that_has_been_steady() {
        let first = read(None, 100, 5000);
        assert_eq!(first.may_bury(), 0);
        let second = read(Some(first), 101, 5001);
        assert_eq!(second.may_bury(), FEW);
        let third = read(Some(second), 161, 5061);
        assert_eq!(third.may_bury(), usize::MAX);
        // A little wrong is not wrong.
        assert_eq!(read(Some(third), 200, 5159).may_bury(), usize::MAX);
    }

    #[test]
    fn none_go_after_a_jump_until_it_was_steady_again_for_long() {
        let steady = read(Some(read(None, 0, 0)), 100, 100);
        assert_eq!(steady.may_bury(), usize::MAX);
        for jumped in [100 + 62 + 3600, 100 - 60] {
            let mut last = read(Some(steady), 101, jumped);
            assert_eq!(last.may_bury(), 0);
            for later in (5..600).step_by(5) {
                last = read(Some(last), 101 + later, jumped + later.cast_signed());
                assert_eq!(last.may_bury(), 0, "{later}");
            }
            last = read(Some(last), 701, jumped + 600);
            assert_eq!(last.may_bury(), usize::MAX);
        }
    }

    /// An answer that came late, since we stood still, is no jump of theirs.
    #[test]
    fn our_own_pause_is_no_jump() {
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let first = Reading::new(0, at(0), at(0));
        for said in [0, 3600] {
            let late = Reading::new(said * 1000, at(0), at(3600)).after(Some(first));
            assert!(!late.jumped);
            let next = Reading::new((said + 10) * 1000, at(3610), at(3610)).after(Some(late));
            assert!(!next.jumped, "{said}");
        }
        // One that was asked for before the last one tells nothing new.
        let last = Reading::new(10_000, at(10), at(10)).after(Some(first));
        assert_eq!(Reading::new(0, at(1), at(11)).after(Some(last)).time, 10_000);
    }
}
