//! The gateway as an HTTP server and client: connections, headers, bodies, protocols, start and stop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::client::{connect, reply, request};
use common::service::{Behavior, header};
use common::{Fixture, call, config, stop};
use fencepost_core::LockName;
use fencepost_fence::sqlite;
use fencepost_gateway::{AccessLog, Gateway, Stopped};
use fencepost_testkit::Certificates;
use fencepost_testkit::wait::{SOON, until};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

#[test]
fn connections_are_reused_and_requests_can_be_pipelined() {
    let fixture = Fixture::new();
    let mut io = connect(fixture.gateway.address());
    for number in 0..5 {
        io.write_all(&request("PUT", "/a", &[("Fencing-Token", "7")], b"x")).unwrap();
        assert_eq!(reply(&mut io, "PUT").status, if number == 0 { 201 } else { 204 });
    }
    let put = request("PUT", "/a", &[("Fencing-Token", "7")], b"y");
    let get = request("GET", "/a", &[], b"");
    io.write_all(&[put, get.clone(), b"\r\n".to_vec(), get].concat()).unwrap();
    assert_eq!(reply(&mut io, "PUT").status, 204);
    assert_eq!(reply(&mut io, "GET").text(), "y");
    assert_eq!(reply(&mut io, "GET").text(), "y");
    assert_eq!(fixture.service.connections(), 1, "connections to the service are reused, too");
}

#[test]
fn hop_by_hop_headers_are_not_forwarded() {
    let fixture = Fixture::new();
    let headers = [
        ("Fencing-Token", "7"),
        ("Connection", "keep-alive, X-Secret, Host"),
        ("X-Secret", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic eA=="),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-For", "10.0.0.2"),
        ("Via", "1.0 other"),
        ("X-Kept", "yes"),
        ("Accept", "a"),
        ("Accept", "b"),
    ];
    let answer = "HTTP/1.1 418 I am a teapot\r\nConnection: X-Theirs\r\nX-Theirs: 1\r\nX-Kept: yes\r\n\
                  Set-Cookie: a\r\nSet-Cookie: b\r\nTransfer-Encoding: chunked\r\n\r\n\
                  3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n";
    fixture.service.behave("/a", Behavior::Respond(answer.into()));
    let reply = call(fixture.gateway.address(), "PUT", "/a?q=1", &headers, b"x");
    let seen = fixture.service.requests().remove(0).head;
    assert!(seen.starts_with("PUT /a?q=1 HTTP/1.1\r\nHost: test\r\n"), "{seen}");
    for gone in ["x-secret", "connection", "keep-alive", "te", "proxy-authorization"] {
        assert_eq!(header(&seen, gone), None, "{seen}");
    }
    assert_eq!(header(&seen, "x-forwarded-for").as_deref(), Some("10.0.0.1, 10.0.0.2, 127.0.0.1"));
    assert!(
        seen.contains("Via: 1.0 other\r\n") && seen.contains("Via: 1.1 fencepost\r\n"),
        "{seen}"
    );
    assert!(seen.contains("Accept: a\r\n") && seen.contains("Accept: b\r\n"), "{seen}");
    assert_eq!(header(&seen, "fencing-token").as_deref(), Some("7"));

    assert!(reply.head.starts_with("HTTP/1.1 418 I am a teapot\r\n"), "{}", reply.head);
    assert_eq!((reply.header("x-theirs"), reply.header("x-kept")), (None, Some("yes".into())));
    assert_eq!(reply.head.matches("Set-Cookie").count(), 2);
    assert_eq!(
        (reply.text().as_str(), reply.header("content-length").as_deref()),
        ("abc", Some("3"))
    );
}

#[test]
fn responses_without_a_body_have_none() {
    let fixture = Fixture::new();
    fixture.service.put("/a", b"12345");
    for token in [&[][..], &[("Fencing-Token", "1")]] {
        let head = call(fixture.gateway.address(), "HEAD", "/a", token, b"");
        assert_eq!((head.status, head.header("content-length").as_deref()), (200, Some("5")));
    }
    let old = "HTTP/1.1 304 Not Modified\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
    fixture.service.behave("/a", Behavior::Respond(old.into()));
    assert_eq!(fixture.call("GET", "/a", 1, b"").status, 304);
    let interim =
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n".to_vec();
    fixture.service.behave("/a", Behavior::Respond(interim));
    let reply = fixture.call("DELETE", "/a", 1, b"");
    assert_eq!((reply.status, reply.header("content-length")), (204, None));
    let stale = call(fixture.gateway.address(), "HEAD", "/b", &[("Fencing-Token", "x")], b"");
    assert_eq!((stale.status, stale.body.len()), (400, 0));
}

