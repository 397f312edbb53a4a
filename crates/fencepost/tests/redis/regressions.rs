//! Bugs that a review found and that were fixed. Each test opens with the story of one.

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencepost::{ErrorKind, Ttl};
use fencepost_testkit::{
    LONG, Mode, Persistence, Proxy, Redis, Reply, SECRET, SOON, Trigger, connect, fails, has, ms,
    nothing_is_left, now, pass, switching_proxy, try_connect, two, until, until_waiting, within,
};

use crate::delayed_requests::HeldBack;
use crate::limits::busy;

/// How many milliseconds a key has left.
fn left(server: &Redis, key: &str) -> i64 {
    server.command(&["PTTL", key]).unwrap().int().unwrap()
}

fn value(server: &Redis, key: &str) -> String {
    server.command(&["GET", key]).unwrap().text().unwrap()
}

/// An operator deleted the lock's state. The renewal read a TTL of zero from it, and deleted the lock under its holder.
#[tokio::test]
async fn renewal_without_a_state_does_not_shorten_the_lease() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(LONG).lease_only().acquire().await.unwrap();
    let (token, owner) = (guard.token(), guard.detach());
    for asked in [None, Some(Ttl::new(ms(1000)).unwrap())] {
        let before = left(&server, "x");
        let deleted = server.command(&["DEL", "fencepost:lock:{x}"]).unwrap();
        assert_eq!(deleted, Reply::Int(1), "{asked:?}");
        let asked_at = now();
        let renewed = ours.renew("x", owner, asked).await.unwrap().value;
        assert!(renewed.token >= token, "{asked:?}: {} after {token}", renewed.token);
        let after = left(&server, "x");
        // A moment passes until the TTL is read, and no more than that may be missing.
        let moment = now().since(asked_at).as_millis() as i64 + 1000;
        assert!(after + moment >= before, "{asked:?}: {before} ms were left, and {after} are");
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "{asked:?}");
    }
    ours.release("x", owner).await.unwrap();
    nothing_is_left(&theirs, "x").await;
}

