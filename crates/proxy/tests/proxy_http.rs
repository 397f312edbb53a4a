//! What a gateway must get right: connections, headers, bodies, protocols, its start and its end.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::client::{connect, reply, request};
use common::service::{Manner, header};
use common::{Scene, call, config, stop};
use fencepost_core::LockName;
use fencepost_fence::sqlite;
use fencepost_proxy::{AccessLog, Proxy, Stopped};
use fencepost_testkit::Certificates;
use fencepost_testkit::wait::{SOON, until};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

#[test]
fn one_connection_carries_many_requests_also_when_they_come_at_once() {
    let scene = Scene::new();
    let mut io = connect(scene.proxy.address());
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
    assert_eq!(scene.service.connections(), 1, "connections to the service are kept, too");
}

#[test]
fn headers_of_the_connection_stay_and_the_others_pass() {
    let scene = Scene::new();
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
    scene.service.behave("/a", Manner::Say(answer.into()));
    let reply = call(scene.proxy.address(), "PUT", "/a?q=1", &headers, b"x");
    let seen = scene.service.seen().remove(0).head;
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
fn answers_without_a_body_have_none() {
    let scene = Scene::new();
    scene.service.put("/a", b"12345");
    for token in [&[][..], &[("Fencing-Token", "1")]] {
        let head = call(scene.proxy.address(), "HEAD", "/a", token, b"");
        assert_eq!((head.status, head.header("content-length").as_deref()), (200, Some("5")));
    }
    let old = "HTTP/1.1 304 Not Modified\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
    scene.service.behave("/a", Manner::Say(old.into()));
    assert_eq!(scene.call("GET", "/a", 1, b"").status, 304);
    let interim =
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n".to_vec();
    scene.service.behave("/a", Manner::Say(interim));
    let reply = scene.call("DELETE", "/a", 1, b"");
    assert_eq!((reply.status, reply.header("content-length")), (204, None));
    let stale = call(scene.proxy.address(), "HEAD", "/b", &[("Fencing-Token", "x")], b"");
    assert_eq!((stale.status, stale.body.len()), (400, 0));
}

#[test]
fn bodies_of_all_sizes_and_shapes() {
    let scene = Scene::new();
    for size in [0, 1, 65_536, 65_537, 3_000_000] {
        let data: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        let path = format!("/f/{size}");
        assert_eq!(scene.call("PUT", &path, 1, &data).status, 201, "{size}");
        assert!(scene.call("GET", &path, 1, b"").body == data, "{size}, whole");
        assert!(scene.bare("GET", &path).body == data, "{size}, streamed");
    }
    let mut io = connect(scene.proxy.address());
    let head =
        [("Fencing-Token", "1"), ("Transfer-Encoding", "chunked"), ("Expect", "100-continue")];
    io.write_all(&request("PUT", "/chunked", &head, b"")).unwrap();
    let mut interim = [0; 25];
    io.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    io.write_all(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX: trailer\r\n\r\n").unwrap();
    assert_eq!(reply(&mut io, "PUT").status, 201);
    assert_eq!(scene.service.file("/chunked").as_deref(), Some("hello world"));
    let seen = scene.service.seen().pop().unwrap().head;
    assert_eq!(header(&seen, "content-length").as_deref(), Some("11"), "{seen}");
    assert_eq!(header(&seen, "expect"), None);
    // Whoever would be refused is not asked to go on.
    let mut io = connect(scene.proxy.address());
    let head = [("Expect", "100-continue"), ("Content-Length", "5")];
    io.write_all(&request("PUT", "/chunked", &head, b"")).unwrap();
    assert_eq!(reply(&mut io, "PUT").status, 428);
}

#[test]
fn an_answer_without_a_length_ends_with_its_connection() {
    let scene = Scene::new();
    scene.service.behave("/a", Manner::Say(b"HTTP/1.0 200 OK\r\n\r\nto the end".to_vec()));
    assert_eq!(scene.call("GET", "/a", 1, b"").text(), "to the end");
    let streamed = scene.bare("GET", "/a");
    assert_eq!(
        (streamed.text().as_str(), streamed.header("transfer-encoding").as_deref()),
        ("to the end", Some("chunked"))
    );
    let mut old = connect(scene.proxy.address());
    old.write_all(b"GET /a HTTP/1.0\r\n\r\n").unwrap();
    let mut all = String::new();
    old.read_to_string(&mut all).unwrap();
    assert!(all.ends_with("\r\n\r\nto the end") && all.contains("Connection: close"), "{all}");
    let seen = scene.service.seen().pop().unwrap().head;
    assert_eq!(header(&seen, "host"), Some(scene.service.address().to_string()));
}

#[test]
fn an_upstream_that_answers_nonsense_is_a_bad_gateway() {
    let scene = Scene::with(|config| config.settle = Duration::ZERO);
    for nonsense in [
        "",
        "hello",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        scene.service.behave("/a", Manner::Say(nonsense.into()));
        let reply = scene.call("GET", "/a", 1, b"");
        assert_eq!(reply.status, 502, "{nonsense:?}: {}", reply.text());
    }
    let gone = Scene::with(|config| config.upstream = "http://127.0.0.1:1".parse().unwrap());
    let reply = gone.call("PUT", "/a", 1, b"x");
    assert!(
        reply.status == 502 && reply.problem("detail").contains("can not connect"),
        "{}",
        reply.text()
    );
    assert_eq!(stop(&gone.proxy, SOON), Stopped::Clean, "what was never sent is in no doubt");
}

/// An upstream that refuses a large body early, and reads no more of it.
#[test]
fn an_early_answer_is_passed_on() {
    let scene = Scene::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = std::thread::spawn(move || {
        let (mut io, _) = listener.accept().unwrap();
        let mut some = [0; 1000];
        let _ = io.read(&mut some).unwrap();
        io.write_all(b"HTTP/1.1 413 No\r\nContent-Length: 5\r\n\r\nlarge").unwrap();
        io // kept open, and unread
    });
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&scene.service, directory.path());
    config.upstream = format!("http://{address}").parse().unwrap();
    let proxy = Proxy::start(&config).unwrap();
    let reply = call(proxy.address(), "PUT", "/a", &[("Fencing-Token", "1")], &vec![0; 30_000_000]);
    assert_eq!((reply.status, reply.text().as_str()), (413, "large"));
    drop(upstream.join().unwrap());
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "-m", "30", "-i"]).args(arguments).output();
    let output = output.expect("curl is installed (scripts/test does)");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn http_2_by_prior_knowledge() {
    let scene = Scene::new();
    let base = format!("http://{}", scene.proxy.address());
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
    let seen = scene.service.seen().remove(0).head;
    assert_eq!(header(&seen, "host"), Some(scene.proxy.address().to_string()));
    // Larger than what is kept in memory, both ways.
    let file = scene.directory.path().join("large");
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
fn tls_and_http_2_by_alpn() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path()).unwrap();
    let scene = Scene::with(|config| {
        config.tls = Some((certificates.certificate(), certificates.key()));
    });
    let url = format!("https://localhost:{}/a", scene.proxy.address().port());
    let (ca, resolve) =
        (certificates.ca(), format!("localhost:{}:127.0.0.1", scene.proxy.address().port()));
    let tls = ["--cacert", ca.to_str().unwrap(), "--resolve", &resolve];
    let put = ["-X", "PUT", "-d", "x", "-H", "Fencing-Token: 1", url.as_str()];
    assert!(curl(&[&tls[..], &put].concat()).starts_with("HTTP/2 201 "));
    assert!(curl(&[&tls[..], &["--http1.1"], &put].concat()).starts_with("HTTP/1.1 204 "));
    assert!(curl(&[&tls[..], &["--http1.1", &url]].concat()).ends_with('x'));
}

