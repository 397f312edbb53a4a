//! Records in the file: the steps of the ledger, and that one run is recorded whatever fails.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::BackendContext;
use fencepost::backends::sqlite::{Sqlite, SqliteOptions};
use fencepost::clock::{BootClock, Clock as _};
use fencepost::ledger::{Claim, Claimed, Completion, Outcome, Precondition, RecordInfo, State};
use fencepost::{
    ErrorKind, Fencepost, Label, Ledger as _, LockName, Moment, OnFailure, Start, Token,
};

use super::{StoreFile, connect, edit, store_file, used};

const RETENTION: Duration = Duration::from_hours(1);
/// A TTL that does not run out during a test.
pub(super) const LONG: Duration = Duration::from_mins(5);

pub(super) async fn runs(fp: &Fencepost, key: &str, result: &str) -> fencepost::Result<bool> {
    let once = fp.once(key).ttl(LONG);
    let recorded = once.run(|_| async { Ok::<_, std::io::Error>(result) }).await?;
    Ok(recorded.ran)
}

pub(super) async fn begin(fp: &Fencepost, key: &str) -> fencepost::RunGuard {
    match fp.once(key).ttl(LONG).begin().await.unwrap() {
        Start::Claimed(run_guard) => run_guard,
        Start::Finished(record) => panic!("finished already: {record:?}"),
    }
}

