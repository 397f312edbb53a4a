//! A server reached by two connections: what was sent first can arrive last.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// Sends the first connection to one address and all later ones to another.
#[must_use]
pub fn switching_proxy(first: SocketAddr, later: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let address = if number == 0 { first } else { later };
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(address)) else { continue };
            let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            for (mut from, mut to) in [(client, to_server), (server, to_client)] {
                let _ = to.set_nodelay(true);
                std::thread::spawn(move || {
                    // Either end may close at any time; the other is closed too.
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}