/// A layer of encryption takes what it can not send: what must be waited for is that it gets rid of it.
#[test]
fn a_client_of_tls_that_does_not_read_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(directory.path()).unwrap();
    let scene = Scene::with(|config| {
        config.tls = Some((certificates.certificate(), certificates.key()));
        config.idle_timeout = Duration::from_millis(300);
    });
    scene.service.put("/large", &vec![b'x'; 30_000_000]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = Arc::new(tls);
    for headers in [&[][..], &[("Fencing-Token", "1")]] {
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(Arc::clone(&tls), name).unwrap();
        let mut io = rustls::StreamOwned::new(session, connect(scene.proxy.address()));
        io.write_all(&request("GET", "/large", headers, b"")).unwrap();
        io.flush().unwrap();
        until(SOON, "it is counted", || Ok(scene.service.take_seen().len() == 1)).unwrap();
        until(SOON, "it is left", || Ok(scene.metric("connections") == 0)).unwrap();
    }
}

#[test]
fn a_graceful_stop_lets_what_is_under_way_end() {
    let scene = Scene::new();
    scene.service.behave("/a", Manner::Hang);
    let address = scene.proxy.address();
    let mut idle = connect(address);
    idle.write_all(&request("GET", "/b", &[], b"")).unwrap();
    assert_eq!(reply(&mut idle, "GET").status, 404);
    let under_way =
        std::thread::spawn(move || call(address, "PUT", "/a", &[("Fencing-Token", "1")], b"x"));
    until(SOON, "it hangs", || Ok(scene.service.hanging() == 1)).unwrap();
    let service = scene.service.clone();
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| stop(&scene.proxy, Duration::from_secs(30)));
        // The idle connection is closed at once, and nobody new is taken.
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        until(SOON, "nobody listens", || Ok(std::net::TcpStream::connect(address).is_err()))
            .unwrap();
        service.let_go();
        stopped.join().unwrap()
    });
    assert_eq!(stopped, Stopped::Clean);
    let answer = under_way.join().unwrap();
    assert_eq!((answer.status, answer.header("connection").as_deref()), (201, Some("close")));
}

