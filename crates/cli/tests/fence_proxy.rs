//! `fencepost fence proxy` in front of a stock service (nginx with WebDAV), driven by stock clients: curl, and Python's
//! own `http.client`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use fencepost_testkit::Nginx;
use fencepost_testkit::command::{LIMIT, Running, Store, outcome_of, wait_for};
use rustix::process::Signal;

/// The command, in front of an nginx.
struct Gateway {
    running: Running,
    url: String,
    nginx: Nginx,
    store: Store,
}

const PATTERN: &str = "/invoices/{id} => invoice/{id}";

impl Gateway {
    fn start(more: &[&str]) -> Self {
        let (store, nginx) = (Store::new(), Nginx::dav().unwrap());
        let upstream = format!("http://{}", nginx.address());
        let marks = store.path("marks");
        let arguments = ["fence", "proxy", "--listen", "127.0.0.1:0", "--upstream", &upstream];
        let rest = ["--name-pattern", PATTERN, "--marks", marks.to_str().unwrap()];
        let quiet: &[&str] =
            if more.contains(&"--access-log") { &[] } else { &["--access-log", "off"] };
        let mut running = store.start(&[&arguments[..], &rest, quiet, more].concat());
        let line = running.lines().next().unwrap().unwrap();
        let from = line.strip_prefix("fencepost fence proxy: listening on ").expect(&line);
        let (address, rest) = from.split_once(", upstream ").expect(&line);
        assert_eq!(rest, format!("{upstream}, marks {}", marks.display()));
        Self { running, url: format!("http://{address}"), nginx, store }
    }

    fn marks(&self) -> String {
        format!("sqlite:{}", self.store.path("marks/marks.db").display())
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> String {
        let url = format!("{}{path}", self.url);
        let output =
            Command::new("curl").args(["-sS", "-m", "30", "-i", &url]).args(arguments).output();
        let (code, out, err) = outcome_of(&output.expect("curl is installed (scripts/test does)"));
        assert_eq!(code, Some(0), "{err}");
        out
    }
}

#[test]
fn curl_writes_through_the_gateway_to_nginx() {
    let gateway = Gateway::start(&[]);
    let put = |token: &str, text: &str| {
        let token = format!("Fencing-Token: {token}");
        gateway.curl("/invoices/42", &["-X", "PUT", "-d", text, "-H", &token])
    };
    assert!(put("33", "first").starts_with("HTTP/1.1 201 Created"));
    assert!(put("34", "second").starts_with("HTTP/1.1 204 No Content"));
    let stale = put("33", "late");
    assert!(stale.starts_with("HTTP/1.1 412 ") && stale.contains("34 has entered"), "{stale}");
    let file = gateway.nginx.directory().join("files/invoices/42");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "second");
    assert!(gateway.curl("/invoices/42", &[]).ends_with("second"));
    assert!(gateway.curl("/invoices/42", &["-X", "DELETE"]).starts_with("HTTP/1.1 428 "));
    let moved = ["-X", "MOVE", "-H", "Fencing-Token: 34", "-H", "Destination: /invoices/43"];
    assert!(gateway.curl("/invoices/42", &moved).starts_with("HTTP/1.1 403 "));
    // The destination is the path that the service sees, without its query.
    for odd in ["/invoices/43?x=://h/invoices/42", "http://h?/invoices/42", "http://h"] {
        let destination = format!("Destination: {odd}");
        let moved = ["-X", "MOVE", "-H", "Fencing-Token: 34", "-H", &destination];
        assert!(gateway.curl("/invoices/42", &moved).starts_with("HTTP/1.1 400 "), "{odd}");
    }
    let other = gateway.nginx.directory().join("files/invoices/43");
    assert!(!other.exists() && file.exists());
    assert!(gateway.curl("/robots.txt", &[]).starts_with("HTTP/1.1 404 "));

