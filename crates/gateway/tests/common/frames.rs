//! An HTTP/2 client that sends the frames it is given.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::client::connect;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// The flag of the last frame of a stream. On a PING or SETTINGS: this is an acknowledgement.
pub(crate) const END: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame as received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Frames(pub(crate) TcpStream);

impl Frames {
    /// A connection whose client accepts `window` bytes of each stream.
    pub(crate) fn open(to: SocketAddr, window: u32) -> Self {
        let mut frames = Self(connect(to));
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let initial_window_size = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
        frames.send(SETTINGS, 0, 0, &initial_window_size);
        frames
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, data].concat()).unwrap();
    }

    pub(crate) fn request(
        &mut self,
        stream: u32,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        end: u8,
    ) {
        let pseudo =
            [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path)];
        let mut block = Vec::new();
        for (name, value) in pseudo.iter().chain(more) {
            // A literal that must not be indexed (RFC 7541, 6.2.2).
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.send(HEADERS, END_HEADERS | end, stream, &block);
    }

    /// The next frame; none at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        if let Err(error) = self.0.read_exact(&mut head) {
            let open = error.kind() == std::io::ErrorKind::WouldBlock;
            assert!(!open, "the connection is still open");
            return None;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data).unwrap();
        Some(Frame { kind: head[3], flags: head[4], stream, data })
    }

    /// Waits until everything sent before was received and handled.
    pub(crate) fn ping(&mut self) {
        self.send(PING, 0, 0, &[7; 8]);
        while self.next().is_some_and(|frame| frame.kind != PING || frame.flags != END) {}
    }

    /// Reads on until the gateway ends the connection.
    pub(crate) fn wait_for_end(&mut self) {
        while self.next().is_some() {}
    }
}
