//! Connections that end early: refused, closed, cut by a trigger.

use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Client, Mode, Proxy, Trigger, ports};

use super::{World, is_cut, receives_nothing};

#[test]
fn refused_connections_are_reset_until_the_network_is_back() {
    let world = World::new();
    let mut old = world.connect();
    old.command(&["PING"]).unwrap();
    world.proxy.set_mode(Mode::Refuse);
    assert_eq!(world.proxy.connections(), 0);
    is_cut(&mut old);
    // The kernel accepts before the proxy can refuse, so the reset may come a little later.
    if let Ok(mut new) = Client::connect(world.proxy.address()) {
        let error = new.receive().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    until(SOON, "the refused one is counted", || Ok(world.proxy.accepted() == 2)).unwrap();
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(world.connect().command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn all_connections_can_be_closed_and_new_ones_opened() {
    let world = World::new();
    let mut clients: Vec<_> = (0..5).map(|_| world.connect()).collect();
    for client in &mut clients {
        client.command(&["PING"]).unwrap();
    }
    world.proxy.close_all();
    assert_eq!((world.proxy.connections(), world.proxy.accepted()), (0, 5));
    clients.iter_mut().for_each(is_cut);
    assert_eq!(world.connect().command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn connection_that_is_not_accepted_yet_is_closed_too() {
    let world = World::new();
    for made in 1..=200 {
        let mut client = world.connect();
        world.proxy.close_all();
        assert_eq!((world.proxy.connections(), world.proxy.accepted()), (0, made));
        is_cut(&mut client);
    }
}

#[test]
fn silent_connection_can_be_closed() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.set_mode(Mode::Silent);
    client.send(&["INCR", "n"]).unwrap();
    receives_nothing(&mut client);
    world.proxy.close_all();
    is_cut(&mut client);
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(world.stored("n"), None);
}

#[test]
fn dropped_proxy_closes_everything() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    let address = world.proxy.address();
    drop(world.proxy);
    is_cut(&mut client);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn client_is_reset_when_its_server_is_down() {
    let nobody = (Ipv4Addr::LOCALHOST, ports::free_port().unwrap()).into();
    let proxy = Proxy::to(nobody).unwrap();
    if let Ok(mut client) = Client::connect(proxy.address()) {
        is_cut(&mut client);
    }
    until(SOON, "it is forgotten", || Ok(proxy.accepted() == 1 && proxy.connections() == 0))
        .unwrap();
}

#[test]
fn restarted_server_is_reached_again() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    world.redis.kill().unwrap();
    is_cut(&mut client);
    world.redis.start_again().unwrap();
    assert_eq!(world.connect().command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn cut_before_a_request_hides_it_from_the_server() {
    let world = World::new();
    let mut client = world.connect();
    assert_eq!(client.command(&["INCR", "other"]).unwrap().int().unwrap(), 1);
    world.proxy.cut_on(Trigger::before("wanted"));
    assert_eq!(client.command(&["INCR", "other"]).unwrap().int().unwrap(), 2);
    assert_eq!(world.proxy.fired(), 0);
    client.send(&["INCR", "wanted"]).unwrap();
    is_cut(&mut client);
    assert_eq!(world.proxy.fired(), 1);
    world.wait_connections(0);
    assert_eq!(world.stored("wanted"), None);
    // It fires once.
    assert_eq!(world.connect().command(&["INCR", "wanted"]).unwrap().int().unwrap(), 1);
    assert_eq!(world.proxy.fired(), 1);
}

#[test]
fn cut_after_a_request_loses_only_the_reply() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.cut_on(Trigger::after("wanted"));
    assert_eq!(client.command(&["INCR", "other"]).unwrap().int().unwrap(), 1);
    client.send(&["INCR", "wanted"]).unwrap();
    is_cut(&mut client);
    assert_eq!(world.proxy.fired(), 1);
    assert_eq!(world.stored("wanted"), Some(1), "carried out before the cut");
    assert_eq!(world.connect().command(&["INCR", "wanted"]).unwrap().int().unwrap(), 2);
}

#[test]
fn trigger_waits_for_a_late_reply() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.cut_on(Trigger::after("wanted"));
    world.redis.stop().unwrap();
    client.send(&["INCR", "wanted"]).unwrap();
    receives_nothing(&mut client);
    assert_eq!(world.proxy.fired(), 0);
    world.redis.resume().unwrap();
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, Some(1)));
}

#[test]
fn trigger_without_a_reply_waits_for_the_next_request() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.cut_on(Trigger::after("wanted"));
    world.redis.stop().unwrap();
    client.send(&["INCR", "wanted"]).unwrap();
    receives_nothing(&mut client);
    world.redis.restart().unwrap();
    is_cut(&mut client);
    assert_eq!(world.proxy.fired(), 0);
    let mut client = world.connect();
    client.send(&["INCR", "wanted"]).unwrap();
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, Some(1)));
}

#[test]
fn pattern_is_found_across_pieces() {
    let world = World::new();
    world.proxy.cut_on(Trigger::before("wanted"));
    let mut stream = TcpStream::connect(world.proxy.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    // The first piece has a whole command. The server applied it, so it was passed on.
    stream.write_all(b"INCR first\r\nINCR wan").unwrap();
    world.wait_stored("first", 1);
    stream.write_all(b"ted\r\n").unwrap();
    until(SOON, "the trigger fires", || Ok(world.proxy.fired() == 1)).unwrap();
    world.wait_connections(0);
    assert_eq!(world.stored("wanted"), None);
}

#[test]
fn delayed_bytes_meet_the_triggers_when_they_pass() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.set_mode(Mode::Silent);
    client.send(&["INCR", "wanted"]).unwrap();
    receives_nothing(&mut client);
    world.proxy.cut_on(Trigger::before("wanted"));
    assert_eq!(world.proxy.fired(), 0);
    world.proxy.set_mode(Mode::Pass);
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, None));
}
