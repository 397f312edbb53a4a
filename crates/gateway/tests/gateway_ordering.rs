//! Which request waits for which: frozen senders, an upstream that responds late or never, and starts after a crash.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use common::client::{connect, reply, request};
use common::service::Behavior;
use common::{Fixture, Service, call, config, intermediary, stop, tcp_states};
use fencepost_gateway::{Address, Gateway, Stopped};
use fencepost_testkit::wait::{SOON, until};

fn token(number: &'static str) -> (&'static str, &'static str) {
    ("Fencing-Token", number)
}

/// A sender with token 33 stops in the middle of its body. Token 34 does not wait for it, and writes. The rest of 33's
/// body then comes too late.
#[test]
fn frozen_sender_delays_nobody() {
    let fixture = Fixture::new();
    let mut frozen = connect(fixture.gateway.address());
    let bytes = request("PUT", "/a", &[token("33")], b"old-old-old");
    frozen.write_all(&bytes[..bytes.len() - 4]).unwrap();
    assert_eq!(fixture.call("PUT", "/a", 34, b"new").status, 201);
    frozen.write_all(&bytes[bytes.len() - 4..]).unwrap();
    assert_eq!(reply(&mut frozen, "PUT").status, 412);
    assert_eq!(fixture.service.file("/a").as_deref(), Some("new"));
}

/// Why there is a settle time. The upstream hangs on a write of token 33 until that has timed out, and applies it later.
/// Returns the final content.
fn late_write(settle: Duration) -> String {
    let fixture = Fixture::with(|config| {
        config.upstream_timeout = Duration::from_millis(300);
        config.settle = settle;
    });
    fixture.service.behave("/a", Behavior::Hang);
    let old = fixture.call("PUT", "/a", 33, b"old");
    assert_eq!(old.status, 504, "{}", old.text());
    assert_eq!(old.problem("type"), "urn:fencepost:problem:upstream-timeout");
    let service = fixture.service.clone();
    let gateway = fixture.gateway.address();
    let newer = std::thread::spawn(move || call(gateway, "PUT", "/a", &[token("34")], b"new"));
    if settle.is_zero() {
        // Nothing blocks the newer write. It overtakes the old one, which then replaces it.
        until(SOON, "both writes are at the service", || Ok(service.hanging() == 2)).unwrap();
        service.release_one(1);
        assert_eq!(newer.join().unwrap().status, 201);
        assert_eq!(service.file("/a").as_deref(), Some("new"));
        service.release_one(0);
        until(
            SOON,
            "the old write is applied",
            || Ok(service.file("/a").as_deref() == Some("old")),
        )
        .unwrap();
        return service.file("/a").unwrap();
    }
    // The old write is applied within the settle time, long after its timeout.
    until(SOON, "the old write hangs", || Ok(service.hanging() == 1)).unwrap();
    service.release_all();
    until(SOON, "the old write is applied", || Ok(service.file("/a").is_some())).unwrap();
    assert_eq!(service.requests().len(), 1, "the newer write was not blocked");
    assert_eq!(newer.join().unwrap().status, 204);
    service.file("/a").unwrap()
}

#[test]
fn delayed_write_never_overwrites_a_newer_one() {
    assert_eq!(late_write(Duration::from_secs(5)), "new");
}

#[test]
fn control_delayed_write_wins_without_a_settle_time() {
    assert_eq!(late_write(Duration::ZERO), "old");
}

/// The service is behind nginx, which answers 504 to a write of token 33 while the service is still working on it. Then
/// token 34 writes, and 33's write is applied last. Returns the status of 34's write.
fn late_write_behind_nginx(unknown: &str) -> u16 {
    let service = Service::start();
    let nginx = intermediary::in_front_of(&service);
    let fixture = Fixture::with(|config| {
        config.upstream = format!("http://{}", nginx.address()).parse().unwrap();
        config.unknown_status = unknown.parse().unwrap();
        config.queue_timeout = Duration::from_millis(100);
        config.settle = Duration::from_mins(10);
    });
    service.behave("/a", Behavior::Hang);
    let old = fixture.call("PUT", "/a", 33, b"old");
    assert_eq!(old.status, 504, "{}", old.text());
    assert!(old.text().contains("nginx"), "nginx's response was not passed on: {}", old.text());
    service.behave_normally("/a");
    let newer = fixture.call("PUT", "/a", 34, b"new");
    service.release_all();
    until(SOON, "the old write is applied", || Ok(service.file("/a").as_deref() == Some("old")))
        .unwrap();
    newer.status
}

/// Token 34 is blocked, so its write is not acknowledged.
#[test]
fn write_that_an_intermediary_gave_up_blocks_its_name() {
    assert_eq!(late_write_behind_nginx("408,502-504,520-529"), 503);
}

