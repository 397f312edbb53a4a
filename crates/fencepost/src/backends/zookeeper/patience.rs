//! How long a server may leave us without an answer before we try another.
//!
//! Short at first, so that a caller with a limit of a few seconds, or a short lease, gets to a server that answers;
//! longer after each that did not, since then it may be all of them that are slow. An answer sets it to
//! twice what that answer took: a store that is always slow is waited for, one that stands still is left.

use std::time::Duration;

/// How long at first, for short and for long sessions.
const FIRST: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1500));

/// How long at most: whoever asks wants to hear that nobody answers.
const MOST: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(Duration);

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self(first(timeout))
    }

    pub(super) fn limit(self) -> Duration {
        self.0
    }

    /// A server did not answer for as long as that.
    pub(super) fn hung(&mut self, timeout: Duration) {
        self.0 = (self.0 * 2).clamp(first(timeout), most(timeout));
    }

    /// An answer took this long.
    pub(super) fn answered(&mut self, took: Duration, timeout: Duration) {
        self.0 = took.saturating_mul(2).clamp(first(timeout), most(timeout));
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
            patience.hung(timeout);
            waited.push(patience.limit());
        }
        assert_eq!(waited, [ms(1500), ms(3000), ms(5000), ms(5000), ms(5000)]);
        patience.answered(ms(1600), timeout);
        assert_eq!(patience.limit(), ms(3200));
        patience.answered(ms(5), timeout);
        assert_eq!(patience.limit(), ms(1500));
        for (timeout, first, most) in [(400, 250, 250), (4000, 666, 1333), (6000, 1000, 2000)] {
            let timeout = ms(timeout);
            let mut patience = Patience::new(timeout);
            assert_eq!(patience.limit().as_millis(), first);
            patience.answered(ms(60_000), timeout);
            assert_eq!(patience.limit().as_millis(), most);
        }
    }
}
