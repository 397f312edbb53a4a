//! Cuts that wait for a certain request: a pattern of bytes on its way to the server.
//!
//! The proxy knows no protocol, so a request is the result of one read. A pattern may be split over reads: the end of what has
//! passed is kept, and the search includes it.

/// How much of what has passed is kept: a longer pattern is found within one read only.
const KEPT: usize = 4096;

/// When to cut a connection, once. An empty pattern matches any request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The server never sees the request: the connection is cut when the pattern appears, and the end of that read is not passed
    /// on.
    BeforeRequest(Vec<u8>),
    /// The server applies the request, and the reply is lost: the request passes, and the connection is cut when the server
    /// begins to reply. Neither the reply nor what the client sends meanwhile is passed on. Settings, windows and pings of an
    /// HTTP/2 server are no reply.
    ///
    /// The proxy cannot tell replies apart. On a connection with other replies pending, or where the server sends unasked, the
    /// first bytes may not be the reply to this request. If the server closes without a reply, nothing has fired, and the
    /// trigger waits for the next such request.
    AfterRequest(Vec<u8>),
}

impl Trigger {
    /// [`Trigger::BeforeRequest`].
    pub fn before(pattern: impl Into<Vec<u8>>) -> Self {
        Self::BeforeRequest(pattern.into())
    }

    /// [`Trigger::AfterRequest`].
    pub fn after(pattern: impl Into<Vec<u8>>) -> Self {
        Self::AfterRequest(pattern.into())
    }

    fn pattern(&self) -> &[u8] {
        match self {
            Self::BeforeRequest(pattern) | Self::AfterRequest(pattern) => pattern,
        }
    }
}

/// The end of what has passed in one connection.
#[derive(Debug, Default)]
pub(super) struct Window {
    tail: Vec<u8>,
}

impl Window {
    /// Removes the first trigger whose pattern ends in `chunk`, and remembers the chunk.
    pub(super) fn take(&mut self, triggers: &mut Vec<Trigger>, chunk: &[u8]) -> Option<Trigger> {
        let found = triggers.iter().position(|trigger| self.completes(trigger.pattern(), chunk));
        self.tail.extend_from_slice(&chunk[chunk.len().saturating_sub(KEPT)..]);
        self.tail.drain(..self.tail.len().saturating_sub(KEPT));
        found.map(|place| triggers.remove(place))
    }

    fn completes(&self, pattern: &[u8], chunk: &[u8]) -> bool {
        let Some(before_last) = pattern.len().checked_sub(1) else { return true };
        // One byte less than the pattern, so that what has passed is not found again.
        let seam = self.tail.len().saturating_sub(before_last);
        let text = [&self.tail[seam..], chunk].concat();
        text.windows(pattern.len()).any(|window| window == pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(window: &mut Window, pattern: &str, chunk: &str) -> bool {
        window.take(&mut vec![Trigger::before(pattern)], chunk.as_bytes()).is_some()
    }

    #[test]
    fn pattern_is_found_within_and_across_chunks() {
        let mut window = Window::default();
        assert!(take(&mut window, "SET", "xSETx"));
        assert!(!take(&mut window, "INCR", "..IN"));
        assert!(!take(&mut window, "INCR", "C"));
        assert!(take(&mut window, "INCR", "R.."));
    }

    #[test]
    fn passed_bytes_are_not_matched_again() {
        let mut window = Window::default();
        assert!(!take(&mut window, "later", "SET"));
        assert!(!take(&mut window, "SET", "x"));
        assert!(take(&mut window, "", "y"), "an empty pattern matches any chunk");
    }

    #[test]
    fn first_matching_trigger_fires_and_the_others_stay() {
        let mut triggers = vec![Trigger::before("a"), Trigger::after("b"), Trigger::before("b")];
        let taken = Window::default().take(&mut triggers, b"..b..");
        assert_eq!(taken, Some(Trigger::after("b")));
        assert_eq!(triggers, [Trigger::before("a"), Trigger::before("b")]);
    }

    #[test]
    fn search_window_does_not_grow() {
        let mut window = Window::default();
        for _ in 0..3 {
            window.take(&mut Vec::new(), &[0; KEPT]);
            window.take(&mut Vec::new(), &[0; 10]);
        }
        assert_eq!(window.tail.len(), KEPT);
    }
}
