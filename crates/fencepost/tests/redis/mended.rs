//! What a review found and was mended: each test is the story of one such bug.

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
    LONG, Mode, Persistence, Proxy, Redis, Reply, SECRET, SOON, Trigger, connect, fails,
    fork_in_the_road, has, ms, nothing_is_left, now, pass, try_connect, two, until, until_waiting,
    within,
};

use crate::late::HeldBack;
use crate::limits::busy;

/// How many milliseconds a key has left.
fn left(server: &Redis, key: &str) -> i64 {
    server.command(&["PTTL", key]).unwrap().int().unwrap()
}

fn value(server: &Redis, key: &str) -> String {
    server.command(&["GET", key]).unwrap().text().unwrap()
}

/// The record was deleted by hand, and the renewal took the TTL that it had kept there for zero: the lock was
/// deleted under its holder.
#[tokio::test]
async fn a_renewal_without_a_record_does_not_shorten_the_lease() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("x").ttl(LONG).lease_only().acquire().await.unwrap();
    let (token, owner) = (guard.token(), guard.detach());
    for asked in [None, Some(Ttl::new(ms(1000)).unwrap())] {
        let before = left(&server, "x");
        let deleted = server.command(&["DEL", "fencepost:record:x"]).unwrap();
        assert_eq!(deleted, Reply::Int(1), "{asked:?}");
        let asked_at = now();
        let renewed = ours.renew("x", owner, asked).await.unwrap().value;
        assert!(renewed.token >= token, "{asked:?}: {} after {token}", renewed.token);
        let after = left(&server, "x");
        // What is left was read a moment later, and no more than that may be missing.
        let moment = now().since(asked_at).as_millis() as i64 + 1000;
        assert!(after + moment >= before, "{asked:?}: {before} ms were left, and {after} are");
        assert!(theirs.lock("x").try_acquire().await.unwrap().is_none(), "{asked:?}");
    }
    ours.release("x", owner).await.unwrap();
    nothing_is_left(&theirs, "x").await;
}

