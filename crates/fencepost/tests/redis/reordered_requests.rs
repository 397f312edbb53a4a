//! An acquire that arrives after the release that undoes it, although the release found a position in the queue. It
//! was sent on another connection, or came later in a batch.

use fencepost::{Fencepost, Guard};
use fencepost_testkit::{
    LONG, Redis, Reply, Valve, connect, has, nothing_is_left, switching_proxy, until, until_waiting,
};

use tokio::task::JoinHandle;

const OWNER: &str = "0123456789abcdef0123456789abcdef";

fn script(text: &str) -> String {
    text.replace("--COMMON--", include_str!("../../src/backends/redis/scripts/common.lua"))
}

/// Runs a script with these arguments on the lock "x", and returns its status.
fn run(server: &Redis, script: &str, arguments: &[&str]) -> i64 {
    let words = ["EVAL", script, "2", "x", "fencepost:lock:{x}"];
    match server.command(&[&words[..], arguments].concat()).unwrap() {
        // Only the token: granted at once.
        Reply::Bulk(_) | Reply::Simple(_) => 1,
        reply => match reply.items() {
            Ok(items) => items[0].int().unwrap(),
            Err(_) => reply.int().unwrap(),
        },
    }
}

/// The scripts themselves in the wrong order. `noted`: the release knows that the outcome of an acquire is unknown.
fn acquire_after_release(noted: bool) {
    let server = Redis::builder().start().unwrap();
    let acquire = script(include_str!("../../src/backends/redis/scripts/acquire.lua"));
    let release = script(include_str!("../../src/backends/redis/scripts/release.lua"));
    let tail = format!(" 0 - {OWNER} 60000 0 waiter");
    let poll = [OWNER, "60000", &tail, "client", "3600000"];
    server.command(&["SET", "x", "theirs", "PX", "60000"]).unwrap().text().unwrap();
    assert_eq!(run(&server, &acquire, &poll), 2, "it is queued");
    let undo = [OWNER, "3600000", "60000", "unanswered"];
    assert_eq!(run(&server, &release, &undo[..if noted { 4 } else { 3 }]), 1, "it had a position");
    server.command(&["DEL", "x"]).unwrap();
    let late = run(&server, &acquire, &poll);
    assert_eq!((late, has(&server, "x")), if noted { (3, false) } else { (1, true) });
    let left = server.command(&["PTTL", &format!("fencepost:withdrawn:{{x}}:{OWNER}")]).unwrap();
    assert_eq!((1..=60000).contains(&left.int().unwrap()), noted, "a note has an end: {left:?}");
}

#[test]
fn script_refuses_an_acquire_after_its_release() {
    acquire_after_release(true);
}

/// Control: without the note it is granted to nobody.
#[test]
fn control_script_grants_a_late_acquire_without_the_note() {
    acquire_after_release(false);
}

fn waits(client: &Fencepost) -> JoinHandle<fencepost::Result<Guard>> {
    tokio::spawn(client.lock("x").ttl(LONG).acquire())
}

fn notes(server: &Redis) -> Vec<String> {
    let notes = server.command(&["KEYS", "fencepost:withdrawn:*"]).unwrap();
    notes.items().unwrap().iter().map(|note| note.text().unwrap()).collect()
}

/// Lets the late acquire through when the lock is free.
async fn arrives_late(server: &Redis, valve: &Valve, with_note: bool) {
    assert!(!has(server, "x"), "the lock is free");
    if !with_note {
        for note in notes(server) {
            server.command(&["DEL", &note]).unwrap();
        }
    }
    let answers = valve.open();
    until("the late acquire is answered", async || valve.answers() > answers).await;
    assert_eq!(has(server, "x"), !with_note, "granted to nobody");
    if with_note {
        nothing_is_left(&connect(&server.url()).await, "x").await;
    }
}

/// A waiter's poll is held back on the connection of the caller's runtime. The waiter is cancelled, and its undo
/// overtakes the poll on the client's own connection.
async fn poll_is_overtaken(with_note: bool) {
    let server = Redis::builder().start().unwrap();
    let valve = Valve::to(server.address());
    let route = switching_proxy(server.address(), valve.address);
    let (holder, client) =
        (connect(&server.url()).await, connect(&format!("redis://{route}")).await);
    until("the caller's runtime has a connection of its own", async || {
        client.lock("warm").acquire().await.unwrap().release().await.unwrap();
        valve.answers() > 4
    })
    .await;
    let guard = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&client);
    until_waiting(&holder, "x", 1).await;
    valve.shut();
    until("a poll is held back", async || valve.held_scripts() > 0).await;
    waiter.abort();
    until_waiting(&holder, "x", 0).await;
    guard.release().await.unwrap();
    arrives_late(&server, &valve, with_note).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poll_overtaken_by_its_undo_is_refused() {
    poll_is_overtaken(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_overtaken_poll_without_the_note_is_granted() {
    poll_is_overtaken(false).await;
}

/// A waiter's poll is held back, its connection is cut, and the server is unreachable for a while. The release after
/// the outage finds the waiter's position, and must still know that a poll was sent.
async fn cut_and_outage(with_note: bool) {
    let server = Redis::builder().start().unwrap();
    let valve = Valve::to(server.address());
    let (holder, first) = (connect(&server.url()).await, connect(&server.url()).await);
    let client: Fencepost = connect(&format!("redis://{}", valve.address)).await;
    let guard = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    // The waiter ahead keeps the queue alive, and so the position.
    let ahead = waits(&first);
    until_waiting(&holder, "x", 1).await;
    let waiter = waits(&client);
    until_waiting(&holder, "x", 2).await;
    valve.shut();
    until("a poll is held back", async || valve.held_scripts() > 0).await;
    valve.cut();
    until("the client has noticed", async || {
        client.inspect("x").await.is_err_and(|error| error.one_line().contains("no connection"))
    })
    .await;
    waiter.abort();
    let accepted = valve.accepted();
    valve.heal();
    until("it is connected again", async || valve.accepted() > accepted).await;
    client.close().await;
    guard.release().await.unwrap();
    ahead.await.unwrap().unwrap().release().await.unwrap();
    arrives_late(&server, &valve, with_note).await;
}

#[tokio::test]
async fn poll_sent_before_an_outage_is_refused() {
    cut_and_outage(true).await;
}

#[tokio::test]
async fn control_poll_sent_before_an_outage_without_the_note_is_granted() {
    cut_and_outage(false).await;
}

/// An answered acquire needs no note. Notes stay for a minute, and a busy lock would leave thousands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_release_leaves_no_note() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    for round in 0..100 {
        let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
        if round % 10 == 0 {
            let waiter = waits(&client);
            until_waiting(&client, "x", 1).await;
            guard.release().await.unwrap();
            waiter.await.unwrap().unwrap().release().await.unwrap();
        } else {
            guard.release().await.unwrap();
        }
    }
    assert_eq!(notes(&server), Vec::<String>::new());
}
