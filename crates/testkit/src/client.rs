//! A tiny blocking Redis client, to inspect a server without the client under test.
//!
//! It speaks RESP2 over one TCP connection, never reconnects, and never waits without a limit: a frozen server is a
//! `WouldBlock` or `TimedOut` error. If no byte of the reply had come by then, a later [`receive`](Client::receive) still
//! gets it.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::reply::Reply;
use crate::wait::SOON;

/// One connection to a Redis server, directly or through a [`Proxy`](crate::Proxy).
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects. Every step of this connection may take [`SOON`], unless [`set_timeout`](Self::set_timeout) changes that.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, SOON)?;
        stream.set_nodelay(true)?;
        let client = Self { stream: BufReader::new(stream) };
        client.set_timeout(SOON)?;
        Ok(client)
    }

    /// Sets how long each read and write may take.
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))
    }

    /// Logs in with the password.
    pub fn authenticate(&mut self, password: &str) -> io::Result<()> {
        self.command(&["AUTH", password])?.text().map(|_| ())
    }

    /// Sends a command and waits for its reply.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.stream.get_mut().write_all(&request)
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.stream)
    }
}