    // The other `fence` commands can read these marks.
    let marks = gateway.marks();
    let fence = |arguments: &[&str]| {
        gateway.store.run(&[&["fence", "--resource", &marks], arguments].concat())
    };
    let (code, out, err) = fence(&["show"]);
    assert!(code == Some(0) && out.contains("invoice/42  34 "), "{out}{err}");
    let (code, ..) = fence(&["reset", "invoice/42", "--to", "5", "--why", "restored", "--yes"]);
    assert_eq!(code, Some(0));
    assert!(put("6", "third").starts_with("HTTP/1.1 204 "));

    gateway.running.signal(Signal::TERM);
    let (code, _, err) = gateway.running.end();
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

#[test]
fn python_client_writes_through_the_gateway() {
    let gateway = Gateway::start(&[]);
    let program = r#"
import http.client, json, sys
c = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"), timeout=30)
def ask(method, token=None, body=None):
    headers = {} if token is None else {"Fencing-Token": str(token)}
    c.request(method, "/invoices/7", body=body, headers=headers)
    r = c.getresponse()
    return r.status, r.read()
assert ask("PUT", 1, "1")[0] == 201
for n in range(2, 20):
    status, text = ask("GET", n)
    assert (status, int(text)) == (200, n - 1), (status, text)
    assert ask("PUT", n, str(n))[0] == 204
status, text = ask("PUT", 3, "3")
problem = json.loads(text)
assert status == 412 and problem["mark"] == 19 and problem["name"] == "invoice/7", problem
assert ask("GET")[1] == b"19"
assert ask("PUT", None, "x")[0] == 428
# A body of unknown length is sent in chunks.
c = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"), timeout=30)
c.request("PUT", "/invoices/7", body=iter([b"a", b"b"]), headers={"Fencing-Token": "20"}, encode_chunked=True)
assert c.getresponse().status == 204
print("done")
"#;
    let output = Command::new("python3").args(["-c", program, &gateway.url]).output().unwrap();
    let (code, out, err) = outcome_of(&output);
    assert_eq!((code, out.as_str()), (Some(0), "done\n"), "{err}");
    let file = gateway.nginx.directory().join("files/invoices/7");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "ab");
}

