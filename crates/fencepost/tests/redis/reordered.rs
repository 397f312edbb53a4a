//! An acquire that arrives after the release that undoes it, though the release found something to end: a position in
//! the queue. It was sent on another connection, or stood behind it in a batch.

use fencepost::{Fencepost, Guard};
use fencepost_testkit::{
    LONG, Redis, Reply, Valve, connect, fork_in_the_road, has, nothing_is_left, until,
    until_waiting,
};

use tokio::task::JoinHandle;

const OWNER: &str = "0123456789abcdef0123456789abcdef";

fn script(text: &str) -> String {
    text.replace("--SLOW--", include_str!("../../src/backends/redis/scripts/slow.lua"))
}

/// Runs a script with these arguments on the lock "x", and gives its status.
fn run(server: &Redis, script: &str, arguments: &[&str]) -> i64 {
    let words = ["EVAL", script, "2", "x", "fencepost:record:x"];
    match server.command(&[&words[..], arguments].concat()).unwrap() {
        // The token alone: granted on the short way.
        Reply::Bulk(_) | Reply::Simple(_) => 1,
        reply => match reply.items() {
            Ok(items) => items[0].int().unwrap(),
            Err(_) => reply.int().unwrap(),
        },
    }
}

/// The scripts themselves, in the wrong order, as any way to reorder them has it. `noted`: the release knows that the
/// outcome of an acquire is unknown.
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
    let left = server.command(&["PTTL", &format!("fencepost:gone:{OWNER}")]).unwrap();
    assert_eq!((1..=60000).contains(&left.int().unwrap()), noted, "a note has an end: {left:?}");
}

#[test]
fn acquire_that_arrives_after_its_release_is_refused_by_the_script() {
    acquire_after_release(true);
}

/// The control: without the note it is granted to nobody.
#[test]
fn without_the_note_the_script_grants_it_to_nobody() {
    acquire_after_release(false);
}

fn waits(client: &Fencepost) -> JoinHandle<fencepost::Result<Guard>> {
    tokio::spawn(client.lock("x").ttl(LONG).acquire())
}

fn notes(server: &Redis) -> Vec<String> {
    let notes = server.command(&["KEYS", "fencepost:gone:*"]).unwrap();
    notes.items().unwrap().iter().map(|note| note.text().unwrap()).collect()
}

/// Lets the late acquire through to a lock that is free.
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

/// A waiter's poll is held back on the connection of the caller's runtime; the waiter is cancelled, and its undo
/// overtakes the poll on the client's own connection.
async fn poll_is_overtaken(with_note: bool) {
    let server = Redis::builder().start().unwrap();
    let valve = Valve::to(server.address());
    let way = fork_in_the_road(server.address(), valve.address);
    let (holder, client) = (connect(&server.url()).await, connect(&format!("redis://{way}")).await);
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
async fn poll_that_its_undo_overtook_is_refused() {
    poll_is_overtaken(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_note_a_poll_that_was_overtaken_is_granted_to_nobody() {
    poll_is_overtaken(false).await;
}

/// A waiter's poll is held back, its connection is cut, and no new one can be made for a while. The release that comes
/// after the outage finds the waiter's position, and must know all the same that a poll was sent.
async fn cut_and_outage(with_note: bool) {
    let server = Redis::builder().start().unwrap();
    let valve = Valve::to(server.address());
    let (holder, first) = (connect(&server.url()).await, connect(&server.url()).await);
    let client: Fencepost = connect(&format!("redis://{}", valve.address)).await;
    let guard = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    // Who waits before it keeps the queue alive, and the position in it.
    let ahead = waits(&first);
    until_waiting(&holder, "x", 1).await;
    let waiter = waits(&client);
    until_waiting(&holder, "x", 2).await;
    valve.shut();
    until("a poll is held back", async || valve.held_scripts() > 0).await;
    valve.cut();
    until("the client has noticed", async || {
        client.inspect("x").await.is_err_and(|error| error.to_string().contains("no connection"))
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
async fn poll_before_a_cut_and_an_outage_is_not_forgotten() {
    cut_and_outage(true).await;
}

#[tokio::test]
async fn without_the_note_a_poll_before_an_outage_is_granted_to_nobody() {
    cut_and_outage(false).await;
}

/// What was answered needs no note: they stay for a minute, and a busy lock would leave thousands.
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
