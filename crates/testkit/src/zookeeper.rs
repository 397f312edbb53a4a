//! Real ZooKeeper servers: one alone, or an ensemble of three.
//!
//! What must hold: whoever answers on the port is the process that we started. No two servers share a
//! directory, and a start is over only when the server that answers has named ours. Ports and data belong to
//! a server until its handle is dropped: a crash and a new start keep them, and ZooKeeper has every write on
//! disk before it answers, so nothing is lost.
//!
//! A Java machine is heavy, so each gets as little as it can live on.

mod builder;
mod client;
mod ensemble;

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

pub use builder::Builder;

use crate::cluster::Clustered as _;
use crate::server::Server;
use crate::tls::Certificates;
use crate::wait::SOON;
use client::Client;

/// How long a question may take that is asked again if nobody answers.
const ASKED: Duration = Duration::from_secs(1);

/// A running server, or a crashed one that can be started again. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    tls: Option<(u16, Certificates)>,
}

impl ZooKeeper {
    /// A server alone, with ticks of half a second unless told otherwise.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `zookeeper://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.address())
    }

    /// Where it listens for clients that speak TLS; [`address`](Server::address) stays plain.
    pub fn tls_address(&self) -> io::Result<SocketAddr> {
        let (port, _) = self.tls.as_ref().ok_or_else(without_tls)?;
        Ok((Ipv4Addr::LOCALHOST, *port).into())
    }

    /// The certificate that a client has to trust at [`tls_address`](Self::tls_address).
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let (_, certificates) = self.tls.as_ref().ok_or_else(without_tls)?;
        Ok(certificates.ca())
    }

    /// Starts a server that was killed, with its port and its data, and waits until it serves. In an ensemble
    /// that takes a majority: see [`launch`](Server::launch).
    pub fn start_again(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_until_up()
    }

    /// A crash and a new start.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// What the server answers to one of its four letter words, such as `mntr`, `stat`, `cons`, `dump` and
    /// `srvr`.
    pub fn four_letter(&self, word: &str) -> io::Result<String> {
        self.four_letter_within(word, SOON)
    }

    /// Makes a node that stays. Its parent must exist.
    pub fn create(&self, path: &str, data: &str) -> io::Result<()> {
        Client::connect(self.address(), SOON)?.create(path, data)
    }

    /// What is in a node, or none if there is no such node. It is as new as a read that the leader would
    /// answer: the server catches up with the leader first.
    pub fn get(&self, path: &str) -> io::Result<Option<String>> {
        self.get_within(path, SOON)
    }

    /// The names of a node's children, sorted, as new as with [`get`](Self::get). An error if there is no
    /// such node.
    pub fn children(&self, path: &str) -> io::Result<Vec<String>> {
        Client::connect(self.address(), SOON)?.children(path)
    }

    /// Removes a node, whatever its version. An error if there is none, or it has children.
    pub fn delete(&self, path: &str) -> io::Result<()> {
        Client::connect(self.address(), SOON)?.delete(path)
    }

    fn get_within(&self, path: &str, limit: Duration) -> io::Result<Option<String>> {
        Client::connect(self.address(), limit)?.get(path)
    }

    fn four_letter_within(&self, word: &str, limit: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.write_all(word.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What the server says it is: `standalone`, `leader` or `follower`. None if it serves nobody.
    fn mode(&self) -> Option<String> {
        let said = self.four_letter_within("srvr", ASKED).ok()?;
        Some(said.lines().find_map(|line| line.strip_prefix("Mode: "))?.to_owned())
    }
}

impl Deref for ZooKeeper {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn without_tls() -> io::Error {
    io::Error::other("this ZooKeeper was started without .tls()")
}
