//! Real ZooKeeper servers: one alone, or an ensemble of three.
//!
//! What must hold: our process answers on the port. No two servers share a directory, and a start is over only when the
//! server that answers has reported our directory. Ports and data belong to a server until its handle is dropped: a
//! restart after a crash keeps them, and ZooKeeper has every write on disk before it replies, so nothing is lost.
//!
//! A Java process is heavy, so each gets as little memory as it needs.

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

/// The timeout of a request that is retried without a reply.
const ASKED: Duration = Duration::from_secs(1);

/// A running server, or a crashed one that can be started again. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    tls: Option<(u16, Certificates)>,
}

impl ZooKeeper {
    /// A single server, with ticks of half a second by default.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `zookeeper://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.address())
    }

    /// The address for TLS clients; [`address`](Server::address) stays plain.
    pub fn tls_address(&self) -> io::Result<SocketAddr> {
        let (port, _) = self.tls.as_ref().ok_or_else(without_tls)?;
        Ok((Ipv4Addr::LOCALHOST, *port).into())
    }

    /// The certificate that a client must trust at [`tls_address`](Self::tls_address).
    pub fn ca_path(&self) -> io::Result<PathBuf> {
        let (_, certificates) = self.tls.as_ref().ok_or_else(without_tls)?;
        Ok(certificates.ca())
    }

    /// Restarts a killed server, with its port and its data, and waits until it serves. In an ensemble that needs a majority: see
    /// [`launch`](Server::launch).
    pub fn start_again(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_until_up()
    }

    /// A crash and a restart.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// The server's reply to a four letter word, such as `mntr`, `stat`, `cons`, `dump` and `srvr`.
    pub fn four_letter(&self, word: &str) -> io::Result<String> {
        self.four_letter_within(word, SOON)
    }

    /// Creates a persistent node. Its parent must exist.
    pub fn create(&self, path: &str, data: &str) -> io::Result<()> {
        Client::connect(self.address(), SOON)?.create(path, data)
    }

    /// The data of a node; none if it does not exist. As new as a read at the leader: the server syncs with the leader first.
    pub fn get(&self, path: &str) -> io::Result<Option<String>> {
        self.get_within(path, SOON)
    }

    /// The names of a node's children, sorted, as new as with [`get`](Self::get). An error if the node does not exist.
    pub fn children(&self, path: &str) -> io::Result<Vec<String>> {
        Client::connect(self.address(), SOON)?.children(path)
    }

    /// Removes a node, whatever its version. An error if it does not exist or has children.
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

    /// The server's role: `standalone`, `leader` or `follower`. None if it does not serve.
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
