//! Requests that must be refused, sent on a raw socket. The service counts every byte: none of them is forwarded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Write as _;
use std::time::Duration;

use common::Fixture;
use common::client::{connect, raw, reply, request};
use fencepost_testkit::wait::{SOON, until};

/// Follows each bad request, and would be forwarded if the connection stayed open.
const SMUGGLED: &str =
    "PUT /smuggled HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\nContent-Length: 1\r\n\r\nx";

#[test]
#[expect(clippy::too_many_lines, reason = "a list")]
fn a_message_that_can_be_read_in_two_ways_is_refused_and_ends_the_connection() {
    let fixture = Fixture::new();
    let put = "PUT /a HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\n";
    let cases: Vec<(&str, String)> = vec![
        ("two lengths", format!("{put}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx")),
        ("two equal lengths", format!("{put}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx")),
        ("a list of lengths", format!("{put}Content-Length: 1, 1\r\n\r\nx")),
        ("a signed length", format!("{put}Content-Length: +1\r\n\r\nx")),
        (
            "a length and chunks",
            format!("{put}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "chunks and a length",
            format!("{put}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
        ),
        (
            "chunked, identity",
            format!("{put}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        ),
        (
            "identity, chunked",
            format!("{put}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
        ),
        ("xchunked", format!("{put}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n")),
        (
            "two encodings",
            format!("{put}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"),
        ),
        ("a folded encoding", format!("{put}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n")),
        (
            "an encoding with a space before the colon",
            format!("{put}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "an encoding in HTTP/1.0",
            "PUT /a HTTP/1.0\r\nFencing-Token: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .into(),
        ),
        ("a bare LF", format!("{put}X: y\nContent-Length: 1\r\n\r\nx")),
        ("bare LFs only", "PUT /a HTTP/1.1\nHost: x\nFencing-Token: 1\n\n".into()),
        ("a bare CR", format!("{put}X: y\rContent-Length: 1\r\n\r\nx")),
        ("a NUL", format!("{put}X: \0\r\nContent-Length: 1\r\n\r\nx")),
        (
            "a chunk that is too long",
            format!("{put}Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n"),
        ),
        (
            "a chunk of negative size",
            format!("{put}Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n"),
        ),
        (
            "a chunk with a bare LF",
            format!("{put}Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n"),
        ),
        (
            "a chunk of endless size",
            format!("{put}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nx\r\n0\r\n\r\n"),
        ),
        ("HTTP/0.9", "GET /a\r\n\r\n".into()),
        ("HTTP/3.0", "GET /a HTTP/3.0\r\nHost: x\r\n\r\n".into()),
        ("no host", "PUT /a HTTP/1.1\r\nFencing-Token: 1\r\nContent-Length: 1\r\n\r\nx".into()),
        ("two hosts", format!("{put}Host: y\r\nContent-Length: 1\r\n\r\nx")),
        ("another host in the target", "GET http://y/a HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("no path in the target", "GET a HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("a space in the target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("a tunnel", "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n".into()),
        (
            "another protocol",
            "GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
                .into(),
        ),
        (
            "another method in a header",
            "GET /a HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: DELETE\r\n\r\n".into(),
        ),
        (
            "another method in a POST",
            format!(
                "{}X-HTTP-Method: DELETE\r\nContent-Length: 1\r\n\r\nx",
                put.replace("PUT", "POST")
            ),
        ),
        ("a method in small letters", put.replace("PUT", "Put") + "Content-Length: 1\r\n\r\nx"),
        (
            "another method in a header with underscores",
            "GET /a HTTP/1.1\r\nHost: x\r\nX_HTTP_Method_Override: DELETE\r\n\r\n".into(),
        ),
        ("a length with an underscore", format!("{put}Content_Length: 1\r\n\r\n")),
        ("an encoding with an underscore", format!("{put}Transfer_Encoding: chunked\r\n\r\n")),
        (
            "another path in a header",
            "GET /a HTTP/1.1\r\nHost: x\r\nX-Original-URL: /b\r\n\r\n".into(),
        ),
        (
            "another path in a write",
            format!("{put}X-Rewrite-URL: /b\r\nContent-Length: 1\r\n\r\nx"),
        ),
        (
            "a destination with another one in its query",
            format!("{}Destination: /b?x=://h/a\r\n\r\n", put.replace("PUT", "MOVE")),
        ),
        ("two tokens", format!("{put}Fencing-Token: 1\r\nContent-Length: 1\r\n\r\nx")),
        (
            "a token with a sign",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace(": 1", ": +1")),
        ),
        ("a token of 0", format!("{}Content-Length: 1\r\n\r\nx", put.replace(": 1", ": 0"))),
        ("an empty token", format!("{}Content-Length: 1\r\n\r\nx", put.replace(": 1", ":"))),
        (
            "a token that is too large",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace(": 1", ": 9007199254740992")),
        ),
        ("a path with dots", format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "/b/../a"))),
        (
            "a path with encoded dots",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "/b/%2e%2e/a")),
        ),
        (
            "a path with an encoded slash",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "/a%2Fb")),
        ),
        (
            "a path with two slashes",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "//a")),
        ),
        (
            "a path with a backslash",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "/b\\a")),
        ),
        (
            "a path with an encoded letter",
            format!("{}Content-Length: 1\r\n\r\nx", put.replace("/a", "/%61")),
        ),
        ("a holder with a bad name", format!("{put}Fencing-Holder:\r\nContent-Length: 1\r\n\r\nx")),
    ];
    for (what, bytes) in &cases {
        let answer = raw(fixture.gateway.address(), format!("{bytes}{SMUGGLED}").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{what}: {answer}");
        let answers =
            answer.matches("HTTP/1.1 400 ").count() + answer.matches("HTTP/1.1 2").count();
        assert_eq!(answers, 1, "{what}: {answer}");
        assert!(
            answer.contains("Connection: close") && answer.contains("\"status\":400"),
            "{what}: {answer}"
        );
        assert_eq!(fixture.service.bytes(), 0, "{what}: something was forwarded");
    }
    // Control: a good request is forwarded, and the service counts it.
    assert_eq!(fixture.call("PUT", "/a", 1, b"x").status, 201);
    assert!(fixture.service.bytes() > 0);
}

