//! Which reads from a server are replies.
//!
//! Most protocols send nothing else. An HTTP/2 server also sends settings, windows and pings, some of them when it has read a
//! request and before it executes it.

const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// Counts the reads that returned a part of a reply.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) replies: usize,
    protocol: Option<Protocol>,
}

#[derive(Debug)]
enum Protocol {
    Http2(Frames),
    Other,
}

impl Arrivals {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let protocol = self.protocol.get_or_insert_with(|| Protocol::of(bytes));
        let is_reply = match protocol {
            Protocol::Http2(frames) => frames.has_reply(bytes),
            Protocol::Other => true,
        };
        self.replies += usize::from(is_reply);
    }
}

impl Protocol {
    /// By the first bytes of a server: HTTP/2 begins with settings of the whole connection.
    fn of(first: &[u8]) -> Self {
        match first {
            [_, _, _, SETTINGS, _, 0, 0, 0, 0, ..] => Self::Http2(Frames::default()),
            _ => Self::Other,
        }
    }
}

/// Where the next frame of a stream begins.
#[derive(Debug, Default)]
struct Frames {
    header: Vec<u8>,
    /// How much of the present frame is still to come.
    left: usize,
}

impl Frames {
    /// Whether a frame of a reply begins in these bytes.
    fn has_reply(&mut self, mut bytes: &[u8]) -> bool {
        let mut found = false;
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (FRAME_HEADER - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [a, b, c, kind, ..] = self.header[..]
                && self.header.len() == FRAME_HEADER
            {
                self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.header.clear();
                found |= kind == DATA || kind == HEADERS;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, 0, 0, 0, 0, stream], payload].concat()
    }

    #[test]
    fn replies_of_http2_are_headers_and_data() {
        const PING: u8 = 6;
        const WINDOW_UPDATE: u8 = 8;
        let mut arrivals = Arrivals::default();
        arrivals.add(&frame(SETTINGS, 0, &[0; 6]));
        arrivals.add(&[frame(WINDOW_UPDATE, 0, &[0; 4]), frame(PING, 0, &[1; 8])].concat());
        assert_eq!(arrivals.replies, 0);
        arrivals.add(&[frame(PING, 0, &[1; 8]), frame(HEADERS, 1, &[1; 20])].concat());
        assert_eq!(arrivals.replies, 1);
        // A frame that is split counts where its header ends.
        let data = frame(DATA, 1, &[1; 40]);
        arrivals.add(&data[..5]);
        assert_eq!(arrivals.replies, 1);
        arrivals.add(&data[5..30]);
        arrivals.add(&data[30..]);
        arrivals.add(&frame(PING, 0, &[1; 8]));
        assert_eq!(arrivals.replies, 2);
    }

    #[test]
    fn other_protocols_reply_with_each_read() {
        let mut arrivals = Arrivals::default();
        arrivals.add(b"+OK\r\n");
        arrivals.add(&frame(SETTINGS, 0, &[]));
        assert_eq!(arrivals.replies, 2);
    }
}
