//! Whether the server's clock goes as ours does. It ends the leases, so a jump of it ends them early, or
//! keeps them too long (valkey#2651): nothing here can mend that, but it is told.

use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;

/// Less than this is told apart neither from a slow answer nor from a clock that is being adjusted.
const LEAST: Duration = Duration::from_millis(250);

/// What every answer tells of the server's clock.
#[derive(Debug, Default)]
pub(in crate::backends) struct Drift(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    last: Option<Sight>,
    jumps: u32,
}

/// The server's clock was read somewhere between the request and its answer: by how much it is ahead of
/// ours is known to lie between two numbers, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Sight {
    least: i64,
    most: i64,
    at: Moment,
}

impl Drift {
    /// Takes note of the server's time in an answer. Gives by how much its clock has jumped since the last
    /// one, in microseconds, if it has.
    pub(in crate::backends) fn saw(&self, server: u64, sent: Moment, heard: Moment) -> Option<i64> {
        let micros = |moment: Moment| (moment.as_nanos() / 1000).cast_signed();
        let server = server.cast_signed();
        let sight = Sight { least: server - micros(heard), most: server - micros(sent), at: heard };
        let mut seen = self.0.lock();
        let Some(last) = seen.last else {
            seen.last = Some(sight);
            return None;
        };
        // Answers overtake each other; only the newest one moves the baseline.
        if heard < last.at {
            return None;
        }
        seen.last = Some(sight);
        // One part in a thousand is more than a clock drifts.
        let slack = (LEAST + heard.since(last.at) / 1000).as_micros() as i64;
        let jump = if sight.least > last.most + slack {
            sight.least - last.most
        } else if sight.most < last.least - slack {
            sight.most - last.least
        } else {
            return None;
        };
        seen.jumps += 1;
        Some(jump)
    }

    /// How often it has jumped.
    pub(in crate::backends) fn jumps(&self) -> u32 {
        self.0.lock().jumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(micros: u64) -> Moment {
        Moment::from_nanos(micros * 1000)
    }

    #[test]
    fn a_jump_is_told_and_a_slow_answer_is_not() {
        let drift = Drift::default();
        let wall = 1_700_000_000 * SECOND;
        assert_eq!(drift.saw(wall, at(0), at(100)), None);
        // Ten seconds under way: the server read its clock somewhere in between.
        assert_eq!(drift.saw(wall + 9 * SECOND, at(100), at(10 * SECOND)), None);
        assert_eq!(drift.saw(wall + 11 * SECOND, at(11 * SECOND), at(11 * SECOND + 50)), None);
        let jump = drift.saw(wall + 72 * SECOND, at(12 * SECOND), at(12 * SECOND + 50));
        assert!(jump.is_some_and(|by| by > 59 * SECOND.cast_signed()), "{jump:?}");
        // From there on it is the new time.
        assert_eq!(drift.saw(wall + 73 * SECOND, at(13 * SECOND), at(13 * SECOND + 50)), None);
        let back = drift.saw(wall + 64 * SECOND, at(14 * SECOND), at(14 * SECOND + 50));
        assert!(back.is_some_and(|by| by < -9 * SECOND.cast_signed()), "{back:?}");
        assert_eq!(drift.jumps(), 2);
    }
}
