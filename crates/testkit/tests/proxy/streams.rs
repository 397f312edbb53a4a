//! The proxy as a pipe: it changes nothing, however large the data and however the connection ends.
//!
//! The server is the test's own socket, because a Redis server does not half-close.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Mode, Proxy, Trigger};

/// More than the proxy, and the sockets around it, can hold.
const MUCH: usize = 32 << 20;

struct Pipe {
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
}

fn pipe() -> Pipe {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).unwrap();
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
    }
    Pipe { proxy, client, server }
}

fn pattern() -> Vec<u8> {
    (0..MUCH).map(|place| (place % 251) as u8).collect()
}

#[test]
fn large_data_passes_unchanged_in_both_directions() {
    let Pipe { proxy, client, server } = pipe();
    let sent = pattern();
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            let sent = &sent;
            scope.spawn(move || {
                from.write_all(sent).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut received = Vec::new();
                to.read_to_end(&mut received).unwrap();
                assert!(received == *sent, "{} bytes of {}", received.len(), sent.len());
            });
        }
    });
    until(SOON, "a connection that both have finished is over", || Ok(proxy.connections() == 0))
        .unwrap();
}

#[test]
fn silent_network_applies_back_pressure_and_loses_nothing() {
    let Pipe { proxy, client, mut server } = pipe();
    proxy.set_mode(Mode::Silent);
    let sent = pattern();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (&client).write_all(&sent));
        server.set_read_timeout(Some(super::A_WHILE)).unwrap();
        let error = server.read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        assert!(!writer.is_finished(), "the proxy took in more than it can hold");
        server.set_read_timeout(Some(SOON)).unwrap();
        proxy.set_mode(Mode::Pass);
        let mut received = vec![0; MUCH];
        server.read_exact(&mut received).unwrap();
        assert!(received == sent);
        writer.join().unwrap().unwrap();
    });
}

#[test]
fn half_closed_connection_carries_the_other_direction() {
    let Pipe { proxy, mut client, mut server } = pipe();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    until(SOON, "it is over", || Ok(proxy.connections() == 0)).unwrap();
}

#[test]
fn silent_network_hides_a_disconnected_client() {
    let Pipe { proxy, mut client, mut server } = pipe();
    proxy.set_mode(Mode::DropRequests);
    client.write_all(b"last words").unwrap();
    drop(client);
    server.set_read_timeout(Some(super::A_WHILE)).unwrap();
    let error = server.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert_eq!(proxy.connections(), 1);
    server.set_read_timeout(Some(SOON)).unwrap();
    proxy.set_mode(Mode::Pass);
    let mut received = String::new();
    server.read_to_string(&mut received).unwrap();
    assert_eq!(received, "last words");
}

#[test]
fn request_after_large_data_is_cut_after_all_of_it() {
    let Pipe { proxy, client, mut server } = pipe();
    proxy.cut_on(Trigger::after("the end"));
    // Enough that the server's side is full now and then, and the proxy passes on parts.
    let sent = [&pattern()[..MUCH / 8], b"the end"].concat();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (&client).write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        server.read_exact(&mut received).unwrap();
        assert!(received == sent);
        writer.join().unwrap();
    });
    assert_eq!(proxy.fired(), 0);
    server.write_all(b"answer").unwrap();
    until(SOON, "the trigger fires", || Ok(proxy.fired() == 1)).unwrap();
    let error = (&client).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}
