//! Refusals, keys of another type, ports without Redis: each has its own one-line error with the remedy, and without
//! the password.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Redis, SECRET, SOON, connect, fails, has, ms, nothing_is_left, now, ports, try_connect,
    two, until, within,
};

#[tokio::test]
async fn missing_and_wrong_password_are_distinguished() {
    let server = Redis::builder().password(SECRET).start().unwrap();
    let address = server.address().to_string();
    let missing = try_connect(&format!("redis://{address}")).await;
    fails(missing, ErrorKind::Refused, &[&address, "password", "redis://:PASSWORD@HOST"]);
    let wrong = try_connect(&format!("redis://:hunter2-not@{address}")).await;
    fails(wrong, ErrorKind::Refused, &[&address, "password", "URL"]);
    let other = try_connect(&format!("redis://nobody:hunter2@{address}")).await;
    fails(other, ErrorKind::Refused, &[&address, "credentials"]);
    // The correct password works.
    let client = connect(&server.url()).await;
    nothing_is_left(&client, "x").await;
}

/// The password is changed while a client is connected, and then its connection breaks.
#[tokio::test]
async fn changed_password_is_reported_at_the_next_connection() {
    let server = Redis::builder().password(SECRET).start().unwrap();
    let client = connect(&server.url()).await;
    let mut admin = server.client().unwrap();
    admin.command(&["CONFIG", "SET", "requirepass", "hunter2-new"]).unwrap().text().unwrap();
    admin.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap().int().unwrap();
    admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap().int().unwrap();
    let mut outcome = client.lock("x").try_acquire().await;
    // It may come before the client notices the kill.
    until("it is refused", async || {
        outcome = client.lock("x").try_acquire().await;
        outcome.is_err()
    })
    .await;
    fails(outcome, ErrorKind::Refused, &[&server.address().to_string(), "password"]);
}

#[tokio::test]
async fn missing_permission_is_named() {
    let server = Redis::builder().start().unwrap();
    let password = ">hunter2";
    let rules = ["on", password, "~*", "&*", "+@all", "-evalsha", "-eval"];
    server.command(&[&["ACL", "SETUSER", "reader"], &rules[..]].concat()).unwrap().text().unwrap();
    let client = connect(&format!("redis://reader:hunter2@{}", server.address())).await;
    let refused = client.lock("x").wait_timeout(SOON).acquire().await;
    fails(refused, ErrorKind::Refused, &[&server.address().to_string(), "ACL", "evalsha"]);
}

#[tokio::test]
async fn key_that_is_not_a_lock_is_refused_and_not_changed() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.command(&["LPUSH", "list", "theirs"]).unwrap();
    let words = [&server.address().to_string(), "something other than a lock", "?prefix="];
    fails(client.lock("list").try_acquire().await, ErrorKind::Refused, &words);
    fails(client.lock("list").wait_timeout(SOON).acquire().await, ErrorKind::Refused, &words);
    fails(client.inspect("list").await, ErrorKind::Refused, &words);
    fails(client.break_lock("list").await, ErrorKind::Refused, &words);
    assert_eq!(server.command(&["LRANGE", "list", "0", "-1"]).unwrap().items().unwrap().len(), 1);
}

/// A store that refuses an acquire also refuses its release: do not wait for it.
#[tokio::test]
async fn refused_client_closes_at_once() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.command(&["LPUSH", "list", "theirs"]).unwrap();
    fails(client.lock("list").ttl(LONG).try_acquire().await, ErrorKind::Refused, &[]);
    within(SOON, "it is closed", client.close()).await;
}

/// The state is written after the lock: a damaged state must not leave the lock behind.
#[tokio::test]
async fn damaged_state_is_named_and_the_lock_is_undone() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let record = "fencepost:lock:{x}";
    for damage in [["SET", record, "scribbled over"], ["LPUSH", record, "no string"]] {
        ours.lock("x").acquire().await.unwrap().release().await.unwrap();
        server.command(&["DEL", record]).unwrap();
        server.command(&damage).unwrap();
        let outcome = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await;
        fails(outcome, ErrorKind::Refused, &[&server.address().to_string()]);
        let outcome = theirs.lock("x").ttl(LONG).try_acquire().await;
        fails(outcome, ErrorKind::Refused, &[]);
        until("the lock is not left behind", async || !has(&server, "x")).await;
        server.command(&["DEL", record]).unwrap();
        nothing_is_left(&theirs, "x").await;
    }
    server.command(&["SET", record, "scribbled over"]).unwrap();
    let outcome = ours.lock("x").try_acquire().await;
    fails(outcome, ErrorKind::Refused, &["damaged", "delete fencepost:lock:{x}"]);
}

