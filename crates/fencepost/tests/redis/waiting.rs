//! Waiting for a lock that a third-party client holds, and over lost connections.
//!
//! redis-py, npm `redlock`, redsync and others use the same key, and publish nothing when they release it.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, Proxy, Redis, Reply, SOON, connect, has, logged, ms, now, pass, two, until,
    until_waiting, within,
};

/// A waiter polls at least every 250 ms; the rest is for a busy machine.
const POLL_LIMIT: Duration = ms(2000);

/// Acquires and releases like a third-party client.
struct ThirdPartyClient<'a>(&'a Redis);

impl ThirdPartyClient<'_> {
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
async fn lock_of_a_third_party_client_is_waited_for() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let third_party = ThirdPartyClient(&server);
    // Released, deleted, expired: none of these notifies.
    for way in ["released", "deleted", "expired"] {
        let ttl = if way == "expired" { ms(300) } else { LONG };
        assert!(third_party.take("x", "theirs", ttl), "{way}");
        let other = client.clone();
        let waiting = tokio::spawn(async move { other.lock("x").ttl(LONG).acquire().await });
        if way != "expired" {
            until_waiting(&client, "x", 1).await;
            assert!(!waiting.is_finished() && has(&server, "x"));
        }
        match way {
            "released" => assert!(third_party.release("x", "theirs")),
            "deleted" => assert_eq!(server.command(&["DEL", "x"]).unwrap(), Reply::Int(1)),
            _ => pass(ttl).await,
        }
        let guard = within(POLL_LIMIT, "we have it", waiting).await.unwrap().unwrap();
        assert!(!third_party.take("x", "theirs", LONG), "{way}: ours keeps them out");
        assert!(!third_party.release("x", "theirs"), "{way}: and they cannot end it");
        guard.release().await.unwrap();
        assert!(
            third_party.take("x", "theirs", LONG) && third_party.release("x", "theirs"),
            "{way}"
        );
    }
}

#[tokio::test]
async fn third_party_holder_is_shown_without_a_token() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    // A client of ours had it before: its token must not be shown.
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    assert!(ThirdPartyClient(&server).take("x", "0123456789abcdef0123456789abcdef", LONG));
    let shown = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!((shown.token, shown.ttl), (None, None));
    assert!(shown.remaining.is_some_and(|left| left > LONG / 2 && left <= LONG));
    let error = client.lock("x").wait_timeout(ms(50)).acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Held && error.holder().is_some(), "{error}");
    assert!(error.one_line().contains("another client (no token)"), "{error}");
    // An operator may break it.
    let broken = client.break_lock("x").await.unwrap().unwrap();
    assert_eq!(broken.token, None);
    let next = client.lock("x").try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > broken.floor);
}

/// A user without channel rights can neither send nor receive notifications: it polls every 250 ms instead.
#[tokio::test]
async fn waiter_that_may_not_subscribe_is_granted() {
    let server = Redis::builder().start().unwrap();
    let rules = ["on", ">hunter2", "~*", "resetchannels", "+@all"];
    server.command(&[&["ACL", "SETUSER", "quiet"], &rules[..]].concat()).unwrap().text().unwrap();
    let (ours, theirs) = two(&format!("redis://quiet:hunter2@{}", server.address())).await;
    assert!(logged(&[&server.address().to_string(), "waiters are not woken at once"]));
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock("x").ttl(LONG).acquire().await });
    until_waiting(&ours, "x", 1).await;
    guard.release().await.unwrap();
    let next = within(POLL_LIMIT, "the waiter is granted", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// redis-py#962, python-redis-lock#73: `timeout=None` leaves a key without an expiry. It is still a held lock: a client
/// that takes it could run beside its holder.
#[tokio::test]
async fn lock_without_expiry_is_waited_for_and_not_stolen() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    server.command(&["SET", "x", "theirs", "NX"]).unwrap().text().unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    let error = client.lock("x").wait_timeout(ms(600)).acquire().await.unwrap_err();
    assert_eq!(error.holder().expect("it is held").remaining, None, "{error}");
    assert!(error.one_line().contains("does not expire"), "{error}");
    assert_eq!(server.command(&["GET", "x"]).unwrap().text().unwrap(), "theirs");
    assert_eq!(server.command(&["PTTL", "x"]).unwrap().int().unwrap(), -1);
    let other = client.clone();
    let waiting = tokio::spawn(async move { other.lock("x").acquire().await });
    until_waiting(&client, "x", 1).await;
    server.command(&["DEL", "x"]).unwrap();
    let guard = within(POLL_LIMIT, "we have it", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// kazoo#282, #760: an acquire hung forever after a reconnect. A release is not notified while the connection is
/// down, so the waiter must poll again.
#[tokio::test]
async fn waiter_keeps_its_position_over_lost_connections() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let holder = connect(&server.url()).await;
    let behind = connect(&format!("redis://{}", proxy.address())).await;
    for released_while_down in [false, true] {
        let guard = holder.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
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
        let guard = within(POLL_LIMIT, "the waiter is granted", first).await.unwrap().unwrap();
        assert!(guard.token() > token, "{:?} after the release", now().since(released));
        assert!(!second.is_finished(), "waiters are granted in order");
        guard.release().await.unwrap();
        let guard = within(POLL_LIMIT, "and then the next", second).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// A waiter that gives up while disconnected must not block the others.
#[tokio::test]
async fn unreachable_waiter_does_not_block_the_queue() {
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
    // A position expires 1.5 s after the last poll. In redisson#2883 dead waiters stalled a fair queue.
    let next = within(ms(1500) + POLL_LIMIT, "the next one is granted", second).await.unwrap();
    assert!(next.unwrap().check().is_ok());
    cut_off.abort();
}