#[test]
fn invalid_configuration_is_reported_before_listening() {
    let store = Store::new();
    let fails = |arguments: &[&str], expected: i32, words: &str| {
        let marks = store.path("marks");
        let start =
            ["fence", "proxy", "--listen", "127.0.0.1:0", "--marks", marks.to_str().unwrap()];
        let (code, out, err) = store.run(&[&start[..], arguments].concat());
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{arguments:?}: {err}");
        assert!(err.contains(words), "{arguments:?}: {err}");
    };
    let upstream = ["--upstream", "http://127.0.0.1:1"];
    let with = |more: &[&'static str]| [&upstream[..], more].concat();
    fails(&with(&[]), 64, "--name-pattern");
    fails(&["--name-header", "X", "--upstream", "https://127.0.0.1"], 64, "TLS to the upstream");
    fails(&["--name-header", "X", "--upstream", "ftp://x"], 64, "not an http:// URL");
    fails(&with(&["--name-pattern", "/a/{b"]), 64, "whole segment");
    fails(&with(&["--name-header", "a b"]), 64, "not a header name");
    fails(&with(&["--name-header", "X", "--max-body", "1x"]), 64, "not a size");
    fails(&with(&["--name-header", "X", "--settle", "30"]), 64, "no unit");
    fails(&with(&["--name-header", "X", "--threads", "0"]), 64, "0 threads");
    for list in ["", "5xx", "600", "504-502"] {
        let list = ["--name-header", "X", "--unknown-status", list];
        fails(&with(&list), 64, "such as 408,502-504, or none");
    }
    fails(&with(&["--name-header", "X", "--tls-cert", "x.pem"]), 64, "--tls-key");
    fails(&with(&["--name-header", "X", "--tls-cert", "/no", "--tls-key", "/no"]), 64, "PEM file");
    fails(&with(&["--name-header", "X", "--resource", "sqlite:x"]), 64, "--marks DIR");
    fails(&with(&["--name-header", "X", "--access-log", "/no/such/file"]), 78, "access log");

    let gateway = Gateway::start(&[]);
    let marks = gateway.store.path("marks");
    let again = ["fence", "proxy", "--listen", "127.0.0.1:0", "--marks", marks.to_str().unwrap()];
    let (code, _, err) = store.run(&[&again[..], &with(&["--name-header", "X"])].concat());
    assert!(code == Some(78) && err.contains("a directory of marks serves one gateway"), "{err}");
}

#[test]
fn start_after_a_crash_blocks_all_locks() {
    let gateway = Gateway::start(&[]);
    gateway.running.signal(Signal::KILL);
    let Gateway { running, store, nginx, .. } = gateway;
    running.end();
    let (upstream, marks) = (format!("http://{}", nginx.address()), store.path("marks"));
    let mut next = store.start(&[
        "fence",
        "proxy",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        &upstream,
        "--name-header",
        "Lock-Name",
        "--marks",
        marks.to_str().unwrap(),
        "--settle",
        "7s",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let line = next.lines().next().unwrap().unwrap();
    assert!(line.contains("\"metrics\":\"127.0.0.1:"), "{line}");
    next.signal(Signal::INT);
    let (code, _, err) = next.end();
    assert_eq!(code, Some(0));
    assert!(err.contains("did not end cleanly: all locks are blocked for 7s"), "{err}");
}

/// The reader of the log has stopped reading. The gateway drops the lines, and ends normally.
#[test]
fn unread_log_blocks_nothing() {
    let gateway = Gateway::start(&["--access-log", "-"]);
    // More than a pipe can hold.
    let path = format!("/{}?[1-100]", "x".repeat(2000));
    let url = format!("{}{path}", gateway.url);
    let done = Command::new("curl").args(["-sS", "-m", "30", "-o", "/dev/null", &url]).status();
    assert!(done.unwrap().success());
    let (marks, store) = (gateway.marks(), &gateway.store);
    gateway.running.signal(Signal::TERM);
    let (code, _, err) = gateway.running.end();
    assert!(code == Some(0) && err.len() > 60_000, "{code:?}, {} bytes", err.len());
    // The clean stop is recorded.
    let path = marks.strip_prefix("sqlite:").unwrap();
    let db = rusqlite::Connection::open(path).unwrap();
    let doubt = db.query_row("SELECT outcome_unknown FROM fencepost_gateway", [], |row| row.get(0));
    assert!(!doubt.unwrap_or(true), "{}", store.path("").display());
}

/// The service never answers, nobody reads the log, and the operator does not wait.
#[test]
fn second_signal_ends_the_gateway_at_once() {
    let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", service.local_addr().unwrap());
    let store = Store::new();
    let marks = store.path("marks");
    let mut running = store.start(&[
        "fence",
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        &upstream,
        "--name-pattern",
        PATTERN,
        "--marks",
        marks.to_str().unwrap(),
        "--drain",
        "1h",
    ]);
    let line = running.lines().next().unwrap().unwrap();
    let address = line.split([' ', ',']).find(|word| word.starts_with("127.0.0.1:")).unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client
        .write_all(b"DELETE /invoices/1 HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\n\r\n")
        .unwrap();
    let _under_way = service.accept().unwrap();
    running.signal(Signal::TERM);
    wait_for("it to stop listening", LIMIT, || std::net::TcpStream::connect(address).is_err());
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(143));
}

#[test]
fn connections_are_limited_to_the_open_files_limit() {
    let store = Store::new();
    let marks = store.path("marks");
    let program = "ulimit -n 300 && exec \"$0\" \"$@\"";
    let mut command = store.fencepost(&[]);
    let fencepost = command.get_program().to_owned();
    command = Command::new("sh");
    command.args(["-c", program]).arg(fencepost).args([
        "fence",
        "proxy",
        "--listen",
        "127.0.0.1:0",
    ]);
    command.args(["--upstream", "http://127.0.0.1:1", "--name-header", "X", "--marks"]).arg(marks);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::new(command);
    running.lines().next().unwrap().unwrap();
    running.signal(Signal::TERM);
    let (code, _, err) = running.end();
    assert_eq!(code, Some(0));
    assert!(err.contains("open files allows 59 connections, not 4096"), "{err}");
}
