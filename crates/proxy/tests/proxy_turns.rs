//! Who waits for whom: freezing senders, an upstream that answers late or not at all, and starts after a crash.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use common::client::{connect, reply, request};
use common::service::Manner;
use common::{Scene, Service, call, config, intermediary, stop, tcp_states};
use fencepost_proxy::{Address, Proxy, Stopped};
use fencepost_testkit::wait::{SOON, until};

fn token(number: &'static str) -> (&'static str, &'static str) {
    ("Fencing-Token", number)
}

/// A sender with token 33 stops in the middle of its body. Token 34 does not wait for it, and once 34 has written, the
/// rest of 33's body comes too late.
#[test]
fn a_sender_that_freezes_blocks_nobody() {
    let scene = Scene::new();
    let mut frozen = connect(scene.proxy.address());
    let bytes = request("PUT", "/a", &[token("33")], b"old-old-old");
    frozen.write_all(&bytes[..bytes.len() - 4]).unwrap();
    assert_eq!(scene.call("PUT", "/a", 34, b"new").status, 201);
    frozen.write_all(&bytes[bytes.len() - 4..]).unwrap();
    assert_eq!(reply(&mut frozen, "PUT").status, 412);
    assert_eq!(scene.service.file("/a").as_deref(), Some("new"));
}

/// The story of the settle time. The upstream hangs on a write of token 33 until it has timed out, and applies it
/// later. Returns what is there in the end.
fn late_write(settle: Duration) -> String {
    let scene = Scene::with(|config| {
        config.upstream_timeout = Duration::from_millis(300);
        config.settle = settle;
    });
    scene.service.behave("/a", Manner::Hang);
    let old = scene.call("PUT", "/a", 33, b"old");
    assert_eq!(old.status, 504, "{}", old.text());
    assert_eq!(old.problem("type"), "urn:fencepost:problem:upstream-timeout");
    let service = scene.service.clone();
    let proxy = scene.proxy.address();
    let newer = std::thread::spawn(move || call(proxy, "PUT", "/a", &[token("34")], b"new"));
    if settle.is_zero() {
        // Nothing holds the newer one back: it overtakes the old one, which is applied over it.
        until(SOON, "both are at the service", || Ok(service.hanging() == 2)).unwrap();
        service.let_one_go(1);
        assert_eq!(newer.join().unwrap().status, 201);
        assert_eq!(service.file("/a").as_deref(), Some("new"));
        service.let_one_go(0);
        until(SOON, "the old one is applied", || Ok(service.file("/a").as_deref() == Some("old")))
            .unwrap();
        return service.file("/a").unwrap();
    }
    // The old one is applied within the settle time, long after its time-out.
    until(SOON, "the old one hangs", || Ok(service.hanging() == 1)).unwrap();
    service.let_go();
    until(SOON, "the old one is applied", || Ok(service.file("/a").is_some())).unwrap();
    assert_eq!(service.seen().len(), 1, "the newer one is held back");
    assert_eq!(newer.join().unwrap().status, 204);
    service.file("/a").unwrap()
}

#[test]
fn a_write_that_is_applied_late_never_overwrites_the_newer_one() {
    assert_eq!(late_write(Duration::from_secs(5)), "new");
}

#[test]
fn control_without_a_settle_time_it_does() {
    assert_eq!(late_write(Duration::ZERO), "old");
}

/// The service is behind nginx, which answers 504 to a write of token 33 that the service still works on. Token 34 writes
/// then, and 33's write is applied last. Returns the status of 34's write.
fn late_write_behind_nginx(unknown: &str) -> u16 {
    let service = Service::start();
    let nginx = intermediary::in_front_of(&service);
    let scene = Scene::with(|config| {
        config.upstream = format!("http://{}", nginx.address()).parse().unwrap();
        config.unknown_status = unknown.parse().unwrap();
        config.queue_timeout = Duration::from_millis(100);
        config.settle = Duration::from_mins(10);
    });
    service.behave("/a", Manner::Hang);
    let old = scene.call("PUT", "/a", 33, b"old");
    assert_eq!(old.status, 504, "{}", old.text());
    assert!(old.text().contains("nginx"), "the response is passed on: {}", old.text());
    service.behave_well("/a");
    let newer = scene.call("PUT", "/a", 34, b"new");
    service.let_go();
    until(SOON, "the old one is applied", || Ok(service.file("/a").as_deref() == Some("old")))
        .unwrap();
    newer.status
}