#[test]
fn bodies_of_any_size_and_framing_are_forwarded() {
    let fixture = Fixture::new();
    for size in [0, 1, 65_536, 65_537, 3_000_000] {
        let data: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        let path = format!("/f/{size}");
        assert_eq!(fixture.call("PUT", &path, 1, &data).status, 201, "{size}");
        assert!(fixture.call("GET", &path, 1, b"").body == data, "{size}, whole");
        assert!(fixture.bare("GET", &path).body == data, "{size}, streamed");
    }
    let mut io = connect(fixture.gateway.address());
    let head =
        [("Fencing-Token", "1"), ("Transfer-Encoding", "chunked"), ("Expect", "100-continue")];
    io.write_all(&request("PUT", "/chunked", &head, b"")).unwrap();
    let mut interim = [0; 25];
    io.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    io.write_all(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX: trailer\r\n\r\n").unwrap();
    assert_eq!(reply(&mut io, "PUT").status, 201);
    assert_eq!(fixture.service.file("/chunked").as_deref(), Some("hello world"));
    let seen = fixture.service.requests().pop().unwrap().head;
    assert_eq!(header(&seen, "content-length").as_deref(), Some("11"), "{seen}");
    assert_eq!(header(&seen, "expect"), None);
    // No 100 Continue for a request that is refused.
    let mut io = connect(fixture.gateway.address());
    let head = [("Expect", "100-continue"), ("Content-Length", "5")];
    io.write_all(&request("PUT", "/chunked", &head, b"")).unwrap();
    assert_eq!(reply(&mut io, "PUT").status, 428);
}

#[test]
fn response_without_a_length_ends_with_its_connection() {
    let fixture = Fixture::new();
    fixture.service.behave("/a", Behavior::Respond(b"HTTP/1.0 200 OK\r\n\r\nto the end".to_vec()));
    assert_eq!(fixture.call("GET", "/a", 1, b"").text(), "to the end");
    let streamed = fixture.bare("GET", "/a");
    assert_eq!(
        (streamed.text().as_str(), streamed.header("transfer-encoding").as_deref()),
        ("to the end", Some("chunked"))
    );
    let mut old = connect(fixture.gateway.address());
    old.write_all(b"GET /a HTTP/1.0\r\n\r\n").unwrap();
    let mut all = String::new();
    old.read_to_string(&mut all).unwrap();
    assert!(all.ends_with("\r\n\r\nto the end") && all.contains("Connection: close"), "{all}");
    let seen = fixture.service.requests().pop().unwrap().head;
    assert_eq!(header(&seen, "host"), Some(fixture.service.address().to_string()));
}

#[test]
fn malformed_upstream_response_gets_502() {
    let fixture = Fixture::with(|config| config.settle = Duration::ZERO);
    for nonsense in [
        "",
        "hello",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        fixture.service.behave("/a", Behavior::Respond(nonsense.into()));
        let reply = fixture.call("GET", "/a", 1, b"");
        assert_eq!(reply.status, 502, "{nonsense:?}: {}", reply.text());
    }
    let gone = Fixture::with(|config| config.upstream = "http://127.0.0.1:1".parse().unwrap());
    let reply = gone.call("PUT", "/a", 1, b"x");
    assert!(
        reply.status == 502 && reply.problem("detail").contains("cannot connect"),
        "{}",
        reply.text()
    );
    assert_eq!(
        stop(&gone.gateway, SOON),
        Stopped::Clean,
        "a request that was never sent counts as unknown"
    );
}

/// The upstream refuses a large body early, and reads no more of it.
#[test]
fn early_response_is_passed_on() {
    let fixture = Fixture::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = std::thread::spawn(move || {
        let (mut io, _) = listener.accept().unwrap();
        let mut some = [0; 1000];
        let _ = io.read(&mut some).unwrap();
        io.write_all(b"HTTP/1.1 413 No\r\nContent-Length: 5\r\n\r\nlarge").unwrap();
        io // stays open and unread
    });
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&fixture.service, directory.path());
    config.upstream = format!("http://{address}").parse().unwrap();
    let gateway = Gateway::start(&config).unwrap();
    let reply =
        call(gateway.address(), "PUT", "/a", &[("Fencing-Token", "1")], &vec![0; 30_000_000]);
    assert_eq!((reply.status, reply.text().as_str()), (413, "large"));
    drop(upstream.join().unwrap());
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "-m", "30", "-i"]).args(arguments).output();
    let output = output.expect("curl is installed (scripts/test does)");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn http_2_with_prior_knowledge_is_served() {
    let fixture = Fixture::new();
    let base = format!("http://{}", fixture.gateway.address());
    let h2 = |arguments: &[&str]| curl(&[&["--http2-prior-knowledge"], arguments].concat());
    let url = format!("{base}/a");
    assert!(h2(&["-X", "PUT", "-d", "x", &url]).starts_with("HTTP/2 428 "));
    let put = h2(&["-X", "PUT", "-d", "hello", "-H", "Fencing-Token: 34", &url]);
    assert!(put.starts_with("HTTP/2 201 ") && put.ends_with("made\n"), "{put}");
    let stale = h2(&["-X", "PUT", "-d", "x", "-H", "Fencing-Token: 33", &url]);
    assert!(stale.starts_with("HTTP/2 412 ") && stale.contains("34 has entered"), "{stale}");
    assert!(h2(&["-H", "Fencing-Token: 34", &url]).ends_with("hello"));
    assert!(h2(&[&url]).ends_with("hello"));
    assert!(
        h2(&["-H", "Fencing-Token: 1", "-H", "Fencing-Token: 2", &url]).starts_with("HTTP/2 400 ")
    );
    let dots = format!("{base}/b/../a");
    let put = ["-X", "PUT", "-d", "x", "-H", "Fencing-Token: 1", "--path-as-is"];
    let refused = h2(&[&put[..], &[dots.as_str()]].concat());
    assert!(refused.starts_with("HTTP/2 400 "), "{refused}");
    let seen = fixture.service.requests().remove(0).head;
    assert_eq!(header(&seen, "host"), Some(fixture.gateway.address().to_string()));
    // Larger than what is buffered in memory, both ways.
    let file = fixture.directory.path().join("large");
    std::fs::write(&file, vec![b'z'; 1_000_000]).unwrap();
    let large = format!("{base}/large");
    let data = format!("@{}", file.display());
    assert!(
        h2(&["-X", "PUT", "--data-binary", &data, "-H", "Fencing-Token: 1", &large])
            .starts_with("HTTP/2 201 ")
    );
    for token in [&[][..], &["-H", "Fencing-Token: 1"]] {
        let all = h2(&[token, &[large.as_str()]].concat());
        assert!(all.len() > 1_000_000 && all.ends_with("zzz"), "{}", all.len());
    }
}

