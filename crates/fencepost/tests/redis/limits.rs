//! A server at its limits: out of memory, busy with a third-party script, or without our scripts.

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{
    Client, LONG, Persistence, Redis, Reply, SOON, connect, fails, has, ms, nothing_is_left, now,
    try_connect, two, until, within,
};

/// A full server grants nothing new. Existing grants stay: a renewal and a release need no memory.
#[tokio::test]
async fn server_without_memory_keeps_its_grants() {
    let server = Redis::builder().config("maxmemory-policy", "noeviction").start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let kept = ours.lock("kept").ttl(ms(1500)).acquire().await.unwrap();
    let released = ours.lock("released").ttl(LONG).acquire().await.unwrap();
    let broken = ours.lock("broken").ttl(ms(1500)).acquire().await.unwrap();
    // Less than an empty server needs, so that it is full and stays so.
    server.command(&["CONFIG", "SET", "maxmemory", "100kb"]).unwrap().text().unwrap();
    let full = server.command(&["SET", "filler", "x"]).unwrap();
    assert!(matches!(&full, Reply::Error(why) if why.starts_with("OOM")), "{full:?}");

    let words = [&server.address().to_string(), "no memory left", "maxmemory"];
    fails(theirs.lock("x").wait_timeout(ms(300)).acquire().await, ErrorKind::Unreachable, &words);
    fails(theirs.lock("x").try_acquire().await, ErrorKind::Unreachable, &words);
    fails(
        theirs.lock("kept").wait_timeout(ms(300)).acquire().await,
        ErrorKind::Unreachable,
        &words,
    );
    for _ in 0..2 {
        let before = kept.deadline();
        until("it is renewed", async || kept.deadline() > before).await;
    }
    assert!(kept.check().is_ok());
    released.release().await.unwrap();
    assert!(!has(&server, "released"));
    let floor = theirs.break_lock("broken").await.unwrap().expect("it was held").floor;
    assert!(floor > broken.token());
    assert_eq!(within(SOON, "the guard is lost", broken.lost()).await, LossCause::Broken);

    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap().text().unwrap();
    for name in ["x", "released", "broken"] {
        nothing_is_left(&theirs, name).await;
    }
    kept.release().await.unwrap();
    nothing_is_left(&theirs, "kept").await;
}

/// Runs a third-party script that does not end.
pub(crate) async fn busy(server: &Redis) -> Client {
    let mut somebody = server.client().unwrap();
    somebody.send(&["EVAL", "while true do end", "0"]).unwrap();
    until("the server is busy", async || {
        matches!(server.command(&["PING"]).unwrap(), Reply::Error(why) if why.starts_with("BUSY"))
    })
    .await;
    somebody
}

/// Redis runs one script at a time: an endless third-party script stops all locks.
#[tokio::test]
async fn server_busy_with_a_third_party_script_is_unreachable_within_the_limit() {
    let server = Redis::builder().config("busy-reply-threshold", "20").start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    let guard = ours.lock("held").ttl(LONG).acquire().await.unwrap();
    let _script = busy(&server).await;
    let (asked, limit) = (now(), ms(300));
    let outcome = ours.lock("x").ttl(LONG).wait_timeout(limit).acquire().await;
    assert!(now().since(asked) < limit + SOON / 4);
    let address = server.address().to_string();
    fails(outcome, ErrorKind::Unreachable, &[&address, "busy", "SCRIPT KILL"]);

    server.command(&["SCRIPT", "KILL"]).unwrap().text().unwrap();
    nothing_is_left(&theirs, "x").await;
    guard.release().await.expect("it was held all the time");
}

/// A busy server does not answer, so a client that connects then knows nothing of its settings. It must read them
/// later.
#[tokio::test]
async fn client_that_connected_while_the_server_was_busy_reads_its_settings_later() {
    let server = Redis::builder()
        .persist(Persistence::Always)
        .config("busy-reply-threshold", "20")
        .start()
        .unwrap();
    let _script = busy(&server).await;
    let early = try_connect(&server.url()).await;
    server.command(&["SCRIPT", "KILL"]).unwrap().text().unwrap();
    match early {
        Err(error) => {
            fails(Err::<(), _>(error), ErrorKind::Unreachable, &["busy"]);
        }
        Ok(client) => {
            until("it knows that the server syncs every write", async || {
                client.lock("x").for_correctness().try_acquire().await.is_ok()
            })
            .await;
        }
    }
}

/// A restart, a failover or an operator empties the script cache while a client relies on it.
#[tokio::test]
async fn each_step_works_after_a_script_flush() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let forget = || server.command(&["SCRIPT", "FLUSH"]).unwrap().text().unwrap();
    let mut last = None;
    for _ in 0..3 {
        forget();
        let guard = client.lock("x").ttl(ms(1500)).acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        forget();
        let before = guard.deadline();
        until("it is renewed", async || guard.deadline() > before).await;
        forget();
        assert_eq!(client.inspect("x").await.unwrap().holder.unwrap().token, last);
        forget();
        guard.release().await.unwrap();
        let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
        forget();
        let broken = client.break_lock("x").await.unwrap().unwrap();
        assert_eq!(broken.token, Some(guard.token()));
        last = Some(broken.floor);
    }
}