#[test]
fn a_stop_that_can_not_wait_leaves_doubt() {
    let scene = Scene::new();
    scene.service.behave("/a", Manner::Hang);
    let address = scene.proxy.address();
    let mut io = connect(address);
    io.write_all(&request("PUT", "/a", &[("Fencing-Token", "1")], b"x")).unwrap();
    until(SOON, "it hangs", || Ok(scene.service.hanging() == 1)).unwrap();
    assert_eq!(stop(&scene.proxy, Duration::from_millis(50)), Stopped::InDoubt);
    drop(scene.proxy);
    assert!(Proxy::start(&config(&scene.service, scene.directory.path())).unwrap().is_settling());
}

#[test]
fn a_second_proxy_on_the_same_marks_is_refused() {
    let scene = Scene::new();
    let error = Proxy::start(&config(&scene.service, scene.directory.path())).err().unwrap();
    assert!(error.to_string().contains("one proxy per marks directory"), "{error}");
}

/// Whoever can open the marks, or their lock, can lock them and keep the proxy from its work. Whoever can write them can let
/// a stale holder in.
#[test]
fn marks_are_closed_to_other_users() {
    let mut marks = std::path::PathBuf::new();
    let mut scene = Scene::with(|config| {
        config.marks.push("marks");
        marks.clone_from(&config.marks);
    });
    let mut config = config(&scene.service, scene.directory.path());
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
    // As an earlier version left them, and as an operator may open them for a group.
    for (left, kept) in [(0o644, 0o600), (0o664, 0o660), (0o600, 0o600)] {
        assert_eq!(
            call(scene.proxy.address(), "PUT", "/a", &[("Fencing-Token", "1")], b"x").status / 100,
            2
        );
        assert!(files().len() >= 4, "{:?}", files());
        assert_eq!(stop(&scene.proxy, SOON), Stopped::Clean);
        for path in files() {
            set(&path, left);
        }
        set(&marks, 0o755);
        scene.proxy = Proxy::start(&config).unwrap();
        for path in files() {
            assert_eq!(mode(&path), kept, "{left:o}: {}", path.display());
        }
    }
    assert_eq!(stop(&scene.proxy, SOON), Stopped::Clean);
    for (path, open, back) in
        [(marks.clone(), 0o777, 0o755), (marks.join("marks.db"), 0o606, 0o600)]
    {
        set(&path, open);
        let error = Proxy::start(&config).err().unwrap().to_string();
        assert!(error.contains("other users can write") && error.contains("chmod o-w"), "{error}");
        set(&path, back);
    }
    Proxy::start(&config).unwrap();
}