#[test]
fn refusals_say_why() {
    let fixture = Fixture::with(|config| {
        config.patterns = vec!["/invoices/{id} => invoice/{id}".parse().unwrap()];
        config.max_body = 10;
    });
    let (gateway, service) = (fixture.gateway.address(), &fixture.service);
    let missing = common::call(gateway, "PUT", "/invoices/42", &[], b"x");
    assert_eq!(missing.status, 428);
    assert_eq!(missing.problem("type"), "urn:fencepost:problem:token-required");
    assert_eq!(missing.problem("name"), "invoice/42");
    let unknown = fixture.call("PUT", "/other/42", 1, b"x");
    assert_eq!(
        (unknown.status, unknown.problem("title").as_str()),
        (403, "No lock guards this path")
    );
    let large = fixture.call("PUT", "/invoices/42", 1, b"12345678901");
    assert_eq!(
        (large.status, large.problem("type").as_str()),
        (413, "urn:fencepost:problem:body-too-large")
    );
    let mut chunked = connect(gateway);
    let head = [("Fencing-Token", "1"), ("Transfer-Encoding", "chunked")];
    chunked.write_all(&request("PUT", "/invoices/42", &head, b"")).unwrap();
    chunked.write_all(b"6\r\n123456\r\n6\r\n123456\r\n").unwrap();
    assert_eq!(reply(&mut chunked, "PUT").status, 413);
    assert_eq!(service.bytes(), 0, "nothing was forwarded");

    assert_eq!(fixture.call("PUT", "/invoices/42", 40, b"x").status, 201);
    let headers = [("Fencing-Token", "33"), ("Fencing-Holder", "web-1:7")];
    for method in ["PUT", "GET", "DELETE"] {
        let stale = common::call(gateway, method, "/invoices/42", &headers, b"y");
        assert_eq!(stale.status, 412);
        assert_eq!(stale.problem("type"), "urn:fencepost:problem:stale-token");
        assert_eq!((stale.problem("token"), stale.problem("mark")), ("33".into(), "40".into()));
        assert!(stale.problem("set_by").starts_with("127.0.0.1:"), "{}", stale.text());
        assert!(stale.problem("set_at").ends_with('Z'), "{}", stale.text());
        assert!(
            stale
                .problem("detail")
                .starts_with("token 33 for \"invoice/42\" is stale: 40 has entered")
        );
    }
    assert_eq!(fixture.service.requests().len(), 1);
}