/// Our waiters marked any value of 32 hex digits as ours, so its owner could not release it any more.
#[tokio::test]
async fn waiter_does_not_change_the_value_of_a_third_party_client() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let theirs = "0123456789abcdef0123456789abcdef";
    for ours_before in [false, true] {
        if ours_before {
            client.lock("job").acquire().await.unwrap().release().await.unwrap();
        }
        server.command(&["SET", "job", theirs, "NX", "PX", "8000"]).unwrap().text().unwrap();
        let other = client.clone();
        let waiting =
            tokio::spawn(
                async move { other.lock("job").ttl(LONG).wait_timeout(SOON).acquire().await },
            );
        until_waiting(&client, "job", 1).await;
        let gave_up = client.lock("job").ttl(LONG).wait_timeout(ms(300)).acquire().await;
        assert_eq!(gave_up.unwrap_err().kind(), ErrorKind::Held);
        assert_eq!(value(&server, "job"), theirs, "ours before: {ours_before}");
        let lease = left(&server, "job");
        assert!((1..=8000).contains(&lease), "{lease}");
        let release = "if redis.call('get', KEYS[1]) == ARGV[1] \
                       then return redis.call('del', KEYS[1]) else return 0 end";
        let released = server.command(&["EVAL", release, "1", "job", theirs]).unwrap();
        assert_eq!(released, Reply::Int(1), "ours before: {ours_before}");
        let guard = within(SOON, "we have it", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// The break was applied and its reply was lost. The waiter was granted, and the retried break hit it.
#[tokio::test]
async fn retried_break_does_not_hit_the_next_holder() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (holder, waiter) = two(&server.url()).await;
    let operator = connect(&format!("redis://{}", proxy.address())).await;
    // From here on the server knows the scripts.
    let guard = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    operator.break_lock("x").await.unwrap().unwrap();
    assert!(guard.release().await.is_err());

    let guard = holder.lock("x").ttl(LONG).label("old").acquire().await.unwrap();
    let other = waiter.clone();
    let waiting = tokio::spawn(async move { other.lock("x").ttl(LONG).acquire().await });
    until_waiting(&waiter, "x", 1).await;
    // Only a break has an owner directly after the retention.
    let pattern = format!("\r\n3600000\r\n$32\r\n{}", guard.owner().reveal());
    proxy.cut_on(Trigger::after(pattern));
    let meanwhile = async {
        until("the break is carried out", async || proxy.fired() == 1).await;
        proxy.set_mode(Mode::Silent);
        let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
        proxy.set_mode(Mode::Pass);
        next
    };
    let (broken, next) = tokio::join!(operator.break_lock("x"), meanwhile);
    let broken = broken.unwrap().expect("it was held, and broken");
    assert_eq!((broken.label.as_str(), broken.token), ("old", Some(guard.token())));
    assert!(broken.floor > guard.token());
    let shown = holder.inspect("x").await.unwrap().holder.expect("the next one holds it");
    assert_eq!(shown.token, Some(next.token()));
    waiter.renew("x", next.owner(), None).await.expect("it was not broken");
    assert!(guard.release().await.is_err(), "and the first one was");
    next.release().await.unwrap();
}

/// A server quotes a command that it does not know, including the password in it.
#[tokio::test]
async fn password_is_not_in_the_error_of_a_server_without_hello() {
    let server =
        Redis::builder().password(SECRET).config("rename-command", "HELLO \"\"").start().unwrap();
    let refused = try_connect(&server.url()).await;
    let address = server.address().to_string();
    fails(refused, ErrorKind::Refused, &[&address, "RESP3", "Redis 6"]);
    let redlock = format!("redlock://:hunter2@{address},127.0.0.1:1");
    let refused = try_connect(&redlock).await.expect_err("it speaks no RESP3");
    for text in [refused.one_line(), format!("{refused:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// A `?` in a password started the options, and the error named the rest of the password as an unknown option.
#[tokio::test]
async fn password_is_not_in_the_error_of_a_url_that_it_breaks() {
    for url in ["redis://:a?hunter2@h", "rediss://me:hunter2?@h", "redlock://:a?hunter2@h,i,j"] {
        fails(try_connect(url).await, ErrorKind::Invalid, &["URL"]);
    }
}

/// The acquire froze on one connection, was sent again on the next, granted and released. When the first connection
/// recovered, it took the lock for nobody.
#[tokio::test]
async fn duplicate_acquire_that_arrives_after_the_release_is_refused() {
    let HeldBack { server, old, new, client } = HeldBack::new().await;
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert_eq!((old.fired(), new.accepted()), (0, 1), "it was sent again on the new line");
    guard.release().await.unwrap();
    assert!(!has(&server, "x"));

    old.set_mode(Mode::Pass);
    until("the late acquire is answered", async || old.fired() == 1).await;
    assert!(!has(&server, "x"), "nobody would release it");
    nothing_is_left(&connect(&server.url()).await, "x").await;
}

/// How many clients listen for wakes.
fn listening(server: &Redis) -> usize {
    server.command(&["PUBSUB", "CHANNELS", "fencepost:wake:*"]).unwrap().items().unwrap().len()
}

/// A busy server refused the subscription and the settings, and the client never tried again: its waiters polled from
/// then on, and its locks were not for correctness.
#[tokio::test]
async fn client_that_connected_while_the_server_was_busy_listens_later() {
    let server = Redis::builder()
        .persist(Persistence::Always)
        .config("busy-reply-threshold", "20")
        .start()
        .unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let again = connect(&format!("redis://{}", proxy.address())).await;
    let _script = busy(&server).await;
    // One connects for the first time, and one reconnects.
    let refused = try_connect(&server.url()).await;
    fails(refused, ErrorKind::Unreachable, &[&server.address().to_string(), "busy"]);
    let before = proxy.accepted();
    proxy.close_all();
    until("it came while the server was busy", async || proxy.accepted() > before + 1).await;
    let url = server.url();
    let coming = tokio::spawn(async move { connect(&url).await });
    server.command(&["SCRIPT", "KILL"]).unwrap().text().unwrap();
    let fresh = within(SOON, "it is let in", coming).await.unwrap();

    until("both listen", async || listening(&server) == 2).await;
    for (one, other) in [(&again, &fresh), (&fresh, &again)] {
        let lock = one.lock("x").ttl(LONG).for_correctness();
        let guard =
            lock.wait_timeout(SOON).acquire().await.expect("it knows that every write is synced");
        let waiter = other.clone();
        let waiting = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
        until_waiting(one, "x", 1).await;
        guard.release().await.unwrap();
        let next = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// A proxy that closes each connection after the server's last reply to the handshake.
fn cut_after_the_handshake(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let cuts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&cuts);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut server = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            // Ends with the connection.
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut replies, mut bytes) = (String::new(), [0; 4096]);
            // The last setting that is read.
            while !replies.contains("noeviction") {
                let Ok(count @ 1..) = server.read(&mut bytes) else { break };
                replies.push_str(&String::from_utf8_lossy(&bytes[..count]));
                if client.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            counter.fetch_add(usize::from(replies.contains("noeviction")), Ordering::Relaxed);
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        }
    });
    (address, cuts)
}

/// Every connection counted as a success, however short it lived: a client connected thousands of times to a server
/// that closed each at once.
#[tokio::test]
async fn server_that_closes_each_connection_is_not_connected_to_in_a_tight_loop() {
    let server = Redis::builder().config("maxmemory-policy", "noeviction").start().unwrap();
    let (address, cuts) = cut_after_the_handshake(server.address());
    let client = connect(&format!("redis://{address}")).await;
    until("it comes again", async || cuts.load(Ordering::Relaxed) > 1).await;
    // In the first second nobody sends anything; in the second somebody does.
    let before = cuts.load(Ordering::Relaxed);
    pass(Duration::from_secs(1)).await;
    let _ = client.lock("x").wait_timeout(Duration::from_secs(1)).acquire().await;
    let came = cuts.load(Ordering::Relaxed) - before;
    assert!((1..40).contains(&came), "it connected {came} times in about two seconds");
}

/// Polls a future once, and says whether it is ready.
async fn poll_once(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}

/// A call whose caller did not poll looked stuck, and the connection was closed for all callers.
#[tokio::test]
async fn unpolled_caller_does_not_close_the_shared_connection() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let client = connect(&format!("redis://{}", proxy.address())).await;
    let others = client.clone();
    others.lock("other").acquire().await.unwrap().release().await.unwrap();
    let before = proxy.accepted();

    // On a busy machine the reply can arrive before the first poll is over.
    proxy.set_mode(Mode::DropAnswers);
    let mut slow = pin!(client.lock("slow").ttl(LONG).acquire());
    assert!(!poll_once(&mut slow).await, "its reply is held back");
    until("it is granted, and its caller does not look", async || has(&server, "slow")).await;
    proxy.set_mode(Mode::Pass);
    pass(Duration::from_secs(4)).await;
    others.lock("other").wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(proxy.accepted(), before, "nothing was wrong with the connection");
    let guard = within(SOON, "its caller looks at last", slow).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(proxy.accepted(), before);
}

/// A client that had seen its server demoted kept refusing it after its promotion.
#[tokio::test]
async fn demoted_and_promoted_primary_serves_its_clients() {
    let server = Redis::builder().start().unwrap();
    let other = Redis::builder().start().unwrap();
    // One client sends while the server is a replica, and one does not.
    let (asking, idle) = two(&server.url()).await;
    let port = other.port().to_string();
    for _ in 0..2 {
        server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap().text().unwrap();
        let refused = asking.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await;
        fails(refused, ErrorKind::Refused, &[&server.address().to_string(), "replica", "primary"]);
        fails(asking.lock("x").try_acquire().await, ErrorKind::Refused, &["replica"]);
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
        for client in [&asking, &idle] {
            until("it is used again", async || client.lock("x").try_acquire().await.is_ok()).await;
            nothing_is_left(client, "x").await;
        }
    }
}

/// A client stayed with a demoted primary although the name resolved to the new primary.
#[tokio::test]
async fn client_of_a_demoted_primary_finds_the_new_one() {
    let server = Redis::builder().start().unwrap();
    let promoted = Redis::builder().start().unwrap();
    let route = switching_proxy(server.address(), promoted.address());
    let client = connect(&format!("redis://{route}")).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let port = promoted.port().to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap().text().unwrap();
    until("it is used", async || client.lock("x").try_acquire().await.is_ok()).await;
    let guard = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert!(has(&promoted, "x"));
    guard.release().await.unwrap();
}

/// A name with control characters, which only a third-party client can create, was left out of the list.
#[tokio::test]
async fn lock_with_control_characters_in_its_name_is_listed_escaped() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _ours = client.lock("ours").ttl(LONG).acquire().await.unwrap();
    for name in ["a\nb", "red\u{1b}[31m"] {
        server.command(&["SET", name, "theirs", "PX", "60000"]).unwrap().text().unwrap();
        let record = format!("fencepost:lock:{{{name}}}");
        server
            .command(&["SET", &record, "2 0 0 - - 0 0 -", "PX", "60000"])
            .unwrap()
            .text()
            .unwrap();
    }
    let locks = client.list().await.unwrap();
    let names: Vec<&str> = locks.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a\\nb", "ours", "red\\u{1b}[31m"]);
    assert!(locks.iter().all(|info| info.holder.is_some()), "{locks:?}");
    // It is listed, but no call reaches it under that name.
    assert!(client.break_lock("a\\nb").await.unwrap().is_none());
    assert!(has(&server, "a\nb"));
}

/// A former lock whose key has another type now failed the whole list.
#[tokio::test]
async fn list_skips_a_former_lock_that_is_another_type_now() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _first = client.lock("a").ttl(LONG).acquire().await.unwrap();
    client.lock("b").acquire().await.unwrap().release().await.unwrap();
    let _last = client.lock("c").ttl(LONG).acquire().await.unwrap();
    server.command(&["HSET", "b", "field", "theirs"]).unwrap().int().unwrap();
    assert!(has(&server, "fencepost:lock:{b}"), "it is still remembered as a lock");
    let locks = client.list().await.unwrap();
    let names: Vec<&str> = locks.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
}