#[test]
fn a_reset_by_hand_is_noticed() {
    let scene = Scene::new();
    let name = LockName::new("a").unwrap();
    assert_eq!(scene.call("PUT", "/a", 500, b"x").status, 201);
    let mut db = rusqlite::Connection::open(scene.directory.path().join("marks.db")).unwrap();
    let mark = sqlite::show(&db, Some(&name)).unwrap().remove(0);
    assert_eq!(mark.token.get(), 500);
    // Lowered: at once, because the memory never refuses.
    sqlite::reset(&mut db, &name, Some("3".parse().unwrap()), "ada", "restored").unwrap();
    assert_eq!(scene.call("PUT", "/a", 3, b"y").status, 204);
    // Raised: within a second, because the memory may let in who had entered before.
    sqlite::reset(&mut db, &name, Some("9".parse().unwrap()), "ada", "shut out").unwrap();
    until(SOON, "the reset is noticed", || Ok(scene.call("GET", "/a", 3, b"").status == 412))
        .unwrap();
}

#[test]
fn metrics_health_and_the_access_log() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let scene = Scene::with(|config| {
        config.access_log = AccessLog::File(log.path().to_owned());
    });
    let admin = scene.proxy.metrics_address().unwrap();
    assert_eq!(scene.call("PUT", "/a\"b", 34, b"x").status, 201);
    assert_eq!(scene.call("PUT", "/a\"b", 33, b"x").status, 412);
    assert_eq!(scene.bare("PUT", "/c").status, 428);
    assert_eq!(scene.bare("GET", "/c?secret=1").status, 404);
    let metrics = call(admin, "GET", "/metrics", &[], b"").text();
    for line in [
        "fencepost_proxy_requests_total{outcome=\"entered\"} 1",
        "fencepost_proxy_requests_total{outcome=\"stale\"} 1",
        "fencepost_proxy_requests_total{outcome=\"no_token\"} 1",
        "fencepost_proxy_requests_total{outcome=\"passed\"} 1",
        "fencepost_proxy_marks_raised_total 1",
        "fencepost_proxy_held_back_names 0",
        "fencepost_proxy_queue_seconds_count 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(call(admin, "GET", "/healthz", &[], b"").status, 200);
    assert_eq!(call(admin, "GET", "/readyz", &[], b"").text(), "ready\n");
    assert_eq!(call(admin, "GET", "/else", &[], b"").status, 404);
    assert_eq!(stop(&scene.proxy, SOON), Stopped::Clean);
    let lines = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |n: usize, key: &str| lines[n][key].to_string();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(
        (told(0, "name"), told(0, "token"), told(0, "mark")),
        ("\"a\\\"b\"".into(), "34".into(), "34".into())
    );
    assert_eq!(
        (told(1, "outcome"), told(1, "status"), told(1, "mark")),
        ("\"stale\"".into(), "412".into(), "34".into())
    );
    assert_eq!((told(3, "path"), told(3, "upstream_status")), ("\"/c\"".into(), "404".into()));
}