fn open_ledger(store_file: &StoreFile) -> Arc<Sqlite> {
    let runtime = tokio::runtime::Handle::current();
    let context = BackendContext::new(Arc::new(BootClock), runtime);
    Sqlite::open(&SqliteOptions::new(&store_file.path), &context).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn claim(name: &str, number: u64) -> Claim {
    let name = LockName::new(name).unwrap();
    Claim::new(name, token(number), Label::new("test").unwrap(), RETENTION)
}

fn finish(name: &str, number: u64, outcome: Outcome, over: Precondition) -> Completion {
    let Claim { name, token, label, retention, .. } = claim(name, number);
    Completion::new(name, token, label, outcome, retention).with_precondition(over)
}

async fn look_up(ledger: &Sqlite, name: &LockName) -> Option<RecordInfo> {
    let names = vec![name.clone()];
    ledger.look_up(names, Moment::NEVER).await.unwrap().value.remove(name)
}

fn done(result: &[u8]) -> Outcome {
    Outcome::Done(result.to_vec())
}

#[track_caller]
fn is(record: Option<&RecordInfo>, state: State, number: u64, result: &[u8]) {
    let record = record.expect("there is a record");
    assert_eq!((record.state, record.token.get(), &*record.result), (state, number, result));
    assert!(record.kept_for <= RETENTION && record.kept_for + Duration::from_mins(1) > RETENTION);
    assert!(record.since < Duration::from_mins(1));
}

#[tokio::test]
async fn record_is_claimed_and_finished_by_its_token() {
    let store_file = store_file();
    let ledger = open_ledger(&store_file);
    let name = LockName::new("once/x").unwrap();
    assert_eq!(look_up(&ledger, &name).await, None);
    for number in [5, 5, 7] {
        assert_eq!(
            ledger.claim(claim("once/x", number), Moment::NEVER).await.unwrap().value,
            Claimed::Ours
        );
        is(look_up(&ledger, &name).await.as_ref(), State::Running, number, b"");
    }
    assert_eq!(
        ledger.claim(claim("once/x", 6), Moment::NEVER).await.unwrap().value,
        Claimed::Overtaken
    );
    // Neither an overtaken run nor one that never claimed can finish.
    for number in [5, 6, 8] {
        for outcome in [done(b"theirs"), Outcome::Failed(b"no".to_vec()), Outcome::Abandoned] {
            let late = finish("once/x", number, outcome, Precondition::OwnClaim);
            assert!(!ledger.finish(late, Moment::NEVER).await.unwrap().value, "{number}");
        }
    }
    is(look_up(&ledger, &name).await.as_ref(), State::Running, 7, b"");
    for result in [&b"first"[..], b"a retry changes nothing"] {
        assert!(
            ledger
                .finish(finish("once/x", 7, done(result), Precondition::OwnClaim), Moment::NEVER)
                .await
                .unwrap()
                .value
        );
        is(look_up(&ledger, &name).await.as_ref(), State::Done, 7, b"first");
    }
    let Claimed::Finished(record) =
        ledger.claim(claim("once/x", 9), Moment::NEVER).await.unwrap().value
    else {
        panic!("it is done")
    };
    is(Some(&record), State::Done, 7, b"first");
    assert!(
        !ledger
            .finish(finish("once/x", 9, done(b""), Precondition::OwnClaim), Moment::NEVER)
            .await
            .unwrap()
            .value
    );
}

#[tokio::test]
async fn abandoned_run_leaves_nothing_and_finishes_nothing_later() {
    let store_file = store_file();
    let ledger = open_ledger(&store_file);
    let name = LockName::new("once/x").unwrap();
    ledger.claim(claim("once/x", 3), Moment::NEVER).await.unwrap();
    for _ in 0..2 {
        let over = finish("once/x", 3, Outcome::Abandoned, Precondition::OwnClaim);
        assert!(ledger.finish(over, Moment::NEVER).await.unwrap().value);
        assert_eq!(look_up(&ledger, &name).await, None);
    }
    assert!(
        !ledger
            .finish(finish("once/x", 3, done(b""), Precondition::OwnClaim), Moment::NEVER)
            .await
            .unwrap()
            .value
    );
    assert_eq!(look_up(&ledger, &name).await, None);
}

#[tokio::test]
async fn value_is_replaced_only_by_a_token_that_is_not_lower() {
    let store_file = store_file();
    let ledger = open_ledger(&store_file);
    let name = LockName::new("flight/x").unwrap();
    for (number, written) in [(4, true), (3, false), (4, true), (6, true)] {
        let result = number.to_string().into_bytes();
        let finish = finish("flight/x", number, Outcome::Done(result.clone()), Precondition::Older);
        assert_eq!(ledger.finish(finish, Moment::NEVER).await.unwrap().value, written, "{number}");
        if written {
            is(look_up(&ledger, &name).await.as_ref(), State::Done, number, &result);
        }
    }
    let failed = finish("flight/x", 6, Outcome::Failed(b"no".to_vec()), Precondition::Older);
    assert!(ledger.finish(failed, Moment::NEVER).await.unwrap().value);
    is(look_up(&ledger, &name).await.as_ref(), State::Failed, 6, b"no");
}

#[tokio::test]
async fn records_are_listed_by_name_and_forgotten_by_token() {
    let store_file = store_file();
    let ledger = open_ledger(&store_file);
    for name in ["once/b", "once/a", "once/\u{fc}", "flight/a", "once", "oncf/a", "once/a%_"] {
        ledger
            .finish(finish(name, 2, done(b"large"), Precondition::Older), Moment::NEVER)
            .await
            .unwrap();
    }
    let names = async |prefix: &str| {
        let records = ledger.list_records(prefix, Moment::NEVER).await.unwrap().value;
        assert!(records.iter().all(|record| record.result.is_empty()));
        records.iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("once/").await, ["once/a", "once/a%_", "once/b", "once/\u{fc}"]);
    assert_eq!(names("once/a%").await, ["once/a%_"]);
    let b = LockName::new("once/b").unwrap();
    for (number, gone) in [(1, false), (3, false), (2, true), (2, false)] {
        assert_eq!(
            ledger.forget(b.clone(), token(number), Moment::NEVER).await.unwrap().value,
            gone
        );
    }
    assert_eq!(names("once/").await.len(), 3);
    assert_eq!(names("").await.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_sixteen_clients_runs() {
    let store_file = store_file();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(connect(&store_file.path).await.unwrap());
    }
    for key in 0..5 {
        let racing: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(index, fp)| {
                let once = fp.once(format!("k/{key}")).ttl(LONG);
                tokio::spawn(async move {
                    once.run(|_| async move { Ok::<_, std::io::Error>(index.to_string()) }).await
                })
            })
            .collect();
        let mut results = Vec::new();
        for one in racing {
            results.push(one.await.unwrap().unwrap());
        }
        assert_eq!(results.iter().filter(|result| result.ran).count(), 1, "{results:?}");
        assert!(results.iter().all(|result| result.result == results[0].result), "{results:?}");
    }
    assert_eq!(clients[0].once_records().await.unwrap().len(), 5);
}

#[tokio::test]
async fn overtaken_run_cannot_finish() {
    let store_file = store_file();
    let (first, second) =
        (connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap());
    let paused = begin(&first, "x").await;
    second.break_lock("once/x").await.unwrap();
    let next = begin(&second, "x").await;
    let error = paused.done("too late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    next.done("in time").await.unwrap();
    let record = first.once("x").record().await.unwrap().unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"in time"[..]));
}

