//! Detects jumps of the server's clock. It ends the leases, so a jump ends them early, or keeps them too long
//! (valkey#2651): nothing here can prevent that, but it is reported.

use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;

/// A smaller jump cannot be distinguished from a slow reply, or from a clock that is being adjusted.
const LEAST: Duration = Duration::from_millis(250);

/// What the replies show of the server's clock.
#[derive(Debug, Default)]
pub(in crate::backends) struct ClockSkew(Mutex<Readings>);

#[derive(Debug, Default)]
struct Readings {
    last: Option<Offset>,
    jumps: u32,
}

/// The server read its clock between the request and its reply: so the difference to ours is between these two numbers,
/// in microseconds.
#[derive(Clone, Copy, Debug)]
struct Offset {
    least: i64,
    most: i64,
    at: Moment,
}

impl ClockSkew {
    /// Notes the server's time in a reply. Returns how far its clock has jumped since the last one, in microseconds, if
    /// it has.
    pub(in crate::backends) fn observe(
        &self,
        server: u64,
        sent: Moment,
        received: Moment,
    ) -> Option<i64> {
        let micros = |moment: Moment| (moment.as_nanos() / 1000).cast_signed();
        let server = server.cast_signed();
        let offset =
            Offset { least: server - micros(received), most: server - micros(sent), at: received };
        let mut readings = self.0.lock();
        let Some(last) = readings.last else {
            readings.last = Some(offset);
            return None;
        };
        // Replies can arrive out of order; only the newest one moves the baseline.
        if received < last.at {
            return None;
        }
        readings.last = Some(offset);
        // One part in a thousand is more than a clock drifts.
        let tolerance = (LEAST + received.since(last.at) / 1000).as_micros() as i64;
        let jump = if offset.least > last.most + tolerance {
            offset.least - last.most
        } else if offset.most < last.least - tolerance {
            offset.most - last.least
        } else {
            return None;
        };
        readings.jumps += 1;
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
    fn jump_is_reported_and_a_slow_reply_is_not() {
        let clock_skew = ClockSkew::default();
        let wall = 1_700_000_000 * SECOND;
        assert_eq!(clock_skew.observe(wall, at(0), at(100)), None);
        // Ten seconds in flight: the server read its clock at some moment in between.
        assert_eq!(clock_skew.observe(wall + 9 * SECOND, at(100), at(10 * SECOND)), None);
        assert_eq!(
            clock_skew.observe(wall + 11 * SECOND, at(11 * SECOND), at(11 * SECOND + 50)),
            None
        );
        let jump = clock_skew.observe(wall + 72 * SECOND, at(12 * SECOND), at(12 * SECOND + 50));
        assert!(jump.is_some_and(|by| by > 59 * SECOND.cast_signed()), "{jump:?}");
        // Later replies are compared with the new time.
        assert_eq!(
            clock_skew.observe(wall + 73 * SECOND, at(13 * SECOND), at(13 * SECOND + 50)),
            None
        );
        let back = clock_skew.observe(wall + 64 * SECOND, at(14 * SECOND), at(14 * SECOND + 50));
        assert!(back.is_some_and(|by| by < -9 * SECOND.cast_signed()), "{back:?}");
        assert_eq!(clock_skew.jumps(), 2);
    }
}
