//! The network between the members of a cluster, which can be cut while clients pass.
//!
//! Members must agree on each other's addresses, so a proxy in front of a member cannot tell the others apart: it can cut
//! what comes to a member, not what comes from it. So each member has to leave through its own door, a SOCKS5 server (RFC
//! 1928, as much of it as they use). The door identifies the member that connects, and the requested port the member that
//! it connects to.
//!
//! ```text
//! member 0 --> door 0 --+--> member 1
//!                       +--> member 2
//! ```
//!
//! What must hold:
//!
//! - When a member was [cut off](Peers::cut_off), its connections with the others are closed, in both directions, and no new
//!   one is made until it is [healed](Peers::heal).
//! - A door leads only to members, on loopback, whatever address is requested.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::wait::SOON;

const VERSION: u8 = 5;
const DONE: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const REFUSED: u8 = 5;

/// The doors of all members. Dropping it closes everything.
#[derive(Debug)]
pub(crate) struct Peers {
    doors: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The port on which each member listens for the others.
    members: BTreeMap<u16, usize>,
    state: Mutex<State>,
    /// Notified when a connection was closed.
    closed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cut_off: BTreeSet<usize>,
    open: BTreeMap<usize, Connection>,
    /// How many connections there were.
    count: usize,
    ended: bool,
}

/// One connection: its door and its target.
#[derive(Debug)]
struct Connection {
    from: usize,
    to: usize,
    sockets: [TcpStream; 2],
}

impl Peers {
    /// Opens a door for each member; `ports` are the peer ports.
    pub(crate) fn new<const N: usize>(ports: &[[u16; N]]) -> io::Result<Self> {
        let listens = |(member, ports): (usize, &[u16; N])| ports.map(|port| (port, member));
        let members = ports.iter().enumerate().flat_map(listens).collect();
        let shared = Arc::new(Shared { members, ..Shared::default() });
        let mut peers = Self { doors: Vec::new(), shared };
        for member in 0..ports.len() {
            let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            peers.doors.push(door.local_addr()?);
            let shared = Arc::clone(&peers.shared);
            let name = format!("testkit-door-{member}");
            thread::Builder::new().name(name).spawn(move || accept(&door, member, &shared))?;
        }
        Ok(peers)
    }

    /// The SOCKS5 server through which this member must reach the others.
    pub(crate) fn door(&self, member: usize) -> SocketAddr {
        self.doors[member]
    }

    pub(crate) fn is_cut_off(&self, member: usize) -> bool {
        self.shared.lock().cut_off.contains(&member)
    }

    /// Closes the connections of this member with the others, and refuses new ones.
    pub(crate) fn cut_off(&self, member: usize) {
        let mut state = self.shared.lock();
        state.cut_off.insert(member);
        let touched = |state: &State| {
            state.open.values().filter(|one| one.touches(member)).map(Connection::close).count()
        };
        while touched(&state) > 0 {
            self.shared.closed.wait(&mut state);
        }
    }

    /// Lets the member and the others connect again.
    pub(crate) fn heal(&self, member: usize) {
        self.shared.lock().cut_off.remove(&member);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        state.open.values().for_each(Connection::close);
        drop(state);
        for door in &self.doors {
            // Wakes the thread behind the door, so that it ends.
            let _ = TcpStream::connect(door);
        }
    }
}

impl Connection {
    fn touches(&self, member: usize) -> bool {
        self.from != self.to && (self.from == member || self.to == member)
    }

    fn close(&self) {
        for socket in &self.sockets {
            // An error means that it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn bars(&self, from: usize, to: usize) -> bool {
        let cut = |member| self.cut_off.contains(&member);
        self.ended || (from != to && (cut(from) || cut(to)))
    }
}

/// Serves connections through a member's door, until the end.
fn accept(listener: &TcpListener, member: usize, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.lock().ended {
            return;
        }
        let Ok(client) = client else { continue };
        let shared = Arc::clone(shared);
        // An error ends the connection, and the member retries.
        let serve = move || drop(serve(client, member, &shared));
        let _ = thread::Builder::new().name(format!("testkit-peer-{member}")).spawn(serve);
    }
}

