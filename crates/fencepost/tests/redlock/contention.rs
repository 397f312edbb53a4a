//! Many clients acquire the same lock at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{LONG, SOON, connect, fails, ms, nothing_is_left, now, two, within};

use crate::Nodes;

const TASKS: u64 = 8;
const ROUNDS: u64 = 20;

/// Colliding attempts must not collide forever. And no update under the lock is lost, though each task reads, yields,
/// and writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_counter_loses_no_update_and_tokens_rise() {
    let nodes = Nodes::start(3);
    let url = nodes.url("restarted=vote");
    let clients = [connect(&url).await, connect(&url).await];
    let counter = Arc::new(AtomicU64::new(0));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let started = now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = clients[usize::from(task % 2 == 0)].clone();
            let (counter, tokens) = (Arc::clone(&counter), Arc::clone(&tokens));
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let lock = client.lock("x").ttl(LONG);
                    let guard = lock.wait_timeout(Duration::from_secs(30)).acquire().await.unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    tokens.lock().unwrap().push(guard.token());
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        within(Duration::from_secs(30), "all tasks end", task).await.unwrap();
    }
    println!("{} grants in {:?}", TASKS * ROUNDS, now().since(started));
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * ROUNDS, "an update was lost");
    let tokens = std::mem::take(&mut *tokens.lock().unwrap());
    assert_eq!(tokens.len() as u64, TASKS * ROUNDS);
    assert!(tokens.is_sorted_by(|one, next| one < next), "tokens rise: {tokens:?}");
    nothing_is_left(&clients[0], "x").await;
}

/// node-redlock#284, #288: contention and outage looked alike.
#[tokio::test]
async fn held_lock_names_its_holder_and_an_outage_does_not() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    let guard =
        ours.lock("x").ttl(LONG).label("the holder").wait_timeout(SOON).acquire().await.unwrap();
    let error = theirs.lock("x").wait_timeout(ms(300)).acquire().await.unwrap_err();
    let holder = error.holder().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((holder.label.as_str(), holder.token), ("the holder", Some(guard.token())));
    // One node less changes nothing.
    nodes.0[0].server.kill().unwrap();
    let error = theirs.lock("x").wait_timeout(ms(300)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    nodes.0[1].server.kill().unwrap();
    let outcome = theirs.lock("x").wait_timeout(ms(300)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &["2 are needed"]);
}

/// A break sets a floor above every earlier token and below every later one.
#[tokio::test]
async fn broken_guard_is_lost_and_later_tokens_are_above_the_floor() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = two(&nodes.url("restarted=vote")).await;
    assert!(theirs.break_lock("x").await.unwrap().is_none(), "nobody has it");
    for node_away in [false, true] {
        if node_away {
            nodes.0[2].server.kill().unwrap();
        }
        let guard =
            ours.lock("x").ttl(ms(1500)).label("old").wait_timeout(SOON).acquire().await.unwrap();
        let broken = theirs.break_lock("x").await.unwrap().expect("it is held");
        assert_eq!((broken.label.as_str(), broken.token), ("old", Some(guard.token())));
        assert!(broken.floor > guard.token());
        let next = theirs.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert!(next.token() > broken.floor, "{} and the floor {}", next.token(), broken.floor);
        let cause = within(SOON, "the guard is lost", guard.lost()).await;
        assert_eq!(cause, LossCause::Broken);
        assert!(guard.release().await.is_err(), "it was not its to release");
        let shown = theirs.inspect("x").await.unwrap().holder.unwrap();
        assert_eq!(shown.token, Some(next.token()), "and the next one has it still");
        next.release().await.unwrap();
    }
}