/// Our waiters marked any value of 32 hex digits as ours, and its owner could not release it any more.
#[tokio::test]
async fn a_waiter_leaves_the_value_of_another_make_of_client_alone() {
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
            tokio::spawn(async move { other.lock("job").ttl(LONG).acquire_within(SOON).await });
        until_waiting(&client, "job", 1).await;
        let gave_up = client.lock("job").ttl(LONG).acquire_within(ms(300)).await;
        assert!(matches!(gave_up.unwrap_err().kind(), ErrorKind::Held(_)));
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

/// The break was carried out and its answer lost; the waiter was granted; and the break, sent again, hit it.
#[tokio::test]
async fn a_break_that_is_sent_again_does_not_hit_the_next_holder() {
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
    // Only a break has an owner right behind the retention.
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

/// A server quotes a command that it does not know, with the password that came with it.
#[tokio::test]
async fn a_password_is_not_in_the_error_of_a_server_without_hello() {
    let server =
        Redis::builder().password(SECRET).config("rename-command", "HELLO \"\"").start().unwrap();
    let refused = try_connect(&server.url()).await;
    let address = server.address().to_string();
    fails(refused, &ErrorKind::Refused, &[&address, "RESP3", "Redis 6"]);
    let redlock = format!("redlock://:hunter2@{address},127.0.0.1:1");
    let refused = try_connect(&redlock).await.expect_err("it speaks no RESP3");
    for text in [refused.to_string(), format!("{refused:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// A `?` in a password began the options, and the rest of the password was named as one that is unknown.
#[tokio::test]
async fn a_password_is_not_in_the_error_of_a_url_that_it_breaks() {
    for url in ["redis://:a?hunter2@h", "rediss://me:hunter2?@h", "redlock://:a?hunter2@h,i,j"] {
        fails(try_connect(url).await, &ErrorKind::Invalid, &["URL"]);
    }
}

/// The acquire stood still on one connection, was sent again on the next, granted and released. When the
/// first one came through after all it took the lock for nobody.
#[tokio::test]
async fn a_duplicate_of_an_acquire_that_comes_after_the_release_is_refused() {
    let HeldBack { server, old, new, client } = HeldBack::set().await;
    let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    assert_eq!((old.fired(), new.accepted()), (0, 1), "it was sent again on the new line");
    guard.release().await.unwrap();
    assert!(!has(&server, "x"));

    old.set_mode(Mode::Pass);
    until("the late acquire is answered", async || old.fired() == 1).await;
    assert!(!has(&server, "x"), "nobody would release it");
    nothing_is_left(&connect(&server.url()).await, "x").await;
}

/// How many clients listen for their turn.
fn listening(server: &Redis) -> usize {
    server.command(&["PUBSUB", "CHANNELS", "fencepost:wake:*"]).unwrap().items().unwrap().len()
}

/// A busy server refused the subscription and the questions, and that was taken for its last word: waiters of
/// that client polled from then on, and its locks were not for correctness.
#[tokio::test]
async fn a_client_that_came_while_the_server_was_busy_listens_and_knows_it_afterwards() {
    let server = Redis::builder()
        .persist(Persistence::Always)
        .config("busy-reply-threshold", "20")
        .start()
        .unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let again = connect(&format!("redis://{}", proxy.address())).await;
    let _script = busy(&server).await;
    // One comes for the first time, and one has to come again.
    let refused = try_connect(&server.url()).await;
    fails(refused, &ErrorKind::Unreachable, &[&server.address().to_string(), "busy"]);
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
        let guard = lock.acquire_within(SOON).await.expect("it knows that every write is synced");
        let waiter = other.clone();
        let waiting = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
        until_waiting(one, "x", 1).await;
        guard.release().await.unwrap();
        let next = within(SOON, "its turn comes", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// A way to a server that is cut whenever a client has heard all that it asks when it connects.
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
            let (mut heard, mut bytes) = (String::new(), [0; 4096]);
            // The last thing that is asked for.
            while !heard.contains("noeviction") {
                let Ok(count @ 1..) = server.read(&mut bytes) else { break };
                heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
                if client.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            counter.fetch_add(usize::from(heard.contains("noeviction")), Ordering::Relaxed);
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        }
    });
    (address, cuts)
}

/// A connection that was made counted as a success, however short it lived: a server that closed each at once
/// was connected to thousands of times.
#[tokio::test]
async fn a_server_that_cuts_every_connection_is_not_connected_to_in_a_tight_loop() {
    let server = Redis::builder().config("maxmemory-policy", "noeviction").start().unwrap();
    let (address, cuts) = cut_after_the_handshake(server.address());
    let client = connect(&format!("redis://{address}")).await;
    until("it comes again", async || cuts.load(Ordering::Relaxed) > 1).await;
    // Nobody asks for anything in the first second; in the second one somebody does.
    let before = cuts.load(Ordering::Relaxed);
    pass(Duration::from_secs(1)).await;
    let _ = client.lock("x").acquire_within(Duration::from_secs(1)).await;
    let came = cuts.load(Ordering::Relaxed) - before;
    assert!((1..40).contains(&came), "it connected {came} times in about two seconds");
}

/// Polls a future once, and says whether it is ready.
async fn poke(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}

/// A call whose caller does not look at the answer seemed to hang, and the connection was given up for all.
#[tokio::test]
async fn a_caller_that_is_not_polled_does_not_cost_the_others_their_connection() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let client = connect(&format!("redis://{}", proxy.address())).await;
    let others = client.clone();
    others.lock("other").acquire().await.unwrap().release().await.unwrap();
    let before = proxy.accepted();

    let mut slow = pin!(client.lock("slow").ttl(LONG).acquire());
    assert!(!poke(&mut slow).await, "an answer takes a moment");
    until("it is granted, and its caller does not look", async || has(&server, "slow")).await;
    pass(Duration::from_secs(4)).await;
    others.lock("other").acquire_within(SOON).await.unwrap().release().await.unwrap();
    assert_eq!(proxy.accepted(), before, "nothing was wrong with the connection");
    let guard = within(SOON, "its caller looks at last", slow).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(proxy.accepted(), before);
}

/// The client that had seen its server demoted went on refusing it when it was back in office.
#[tokio::test]
async fn a_primary_that_was_demoted_and_promoted_again_serves_its_clients() {
    let server = Redis::builder().start().unwrap();
    let other = Redis::builder().start().unwrap();
    // One asks while it is a replica, and one does not.
    let (asking, idle) = two(&server.url()).await;
    let port = other.port().to_string();
    for _ in 0..2 {
        server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap().text().unwrap();
        let refused = asking.lock("x").ttl(LONG).acquire_within(SOON).await;
        fails(refused, &ErrorKind::Refused, &[&server.address().to_string(), "replica", "primary"]);
        fails(asking.lock("x").try_acquire().await, &ErrorKind::Refused, &["replica"]);
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap().text().unwrap();
        for client in [&asking, &idle] {
            until("it is used again", async || client.lock("x").try_acquire().await.is_ok()).await;
            nothing_is_left(client, "x").await;
        }
    }
}

/// A client stayed with a primary that had become a replica, though the name led to the new primary by then.
#[tokio::test]
async fn a_client_of_a_primary_that_was_demoted_finds_the_new_one() {
    let server = Redis::builder().start().unwrap();
    let promoted = Redis::builder().start().unwrap();
    let way = fork_in_the_road(server.address(), promoted.address());
    let client = connect(&format!("redis://{way}")).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let port = promoted.port().to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap().text().unwrap();
    until("it is used", async || client.lock("x").try_acquire().await.is_ok()).await;
    let guard = client.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    assert!(has(&promoted, "x"));
    guard.release().await.unwrap();
}

/// A name with control characters, which only another client can make, was left out.
#[tokio::test]
async fn lock_with_control_characters_in_its_name_is_listed_escaped() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _ours = client.lock("ours").ttl(LONG).acquire().await.unwrap();
    for name in ["a\nb", "red\u{1b}[31m"] {
        server.command(&["SET", name, "theirs", "PX", "60000"]).unwrap().text().unwrap();
        let record = format!("fencepost:record:{name}");
        server.command(&["SET", &record, "0 0 - - 0 0 -", "PX", "60000"]).unwrap().text().unwrap();
    }
    let locks = client.list().await.unwrap();
    let names: Vec<&str> = locks.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a\\nb", "ours", "red\\u{1b}[31m"]);
    assert!(locks.iter().all(|info| info.holder.is_some()), "{locks:?}");
    // It is shown, and no call reaches it under that name.
    assert!(client.break_lock("a\\nb").await.unwrap().is_none());
    assert!(has(&server, "a\nb"));
}

/// One name of many that is something else by now failed the whole list.
#[tokio::test]
async fn a_list_goes_on_when_a_past_lock_is_something_else_now() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _first = client.lock("a").ttl(LONG).acquire().await.unwrap();
    client.lock("b").acquire().await.unwrap().release().await.unwrap();
    let _last = client.lock("c").ttl(LONG).acquire().await.unwrap();
    server.command(&["HSET", "b", "field", "theirs"]).unwrap().int().unwrap();
    assert!(has(&server, "fencepost:record:b"), "it is still remembered as a lock");
    let locks = client.list().await.unwrap();
    let names: Vec<&str> = locks.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
}