fn serve(mut client: TcpStream, from: usize, shared: &Shared) -> io::Result<()> {
    let Some(port) = wanted_port(&mut client)? else {
        return answer(&mut client, NOT_ALLOWED);
    };
    let Some(to) = shared.members.get(&port).copied() else {
        return answer(&mut client, NOT_ALLOWED);
    };
    if shared.lock().bars(from, to) {
        return answer(&mut client, NOT_ALLOWED);
    }
    let Ok(server) = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), SOON) else {
        return answer(&mut client, REFUSED);
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let connection = Connection { from, to, sockets: [client.try_clone()?, server.try_clone()?] };
    let number = {
        let mut state = shared.lock();
        if state.bars(from, to) {
            drop(state);
            return answer(&mut client, NOT_ALLOWED);
        }
        state.count += 1;
        let number = state.count;
        state.open.insert(number, connection);
        number
    };
    thread::scope(|scope| {
        if answer(&mut client, DONE).is_ok() {
            scope.spawn(|| pass(&client, &server));
            pass(&server, &client);
        }
    });
    shared.lock().open.remove(&number);
    shared.closed.notify_all();
    Ok(())
}

/// Copies bytes until one end has closed; then both are closed. Members never half-close.
fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    // If this fails, both ends are done.
    let _ = io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Does the handshake, and reads the requested port. None if something else is requested.
fn wanted_port(client: &mut TcpStream) -> io::Result<Option<u16>> {
    let [version, methods] = take(client)?;
    if version != VERSION {
        return Err(io::Error::other("a member does not speak SOCKS5"));
    }
    for _ in 0..methods {
        let [_method] = take(client)?;
    }
    // No password.
    client.write_all(&[VERSION, 0])?;
    let [_version, command, _reserved, kind] = take(client)?;
    let length = match kind {
        1 => 4,
        4 => 16,
        _ => take::<1>(client)?[0].into(),
    };
    for _ in 0..length {
        let [_address] = take(client)?;
    }
    let port = u16::from_be_bytes(take(client)?);
    Ok((command == 1).then_some(port))
}

fn answer(client: &mut TcpStream, code: u8) -> io::Result<()> {
    client.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])
}

fn take<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests a port from a door, as a member would. Returns the connection and the door's answer.
    fn ask(peers: &Peers, from: usize, port: u16) -> (TcpStream, u8) {
        let mut stream = TcpStream::connect(peers.door(from)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(&[VERSION, 1, 0]).unwrap();
        assert_eq!(take(&mut stream).unwrap(), [VERSION, 0]);
        // The address is ignored.
        stream.write_all(&[VERSION, 1, 0, 1, 192, 0, 2, 1]).unwrap();
        stream.write_all(&port.to_be_bytes()).unwrap();
        let [_, code, ..] = take::<10>(&mut stream).unwrap();
        (stream, code)
    }

    #[test]
    fn member_is_cut_off_in_both_directions_and_healed() {
        let listeners = [0; 3].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let ports = listeners.each_ref().map(|one| [one.local_addr().unwrap().port()]);
        let peers = Peers::new(&ports).unwrap();
        let connect = |from: usize, to: usize| {
            let (mut near, code) = ask(&peers, from, ports[to][0]);
            assert_eq!(code, DONE);
            let (mut far, _) = listeners[to].accept().unwrap();
            near.write_all(b"hello").unwrap();
            assert_eq!(&take::<5>(&mut far).unwrap(), b"hello");
            (near, far)
        };
        let (mut out, _out) = connect(0, 1);
        let (_back, mut back) = connect(2, 0);
        let (mut apart, mut far) = connect(1, 2);

        peers.cut_off(0);
        assert_eq!(out.read(&mut [0]).unwrap(), 0, "its connections are closed");
        assert_eq!(back.read(&mut [0]).unwrap(), 0, "connections to it are closed");
        assert_eq!(ask(&peers, 0, ports[1][0]).1, NOT_ALLOWED);
        assert_eq!(ask(&peers, 1, ports[0][0]).1, NOT_ALLOWED);
        far.write_all(b"still").unwrap();
        assert_eq!(&take::<5>(&mut apart).unwrap(), b"still", "the others are not affected");

        peers.heal(0);
        connect(0, 1);
        connect(1, 0);
        assert_eq!(ask(&peers, 0, 1).1, NOT_ALLOWED, "a door leads only to members");
        drop(peers);
        assert_eq!(apart.read(&mut [0]).unwrap(), 0);
    }
}