/// Token 34 is held back, and not told that it has written.
#[test]
fn intermediary_that_gives_up_a_request_does_not_end_it() {
    assert_eq!(late_write_behind_nginx("408,502-504,520-529"), 503);
}

/// The newer write was acknowledged, and the stale one has replaced it: this is what the list prevents.
#[test]
fn control_without_unknown_status_the_stale_write_wins() {
    assert_eq!(late_write_behind_nginx("none"), 201);
}

#[test]
fn who_waits_too_long_for_a_name_that_is_held_back_is_told_when_to_come_again() {
    let scene = Scene::with(|config| {
        config.queue_timeout = Duration::from_millis(100);
        config.settle = Duration::from_mins(1);
    });
    scene.service.behave("/a", Manner::Cut);
    let cut = scene.call("PUT", "/a", 33, b"x");
    assert_eq!(
        (cut.status, cut.problem("type").as_str()),
        (502, "urn:fencepost:problem:upstream-failed")
    );
    let busy = scene.call("GET", "/a", 33, b"");
    assert_eq!(
        (busy.status, busy.problem("type").as_str()),
        (503, "urn:fencepost:problem:lock-busy")
    );
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((55..=61).contains(&seconds), "{seconds}");
    assert_eq!(scene.bare("GET", "/a").status, 502, "who brings no token is not held back");
    assert_eq!(scene.call("PUT", "/b", 1, b"x").status, 201, "other names are free");
    assert_eq!(stop(&scene.proxy, Duration::from_secs(5)), Stopped::InDoubt);
}

/// One request of a name at a time; the others wait in order.
#[test]
fn requests_of_one_name_take_turns() {
    let scene = Scene::new();
    scene.service.behave("/a", Manner::Hang);
    let mut clients: Vec<_> = (0..5).map(|_| connect(scene.proxy.address())).collect();
    for (number, io) in clients.iter_mut().enumerate() {
        let body = number.to_string();
        io.write_all(&request("PUT", "/a", &[token("7")], body.as_bytes())).unwrap();
        until(SOON, "it is at the service, or in line", || {
            Ok((scene.service.hanging(), scene.metric("waiting")) == (1, number as u64))
        })
        .unwrap();
    }
    // Other names, and reads without a token, do not wait.
    assert_eq!(scene.call("PUT", "/b", 1, b"x").status, 201);
    assert_eq!(scene.bare("GET", "/b").text(), "x");
    assert_eq!(scene.service.take_seen().len(), 3);
    for (number, io) in clients.iter_mut().enumerate() {
        assert_eq!(scene.service.hanging(), 1);
        scene.service.let_one_go(number);
        assert!(matches!(reply(io, "PUT").status, 201 | 204));
        assert_eq!(scene.service.file("/a"), Some(number.to_string()), "in order");
        let next = usize::from(number < 4);
        until(SOON, "the next is there", || Ok(scene.service.hanging() == next)).unwrap();
    }
    assert_eq!(scene.service.seen().len(), 4);
}

/// A client that goes away does not free the name: its request is still at the service.
#[test]
fn a_client_that_vanishes_keeps_its_turn_until_its_request_ends() {
    // No settle time: that it is held back afterwards would hide that its turn was lost.
    let scene = Scene::with(|config| config.settle = Duration::ZERO);
    scene.service.behave("/a", Manner::Hang);
    let proxy = scene.proxy.address();
    let mut gone = connect(proxy);
    gone.write_all(&request("PUT", "/a", &[token("33")], b"old")).unwrap();
    until(SOON, "it hangs", || Ok(scene.service.hanging() == 1)).unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    until(SOON, "the proxy could know that it is gone", || {
        Ok(!tcp_states(Some(proxy.port()), Some(port)).contains(&1))
    })
    .unwrap();
    let newer = std::thread::spawn(move || call(proxy, "PUT", "/a", &[token("34")], b"new"));
    until(SOON, "the newer one waits", || Ok(scene.metric("waiting") == 1)).unwrap();
    assert_eq!(scene.service.seen().len(), 1, "the newer one is not at the service");
    scene.service.let_go();
    assert_eq!(newer.join().unwrap().status, 204);
    assert_eq!(scene.service.file("/a").as_deref(), Some("new"));
}

