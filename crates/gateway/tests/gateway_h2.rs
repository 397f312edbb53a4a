//! HTTP/2, frame by frame: streams that are reset, idle clients, and clients that do not read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::Duration;

use common::frames::{DATA, END, Frames, HEADERS, RST_STREAM};
use common::service::Behavior;
use common::{Fixture, call, stop};
use fencepost_gateway::Stopped;
use fencepost_testkit::wait::{SOON, until};

const NO_ERROR: [u8; 4] = [0; 4];
const CANCEL: [u8; 4] = [0, 0, 0, 8];
const WINDOW: u32 = 65_535;

/// For some libraries a stream that is reset with `NO_ERROR` ends like a complete one. The gateway would forward half a body
/// as the whole.
#[test]
fn incomplete_body_is_not_forwarded() {
    let fixture = Fixture::new();
    let token = ("fencing-token", "1");
    let mut frames = Frames::open(fixture.gateway.address(), WINDOW);
    for (stream, headers, reset) in [
        (1, &[token][..], Some(NO_ERROR)),
        (3, &[token, ("content-length", "8")], Some(NO_ERROR)),
        (5, &[token], Some(CANCEL)),
        // The stream ends normally, but before its Content-Length.
        (7, &[token, ("content-length", "8")], None),
        (9, &[token, ("content-length", "4"), ("content-length", "4")], None),
    ] {
        frames.request(stream, "PUT", "/a", headers, 0);
        match reset {
            Some(reason) => {
                frames.send(DATA, 0, stream, b"half");
                frames.ping();
                frames.send(RST_STREAM, 0, stream, &reason);
            }
            None => frames.send(DATA, END, stream, b"half"),
        }
        frames.ping();
    }
    // A complete request: when it is done, those before it have been handled.
    frames.request(11, "PUT", "/b", &[token, ("content-length", "5")], 0);
    frames.send(DATA, END, 11, b"whole");
    until(SOON, "the complete request is applied", || Ok(fixture.service.file("/b").is_some()))
        .unwrap();
    until(SOON, "the others have ended", || {
        let bad = fixture.metric("requests_total{outcome=\"bad_request\"}");
        Ok(bad + fixture.metric("requests_total{outcome=\"entered\"}") >= 5)
    })
    .unwrap();
    assert_eq!((fixture.service.file("/a"), fixture.service.requests().len()), (None, 1));
    assert_eq!(fixture.service.file("/b").as_deref(), Some("whole"));
}

/// An HTTP/2 client that gives up resets its stream. Its request keeps its permit, and a stop waits for it.
#[test]
fn reset_stream_does_not_stop_its_request() {
    let fixture = Fixture::with(|config| config.settle = Duration::ZERO);
    fixture.service.behave("/a", Behavior::Hang);
    let mut frames = Frames::open(fixture.gateway.address(), WINDOW);
    frames.request(1, "PUT", "/a", &[("fencing-token", "33")], 0);
    frames.send(DATA, END, 1, b"old");
    until(SOON, "the request hangs", || Ok(fixture.service.hanging() == 1)).unwrap();
    frames.send(RST_STREAM, 0, 1, &CANCEL);
    frames.ping();
    let address = fixture.gateway.address();
    let newer =
        std::thread::spawn(move || call(address, "PUT", "/a", &[("Fencing-Token", "34")], b"new"));
    until(SOON, "the newer request waits", || Ok(fixture.metric("waiting") == 1)).unwrap();
    assert_eq!(fixture.service.requests().len(), 1, "the newer request reached the service");
    fixture.service.release_one(0);
    until(SOON, "the newer request hangs", || Ok(fixture.service.requests().len() == 2)).unwrap();
    assert_eq!(fixture.service.file("/a").as_deref(), Some("old"));
    let service = fixture.service.clone();
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| stop(&fixture.gateway, Duration::from_secs(30)));
        until(SOON, "the gateway stops listening", || {
            Ok(std::net::TcpStream::connect(address).is_err())
        })
        .unwrap();
        service.release_all();
        stopped.join().unwrap()
    });
    assert_eq!((stopped, newer.join().unwrap().status), (Stopped::Clean, 204));
}

#[test]
fn only_connections_without_streams_are_closed_when_idle() {
    let fixture = Fixture::with(|config| config.idle_timeout = Duration::from_millis(200));
    fixture.service.behave("/a", Behavior::Hang);
    let mut busy = Frames::open(fixture.gateway.address(), WINDOW);
    busy.request(1, "GET", "/a", &[("fencing-token", "1")], END);
    until(SOON, "the request hangs", || Ok(fixture.service.hanging() == 1)).unwrap();
    // Twice, so that the busy connection has been quiet for longer than the idle timeout.
    for _ in 0..2 {
        let mut idle = Frames::open(fixture.gateway.address(), WINDOW);
        idle.ping();
        idle.wait_for_end();
    }
    fixture.service.release_all();
    while busy.next().expect("the answer").kind != HEADERS {}
    busy.wait_for_end();
}

/// A client with a window of zero gets the head of a response, but none of its body.
#[test]
fn client_that_does_not_read_is_disconnected() {
    let fixture = Fixture::with(|config| config.idle_timeout = Duration::from_millis(200));
    fixture.service.put("/small", b"small");
    fixture.service.put("/large", &vec![b'x'; 1_000_000]);
    let token = ("fencing-token", "1");
    for window in [0, 1000] {
        for (path, headers) in
            [("/small", &[][..]), ("/small", &[token]), ("/large", &[]), ("/large", &[token])]
        {
            let mut frames = Frames::open(fixture.gateway.address(), window);
            frames.request(1, "GET", path, headers, END);
            frames.wait_for_end();
        }
    }
    assert_eq!(fixture.service.requests().len(), 8);
    until(SOON, "all connections are closed", || Ok(fixture.metric("connections") == 0)).unwrap();
}