/// The newer write is acknowledged, and the stale one replaces it: this is what the list prevents.
#[test]
fn control_stale_write_wins_without_unknown_status() {
    assert_eq!(late_write_behind_nginx("none"), 201);
}

#[test]
fn request_for_a_blocked_name_gets_503_with_retry_after() {
    let fixture = Fixture::with(|config| {
        config.queue_timeout = Duration::from_millis(100);
        config.settle = Duration::from_mins(1);
    });
    fixture.service.behave("/a", Behavior::Cut);
    let cut = fixture.call("PUT", "/a", 33, b"x");
    assert_eq!(
        (cut.status, cut.problem("type").as_str()),
        (502, "urn:fencepost:problem:upstream-failed")
    );
    let busy = fixture.call("GET", "/a", 33, b"");
    assert_eq!(
        (busy.status, busy.problem("type").as_str()),
        (503, "urn:fencepost:problem:lock-busy")
    );
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((55..=61).contains(&seconds), "{seconds}");
    assert_eq!(fixture.bare("GET", "/a").status, 502, "a request without a token was blocked");
    assert_eq!(fixture.call("PUT", "/b", 1, b"x").status, 201, "another name was blocked");
    assert_eq!(stop(&fixture.gateway, Duration::from_secs(5)), Stopped::OutcomeUnknown);
}

/// One request of a name is at the service at a time. The others wait in order.
#[test]
fn requests_of_one_name_are_forwarded_one_at_a_time_in_order() {
    let fixture = Fixture::new();
    fixture.service.behave("/a", Behavior::Hang);
    let mut clients: Vec<_> = (0..5).map(|_| connect(fixture.gateway.address())).collect();
    for (number, io) in clients.iter_mut().enumerate() {
        let body = number.to_string();
        io.write_all(&request("PUT", "/a", &[token("7")], body.as_bytes())).unwrap();
        until(SOON, "the request is at the service, or waits", || {
            Ok((fixture.service.hanging(), fixture.metric("waiting")) == (1, number as u64))
        })
        .unwrap();
    }
    // Other names, and reads without a token, do not wait.
    assert_eq!(fixture.call("PUT", "/b", 1, b"x").status, 201);
    assert_eq!(fixture.bare("GET", "/b").text(), "x");
    assert_eq!(fixture.service.take_requests().len(), 3);
    for (number, io) in clients.iter_mut().enumerate() {
        assert_eq!(fixture.service.hanging(), 1);
        fixture.service.release_one(number);
        assert!(matches!(reply(io, "PUT").status, 201 | 204));
        assert_eq!(fixture.service.file("/a"), Some(number.to_string()), "in order");
        let next = usize::from(number < 4);
        until(SOON, "the next request arrives", || Ok(fixture.service.hanging() == next)).unwrap();
    }
    assert_eq!(fixture.service.requests().len(), 4);
}

/// A client that disconnects does not free the name: its request is still at the service.
#[test]
fn disconnected_client_keeps_its_permit_until_its_request_ends() {
    // Without a settle time: blocking the name afterwards would hide a permit that was lost.
    let fixture = Fixture::with(|config| config.settle = Duration::ZERO);
    fixture.service.behave("/a", Behavior::Hang);
    let gateway = fixture.gateway.address();
    let mut gone = connect(gateway);
    gone.write_all(&request("PUT", "/a", &[token("33")], b"old")).unwrap();
    until(SOON, "the request hangs", || Ok(fixture.service.hanging() == 1)).unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    until(SOON, "the gateway could know that the client is gone", || {
        Ok(!tcp_states(Some(gateway.port()), Some(port)).contains(&1))
    })
    .unwrap();
    let newer = std::thread::spawn(move || call(gateway, "PUT", "/a", &[token("34")], b"new"));
    until(SOON, "the newer request waits", || Ok(fixture.metric("waiting") == 1)).unwrap();
    assert_eq!(fixture.service.requests().len(), 1, "the newer request reached the service");
    fixture.service.release_all();
    assert_eq!(newer.join().unwrap().status, 204);
    assert_eq!(fixture.service.file("/a").as_deref(), Some("new"));
}

