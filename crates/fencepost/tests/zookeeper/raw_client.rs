//! A raw connection in ZooKeeper's protocol: reads without the client under test, and can end one of its sessions.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use fencepost_testkit::{SOON, ZooKeeper, wait};

const CREATE: i32 = 1;
const CREATE_CONTAINER: i32 = 19;
const EXISTS: i32 = 3;
const SYNC: i32 = 9;
const CLOSE: i32 = -11;
const NO_NODE: i32 = -101;

/// All permissions: read, write, create, delete and administer.
pub(crate) const ALL: i32 = 31;

/// The kind of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Persistent,
    /// Ends with its session.
    Ephemeral,
    Container,
}

/// A session, new or taken over. It expires after a minute without requests.
pub(crate) struct Raw {
    stream: TcpStream,
    number: i32,
}

impl Raw {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::attach(address, 0, [0; 16]).unwrap().expect("the server takes a new session")
    }

    /// `None` if the session does not exist any more.
    fn attach(address: SocketAddr, session: i64, password: [u8; 16]) -> io::Result<Option<Self>> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut raw = Self { stream, number: 0 };
        let timeout = 60_000_i32;
        let connect_request = [
            &[0; 12][..],
            &timeout.to_be_bytes(),
            &session.to_be_bytes(),
            &16_i32.to_be_bytes(),
            &password,
        ];
        raw.send(&connect_request.concat())?;
        let connect_response = raw.receive()?;
        Ok((int(&connect_response, 4) > 0).then_some(raw))
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let length = i32::try_from(body.len()).unwrap().to_be_bytes();
        self.stream.write_all(&[&length, body].concat())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// The error number of the reply.
    fn ask(&mut self, code: i32, body: &[u8]) -> io::Result<i32> {
        self.number += 1;
        self.send(&[&self.number.to_be_bytes(), &code.to_be_bytes(), body].concat())?;
        let answer = self.receive()?;
        assert_eq!(int(&answer, 0), self.number);
        Ok(int(&answer, 12))
    }

    /// Whether the leader has the node.
    pub(crate) fn exists(&mut self, path: &str) -> bool {
        let length = i32::try_from(path.len()).unwrap().to_be_bytes();
        let path = [&length, path.as_bytes()].concat();
        assert_eq!(self.ask(SYNC, &path).unwrap(), 0);
        match self.ask(EXISTS, &[&path[..], &[0]].concat()).unwrap() {
            0 => true,
            NO_NODE => false,
            error => panic!("error {error}"),
        }
    }

    /// Creates a node with these permissions for everybody.
    pub(crate) fn create(&mut self, path: &str, data: &str, kind: Kind, permissions: i32) {
        let text = |text: &str| {
            let length = i32::try_from(text.len()).unwrap().to_be_bytes();
            [&length, text.as_bytes()].concat()
        };
        let (code, flags) = match kind {
            Kind::Persistent => (CREATE, 0_i32),
            Kind::Ephemeral => (CREATE, 1),
            Kind::Container => (CREATE_CONTAINER, 4),
        };
        let access = [&1_i32.to_be_bytes()[..], &permissions.to_be_bytes()].concat();
        let body = [
            text(path),
            text(data),
            access,
            text("world"),
            text("anyone"),
            flags.to_be_bytes().into(),
        ];
        assert_eq!(self.ask(code, &body.concat()).unwrap(), 0, "{path}");
    }

    /// Ends the session and its ephemeral nodes.
    pub(crate) fn close(mut self) {
        assert_eq!(self.ask(CLOSE, &[]).unwrap(), 0);
    }
}

fn int(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Ends the session of this node, as if it had expired: attaches to it and closes it. Its client reattaches when it
/// notices, which disconnects us: then this repeats.
pub(crate) fn expire_session_of(server: &ZooKeeper, node: &str) {
    let session = session_of(server, node);
    wait::until(SOON, "the session is gone", || {
        match Raw::attach(server.address(), session, password_of(session)) {
            Ok(Some(mut raw)) => Ok(raw.ask(CLOSE, &[]).is_ok_and(|error| error == 0)),
            Ok(None) => Ok(true),
            Err(_) => Ok(false),
        }
    })
    .unwrap();
}

/// The session of this node.
pub(crate) fn session_of(server: &ZooKeeper, node: &str) -> i64 {
    let dump = server.four_letter("dump").unwrap();
    let (_, owned) = dump.split_once("Sessions with Ephemerals").expect("a list of sessions");
    let mut session = None;
    for line in owned.lines() {
        if let Some(id) = line.strip_prefix("0x") {
            session = i64::from_str_radix(id.trim_end_matches(':'), 16).ok();
        } else if line.trim() == node {
            return session.expect("nodes are listed below their session");
        }
    }
    panic!("{node} belongs to no session: {dump}")
}

/// ZooKeeper derives a session's password from its number and a constant, by `java.util.Random`.
fn password_of(session: i64) -> [u8; 16] {
    const MASK: u64 = (1 << 48) - 1;
    const TIMES: u64 = 0x5_DEEC_E66D;
    let mut seed = (session.cast_unsigned() ^ 0xB341_5C00 ^ TIMES) & MASK;
    let mut password = [0; 16];
    for word in password.chunks_mut(4) {
        seed = (seed.wrapping_mul(TIMES) + 0xB) & MASK;
        let drawn = (seed >> 16) as u32;
        word.copy_from_slice(&drawn.to_le_bytes());
    }
    password
}
