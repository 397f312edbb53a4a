//! The open streams of an HTTP/2 connection, and whose turn it is in each of them.
//!
//! What must hold: a connection ends when it has had no stream for the idle time, and when its client has taken nothing of an
//! answer for as long. HTTP/2 asks for more of a body only when the client has taken what came before, so a client
//! that reads nothing is not seen by whoever writes: it is seen here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Mutex, MutexGuard};

use crate::time::now;

/// The streams of one connection.
pub(crate) struct Streams(Mutex<State>);

struct State {
    next: u64,
    /// Since when the client has been to take something; none while it waits for us.
    open: HashMap<u64, Option<Moment>>,
    /// When the last one ended.
    quiet_since: Moment,
}

/// A stream, open until this is dropped.
pub(crate) struct Stream {
    streams: Arc<Streams>,
    number: u64,
}

/// What is to be done with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Look again then.
    Again(Moment),
    /// Nobody has used it for too long.
    Idle,
    /// The client does not read.
    Stuck,
}

impl Streams {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { next: 0, open: HashMap::new(), quiet_since: now() };
        Arc::new(Self(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// A client asks for something.
    pub(crate) fn open(self: &Arc<Self>) -> Stream {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, None);
        Stream { streams: Arc::clone(self), number }
    }

    /// How the connection stands: without a stream it may be quiet for so long, with one its client may read nothing
    /// for so long.
    pub(crate) fn look(&self, quiet: Duration, unread: Duration) -> Look {
        let (now, state) = (now(), self.state());
        if state.open.is_empty() {
            let end = state.quiet_since + quiet;
            return if end <= now { Look::Idle } else { Look::Again(end) };
        }
        let first = state.open.values().flatten().min().map(|since| *since + unread);
        match first {
            Some(end) if end <= now => Look::Stuck,
            Some(end) => Look::Again(end),
            None => Look::Again(now + unread),
        }
    }
}

impl Stream {
    /// It is the client's turn: it has something to take.
    pub(crate) fn gave(&self) {
        self.streams.state().open.insert(self.number, Some(now()));
    }

    /// It is our turn: the client has taken all there was.
    pub(crate) fn owes(&self) {
        self.streams.state().open.insert(self.number, None);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.streams.state();
        state.open.remove(&self.number);
        state.quiet_since = now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_turn_it_is() {
        let streams = Streams::new();
        let long = Duration::from_mins(1);
        assert!(matches!(streams.look(long, long), Look::Again(_)));
        assert_eq!(streams.look(Duration::ZERO, Duration::ZERO), Look::Idle);
        let (one, other) = (streams.open(), streams.open());
        assert!(
            matches!(streams.look(Duration::ZERO, Duration::ZERO), Look::Again(_)),
            "both wait for us"
        );
        one.gave();
        other.gave();
        one.owes();
        assert!(matches!(streams.look(long, long), Look::Again(_)));
        assert_eq!(streams.look(Duration::ZERO, Duration::ZERO), Look::Stuck);
        other.owes();
        assert!(matches!(streams.look(Duration::ZERO, Duration::ZERO), Look::Again(_)));
        drop((one, other));
        assert_eq!(streams.look(Duration::ZERO, Duration::ZERO), Look::Idle);
    }
}