/// Listens, and runs `greet` for each connection. Keeps it open if that returns true.
fn listener_that(greet: impl Fn(&mut std::net::TcpStream) -> bool + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut client in listener.incoming().flatten() {
            if greet(&mut client) {
                kept.push(client);
            }
        }
    });
    address
}

#[tokio::test]
async fn port_without_redis_is_reported_in_time() {
    let web = listener_that(|client| {
        client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").unwrap();
        false
    });
    let mail = listener_that(|client| client.write_all(b"220 mail ESMTP\r\n").is_ok());
    let noise = listener_that(|client| client.write_all(&[0xff; 4096]).is_ok());
    let curt = listener_that(|_| false);
    let mute = listener_that(|_| true);
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free_port().unwrap()));
    let ask = |address: SocketAddr| async move {
        let asked = now();
        let outcome = try_connect(&format!("redis://:hunter2@{address}")).await;
        let took = now().since(asked);
        fails(outcome, ErrorKind::Unreachable, &[&address.to_string()]);
        assert!(took < SOON / 2, "{address}: {took:?}");
    };
    tokio::join!(ask(web), ask(mail), ask(noise), ask(curt), ask(mute), ask(nobody));
}

/// An open port without Redis: the two common mistakes are named.
#[tokio::test]
async fn http_and_tls_servers_are_named() {
    let web = listener_that(|client| {
        let mut request = [0; 1024];
        let _ = client.read(&mut request);
        let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        false
    });
    let words = [&web.to_string(), "answered like an HTTP server", "must name a Redis server"];
    fails(try_connect(&format!("redis://{web}")).await, ErrorKind::Unreachable, &words);
    let server = Redis::builder().tls().start().unwrap();
    let plain = server.tls_url().unwrap().replace("rediss:", "redis:");
    fails(try_connect(&plain).await, ErrorKind::Unreachable, &["answered with TLS", "rediss://"]);
    let (host, other) = (plain.trim_start_matches("redis://"), server.address());
    let two = try_connect(&format!("redlock://{host},{web},{other}")).await;
    let words = ["answered like an HTTP server", "answered with TLS", "tls=true"];
    fails(two, ErrorKind::Unreachable, &words);
}

/// A server that was up when the client connected may be gone later.
#[tokio::test]
async fn dead_server_is_unreachable_within_the_limit() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("held").ttl(ms(1500)).acquire().await.unwrap();
    server.kill().unwrap();
    let address = server.address().to_string();
    let (asked, limit) = (now(), ms(300));
    let outcome = client.lock("x").wait_timeout(limit).acquire().await;
    assert!(now().since(asked) < limit + SOON / 4);
    fails(outcome, ErrorKind::Unreachable, &[&address]);
    // A try does not wait for the server to return.
    let asked = now();
    fails(client.lock("x").try_acquire().await, ErrorKind::Unreachable, &[&address]);
    assert!(now().since(asked) < SOON / 2);
    fails(client.inspect("x").await, ErrorKind::Unreachable, &[&address]);
    fails(client.list().await, ErrorKind::Unreachable, &[&address]);
    within(SOON, "the guard is lost by itself", guard.lost()).await;
    let refused = client.lock("x").for_correctness().try_acquire().await;
    fails(refused, ErrorKind::Refused, &["appendonly is no"]);
    // It is back.
    server.start_again().unwrap();
    nothing_is_left(&client, "x").await;
}

#[tokio::test]
async fn cluster_is_refused() {
    let server = Redis::builder().config("cluster-enabled", "yes").start().unwrap();
    let refused = try_connect(&server.url()).await;
    let words = [&server.address().to_string(), "Redis Cluster", "not supported", "redlock://"];
    fails(refused, ErrorKind::Refused, &words);
}

#[tokio::test]
async fn urls_of_clusters_and_sentinels_are_invalid_and_name_the_alternative() {
    for scheme in
        ["redis-cluster", "rediss-cluster", "redis+cluster", "redis-sentinel", "redis+sentinel"]
    {
        let outcome = try_connect(&format!("{scheme}://:hunter2@host:26379/mymaster")).await;
        let words = [scheme, "not supported", "redis://HOST", "redlock://HOST,HOST,HOST"];
        fails(outcome, ErrorKind::Invalid, &words);
    }
    let several = try_connect("redis://:hunter2@one,two").await;
    fails(several, ErrorKind::Invalid, &["one server", "redlock://"]);
}