#[test]
fn start_after_a_crash_blocks_all_names() {
    let (service, directory) = (Service::start(), tempfile::tempdir().unwrap());
    let mut config = config(&service, directory.path());
    config.settle = Duration::from_mins(1);
    config.queue_timeout = Duration::from_millis(100);
    let first = Gateway::start(&config).unwrap();
    assert!(!first.is_settling(), "fresh marks need no settle time");
    assert_eq!(call(first.address(), "PUT", "/a", &[token("33")], b"x").status, 201);
    drop(first); // not stopped

    let second = Gateway::start(&config).unwrap();
    assert!(second.is_settling());
    let held = call(second.address(), "PUT", "/b", &[token("1")], b"x");
    assert_eq!(held.status, 503, "{}", held.text());
    assert_eq!(call(second.address(), "GET", "/a", &[], b"").status, 200, "a read was blocked");
    // The second one stops normally, but the outcomes of the first one's requests are still unknown.
    assert_eq!(stop(&second, SOON), Stopped::OutcomeUnknown);
    drop(second);

    config.settle = Duration::ZERO;
    let third = Gateway::start(&config).unwrap();
    assert_eq!(stop(&third, SOON), Stopped::Clean);
    drop(third);
    config.settle = Duration::from_mins(1);
    let third = Gateway::start(&config).unwrap();
    assert!(!third.is_settling(), "the last run stopped cleanly");
    let stale = call(third.address(), "PUT", "/a", &[token("32")], b"x");
    assert_eq!(stale.status, 412, "the mark was lost");
    assert_eq!(stale.problem("mark"), "33");
}

/// An upstream that does this with the first connection it gets.
fn upstream(
    behavior: impl FnOnce(&mut TcpStream) + Send + 'static,
) -> (Address, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut io, _) = listener.accept().unwrap();
        behavior(&mut io);
        io // stays open until the test has read the response
    });
    (address, thread)
}

/// The upstream reports success before it has read the whole request, and reads no more. What it does with the part that
/// it has is unknown.
#[test]
fn success_before_the_whole_request_was_read_is_outcome_unknown() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    });
    let fixture = Fixture::with(|config| config.upstream = address);
    let reply = fixture.call("PUT", "/a", 1, &vec![0; 30_000_000]);
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert!(reply.problem("detail").contains("answered 200 before it had the whole request"));
    assert_eq!(fixture.metric("blocked_names"), 1);
    drop(thread.join().unwrap());
}

/// An intermediary refuses a request before it has all of it. What the service behind it does with its part is unknown. If
/// the service itself responds (`none`), a refusal ends the request.
#[test]
fn early_refusal_is_passed_on_and_its_outcome_is_unknown() {
    for (unknown, blocked) in [("504", 1), ("none", 0)] {
        let (address, thread) = upstream(|io| {
            let _ = io.read(&mut [0; 1000]).unwrap();
            io.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno").unwrap();
        });
        let fixture = Fixture::with(|config| {
            (config.upstream, config.unknown_status) = (address, unknown.parse().unwrap());
        });
        let reply = fixture.call("PUT", "/a", 1, &vec![0; 30_000_000]);
        assert_eq!((reply.status, reply.text().as_str()), (400, "no"));
        assert_eq!(fixture.metric("blocked_names"), blocked, "{unknown}");
        assert_eq!(fixture.metric("requests_total{outcome=\"unknown\"}"), blocked, "{unknown}");
        drop(thread.join().unwrap());
    }
}

/// An upstream that responds first and then reads the rest has the whole request, so its response counts.
#[test]
fn early_success_counts_if_the_whole_request_is_read() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        let (mut left, mut piece) = (5_999_000_u32, vec![0; 65_536]);
        while left > 0 {
            let read = io.read(&mut piece).unwrap();
            assert!(read > 0, "{left} bytes are missing");
            left = left.saturating_sub(u32::try_from(read).unwrap());
        }
    });
    let fixture = Fixture::with(|config| config.upstream = address);
    let reply = fixture.call("PUT", "/a", 1, &vec![0; 6_000_000]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(fixture.metric("blocked_names"), 0);
    drop(thread.join().unwrap());
}

/// A response that cannot be buffered is still read to its end: its request has ended, and the name is free.
#[test]
fn response_that_cannot_be_buffered_does_not_block_the_name() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
        io.write_all(&[head.as_bytes(), &vec![0; 300_000]].concat()).unwrap();
    });
    let fixture = Fixture::with(|config| (config.upstream, config.max_spool) = (address, 100_000));
    let reply = fixture.call("PUT", "/a", 1, b"small");
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert!(reply.problem("detail").contains("answered 200"), "{}", reply.text());
    assert_eq!(fixture.metric("blocked_names"), 0);
    drop(thread.join().unwrap());
}