#[test]
fn slow_heads_and_bodies_time_out() {
    let fixture = Fixture::with(|config| {
        config.head_timeout = Duration::from_millis(100);
        config.body_timeout = Duration::from_millis(100);
        config.max_head = 2048;
    });
    let mut slow = connect(fixture.gateway.address());
    slow.write_all(b"PUT /a HT").unwrap();
    assert_eq!(reply(&mut slow, "PUT").status, 408);
    let mut slow = connect(fixture.gateway.address());
    slow.write_all(b"PUT /a HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\nContent-Length: 9\r\n\r\nx")
        .unwrap();
    assert_eq!(reply(&mut slow, "PUT").status, 408);
    let long = format!("GET /a HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(3000));
    assert!(raw(fixture.gateway.address(), long.as_bytes()).starts_with("HTTP/1.1 431 "));
    let whole = format!("{long}\r\n\r\n");
    assert!(raw(fixture.gateway.address(), whole.as_bytes()).starts_with("HTTP/1.1 431 "));
    let many = format!("GET /a HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(200));
    assert!(raw(fixture.gateway.address(), many.as_bytes()).starts_with("HTTP/1.1 400 "));
    assert_eq!(fixture.service.bytes(), 0);
}

/// A body that stops halfway is not forwarded; the connection ends.
#[test]
fn incomplete_body_is_not_forwarded() {
    let fixture = Fixture::new();
    for half in [
        "PUT /a HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\nContent-Length: 9\r\n\r\nhalf",
        "PUT /a HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        assert_eq!(raw(fixture.gateway.address(), half.as_bytes()), "");
    }
    assert_eq!(fixture.service.bytes(), 0);
}

/// Bodies are buffered on the disk of the marks. They must not take the space that the marks need.
#[test]
fn total_size_of_all_bodies_is_limited() {
    let fixture = Fixture::with(|config| config.max_spool = 100_000);
    let body = vec![0; 95_000];
    let bytes = request("PUT", "/a", &[("Fencing-Token", "1")], &body);
    let begin = || {
        let mut frozen = connect(fixture.gateway.address());
        frozen.write_all(&bytes[..bytes.len() - 1]).unwrap();
        frozen
    };
    let mut frozen = begin();
    until(SOON, "no space is left", || {
        let refused = fixture.call("PUT", "/b", 1, &body);
        let full = refused.status == 503;
        if full {
            assert_eq!(refused.problem("type"), "urn:fencepost:problem:no-room");
            assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
        } else {
            // This request was faster, and may have taken the first one's space.
            frozen = begin();
        }
        Ok(full)
    })
    .unwrap();
    assert_eq!(fixture.call("PUT", "/c", 1, b"small").status, 201);
    frozen.write_all(&bytes[bytes.len() - 1..]).unwrap();
    assert_eq!(reply(&mut frozen, "PUT").status, 201, "a request with reserved space is served");
    until(SOON, "space is free again", || Ok(fixture.call("PUT", "/b", 1, &body).status < 300))
        .unwrap();
}
