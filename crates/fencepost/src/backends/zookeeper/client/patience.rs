//! How long a server may leave us without an answer before we try another.
//!
//! Short at first, so that a caller with a limit of a few seconds, or a short lease, gets to a server that answers;
//! longer once all have failed to in turn, since then it may be the store that is slow. An answer sets it to
//! twice what that answer took: a store that is always slow is waited for, one that stands still is left.

use std::time::Duration;

/// How long at first, for short and for long sessions.
const FIRST: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1500));

/// How long at most: whoever asks wants to hear that nobody answers.
const MOST: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    /// How many have hung since the last answer.
    hung: usize,
}

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { limit: first(timeout), hung: 0 }
    }

    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    /// One of so many servers did not answer for as long as that.
    pub(super) fn hung(&mut self, servers: usize, timeout: Duration) {
        self.hung += 1;
        if self.hung >= servers {
            self.limit = (self.limit * 2).clamp(first(timeout), most(timeout));
            self.hung = 0;
        }
    }

    /// An answer took this long.
    pub(super) fn answered(&mut self, took: Duration, timeout: Duration) {
        self.limit = took.saturating_mul(2).clamp(first(timeout), most(timeout));
        self.hung = 0;
    }
}

fn first(timeout: Duration) -> Duration {
    (timeout / 6).clamp(FIRST.0, FIRST.1)
}

/// A lease is renewed when a third of it has passed: from then on there is time for this and another server.
fn most(timeout: Duration) -> Duration {
    (timeout / 3).min(MOST).max(first(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_waited_for_and_a_frozen_server_left() {
        let ms = Duration::from_millis;
        let timeout = ms(45_000);
        let mut patience = Patience::new(timeout);
        let mut waited = vec![patience.limit()];
        for _ in 0..4 {
            patience.hung(1, timeout);
            waited.push(patience.limit());
        }
        assert_eq!(waited, [ms(1500), ms(3000), ms(5000), ms(5000), ms(5000)]);
        patience.answered(ms(1600), timeout);
        assert_eq!(patience.limit(), ms(3200));
        patience.answered(ms(5), timeout);
        assert_eq!(patience.limit(), ms(1500));
        // One of three is no reason to wait longer for the next.
        for limit in [1500, 1500, 3000, 3000] {
            patience.hung(3, timeout);
            assert_eq!(patience.limit(), ms(limit));
        }
        for (timeout, first, most) in [(400, 250, 250), (4000, 666, 1333), (6000, 1000, 2000)] {
            let timeout = ms(timeout);
            let mut patience = Patience::new(timeout);
            assert_eq!(patience.limit().as_millis(), first);
            patience.answered(ms(60_000), timeout);
            assert_eq!(patience.limit().as_millis(), most);
        }
    }
}