#[test]
fn tls_and_http_2_by_alpn_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path()).unwrap();
    let fixture = Fixture::with(|config| {
        config.tls = Some((certificates.certificate(), certificates.key()));
    });
    let url = format!("https://localhost:{}/a", fixture.gateway.address().port());
    let (ca, resolve) =
        (certificates.ca(), format!("localhost:{}:127.0.0.1", fixture.gateway.address().port()));
    let tls = ["--cacert", ca.to_str().unwrap(), "--resolve", &resolve];
    let put = ["-X", "PUT", "-d", "x", "-H", "Fencing-Token: 1", url.as_str()];
    assert!(curl(&[&tls[..], &put].concat()).starts_with("HTTP/2 201 "));
    assert!(curl(&[&tls[..], &["--http1.1"], &put].concat()).starts_with("HTTP/1.1 204 "));
    assert!(curl(&[&tls[..], &["--http1.1", &url]].concat()).ends_with('x'));
}

/// TLS accepts data that it cannot send yet. The gateway must notice that it is never sent.
#[test]
fn tls_client_that_does_not_read_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path()).unwrap();
    let fixture = Fixture::with(|config| {
        config.tls = Some((certificates.certificate(), certificates.key()));
        config.idle_timeout = Duration::from_millis(300);
    });
    fixture.service.put("/large", &vec![b'x'; 30_000_000]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = Arc::new(tls);
    for headers in [&[][..], &[("Fencing-Token", "1")]] {
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(Arc::clone(&tls), name).unwrap();
        let mut io = rustls::StreamOwned::new(session, connect(fixture.gateway.address()));
        io.write_all(&request("GET", "/large", headers, b"")).unwrap();
        io.flush().unwrap();
        until(SOON, "the request arrives", || Ok(fixture.service.take_requests().len() == 1))
            .unwrap();
        until(SOON, "the client is disconnected", || Ok(fixture.metric("connections") == 0))
            .unwrap();
    }
}

