//! A small ZooKeeper client, so that a test can inspect a server without the client under test.
//!
//! What must hold: its session ends with it, so that tests do not count it. It sets no watches and creates no ephemeral
//! nodes, so a session that could not be closed leaves nothing else, for at most the shortest session timeout.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const CLOSE: i32 = -11;

const NO_NODE: i32 = -101;
/// The longest reply; more is an error.
const MOST: usize = 4 << 20;

/// A session with one server.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    requests: i32,
}

impl Client {
    /// Connects and opens a session. Each step may take this long.
    pub(super) fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream, requests: 0 };
        // Protocol 0; nothing seen; the shortest session; no session and no password yet.
        let mut hello = Message::default();
        hello.int(0).long(0).int(1).long(0).bytes(&[0; 16]);
        client.send(&hello)?;
        // Protocol, then how long the session lasts: nothing at all if there is none.
        let mut answer = client.receive()?;
        answer.int()?;
        if answer.int()? <= 0 {
            return Err(io::Error::other("ZooKeeper gave no session"));
        }
        Ok(client)
    }

    pub(super) fn create(&mut self, path: &str, data: &str) -> io::Result<()> {
        let mut message = Message::default();
        message.bytes(path.as_bytes()).bytes(data.as_bytes());
        // One entry: everybody may do everything. No flags: the node is persistent.
        message.int(1).int(31).bytes(b"world").bytes(b"anyone").int(0);
        self.call(CREATE, &message).and_then(done).map_err(|error| at(path, &error))
    }

    pub(super) fn delete(&mut self, path: &str) -> io::Result<()> {
        let mut message = Message::default();
        message.bytes(path.as_bytes()).int(-1);
        self.call(DELETE, &message).and_then(done).map_err(|error| at(path, &error))
    }

    pub(super) fn get(&mut self, path: &str) -> io::Result<Option<String>> {
        match self.read(GET_DATA, path)? {
            (NO_NODE, _) => Ok(None),
            (0, mut answer) => Ok(Some(answer.text()?)),
            failed => Err(at(path, &refusal(failed.0))),
        }
    }

    pub(super) fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        let (code, mut answer) = self.read(GET_CHILDREN, path)?;
        if code != 0 {
            return Err(at(path, &refusal(code)));
        }
        let count = answer.int()?;
        let mut names = (0..count).map(|_| answer.text()).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Syncs the server with the leader, and reads.
    fn read(&mut self, operation: i32, path: &str) -> io::Result<(i32, Answer)> {
        let mut message = Message::default();
        message.bytes(path.as_bytes());
        self.call(SYNC, &message).and_then(done)?;
        // No watch.
        message.0.push(0);
        self.call(operation, &message)
    }

    /// The code and the rest of the reply.
    fn call(&mut self, operation: i32, message: &Message) -> io::Result<(i32, Answer)> {
        self.requests += 1;
        let mut request = Message::default();
        request.int(self.requests).int(operation);
        request.0.extend(&message.0);
        self.send(&request)?;
        let mut answer = self.receive()?;
        if answer.int()? != self.requests {
            return Err(io::Error::other("ZooKeeper answered another question"));
        }
        answer.long()?;
        Ok((answer.int()?, answer))
    }

    fn send(&mut self, message: &Message) -> io::Result<()> {
        let mut framed = Message::default();
        framed.bytes(&message.0);
        self.stream.write_all(&framed.0)
    }

    fn receive(&mut self) -> io::Result<Answer> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST {
            return Err(io::Error::other(format!("ZooKeeper answers with {length} bytes")));
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(Answer(io::Cursor::new(bytes)))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // If the close cannot be sent, the session expires.
        let _ = self.call(CLOSE, &Message::default());
    }
}

/// A request being written: numbers are big-endian, bytes follow their count.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn int(&mut self, number: i32) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(&mut self, number: i64) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend((bytes.len() as u32).to_be_bytes());
        self.0.extend(bytes);
        self
    }
}

/// A reply being read.
struct Answer(io::Cursor<Vec<u8>>);

impl Answer {
    fn int(&mut self) -> io::Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> io::Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    /// Bytes; a count of 0 or -1 gives the empty text.
    fn text(&mut self) -> io::Result<String> {
        let length = u64::try_from(self.int()?).unwrap_or(0);
        let mut bytes = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn done((code, _): (i32, Answer)) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(refusal(code)) }
}

fn refusal(code: i32) -> io::Error {
    io::Error::other(format!("ZooKeeper refused with code {code}"))
}

fn at(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}
