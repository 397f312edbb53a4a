//! The proxy, in front of a real Redis server.
//!
//! "Nothing passes" can only be observed for a while. The wait is short: it can miss a fault, but never reports a false one.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cuts;
mod streams;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Client, Mode, Proxy, Redis};

const A_WHILE: Duration = Duration::from_millis(50);

struct World {
    redis: Redis,
    proxy: Proxy,
}

impl World {
    fn new() -> Self {
        let redis = Redis::builder().start().unwrap();
        let proxy = Proxy::to(redis.address()).unwrap();
        Self { redis, proxy }
    }

    fn connect(&self) -> Client {
        Client::connect(self.proxy.address()).unwrap()
    }

    /// A key's value on the server.
    fn stored(&self, key: &str) -> Option<i64> {
        let reply = self.redis.command(&["GET", key]).unwrap();
        (!reply.is_nil()).then(|| reply.int().unwrap())
    }

    fn wait_stored(&self, key: &str, value: i64) {
        until(SOON, "the request is carried out", || Ok(self.stored(key) == Some(value))).unwrap();
    }

    fn wait_connections(&self, count: usize) {
        until(SOON, "connections come and go", || Ok(self.proxy.connections() == count)).unwrap();
    }
}

fn receives_nothing(client: &mut Client) {
    client.set_timeout(A_WHILE).unwrap();
    let error = client.receive().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_timeout(SOON).unwrap();
}

/// Reads until the connection ends, by a reset or the end of the stream.
fn is_cut(client: &mut Client) {
    let error = client.receive().unwrap_err();
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe];
    assert!(kinds.contains(&error.kind()), "{error}");
}

#[test]
fn all_bytes_pass() {
    let world = World::new();
    let (mut one, mut two) = (world.connect(), world.connect());
    assert_eq!(one.command(&["INCR", "n"]).unwrap().int().unwrap(), 1);
    assert_eq!(two.command(&["INCR", "n"]).unwrap().int().unwrap(), 2);
    assert_eq!((world.proxy.connections(), world.proxy.accepted()), (2, 2));
    drop(one);
    world.wait_connections(1);
    assert_eq!(two.command(&["INCR", "n"]).unwrap().int().unwrap(), 3);
    assert_eq!(world.proxy.accepted(), 2);
}

#[test]
fn silent_network_delivers_everything_later() {
    let world = World::new();
    let mut old = world.connect();
    old.command(&["PING"]).unwrap();
    world.proxy.set_mode(Mode::Silent);
    let mut new = world.connect();
    old.send(&["INCR", "n"]).unwrap();
    new.send(&["INCR", "n"]).unwrap();
    receives_nothing(&mut old);
    receives_nothing(&mut new);
    assert_eq!(world.stored("n"), None);
    world.proxy.set_mode(Mode::Pass);
    let mut received =
        [old.receive().unwrap().int().unwrap(), new.receive().unwrap().int().unwrap()];
    received.sort_unstable();
    assert_eq!(received, [1, 2]);
}

#[test]
fn silent_network_hides_a_crash() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    world.proxy.set_mode(Mode::Silent);
    world.redis.kill().unwrap();
    let mut new = world.connect();
    receives_nothing(&mut client);
    receives_nothing(&mut new);
    world.proxy.set_mode(Mode::Pass);
    is_cut(&mut client);
    is_cut(&mut new);
}

#[test]
fn replies_can_be_held_back_while_requests_pass() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["PING"]).unwrap();
    world.proxy.set_mode(Mode::DropAnswers);
    client.send(&["INCR", "n"]).unwrap();
    world.wait_stored("n", 1);
    receives_nothing(&mut client);
    let mut new = world.connect();
    new.send(&["INCR", "n"]).unwrap();
    world.wait_stored("n", 2);
    receives_nothing(&mut new);
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(client.receive().unwrap().int().unwrap(), 1);
    assert_eq!(new.receive().unwrap().int().unwrap(), 2);
}

#[test]
fn requests_can_be_held_back_while_replies_pass() {
    let world = World::new();
    let mut client = world.connect();
    client.command(&["SUBSCRIBE", "news"]).unwrap();
    world.proxy.set_mode(Mode::DropRequests);
    client.send(&["PING"]).unwrap();
    world.redis.command(&["PUBLISH", "news", "late"]).unwrap();
    let received = client.receive().unwrap();
    assert_eq!(
        received.items().unwrap()[2].text().unwrap(),
        "late",
        "it was not the PING's answer"
    );
    receives_nothing(&mut client);
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(client.receive().unwrap().items().unwrap()[0].text().unwrap(), "pong");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long a delay took, at least, is what is tested")]
fn a_delay_counts_in_both_directions_and_keeps_the_order() {
    let world = World::new();
    let mut client = world.connect();
    let delay = Duration::from_millis(30);
    world.proxy.set_mode(Mode::Delay(delay));
    let sent = Instant::now();
    for _ in 0..10 {
        client.send(&["INCR", "n"]).unwrap();
    }
    for expected in 1..=10 {
        assert_eq!(client.receive().unwrap().int().unwrap(), expected);
    }
    assert!(sent.elapsed() >= 2 * delay, "{:?}", sent.elapsed());
}

#[test]
fn delay_ends_with_its_mode() {
    let world = World::new();
    let mut client = world.connect();
    world.proxy.set_mode(Mode::Delay(Duration::MAX));
    client.send(&["INCR", "n"]).unwrap();
    receives_nothing(&mut client);
    world.proxy.set_mode(Mode::Delay(Duration::from_hours(1)));
    receives_nothing(&mut client);
    world.proxy.set_mode(Mode::Pass);
    assert_eq!(client.receive().unwrap().int().unwrap(), 1);
}