#[test]
fn a_start_after_a_crash_holds_all_names_back() {
    let (service, directory) = (Service::start(), tempfile::tempdir().unwrap());
    let mut config = config(&service, directory.path());
    config.settle = Duration::from_mins(1);
    config.queue_timeout = Duration::from_millis(100);
    let first = Proxy::start(&config).unwrap();
    assert!(!first.is_settling(), "fresh marks have nothing to wait for");
    assert_eq!(call(first.address(), "PUT", "/a", &[token("33")], b"x").status, 201);
    drop(first); // not stopped

    let second = Proxy::start(&config).unwrap();
    assert!(second.is_settling());
    let held = call(second.address(), "PUT", "/b", &[token("1")], b"x");
    assert_eq!(held.status, 503, "{}", held.text());
    assert_eq!(call(second.address(), "GET", "/a", &[], b"").status, 200, "reads pass");
    // It stops in good order, but the first one's requests are as much in doubt as they were.
    assert_eq!(stop(&second, SOON), Stopped::InDoubt);
    drop(second);

    config.settle = Duration::ZERO;
    let third = Proxy::start(&config).unwrap();
    assert_eq!(stop(&third, SOON), Stopped::Clean);
    drop(third);
    config.settle = Duration::from_mins(1);
    let third = Proxy::start(&config).unwrap();
    assert!(!third.is_settling(), "the last one stopped cleanly");
    let stale = call(third.address(), "PUT", "/a", &[token("32")], b"x");
    assert_eq!(stale.status, 412, "the mark is still there");
    assert_eq!(stale.problem("mark"), "33");
}

/// An upstream that does this with the first connection it gets.
fn upstream(
    manner: impl FnOnce(&mut TcpStream) + Send + 'static,
) -> (Address, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut io, _) = listener.accept().unwrap();
        manner(&mut io);
        io // kept open until the test has seen what comes of it
    });
    (address, thread)
}

/// An upstream says that it has done what it was asked to before it has read it, and reads no more. What it makes of the part
/// that it got is not known.
#[test]
fn a_yes_to_half_a_request_is_not_believed() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    });
    let scene = Scene::with(|config| config.upstream = address);
    let reply = scene.call("PUT", "/a", 1, &vec![0; 30_000_000]);
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert!(reply.problem("detail").contains("answered 200 before it had the whole request"));
    assert_eq!(scene.metric("held_back_names"), 1);
    drop(thread.join().unwrap());
}

/// An intermediary refuses a request before it has all of it. What the service behind it has got, and makes of it, is not
/// known; where the service itself answers (`none`), a refusal is the end.
#[test]
fn refusal_of_half_a_request_is_passed_on_and_is_no_end() {
    for (unknown, held_back) in [("504", 1), ("none", 0)] {
        let (address, thread) = upstream(|io| {
            let _ = io.read(&mut [0; 1000]).unwrap();
            io.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno").unwrap();
        });
        let scene = Scene::with(|config| {
            (config.upstream, config.unknown_status) = (address, unknown.parse().unwrap());
        });
        let reply = scene.call("PUT", "/a", 1, &vec![0; 30_000_000]);
        assert_eq!((reply.status, reply.text().as_str()), (400, "no"));
        assert_eq!(scene.metric("held_back_names"), held_back, "{unknown}");
        assert_eq!(scene.metric("requests_total{outcome=\"unknown\"}"), held_back, "{unknown}");
        drop(thread.join().unwrap());
    }
}

/// One that answers first and reads the rest then has the whole request, and its answer counts.
#[test]
fn a_yes_before_the_end_counts_if_the_end_is_read() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        let (mut left, mut piece) = (5_999_000_u32, vec![0; 65_536]);
        while left > 0 {
            let read = io.read(&mut piece).unwrap();
            assert!(read > 0, "{left} bytes did not come");
            left = left.saturating_sub(u32::try_from(read).unwrap());
        }
    });
    let scene = Scene::with(|config| config.upstream = address);
    let reply = scene.call("PUT", "/a", 1, &vec![0; 6_000_000]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(scene.metric("held_back_names"), 0);
    drop(thread.join().unwrap());
}

/// An answer that can not be kept was read to its end: its request is done, and the name is free.
#[test]
fn an_answer_without_room_holds_nobody_back() {
    let (address, thread) = upstream(|io| {
        let _ = io.read(&mut [0; 1000]).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
        io.write_all(&[head.as_bytes(), &vec![0; 300_000]].concat()).unwrap();
    });
    let scene = Scene::with(|config| (config.upstream, config.max_spool) = (address, 100_000));
    let reply = scene.call("PUT", "/a", 1, b"small");
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert!(reply.problem("detail").contains("answered 200"), "{}", reply.text());
    assert_eq!(scene.metric("held_back_names"), 0);
    drop(thread.join().unwrap());
}