#[test]
fn responses_that_may_be_an_intermediarys_block_the_name() {
    let fixture = Fixture::with(|config| config.settle = Duration::from_mins(10));
    // The service closes the connection after it and says so, so the next request gets a new one.
    let respond = |path: &str, status: u16| {
        let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: 5");
        fixture
            .service
            .behave(path, Behavior::Respond(format!("{head}\r\n\r\nsorry").into_bytes()));
    };
    let mut blocked = 0;
    for (status, unknown) in [
        (200, 0),
        (302, 0),
        (404, 0),
        (408, 1),
        (409, 0),
        (500, 0),
        (501, 0),
        (502, 1),
        (503, 1),
        (504, 1),
        (520, 1),
        (529, 1),
    ] {
        let path = format!("/{status}");
        respond(&path, status);
        // A read changes nothing, so nobody waits for it.
        for (method, blocks) in [("GET", 0), ("HEAD", 0), ("OPTIONS", 0), ("PUT", unknown)] {
            let reply = fixture.call(method, &path, 1, b"");
            assert_eq!(reply.status, status, "{method}");
            blocked += blocks;
            assert_eq!(fixture.metric("blocked_names"), blocked, "{method} {status}");
        }
    }
    assert_eq!(fixture.metric("requests_total{outcome=\"unknown\"}"), blocked);
    assert_eq!(stop(&fixture.gateway, SOON), Stopped::OutcomeUnknown, "a restart would not wait");
}

/// The list also applies to a response that is too large to be passed on.
#[test]
fn large_response_that_may_be_an_intermediarys_blocks_the_name() {
    let fixture = Fixture::with(|config| config.max_response = 10);
    let large = "HTTP/1.1 504 X\r\nContent-Length: 20\r\n\r\n12345678901234567890".into();
    fixture.service.behave("/a", Behavior::Respond(large));
    let reply = fixture.call("PUT", "/a", 1, b"x");
    assert_eq!(reply.status, 502);
    assert!(reply.problem("detail").ends_with("blocked for the settle time"), "{}", reply.text());
    assert_eq!(fixture.metric("blocked_names"), 1);
}

/// A read that fails is not a write that may be applied late.
#[test]
fn read_with_unknown_outcome_does_not_block_the_name() {
    let fixture = Fixture::with(|config| config.upstream_timeout = Duration::from_millis(100));
    fixture.service.behave("/cut", Behavior::Cut);
    fixture.service.behave("/late", Behavior::Hang);
    for (path, status) in [("/cut", 502), ("/late", 504)] {
        let reply = fixture.call("GET", path, 1, b"");
        assert_eq!(reply.status, status);
        assert!(!reply.problem("detail").contains("blocked"), "{}", reply.text());
    }
    assert_eq!(fixture.metric("blocked_names"), 0);
    fixture.service.release_all();
}

/// An upstream that starts its response at once, and echoes what it reads.
#[test]
fn request_is_sent_to_its_end_while_the_response_arrives() {
    let body: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    for headers in [&[token("1")][..], &[]] {
        let length = body.len();
        let (address, thread) = upstream(move |io| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            io.write_all(head.as_bytes()).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                io.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let (mut left, mut piece) = (length, vec![0; 65_536]);
            while left > 0 {
                let read = io.read(&mut piece).unwrap();
                assert!(read > 0, "{left} bytes are missing");
                io.write_all(&piece[..read]).unwrap();
                left -= read;
            }
        });
        let fixture = Fixture::with(|config| config.upstream = address);
        let reply = call(fixture.gateway.address(), "OPTIONS", "/a", headers, &body);
        assert!(reply.status == 200 && reply.body == body, "{}", reply.head);
        drop(thread.join().unwrap());
    }
}

/// An upstream that closes idle connections must not make requests fail.
#[test]
fn connection_that_was_closed_while_idle_is_not_used() {
    let fixture = Fixture::with(|config| config.threads = 1);
    let closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
    fixture.service.behave("/closes", Behavior::Respond(closing));
    let service = Some(fixture.service.address().port());
    for round in 0..20 {
        assert_eq!(fixture.call("GET", "/closes", 1, b"").status, 200, "round {round}");
        until(SOON, "the close has arrived", || Ok(!tcp_states(None, service).contains(&1)))
            .unwrap();
        let put = fixture.call("PUT", &format!("/a/{round}"), 1, b"x");
        assert_eq!(put.status, 201, "round {round}: {}", put.text());
    }
}

#[test]
fn nothing_is_forwarded_when_the_mark_cannot_be_written() {
    let fixture = Fixture::new();
    assert_eq!(fixture.call("PUT", "/a", 1, b"x").status, 201);
    // Another program damages the database.
    let db = rusqlite::Connection::open(fixture.directory.path().join("marks.db")).unwrap();
    for damage in [
        "DROP TABLE fencepost_marks; CREATE TABLE fencepost_marks (nonsense)",
        "DROP TABLE fencepost_marks",
    ] {
        db.execute_batch(damage).unwrap();
        let failed = fixture.call("PUT", "/a", 2, b"y");
        assert_eq!(
            (failed.status, failed.problem("type").as_str()),
            (503, "urn:fencepost:problem:marks-unavailable"),
            "{damage}"
        );
        assert_eq!(fixture.service.file("/a").as_deref(), Some("x"));
    }
}