#[test]
fn graceful_stop_waits_for_requests_under_way() {
    let fixture = Fixture::new();
    fixture.service.behave("/a", Behavior::Hang);
    let address = fixture.gateway.address();
    let mut idle = connect(address);
    idle.write_all(&request("GET", "/b", &[], b"")).unwrap();
    assert_eq!(reply(&mut idle, "GET").status, 404);
    let under_way =
        std::thread::spawn(move || call(address, "PUT", "/a", &[("Fencing-Token", "1")], b"x"));
    until(SOON, "the request hangs", || Ok(fixture.service.hanging() == 1)).unwrap();
    let service = fixture.service.clone();
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| stop(&fixture.gateway, Duration::from_secs(30)));
        // The idle connection is closed at once, and no new one is accepted.
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        until(SOON, "the gateway stops listening", || {
            Ok(std::net::TcpStream::connect(address).is_err())
        })
        .unwrap();
        service.release_all();
        stopped.join().unwrap()
    });
    assert_eq!(stopped, Stopped::Clean);
    let answer = under_way.join().unwrap();
    assert_eq!((answer.status, answer.header("connection").as_deref()), (201, Some("close")));
}

#[test]
fn stop_without_drain_leaves_outcomes_unknown() {
    let fixture = Fixture::new();
    fixture.service.behave("/a", Behavior::Hang);
    let address = fixture.gateway.address();
    let mut io = connect(address);
    io.write_all(&request("PUT", "/a", &[("Fencing-Token", "1")], b"x")).unwrap();
    until(SOON, "the request hangs", || Ok(fixture.service.hanging() == 1)).unwrap();
    assert_eq!(stop(&fixture.gateway, Duration::from_millis(50)), Stopped::OutcomeUnknown);
    drop(fixture.gateway);
    assert!(
        Gateway::start(&config(&fixture.service, fixture.directory.path())).unwrap().is_settling()
    );
}

#[test]
fn second_gateway_on_the_same_marks_is_refused() {
    let fixture = Fixture::new();
    let error = Gateway::start(&config(&fixture.service, fixture.directory.path())).err().unwrap();
    assert!(error.to_string().contains("a directory of marks serves one gateway"), "{error}");
}

fn marks_in(directory: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(directory.join("marks.db")).unwrap()
}