#[tokio::test]
async fn record_survives_restart_reboot_and_adoption() {
    let store_file = store_file();
    assert!(runs(&connect(&store_file.path).await.unwrap(), "x", "kept").await.unwrap());
    let fp = connect(&store_file.path).await.unwrap();
    assert!(!runs(&fp, "x", "again").await.unwrap());
    for change in ["boot = 'before'", "boot = 'elsewhere', machine = 'another'"] {
        edit(&store_file.path, &format!("UPDATE fencepost_store SET {change}"));
        let url = format!("sqlite:{}?adopt=true", store_file.path.display());
        let fp = Fencepost::connect(&url).await.unwrap();
        assert!(!runs(&fp, "x", "again").await.unwrap());
        assert_eq!(fp.once("x").record().await.unwrap().unwrap().result, b"kept");
    }
}

#[tokio::test]
async fn record_expires_and_is_removed() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let short = fp.once("short").retain_for(Duration::from_secs(1));
    short.run(|_| async { Ok::<_, std::io::Error>("") }).await.unwrap();
    assert!(runs(&fp, "long", "").await.unwrap());
    let end = BootClock.now() + Duration::from_secs(30);
    while short.record().await.unwrap().is_some() {
        assert!(BootClock.now() < end, "it is kept for a second");
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
    }
    assert_eq!(fp.once_records().await.unwrap().len(), 1, "it is not listed");
    assert!(runs(&fp, "other", "").await.unwrap());
    let db = rusqlite::Connection::open(&store_file.path).unwrap();
    let ask = "SELECT group_concat(name) FROM (SELECT name FROM fencepost_records ORDER BY name)";
    let names: String = db.query_row(ask, [], |row| row.get(0)).unwrap();
    assert_eq!(names, "once/long,once/other", "nobody asked for it, and its row is gone");
    assert!(runs(&fp, "short", "").await.unwrap(), "it may be done again");
}

#[tokio::test]
async fn old_records_are_removed_when_the_file_is_opened() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    assert!(runs(&fp, "x", "").await.unwrap());
    edit(&store_file.path, "UPDATE fencepost_records SET expires = 1");
    let _other = connect(&store_file.path).await.unwrap();
    let db = rusqlite::Connection::open(&store_file.path).unwrap();
    let ask = "SELECT count(*) FROM fencepost_records";
    assert_eq!(db.query_row(ask, [], |row| row.get::<_, u32>(0)).unwrap(), 0);
}

#[tokio::test]
async fn results_may_be_64_kib_of_any_bytes() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(RecordInfo::MAX_RESULT).collect();
    begin(&fp, "x").await.done(bytes.clone()).await.unwrap();
    assert_eq!(fp.once("x").record().await.unwrap().unwrap().result, bytes);
    let error = begin(&fp, "y").await.done(vec![0; RecordInfo::MAX_RESULT + 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn failures_are_retried_or_recorded_and_forgotten() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let failing = |key, how| {
        let once = fp.once(key).ttl(LONG).on_failure(how);
        async move { once.run(|_| async { Err::<&str, _>("broken") }).await.unwrap_err() }
    };
    failing("x", OnFailure::Retry).await;
    assert!(runs(&fp, "x", "").await.unwrap());
    failing("y", OnFailure::Record).await;
    let error = runs(&fp, "y", "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.one_line().contains("broken"), "{error}");
    assert!(fp.once("y").forget().await.unwrap());
    assert!(!fp.once("y").forget().await.unwrap());
    assert!(runs(&fp, "y", "").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_callers_computes_a_value() {
    let store_file = store_file();
    let clients =
        [connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap()];
    let computed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asking: Vec<_> = (0..40)
        .map(|index| {
            let flight = clients[index % 2].single_flight("v").retain_for(RETENTION).ttl(LONG);
            let computed = Arc::clone(&computed);
            tokio::spawn(async move {
                let compute = || async {
                    computed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    Ok::<_, std::io::Error>("value")
                };
                flight.get_or(compute).await
            })
        })
        .collect();
    for one in asking {
        assert_eq!(one.await.unwrap().unwrap(), b"value");
    }
    assert_eq!(computed.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn store_declares_that_it_keeps_records() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let fp = connect(&store_file.path).await.unwrap();
    assert_eq!(fp.guarantees().records, fencepost::guarantees::Records::Kept);
}
