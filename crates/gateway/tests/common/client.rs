//! A plain HTTP/1 client that sends what it is given.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::service::{Message, read_message};

/// Longer than any call here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        super::service::header(&self.head, name)
    }

    /// A member of the problem in the body.
    pub(crate) fn problem(&self, member: &str) -> String {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"));
        let object: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        match &object[member] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let io = TcpStream::connect(to).unwrap();
    io.set_read_timeout(Some(LIMIT)).unwrap();
    io.set_nodelay(true).unwrap();
    io
}

/// The text of a request.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    if !body.is_empty() {
        write!(text, "Content-Length: {}\r\n", body.len()).unwrap();
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

/// One request on a connection of its own.
pub(crate) fn call(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut io = connect(to);
    io.write_all(&request(method, path, headers, body)).unwrap();
    reply(&mut io, method)
}

/// The same, if the gateway may die meanwhile.
pub(crate) fn try_call(io: &mut TcpStream, bytes: &[u8]) -> std::io::Result<Option<u16>> {
    io.write_all(bytes)?;
    let message = read_message(io, false)?;
    Ok(message.and_then(|message| message.head.split(' ').nth(1)?.parse().ok()))
}

/// Reads one response.
pub(crate) fn reply(io: &mut TcpStream, method: &str) -> Reply {
    let Message { head, body } = read_message(io, method == "HEAD").unwrap().expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body }
}

/// Sends bytes as they are, and returns everything until the connection ends.
pub(crate) fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let mut io = connect(to);
    io.write_all(bytes).unwrap();
    // A gateway that waits for more sees that no more comes.
    io.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    // A reset ends the connection, too.
    let _ = io.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}
