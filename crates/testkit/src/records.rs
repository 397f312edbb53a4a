//! What must hold of records on every store that keeps them, seen through `once` and `single_flight`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{Begun, ErrorKind, Fencepost, OnFailure, Turn};

use crate::fails;
use crate::time::{LIMIT, LONG, ms, until, within};

/// Long enough that no record of it ends during a test.
const KEPT: Duration = Duration::from_hours(1);

/// The key is ours to run.
pub async fn begin(client: &Fencepost, key: &str) -> Turn {
    let once = client.once(key).ttl(LONG).keep(KEPT);
    match within(LIMIT, "it is ours", once.begin()).await.unwrap() {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => panic!("{key} is settled: {entry:?}"),
    }
}

/// Bytes of every kind, as long as a result may be.
pub fn long_result() -> Vec<u8> {
    (0..64 * 1024_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sixteen come together: one runs, and all have its result.
pub async fn sixteen_run_once(clients: &[Fencepost]) {
    let runs = Arc::new(AtomicUsize::new(0));
    let tasks = (0..16).map(|task| {
        let (client, runs) = (clients[task % clients.len()].clone(), Arc::clone(&runs));
        tokio::spawn(async move {
            let once = client.once("race").ttl(LONG).keep(KEPT);
            let work = async |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(long_result())
            };
            within(LIMIT * 3, "it is done", once.run(work)).await.unwrap()
        })
    });
    let mut ran = 0;
    for task in tasks.collect::<Vec<_>>() {
        let recorded = task.await.unwrap();
        assert_eq!(recorded.result, long_result());
        ran += usize::from(recorded.ran);
    }
    assert_eq!((ran, runs.load(Ordering::SeqCst)), (1, 1));
    let entry = clients[0].once("race").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, &entry.result), (State::Done, &long_result()));
    assert!(entry.kept_for <= KEPT && entry.kept_for + LONG > KEPT, "{:?}", entry.kept_for);
    assert!(entry.since < LONG, "{:?}", entry.since);
}

/// One that was paused and overtaken can not settle it, before the other has, nor after.
pub async fn overtaken_can_not_finish(ours: &Fencepost, theirs: &Fencepost) {
    let (early, late) = (begin(ours, "paused").await, begin(ours, "paused-too").await);
    for key in ["once/paused", "once/paused-too"] {
        theirs.break_lock(key).await.unwrap().expect("it was held");
    }
    let (second, third) = (begin(theirs, "paused").await, begin(theirs, "paused-too").await);
    assert!(second.token() > early.token() && third.token() > late.token());
    let token = second.token();

    fails(
        early.done("stale").await,
        &ErrorKind::Lost(fencepost::LossCause::TakenOver),
        &["paused"],
    );
    let entry = ours.once("paused").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, entry.token), (State::Running, token), "nothing was changed");
    second.done("fresh").await.unwrap();
    let entry = ours.once("paused").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, entry.token, &*entry.result), (State::Done, token, &b"fresh"[..]));

    third.done("fresh").await.unwrap();
    assert!(late.give_up().await.is_err(), "nor can it take away what is done");
    let entry = ours.once("paused-too").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Done, &b"fresh"[..]));
}

/// A record goes when its time is over, and the work can be done again. `none` says whether the store has
/// nothing of it any more.
pub async fn keep_runs_out(client: &Fencepost, mut none: impl AsyncFnMut() -> bool) {
    let once = client.once("short").ttl(LONG).keep(ms(1000));
    let run = || once.run(async |_| Ok::<_, std::io::Error>("done"));
    let first = run().await.unwrap();
    assert!(first.ran);
    until("the record's time is over", async || once.entry().await.unwrap().is_none()).await;
    until("nothing of it is left", async || none().await).await;
    let second = run().await.unwrap();
    assert!(second.ran && second.token > first.token);
}

/// What failed is tried again, or is recorded; what is done is listed, and can be forgotten.
pub async fn listed_and_forgotten(client: &Fencepost) {
    let fail = async |_| Err::<&str, _>(std::io::Error::other("no paper"));
    let again = client.once("again").keep(KEPT);
    fails(again.run(fail).await, &ErrorKind::Failed, &["again"]);
    assert!(again.entry().await.unwrap().is_none(), "it may be tried again");
    let for_good = client.once("for good").keep(KEPT).on_failure(OnFailure::Record);
    fails(for_good.run(fail).await, &ErrorKind::Failed, &["for good"]);
    let entry = for_good.entry().await.unwrap().unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Failed, &b"no paper"[..]));
    fails(for_good.run(fail).await, &ErrorKind::Failed, &["forget it"]);

    // Names that a pattern would take for something else, one within the other.
    for key in ["a", "a/b", "a*", "a[1]?", "\u{e9}"] {
        begin(client, key).await.done(key).await.unwrap();
    }
    let running = begin(client, "z").await;
    client
        .single_flight("not one of them")
        .get_or(async || Ok::<_, std::io::Error>("x"))
        .await
        .unwrap();
    let list = async || {
        let entries = client.once_entries().await.unwrap();
        assert!(entries.iter().all(|(_, entry)| entry.result.is_empty()));
        entries.into_iter().map(|(key, entry)| (key, entry.state.word())).collect::<Vec<_>>()
    };
    let expected = ["a", "a*", "a/b", "a[1]?", "for good", "z", "\u{e9}"];
    let listed = list().await;
    assert_eq!(listed.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), expected);
    let words: Vec<_> = listed.iter().map(|(_, word)| *word).collect();
    assert_eq!(words, ["done", "done", "done", "done", "failed", "running", "done"]);

    let held = client.once("z").forget().await.expect_err("somebody is at it");
    assert!(matches!(held.kind(), ErrorKind::Held(_)), "{held}");
    running.give_up().await.unwrap();
    assert!(!client.once("z").forget().await.unwrap(), "it is not there any more");
    assert!(for_good.forget().await.unwrap());
    assert!(client.once("a").forget().await.unwrap());
    assert_eq!(list().await.len(), 4);
    assert!(begin(client, "a").await.give_up().await.is_ok(), "it can be run again");
}

/// Locks are no records, and records no locks.
pub async fn records_are_no_locks(client: &Fencepost) {
    let turn = begin(client, "both").await;
    let names = async || {
        let locks = client.list().await.unwrap();
        locks.into_iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["once/both"]);
    turn.done("").await.unwrap();
    assert!(names().await.is_empty());
    let holder = client.inspect("once").await.unwrap().holder;
    assert!(holder.is_none(), "{holder:?}");
}
