//! A real Redis server: start, crash, freeze and restart.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod options;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Persistence, Redis, Reply};

fn get(redis: &Redis, key: &str) -> Reply {
    redis.command(&["GET", key]).unwrap()
}

#[test]
fn server_answers() {
    let redis = Redis::builder().start().unwrap();
    assert_eq!(redis.command(&["PING"]).unwrap().text().unwrap(), "PONG");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert!(get(&redis, "nothing").is_nil());
    assert_eq!(redis.command(&["INCR", "n"]).unwrap().int().unwrap(), 1);
    let refused = redis.command(&["NOSUCHCOMMAND"]).unwrap();
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    redis.command(&["DEBUG", "SLEEP", "0"]).unwrap().text().unwrap();
}

#[test]
fn servers_run_side_by_side() {
    let start = || Redis::builder().start().unwrap();
    let servers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, redis) in servers.iter().enumerate() {
        redis.command(&["SET", "number", &number.to_string()]).unwrap();
    }
    for (number, redis) in servers.iter().enumerate() {
        assert_eq!(get(redis, "number").text().unwrap(), number.to_string());
    }
}

#[test]
fn persisted_data_survives_a_crash() {
    for persistence in [Persistence::Always, Persistence::EverySec] {
        let redis = Redis::builder().persist(persistence).start().unwrap();
        let (port, pid) = (redis.port(), redis.pid());
        redis.command(&["SET", "key", "value"]).unwrap();
        redis.restart().unwrap();
        assert_eq!(get(&redis, "key").text().unwrap(), "value", "{persistence:?}");
        assert_eq!(redis.port(), port);
        assert_ne!(redis.pid(), pid);
    }
}

#[test]
fn unpersisted_data_is_lost_in_a_crash() {
    let redis = Redis::builder().persist(Persistence::None).start().unwrap();
    redis.command(&["SET", "key", "value"]).unwrap();
    redis.restart().unwrap();
    assert!(get(&redis, "key").is_nil());
}

#[test]
fn killed_server_is_gone_until_it_is_started_again() {
    let redis = Redis::builder().start().unwrap();
    assert!(redis.start_again().unwrap_err().to_string().contains("still runs"));
    redis.kill().unwrap();
    let error = redis.command(&["PING"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(redis.stop().unwrap_err().kind(), ErrorKind::NotFound);
    redis.kill().expect("killing twice is harmless");
    redis.start_again().unwrap();
    assert_eq!(redis.command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn frozen_server_answers_when_it_is_resumed() {
    let redis = Redis::builder().start().unwrap();
    let mut client = redis.client().unwrap();
    redis.stop().unwrap();
    client.send(&["INCR", "n"]).unwrap();
    client.set_timeout(Duration::from_millis(50)).unwrap();
    let error = client.receive().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    redis.resume().unwrap();
    client.set_timeout(SOON).unwrap();
    assert_eq!(client.receive().unwrap().int().unwrap(), 1);
}

#[test]
fn frozen_server_can_crash() {
    let redis = Redis::builder().persist(Persistence::Always).start().unwrap();
    redis.command(&["SET", "key", "value"]).unwrap();
    redis.stop().unwrap();
    redis.restart().unwrap();
    assert_eq!(get(&redis, "key").text().unwrap(), "value");
    redis.stop().unwrap();
    let address = redis.address();
    drop(redis);
    TcpListener::bind(address).expect("a frozen server is gone when it is dropped");
}

#[test]
fn server_that_does_not_start_says_why() {
    let error = Redis::builder().config("no-such-option", "1").start().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("wanted a redis-server on port"), "{text}");
    assert!(text.contains("Bad directive"), "the end of its log: {text}");
}

#[test]
fn server_with_a_taken_port_says_so() {
    let redis = Redis::builder().start().unwrap();
    redis.kill().unwrap();
    let thief = TcpListener::bind(redis.address()).unwrap();
    let error = redis.start_again().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    drop(thief);
    redis.start_again().unwrap();
}

#[test]
fn replica_follows_its_master_through_a_crash() {
    let master = Redis::builder()
        .password("for the replica too")
        .persist(Persistence::Always)
        .start()
        .unwrap();
    master.command(&["SET", "before", "1"]).unwrap();
    let replica = Redis::builder().replica_of(&master).start().unwrap();
    assert_eq!(get(&replica, "before").text().unwrap(), "1");
    // WAIT answers for what its own connection has written.
    let mut client = master.client().unwrap();
    client.command(&["SET", "after", "2"]).unwrap();
    assert_eq!(client.command(&["WAIT", "1", "9000"]).unwrap().int().unwrap(), 1);
    assert_eq!(get(&replica, "after").text().unwrap(), "2");
    let refused = replica.command(&["SET", "x", "y"]).unwrap();
    assert!(matches!(&refused, Reply::Error(why) if why.starts_with("READONLY")), "{refused:?}");

    replica.kill().unwrap();
    master.command(&["SET", "meanwhile", "3"]).unwrap();
    replica.start_again().unwrap();
    replica.wait_in_step().unwrap();
    until(SOON, "the replica has caught up", || {
        Ok(!replica.command(&["GET", "meanwhile"])?.is_nil())
    })
    .unwrap();
}
