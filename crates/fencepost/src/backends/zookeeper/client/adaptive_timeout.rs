//! How long a server may stay silent before we try another.
//!
//! Short at first, so that a caller with a limit of a few seconds, or a short lease, reaches a server that answers;
//! longer once all servers have failed in turn, since then the store may be slow. A reply sets it to twice the time
//! that the reply took: so we wait for a store that is always slow, and leave a server that hangs.

use std::time::Duration;

/// The initial timeout, for short and for long sessions.
const FIRST: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1500));

/// The longest timeout: a caller must learn that no server answers.
const MOST: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct AdaptiveTimeout {
    limit: Duration,
    /// How many servers have hung since the last reply.
    hung: usize,
}

impl AdaptiveTimeout {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { limit: first(timeout), hung: 0 }
    }

    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    /// One of this many servers did not answer within this time.
    pub(super) fn hung(&mut self, servers: usize, timeout: Duration) {
        self.hung += 1;
        if self.hung >= servers {
            self.limit = (self.limit * 2).clamp(first(timeout), most(timeout));
            self.hung = 0;
        }
    }

    /// A reply took this long.
    pub(super) fn answered(&mut self, took: Duration, timeout: Duration) {
        self.limit = took.saturating_mul(2).clamp(first(timeout), most(timeout));
        self.hung = 0;
    }
}

fn first(timeout: Duration) -> Duration {
    (timeout / 6).clamp(FIRST.0, FIRST.1)
}

/// A lease is renewed when a third of it has passed: from then on there is time for this server and another one.
fn most(timeout: Duration) -> Duration {
    (timeout / 3).min(MOST).max(first(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_grows_for_a_slow_store_and_not_for_a_frozen_server() {
        let ms = Duration::from_millis;
        let timeout = ms(45_000);
        let mut adaptive_timeout = AdaptiveTimeout::new(timeout);
        let mut waited = vec![adaptive_timeout.limit()];
        for _ in 0..4 {
            adaptive_timeout.hung(1, timeout);
            waited.push(adaptive_timeout.limit());
        }
        assert_eq!(waited, [ms(1500), ms(3000), ms(5000), ms(5000), ms(5000)]);
        adaptive_timeout.answered(ms(1600), timeout);
        assert_eq!(adaptive_timeout.limit(), ms(3200));
        adaptive_timeout.answered(ms(5), timeout);
        assert_eq!(adaptive_timeout.limit(), ms(1500));
        // One hung server of three is no reason to wait longer for the next.
        for limit in [1500, 1500, 3000, 3000] {
            adaptive_timeout.hung(3, timeout);
            assert_eq!(adaptive_timeout.limit(), ms(limit));
        }
        for (timeout, first, most) in [(400, 250, 250), (4000, 666, 1333), (6000, 1000, 2000)] {
            let timeout = ms(timeout);
            let mut adaptive_timeout = AdaptiveTimeout::new(timeout);
            assert_eq!(adaptive_timeout.limit().as_millis(), first);
            adaptive_timeout.answered(ms(60_000), timeout);
            assert_eq!(adaptive_timeout.limit().as_millis(), most);
        }
    }
}
