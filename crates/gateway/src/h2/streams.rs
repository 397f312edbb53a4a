//! The open streams of an HTTP/2 connection, and which side each of them waits for.
//!
//! What must hold: a connection ends when it had no stream for the idle time, or when its client has read nothing of a
//! response for that long. HTTP/2 polls a body only when the client has read what came before, so the writer does not
//! notice a client that reads nothing. This module does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;

use crate::time::now;

/// The streams of one connection.
pub(crate) struct Streams(Mutex<State>);

struct State {
    next: u64,
    /// Since when the client has had something to read; none while it waits for us.
    open: HashMap<u64, Option<Moment>>,
    /// When the last stream ended.
    quiet_since: Moment,
}

/// A stream, open until this is dropped.
pub(crate) struct Stream {
    streams: Arc<Streams>,
    number: u64,
}

/// What to do with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Check again then.
    Again(Moment),
    /// Unused for too long.
    Idle,
    /// The client does not read.
    Stuck,
}

impl Streams {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { next: 0, open: HashMap::new(), quiet_since: now() };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Opens a stream for a request.
    pub(crate) fn open(self: &Arc<Self>) -> Stream {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, None);
        Stream { streams: Arc::clone(self), number }
    }

    /// Checks the connection: `quiet` is how long it may have no stream, `unread` how long its client may read nothing.
    pub(crate) fn check(&self, quiet: Duration, unread: Duration) -> Check {
        let (now, state) = (now(), self.0.lock());
        if state.open.is_empty() {
            let end = state.quiet_since + quiet;
            return if end <= now { Check::Idle } else { Check::Again(end) };
        }
        let first = state.open.values().flatten().min().map(|since| *since + unread);
        match first {
            Some(end) if end <= now => Check::Stuck,
            Some(end) => Check::Again(end),
            None => Check::Again(now + unread),
        }
    }
}

impl Stream {
    /// The client has something to read.
    pub(crate) fn output_ready(&self) {
        self.streams.0.lock().open.insert(self.number, Some(now()));
    }

    /// The client has read everything so far.
    pub(crate) fn output_taken(&self) {
        self.streams.0.lock().open.insert(self.number, None);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.streams.0.lock();
        state.open.remove(&self.number);
        state.quiet_since = now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stuck_connections_are_detected() {
        let streams = Streams::new();
        let long = Duration::from_mins(1);
        assert!(matches!(streams.check(long, long), Check::Again(_)));
        assert_eq!(streams.check(Duration::ZERO, Duration::ZERO), Check::Idle);
        let (one, other) = (streams.open(), streams.open());
        assert!(
            matches!(streams.check(Duration::ZERO, Duration::ZERO), Check::Again(_)),
            "both streams wait for us"
        );
        one.output_ready();
        other.output_ready();
        one.output_taken();
        assert!(matches!(streams.check(long, long), Check::Again(_)));
        assert_eq!(streams.check(Duration::ZERO, Duration::ZERO), Check::Stuck);
        other.output_taken();
        assert!(matches!(streams.check(Duration::ZERO, Duration::ZERO), Check::Again(_)));
        drop((one, other));
        assert_eq!(streams.check(Duration::ZERO, Duration::ZERO), Check::Idle);
    }
}
