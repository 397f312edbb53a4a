//! Records on every store that keeps them, seen through `once` and `single_flight`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost, OnFailure, RunGuard, Start};

use crate::time::{LIMIT, LONG, ms, until, within};
use crate::{fails, fails_because};

/// Long enough that no record expires during a test.
const KEPT: Duration = Duration::from_hours(1);

/// Claims the key.
pub async fn begin(client: &Fencepost, key: &str) -> RunGuard {
    let once = client.once(key).ttl(LONG).retain_for(KEPT);
    match within(LIMIT, "it is ours", once.begin()).await.unwrap() {
        Start::Claimed(run_guard) => run_guard,
        Start::Finished(record) => panic!("{key} is finished: {record:?}"),
    }
}

/// Bytes of every value, at the longest size of a result.
pub fn long_result() -> Vec<u8> {
    (0..64 * 1024_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sixteen callers come together: one runs, and all get its result.
pub async fn sixteen_run_once(clients: &[Fencepost]) {
    let runs = Arc::new(AtomicUsize::new(0));
    let tasks = (0..16).map(|task| {
        let (client, runs) = (clients[task % clients.len()].clone(), Arc::clone(&runs));
        tokio::spawn(async move {
            let once = client.once("race").ttl(LONG).retain_for(KEPT);
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
    let record = clients[0].once("race").record().await.unwrap().unwrap();
    assert_eq!((record.state, &record.result), (State::Done, &long_result()));
    assert!(record.kept_for <= KEPT && record.kept_for + LONG > KEPT, "{:?}", record.kept_for);
    assert!(record.since < LONG, "{:?}", record.since);
}

/// A runner that was paused and overtaken cannot finish the record, neither before nor after the other has.
pub async fn overtaken_cannot_finish(ours: &Fencepost, theirs: &Fencepost) {
    let (early, late) = (begin(ours, "paused").await, begin(ours, "paused-too").await);
    for key in ["once/paused", "once/paused-too"] {
        theirs.break_lock(key).await.unwrap().expect("it was held");
    }
    let (second, third) = (begin(theirs, "paused").await, begin(theirs, "paused-too").await);
    assert!(second.token() > early.token() && third.token() > late.token());
    let token = second.token();

    let refused = early.done("stale").await;
    fails_because(refused, ErrorKind::Lost, fencepost::LossCause::TakenOver, &["paused"]);
    let record = ours.once("paused").record().await.unwrap().unwrap();
    assert_eq!((record.state, record.token), (State::Running, token), "nothing was changed");
    second.done("fresh").await.unwrap();
    let record = ours.once("paused").record().await.unwrap().unwrap();
    assert_eq!((record.state, record.token, &*record.result), (State::Done, token, &b"fresh"[..]));

    third.done("fresh").await.unwrap();
    assert!(late.give_up().await.is_err(), "nor can it remove a finished record");
    let record = ours.once("paused-too").record().await.unwrap().unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"fresh"[..]));
}

/// A record expires, and the work can run again. `none` says whether the store has removed it.
pub async fn retention_ends(client: &Fencepost, mut none: impl AsyncFnMut() -> bool) {
    let once = client.once("short").ttl(LONG).retain_for(ms(1000));
    let run = || once.run(async |_| Ok::<_, std::io::Error>("done"));
    let first = run().await.unwrap();
    assert!(first.ran);
    until("the record expires", async || once.record().await.unwrap().is_none()).await;
    until("nothing of it is left", async || none().await).await;
    let second = run().await.unwrap();
    assert!(second.ran && second.token > first.token);
}

/// A failure is retried or recorded; finished records are listed, and can be forgotten.
pub async fn listed_and_forgotten(client: &Fencepost) {
    let fail = async |_| Err::<&str, _>(std::io::Error::other("no paper"));
    let again = client.once("again").retain_for(KEPT);
    fails(again.run(fail).await, ErrorKind::Failed, &["again"]);
    assert!(again.record().await.unwrap().is_none(), "it may be retried");
    let for_good = client.once("for good").retain_for(KEPT).on_failure(OnFailure::Record);
    fails(for_good.run(fail).await, ErrorKind::Failed, &["for good"]);
    let record = for_good.record().await.unwrap().unwrap();
    assert_eq!((record.state, &*record.result), (State::Failed, &b"no paper"[..]));
    fails(for_good.run(fail).await, ErrorKind::Failed, &["forget it"]);

    // Names that a pattern could confuse, one inside the other.
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
        let records = client.once_records().await.unwrap();
        assert!(records.iter().all(|(_, record)| record.result.is_empty()));
        records.into_iter().map(|(key, record)| (key, record.state.as_str())).collect::<Vec<_>>()
    };
    let expected = ["a", "a*", "a/b", "a[1]?", "for good", "z", "\u{e9}"];
    let listed = list().await;
    assert_eq!(listed.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), expected);
    let words: Vec<_> = listed.iter().map(|(_, word)| *word).collect();
    assert_eq!(words, ["done", "done", "done", "done", "failed", "running", "done"]);

    let held = client.once("z").forget().await.expect_err("a run is in progress");
    assert_eq!(held.kind(), ErrorKind::Held, "{held}");
    running.give_up().await.unwrap();
    assert!(!client.once("z").forget().await.unwrap(), "it is gone");
    assert!(for_good.forget().await.unwrap());
    assert!(client.once("a").forget().await.unwrap());
    assert_eq!(list().await.len(), 4);
    assert!(begin(client, "a").await.give_up().await.is_ok(), "it can be run again");
}

/// Locks are not listed as records, nor records as locks.
pub async fn records_are_no_locks(client: &Fencepost) {
    let run_guard = begin(client, "both").await;
    let names = async || {
        let locks = client.list().await.unwrap();
        locks.into_iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["once/both"]);
    run_guard.done("").await.unwrap();
    assert!(names().await.is_empty());
    let holder = client.inspect("once").await.unwrap().holder;
    assert!(holder.is_none(), "{holder:?}");
}