/// The page and a real database agree. `fence_sqlite` has the tables of the marks themselves.
#[test]
fn marks_match_the_page() {
    let page = include_str!("../../../docs/layouts/fences.md");
    let fixture = Fixture::new();
    let db = marks_in(fixture.directory.path());
    let names = |ask: &str| {
        let mut ask = db.prepare(ask).unwrap();
        let names = ask.query_map([], |row| row.get::<_, String>(0)).unwrap();
        names.collect::<Result<Vec<_>, _>>().unwrap().join(", ")
    };
    let tables = names("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
    assert_eq!(tables, "fencepost_gateway, fencepost_marks, fencepost_resets");
    let columns = names("SELECT name FROM pragma_table_info('fencepost_gateway')");
    let shown = format!("`fencepost_gateway ({columns})`");
    assert!(page.contains(&shown), "docs/layouts/fences.md does not have:\n{shown}");
}

/// If the table of an older version counted as missing, requests of its last run could be overtaken.
#[test]
fn marks_of_an_older_version_are_refused_and_unchanged() {
    let fixture = Fixture::new();
    assert_eq!(fixture.call("PUT", "/a", 33, b"").status, 201);
    let again = config(&fixture.service, fixture.directory.path());
    stop(&fixture.gateway, SOON);
    drop(fixture.gateway);
    let db = marks_in(fixture.directory.path());
    db.execute_batch(
        "DROP TABLE fencepost_gateway;
         CREATE TABLE fencepost_proxy (only INTEGER, in_doubt INTEGER, at TEXT);
         INSERT INTO fencepost_proxy VALUES (1, 1, '')",
    )
    .unwrap();
    let error = Gateway::start(&again).err().unwrap().to_string();
    assert!(error.contains("'DROP TABLE fencepost_proxy'"), "{error}");
    let doubt: i64 =
        db.query_row("SELECT in_doubt FROM fencepost_proxy", [], |row| row.get(0)).unwrap();
    assert_eq!(doubt, 1);
    // The remedy works, and the marks stay.
    db.execute_batch("DROP TABLE fencepost_proxy").unwrap();
    let gateway = Gateway::start(&again).unwrap();
    assert!(!gateway.is_settling());
    let refused = call(gateway.address(), "PUT", "/a", &[("Fencing-Token", "32")], b"");
    assert_eq!(refused.status, 412);
}

/// Whoever can open the marks or their lock file can lock them and block the gateway. Whoever can write them can let a
/// stale holder in.
#[test]
fn marks_are_closed_to_other_users() {
    let mut marks = std::path::PathBuf::new();
    let mut fixture = Fixture::with(|config| {
        config.marks.push("marks");
        marks.clone_from(&config.marks);
    });
    let mut config = config(&fixture.service, fixture.directory.path());
    config.marks.clone_from(&marks);
    let files = || {
        let files = std::fs::read_dir(&marks).unwrap().map(|entry| entry.unwrap().path());
        files.collect::<Vec<_>>()
    };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    assert_eq!(mode(&marks), 0o700);
    // As an earlier version created them, and as an operator may open them to a group.
    for (left, kept) in [(0o644, 0o600), (0o664, 0o660), (0o600, 0o600)] {
        assert_eq!(
            call(fixture.gateway.address(), "PUT", "/a", &[("Fencing-Token", "1")], b"x").status
                / 100,
            2
        );
        assert!(files().len() >= 4, "{:?}", files());
        assert_eq!(stop(&fixture.gateway, SOON), Stopped::Clean);
        for path in files() {
            set(&path, left);
        }
        set(&marks, 0o755);
        fixture.gateway = Gateway::start(&config).unwrap();
        for path in files() {
            assert_eq!(mode(&path), kept, "{left:o}: {}", path.display());
        }
    }
    assert_eq!(stop(&fixture.gateway, SOON), Stopped::Clean);
    for (path, open, back) in
        [(marks.clone(), 0o777, 0o755), (marks.join("marks.db"), 0o606, 0o600)]
    {
        set(&path, open);
        let error = Gateway::start(&config).err().unwrap().to_string();
        assert!(error.contains("other users can write") && error.contains("chmod o-w"), "{error}");
        set(&path, back);
    }
    Gateway::start(&config).unwrap();
}

#[test]
fn reset_by_another_program_is_noticed() {
    let fixture = Fixture::new();
    let name = LockName::new("a").unwrap();
    assert_eq!(fixture.call("PUT", "/a", 500, b"x").status, 201);
    let mut db = marks_in(fixture.directory.path());
    let mark = sqlite::show(&db, Some(&name)).unwrap().remove(0);
    assert_eq!(mark.token.get(), 500);
    // Lowered: takes effect at once, because the cache never refuses.
    sqlite::reset(&mut db, &name, Some("3".parse().unwrap()), "ada", "restored").unwrap();
    assert_eq!(fixture.call("PUT", "/a", 3, b"y").status, 204);
    // Raised: takes effect within a second, because the cache may admit an earlier token.
    sqlite::reset(&mut db, &name, Some("9".parse().unwrap()), "ada", "shut out").unwrap();
    until(SOON, "the reset is noticed", || Ok(fixture.call("GET", "/a", 3, b"").status == 412))
        .unwrap();
}

#[test]
fn metrics_health_and_access_log_report_requests() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let fixture = Fixture::with(|config| {
        config.access_log = AccessLog::File(log.path().to_owned());
    });
    let admin = fixture.gateway.metrics_address().unwrap();
    assert_eq!(fixture.call("PUT", "/a\"b", 34, b"x").status, 201);
    assert_eq!(fixture.call("PUT", "/a\"b", 33, b"x").status, 412);
    assert_eq!(fixture.bare("PUT", "/c").status, 428);
    assert_eq!(fixture.bare("GET", "/c?secret=1").status, 404);
    let metrics = call(admin, "GET", "/metrics", &[], b"").text();
    for line in [
        "fencepost_gateway_requests_total{outcome=\"entered\"} 1",
        "fencepost_gateway_requests_total{outcome=\"stale\"} 1",
        "fencepost_gateway_requests_total{outcome=\"no_token\"} 1",
        "fencepost_gateway_requests_total{outcome=\"passed\"} 1",
        "fencepost_gateway_marks_raised_total 1",
        "fencepost_gateway_blocked_names 0",
        "fencepost_gateway_queue_seconds_count 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(call(admin, "GET", "/healthz", &[], b"").status, 200);
    assert_eq!(call(admin, "GET", "/readyz", &[], b"").text(), "ready\n");
    assert_eq!(call(admin, "GET", "/else", &[], b"").status, 404);
    assert_eq!(stop(&fixture.gateway, SOON), Stopped::Clean);
    let lines = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let logged = |n: usize, key: &str| lines[n][key].to_string();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(
        (logged(0, "name"), logged(0, "token"), logged(0, "mark")),
        ("\"a\\\"b\"".into(), "34".into(), "34".into())
    );
    assert_eq!(
        (logged(1, "outcome"), logged(1, "status"), logged(1, "mark")),
        ("\"stale\"".into(), "412".into(), "34".into())
    );
    assert_eq!((logged(3, "path"), logged(3, "upstream_status")), ("\"/c\"".into(), "404".into()));
}
