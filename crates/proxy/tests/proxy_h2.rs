//! HTTP/2, frame by frame: streams that are cut off, clients that do nothing and clients that do not read.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod common;

use std::time::Duration;

use common::frames::{DATA, END, Frames, HEADERS, RST_STREAM};
use common::service::Manner;
use common::{Scene, call, stop};
use fencepost_proxy::Stopped;
use fencepost_testkit::wait::{SOON, until};

const NO_ERROR: [u8; 4] = [0; 4];
const CANCEL: [u8; 4] = [0, 0, 0, 8];
const WINDOW: u32 = 65_535;

/// A stream that is reset with `NO_ERROR` ends, for some libraries, like one that is whole: half a body would be forwarded
/// as all of it.
#[test]
fn half_a_body_is_not_forwarded() {
    let scene = Scene::new();
    let token = ("fencing-token", "1");
    let mut frames = Frames::open(scene.proxy.address(), WINDOW);
    for (stream, headers, reset) in [
        (1, &[token][..], Some(NO_ERROR)),
        (3, &[token, ("content-length", "8")], Some(NO_ERROR)),
        (5, &[token], Some(CANCEL)),
        // It ends as it should, but before its length.
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
    // And a whole one: when it is done, those before it have been seen.
    frames.request(11, "PUT", "/b", &[token, ("content-length", "5")], 0);
    frames.send(DATA, END, 11, b"whole");
    until(SOON, "the whole one is there", || Ok(scene.service.file("/b").is_some())).unwrap();
    until(SOON, "the others have ended", || {
        let bad = scene.metric("requests_total{outcome=\"bad_request\"}");
        Ok(bad + scene.metric("requests_total{outcome=\"entered\"}") >= 5)
    })
    .unwrap();
    assert_eq!((scene.service.file("/a"), scene.service.seen().len()), (None, 1));
    assert_eq!(scene.service.file("/b").as_deref(), Some("whole"));
}

/// A client of HTTP/2 that gives up resets its stream. Its request keeps its turn, and a stop waits for it.
#[test]
fn a_stream_that_is_reset_does_not_stop_its_request() {
    let scene = Scene::with(|config| config.settle = Duration::ZERO);
    scene.service.behave("/a", Manner::Hang);
    let mut frames = Frames::open(scene.proxy.address(), WINDOW);
    frames.request(1, "PUT", "/a", &[("fencing-token", "33")], 0);
    frames.send(DATA, END, 1, b"old");
    until(SOON, "it hangs", || Ok(scene.service.hanging() == 1)).unwrap();
    frames.send(RST_STREAM, 0, 1, &CANCEL);
    frames.ping();
    let address = scene.proxy.address();
    let newer =
        std::thread::spawn(move || call(address, "PUT", "/a", &[("Fencing-Token", "34")], b"new"));
    until(SOON, "the newer one waits", || Ok(scene.metric("waiting") == 1)).unwrap();
    assert_eq!(scene.service.seen().len(), 1, "the newer one is not at the service");
    scene.service.let_one_go(0);
    until(SOON, "the newer one hangs", || Ok(scene.service.seen().len() == 2)).unwrap();
    assert_eq!(scene.service.file("/a").as_deref(), Some("old"));
    let service = scene.service.clone();
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| stop(&scene.proxy, Duration::from_secs(30)));
        until(SOON, "nobody listens", || Ok(std::net::TcpStream::connect(address).is_err()))
            .unwrap();
        service.let_go();
        stopped.join().unwrap()
    });
    assert_eq!((stopped, newer.join().unwrap().status), (Stopped::Clean, 204));
}

#[test]
fn a_connection_without_streams_is_ended_and_one_with_a_stream_is_not() {
    let scene = Scene::with(|config| config.idle_timeout = Duration::from_millis(200));
    scene.service.behave("/a", Manner::Hang);
    let mut busy = Frames::open(scene.proxy.address(), WINDOW);
    busy.request(1, "GET", "/a", &[("fencing-token", "1")], END);
    until(SOON, "it hangs", || Ok(scene.service.hanging() == 1)).unwrap();
    // Twice, so that the busy one has been quiet for longer than it may be idle.
    for _ in 0..2 {
        let mut idle = Frames::open(scene.proxy.address(), WINDOW);
        idle.ping();
        idle.wait_for_end();
    }
    scene.service.let_go();
    while busy.next().expect("the answer").kind != HEADERS {}
    busy.wait_for_end();
}

/// A client that opens no window gets an answer's head, and never anything of its body.
#[test]
fn a_client_that_does_not_read_is_left() {
    let scene = Scene::with(|config| config.idle_timeout = Duration::from_millis(200));
    scene.service.put("/small", b"small");
    scene.service.put("/large", &vec![b'x'; 1_000_000]);
    let token = ("fencing-token", "1");
    for window in [0, 1000] {
        for (path, headers) in
            [("/small", &[][..]), ("/small", &[token]), ("/large", &[]), ("/large", &[token])]
        {
            let mut frames = Frames::open(scene.proxy.address(), window);
            frames.request(1, "GET", path, headers, END);
            frames.wait_for_end();
        }
    }
    assert_eq!(scene.service.seen().len(), 8);
    until(SOON, "all are gone", || Ok(scene.metric("connections") == 0)).unwrap();
}