#[test]
fn responses_that_may_be_an_intermediarys_hold_the_name_back() {
    let scene = Scene::with(|config| config.settle = Duration::from_mins(10));
    // The service closes the connection after it, and says so: the next request takes another one.
    let answer = |path: &str, status: u16| {
        let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: 5");
        scene.service.behave(path, Manner::Say(format!("{head}\r\n\r\nsorry").into_bytes()));
    };
    let mut held_back = 0;
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
        answer(&path, status);
        // A read changes nothing: nobody has to wait for its end.
        for (method, holds_back) in [("GET", 0), ("HEAD", 0), ("OPTIONS", 0), ("PUT", unknown)] {
            let reply = scene.call(method, &path, 1, b"");
            assert_eq!(reply.status, status, "{method}");
            held_back += holds_back;
            assert_eq!(scene.metric("held_back_names"), held_back, "{method} {status}");
        }
    }
    assert_eq!(scene.metric("requests_total{outcome=\"unknown\"}"), held_back);
    assert_eq!(stop(&scene.proxy, SOON), Stopped::InDoubt, "a restart waits as well");
}

/// What is on the list counts also where the response is too large to be passed on.
#[test]
fn response_without_room_that_may_be_an_intermediarys_holds_the_name_back() {
    let scene = Scene::with(|config| config.max_answer = 10);
    let large = "HTTP/1.1 504 X\r\nContent-Length: 20\r\n\r\n12345678901234567890".into();
    scene.service.behave("/a", Manner::Say(large));
    let reply = scene.call("PUT", "/a", 1, b"x");
    assert_eq!(reply.status, 502);
    assert!(reply.problem("detail").ends_with("held back for the settle time"), "{}", reply.text());
    assert_eq!(scene.metric("held_back_names"), 1);
}

/// A read that fails is no write that may come late.
#[test]
fn read_whose_end_is_not_known_holds_nobody_back() {
    let scene = Scene::with(|config| config.upstream_timeout = Duration::from_millis(100));
    scene.service.behave("/cut", Manner::Cut);
    scene.service.behave("/late", Manner::Hang);
    for (path, status) in [("/cut", 502), ("/late", 504)] {
        let reply = scene.call("GET", path, 1, b"");
        assert_eq!(reply.status, status);
        assert!(!reply.problem("detail").contains("held back"), "{}", reply.text());
    }
    assert_eq!(scene.metric("held_back_names"), 0);
    scene.service.let_go();
}

/// An upstream that begins to answer at once, and answers with what it reads.
#[test]
fn a_request_is_sent_to_its_end_while_its_answer_comes() {
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
                assert!(read > 0, "{left} bytes did not come");
                io.write_all(&piece[..read]).unwrap();
                left -= read;
            }
        });
        let scene = Scene::with(|config| config.upstream = address);
        let reply = call(scene.proxy.address(), "OPTIONS", "/a", headers, &body);
        assert!(reply.status == 200 && reply.body == body, "{}", reply.head);
        drop(thread.join().unwrap());
    }
}

/// An upstream that closes a connection while it is idle costs nobody anything.
#[test]
fn a_connection_that_was_closed_while_idle_is_not_used() {
    let scene = Scene::with(|config| config.threads = 1);
    let closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
    scene.service.behave("/closes", Manner::Say(closing));
    let service = Some(scene.service.address().port());
    for round in 0..20 {
        assert_eq!(scene.call("GET", "/closes", 1, b"").status, 200, "round {round}");
        until(SOON, "the news of it has come", || Ok(!tcp_states(None, service).contains(&1)))
            .unwrap();
        let put = scene.call("PUT", &format!("/a/{round}"), 1, b"x");
        assert_eq!(put.status, 201, "round {round}: {}", put.text());
    }
}

#[test]
fn nothing_is_forwarded_when_the_mark_can_not_be_written() {
    let scene = Scene::new();
    assert_eq!(scene.call("PUT", "/a", 1, b"x").status, 201);
    // Another program has the database for itself.
    let db = rusqlite::Connection::open(scene.directory.path().join("marks.db")).unwrap();
    for damage in [
        "DROP TABLE fencepost_marks; CREATE TABLE fencepost_marks (nonsense)",
        "DROP TABLE fencepost_marks",
    ] {
        db.execute_batch(damage).unwrap();
        let failed = scene.call("PUT", "/a", 2, b"y");
        assert_eq!(
            (failed.status, failed.problem("type").as_str()),
            (503, "urn:fencepost:problem:marks-unavailable"),
            "{damage}"
        );
        assert_eq!(scene.service.file("/a").as_deref(), Some("x"));
    }
}
