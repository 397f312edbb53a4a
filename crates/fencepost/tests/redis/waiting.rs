//! Waiting for a lock that another make of client has, and over connections that break.
//!
//! redis-py, npm `redlock`, redsync and others keep the same key, and publish nothing when they let it go.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Proxy, Redis, Reply, SOON, connect, has, logged, ms, now, pass, two, until,
    until_waiting, within,
};

/// The longest that a waiter goes without looking is 250 ms; the rest is for a busy machine.
const LOOKS: Duration = ms(2000);

/// Takes and releases as a stock client does.
struct Stock<'a>(&'a Redis);

impl Stock<'_> {
    fn take(&self, name: &str, value: &str, ttl: Duration) -> bool {
        let millis = ttl.as_millis().to_string();
        !self.0.command(&["SET", name, value, "NX", "PX", &millis]).unwrap().is_nil()
    }

    fn release(&self, name: &str, value: &str) -> bool {
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] \
                      then return redis.call('del', KEYS[1]) else return 0 end";
        self.0.command(&["EVAL", script, "1", name, value]).unwrap().int().unwrap() == 1
    }
}

#[tokio::test]
async fn a_stock_clients_lock_is_waited_for_and_had_soon_after_it_is_gone() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let stock = Stock(&server);
    // Released, deleted by hand, run out: nobody says a word.
    for way in ["released", "deleted", "expired"] {
        let ttl = if way == "expired" { ms(300) } else { LONG };
        assert!(stock.take("x", "theirs", ttl), "{way}");
        let other = client.clone();
        let waiting = tokio::spawn(async move { other.lock("x").ttl(LONG).acquire().await });
        if way != "expired" {
            until_waiting(&client, "x", 1).await;
            assert!(!waiting.is_finished() && has(&server, "x"));
        }
        match way {
            "released" => assert!(stock.release("x", "theirs")),
            "deleted" => assert_eq!(server.command(&["DEL", "x"]).unwrap(), Reply::Int(1)),
            _ => pass(ttl).await,
        }
        let guard = within(LOOKS, "we have it", waiting).await.unwrap().unwrap();
        assert!(!stock.take("x", "theirs", LONG), "{way}: ours keeps them out");
        assert!(!stock.release("x", "theirs"), "{way}: and they can not end it");
        guard.release().await.unwrap();
        assert!(stock.take("x", "theirs", LONG) && stock.release("x", "theirs"), "{way}");
    }
}

#[tokio::test]
async fn a_stock_client_is_shown_as_a_holder_without_a_token() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    // One of ours had it before: its token is not theirs.
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    assert!(Stock(&server).take("x", "0123456789abcdef0123456789abcdef", LONG));
    let shown = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!((shown.token, shown.ttl), (None, None));
    assert!(shown.remaining.is_some_and(|left| left > LONG / 2 && left <= LONG));
    let error = client.lock("x").acquire_within(ms(50)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}");
    assert!(error.to_string().contains("another client (no token)"), "{error}");
    // Nor is it ours to renew or release, but an operator may break it.
    let broken = client.break_lock("x").await.unwrap().unwrap();
    assert_eq!(broken.token, None);
    let next = client.lock("x").try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > broken.floor);
}

/// A user whose ACL has no channels hears no word, and can not give one: it looks every 250 ms instead.
#[tokio::test]
async fn who_may_not_listen_still_waits_and_is_served() {
    let server = Redis::builder().start().unwrap();
    let rules = ["on", ">hunter2", "~*", "resetchannels", "+@all"];
    server.command(&[&["ACL", "SETUSER", "quiet"], &rules[..]].concat()).unwrap().text().unwrap();
    let (ours, theirs) = two(&format!("redis://quiet:hunter2@{}", server.address())).await;
    assert!(logged(&[&server.address().to_string(), "waiters are not woken at once"]));
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock("x").ttl(LONG).acquire().await });
    until_waiting(&ours, "x", 1).await;
    guard.release().await.unwrap();
    let next = within(LOOKS, "its turn comes", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// redis-py#962, python-redis-lock#73: `timeout=None` leaves a key without an end. It is somebody's lock all
/// the same: who takes it away may run beside its holder.
#[tokio::test]
async fn a_lock_without_an_end_is_waited_for_and_not_stolen() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.command(&["SET", "x", "theirs", "NX"]).unwrap().text().unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").acquire_within(ms(600)).await.unwrap_err();
    assert_eq!(error.holder().expect("it is held").remaining, None, "{error}");
    assert!(error.to_string().contains("no end"), "{error}");
    assert_eq!(server.command(&["GET", "x"]).unwrap().text().unwrap(), "theirs");
    assert_eq!(server.command(&["PTTL", "x"]).unwrap().int().unwrap(), -1);
    let other = client.clone();
    let waiting = tokio::spawn(async move { other.lock("x").acquire().await });
    until_waiting(&client, "x", 1).await;
    server.command(&["DEL", "x"]).unwrap();
    let guard = within(LOOKS, "we have it", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// kazoo#282, #760: an acquire hung for ever after a reconnect. The word of a release that comes while the
/// connection is down is not heard: who waits must look again.
#[tokio::test]
async fn a_waiter_keeps_its_place_over_connections_that_break() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let holder = connect(&server.url()).await;
    let behind = connect(&format!("redis://{}", proxy.address())).await;
    for released_while_down in [false, true] {
        let guard = holder.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
        let waiter = behind.clone();
        let first = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
        until_waiting(&holder, "x", 1).await;
        let waiter = holder.clone();
        let second = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
        until_waiting(&holder, "x", 2).await;
        for _ in 0..3 {
            let before = proxy.accepted();
            proxy.close_all();
            until("it is connected again", async || {
                proxy.accepted() > before && proxy.connections() == 1
            })
            .await;
        }
        assert!(!first.is_finished() && !second.is_finished());
        let (released, token) = (now(), guard.token());
        if released_while_down {
            proxy.close_all();
        } else {
            until_waiting(&holder, "x", 2).await;
        }
        guard.release().await.unwrap();
        let guard = within(LOOKS, "its turn comes", first).await.unwrap().unwrap();
        assert!(guard.token() > token, "{:?} after the release", now().since(released));
        assert!(!second.is_finished(), "who came first is first");
        guard.release().await.unwrap();
        let guard = within(LOOKS, "and then the next", second).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// Whoever gives up while it is not connected must not keep the others waiting behind it.
#[tokio::test]
async fn a_waiter_that_is_cut_off_for_good_does_not_hold_up_the_queue() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let behind = connect(&format!("redis://{}", proxy.address())).await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let cut_off = tokio::spawn(async move { behind.lock("x").ttl(LONG).acquire().await });
    until_waiting(&ours, "x", 1).await;
    let waiter = theirs.clone();
    let second = tokio::spawn(async move { waiter.lock("x").ttl(LONG).acquire().await });
    until_waiting(&ours, "x", 2).await;
    proxy.set_mode(fencepost_testkit::Mode::Silent);
    guard.release().await.unwrap();
    // A place is kept for 1.5 s without a word: redisson#2883, where dead waiters stalled a fair queue.
    let next = within(ms(1500) + LOOKS, "the next one is granted", second).await.unwrap();
    assert!(next.unwrap().check().is_ok());
    cut_off.abort();
}
