//! The options of a server: password, socket, TLS, a movable clock.

use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use fencepost_testkit::{Client, Persistence, Redis, Reply};

#[test]
fn password_is_required() {
    let redis = Redis::builder().password(r#"s3 cr"et\/ü"#).start().unwrap();
    let mut other = Client::connect(redis.address()).unwrap();
    let refused = other.command(&["PING"]).unwrap();
    assert!(matches!(&refused, Reply::Error(why) if why.starts_with("NOAUTH")), "{refused:?}");
    assert_eq!(redis.command(&["PING"]).unwrap().text().unwrap(), "PONG");
    let port = redis.port();
    assert_eq!(redis.url(), format!("redis://:s3%20cr%22et%5C%2F%C3%BC@127.0.0.1:{port}"));
    redis.restart().unwrap();
    assert_eq!(redis.command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn server_starts_with_a_password_that_the_testkit_does_not_know() {
    let redis = Redis::builder().config("requirepass", "other").start().unwrap();
    let mut client = redis.client().unwrap();
    assert!(matches!(client.command(&["PING"]).unwrap(), Reply::Error(_)));
    client.authenticate("other").unwrap();
    assert_eq!(client.command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn configuration_lines_are_applied() {
    let redis = Redis::builder()
        .config("maxmemory", "2mb")
        .config("client-output-buffer-limit", "pubsub 1mb 1mb 5")
        .start()
        .unwrap();
    let config = |name| redis.command(&["CONFIG", "GET", name]).unwrap().items().unwrap().to_vec();
    assert_eq!(config("maxmemory")[1].int().unwrap(), 2 << 20);
    let limits = config("client-output-buffer-limit")[1].text().unwrap();
    assert!(limits.contains("pubsub 1048576"), "{limits}");
    redis.command(&["CONFIG", "SET", "maxmemory", "3mb"]).unwrap().text().unwrap();
    redis.command(&["CONFIG", "REWRITE"]).unwrap().text().unwrap();
    redis.restart().unwrap();
    assert_eq!(config("maxmemory")[1].int().unwrap(), 3 << 20);
}

#[test]
fn unix_socket_is_served() {
    let redis = Redis::builder().unix_socket().start().unwrap();
    let mut socket = UnixStream::connect(redis.socket_path().unwrap()).unwrap();
    socket.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    BufReader::new(socket).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn missing_option_is_an_error_that_names_it() {
    let redis = Redis::builder().start().unwrap();
    assert!(redis.socket_path().unwrap_err().to_string().contains(".unix_socket()"));
    assert!(redis.tls_url().unwrap_err().to_string().contains(".tls()"));
    assert!(redis.ca_path().unwrap_err().to_string().contains(".tls()"));
    assert!(redis.set_clock_offset(1).unwrap_err().to_string().contains(".faketime()"));
}

#[test]
fn client_that_trusts_the_ca_connects_with_tls() {
    let redis = Redis::builder().tls().password("secret").start().unwrap();
    let url = redis.tls_url().unwrap();
    assert!(url.starts_with("rediss://:secret@127.0.0.1:"), "{url}");
    let (_, port) = url.rsplit_once(':').unwrap();
    let ping = |authority: &Path| {
        // Not `-u`: version 7.0 treats the empty user of the URL as a name.
        let mut cli = Command::new("redis-cli");
        cli.args(["--tls", "-p", port, "--no-auth-warning", "-a", "secret", "--cacert"]);
        cli.arg(authority).arg("PING").output()
    };
    let trusted = match ping(&redis.ca_path().unwrap()) {
        // It comes with redis-server on Debian, but is a package of its own.
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        output => output.unwrap(),
    };
    assert_eq!(String::from_utf8_lossy(&trusted.stdout).trim(), "PONG", "{trusted:?}");
    let other = Redis::builder().tls().start().unwrap();
    let distrusted = ping(&other.ca_path().unwrap()).unwrap();
    assert!(!String::from_utf8_lossy(&distrusted.stdout).contains("PONG"), "{distrusted:?}");
    // The plain port is served as well.
    assert_eq!(redis.command(&["PING"]).unwrap().text().unwrap(), "PONG");
}

#[test]
fn moved_clock_moves_expiry() {
    let redis = Redis::builder().faketime().persist(Persistence::Always).start().unwrap();
    let pttl = || redis.command(&["PTTL", "key"]).unwrap().int().unwrap();
    redis.set_clock_offset(-30).unwrap();
    redis.command(&["SET", "key", "value", "PX", "3600000"]).unwrap();
    redis.set_clock_offset(1800).unwrap();
    // 1830 s have passed for the server, and the time that this test took.
    assert!((1..=1_770_000).contains(&pttl()), "{}", pttl());
    redis.set_clock_offset(0).unwrap();
    assert!((1_770_001..=3_570_000).contains(&pttl()), "{}", pttl());
    redis.set_clock_offset(7200).unwrap();
    assert!(redis.command(&["GET", "key"]).unwrap().is_nil());
}

#[test]
fn clock_can_move_while_its_server_is_down() {
    let redis = Redis::builder().faketime().persist(Persistence::Always).start().unwrap();
    redis.command(&["SET", "key", "value", "PX", "3600000"]).unwrap();
    redis.kill().unwrap();
    redis.set_clock_offset(3600).unwrap();
    redis.start_again().unwrap();
    assert!(redis.command(&["GET", "key"]).unwrap().is_nil());
    let left = Path::new("/dev/shm").join(format!("faketime_shm_{}", redis.pid()));
    assert!(!left.exists(), "{} is left behind", left.display());
}
