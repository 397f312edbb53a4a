//! A way to a server that forks: what was sent first can arrive last.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// Takes the first connection one way and all later ones another.
#[must_use]
pub fn fork_in_the_road(first: SocketAddr, later: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let way = if number == 0 { first } else { later };
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(way)) else { continue };
            let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            for (mut from, mut to) in [(client, to_server), (server, to_client)] {
                let _ = to.set_nodelay(true);
                std::thread::spawn(move || {
                    // Either end may go at any time; the other is told.
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}
