//! Loopback ports for servers.
//!
//! A server cannot choose a free port and report it, so a port is chosen, checked and passed to it. Another process may
//! take it meanwhile. So [`on_free_port`] retries on another port when the server reports that its port is taken.
//!
//! Ports are taken from below the kernel's range for outgoing connections (32768 and up). Port 0 would give one from that
//! range, and a test that crashes and restarts a server needs its port back: a client that retries meanwhile could be
//! assigned that very port, and even connect to itself.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;
/// How many ports to try. Two test processes rarely collide once.
const TRIES: usize = 5;

/// How many ports this process has tried.
static LOOKED: AtomicU32 = AtomicU32::new(0);

/// A free loopback port. Calls of one process return different ports, until all have been returned.
pub fn free_port() -> io::Result<u16> {
    for _ in 0..COUNT {
        let port = candidate(LOOKED.fetch_add(1, Ordering::Relaxed));
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    let message = format!("wanted a free loopback port from {FIRST} on, {COUNT} are taken");
    Err(io::Error::new(io::ErrorKind::AddrInUse, message))
}

/// Runs `start` with a free port, and again with another while it fails with
/// [`AddrInUse`](io::ErrorKind::AddrInUse).
pub fn on_free_port<T>(mut start: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match start(free_port()?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < TRIES => tries += 1,
            result => return result,
        }
    }
}

/// The `n`th port that this process tries. Processes start far apart, so that they rarely collide.
fn candidate(n: u32) -> u16 {
    let start = std::process::id().wrapping_mul(7919);
    (FIRST + start.wrapping_add(n) % COUNT) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_unused_and_differ() {
        let first = free_port().unwrap();
        let second = free_port().unwrap();
        assert_ne!(first, second);
        TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
    }

    #[test]
    fn taken_port_is_replaced_by_another() {
        let mut tried = Vec::new();
        let port = on_free_port(|port| {
            tried.push(port);
            if tried.len() < 3 { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(port) }
        });
        assert_eq!(port.unwrap(), tried[2]);
        assert_ne!(tried[0], tried[2]);
    }

    #[test]
    fn other_failures_are_not_retried() {
        let mut tries = 0;
        let result: io::Result<()> = on_free_port(|_| {
            tries += 1;
            Err(io::Error::other("bad configuration"))
        });
        assert_eq!(result.unwrap_err().to_string(), "bad configuration");
        assert_eq!(tries, 1);
    }
}
