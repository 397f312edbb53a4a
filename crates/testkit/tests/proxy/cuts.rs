//! Connections that end before their time: refused, closed, cut by a trigger.

use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Client, Mode, Proxy, Trigger, ports};

use super::{World, hears_nothing, is_cut};

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
fn all_can_be_closed_and_new_ones_made() {
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
fn a_connection_that_the_proxy_has_not_come_to_accept_is_closed_too() {
    let world = World::new();
    for made in 1..=200 {
        let mut client = world.connect();
        world.proxy.close_all();
        assert_eq!((world.proxy.connections(), world.proxy.accepted()), (0, made));
        is_cut(&mut client);
    }
}

#[test]
fn a_silent_connection_can_be_closed() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.set_mode(Mode::Silent);
    client.send(&["INCR", "n"]).unwrap();
    hears_nothing(&mut client);
    world.proxy.close_all();
    is_cut(&mut client);
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(world.stored("n"), None);
}

#[test]
fn a_dropped_proxy_closes_everything() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    let address = world.proxy.address();
    drop(world.proxy);
    is_cut(&mut client);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_client_is_reset_when_its_server_is_not_there() {
    let nobody = (Ipv4Addr::LOCALHOST, ports::free_port().unwrap()).into();
    let proxy = Proxy::to(nobody).unwrap();
    if let Ok(mut client) = Client::connect(proxy.address()) {
        is_cut(&mut client);
    }
    until(SOON, "it is forgotten", || Ok(proxy.accepted() == 1 && proxy.connections() == 0))
        .unwrap();
}

#[test]
fn a_server_that_crashes_and_comes_back_is_found_again() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    world.redis.kill().unwrap();
    is_cut(&mut client);
    world.redis.start_again().unwrap();
    assert_eq!(world.connect().command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn cut_before_a_request_the_server_never_sees_it() {
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
fn cut_after_a_request_it_is_carried_out_and_not_answered() {
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
fn a_trigger_waits_for_the_answer_however_long_it_takes() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.cut_on(Trigger::after("wanted"));
    world.redis.stop().unwrap();
    client.send(&["INCR", "wanted"]).unwrap();
    hears_nothing(&mut client);
    assert_eq!(world.proxy.fired(), 0);
    world.redis.resume().unwrap();
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, Some(1)));
}

#[test]
fn a_trigger_whose_request_is_never_answered_waits_for_the_next() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.cut_on(Trigger::after("wanted"));
    world.redis.stop().unwrap();
    client.send(&["INCR", "wanted"]).unwrap();
    hears_nothing(&mut client);
    world.redis.restart().unwrap();
    is_cut(&mut client);
    assert_eq!(world.proxy.fired(), 0);
    let mut client = world.connect();
    client.send(&["INCR", "wanted"]).unwrap();
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, Some(1)));
}

#[test]
fn a_pattern_is_found_although_it_comes_in_pieces() {
    let world = World::new();
    world.proxy.cut_on(Trigger::before("wanted"));
    let mut stream = TcpStream::connect(world.proxy.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    // The first piece has a whole command in it, and its being carried out shows that it was passed on.
    stream.write_all(b"INCR first\r\nINCR wan").unwrap();
    world.wait_stored("first", 1);
    stream.write_all(b"ted\r\n").unwrap();
    until(SOON, "the trigger fires", || Ok(world.proxy.fired() == 1)).unwrap();
    world.wait_connections(0);
    assert_eq!(world.stored("wanted"), None);
}

#[test]
fn what_is_held_back_meets_the_triggers_when_it_passes() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.set_mode(Mode::Silent);
    client.send(&["INCR", "wanted"]).unwrap();
    hears_nothing(&mut client);
    world.proxy.cut_on(Trigger::before("wanted"));
    assert_eq!(world.proxy.fired(), 0);
    world.proxy.set_mode(Mode::Pass);
    is_cut(&mut client);
    assert_eq!((world.proxy.fired(), world.stored("wanted")), (1, None));
}
