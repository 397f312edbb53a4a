//! Records in the file: the steps of the ledger, and that one run is recorded whatever happens.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::Surroundings;
use fencepost::backends::sqlite::{Options, Sqlite};
use fencepost::clock::{BootClock, Clock as _};
use fencepost::ledger::{Claim, Claimed, Entry, Finish, Outcome, Over, State};
use fencepost::{
    Begun, ErrorKind, Fencepost, Label, Ledger as _, LockName, Moment, OnFailure, Token,
};

use tokio_util::task::TaskTracker;

use super::{Place, connect, edit, place, used};

const KEEP: Duration = Duration::from_hours(1);
/// A TTL that does not run out during a test.
pub(super) const LONG: Duration = Duration::from_mins(5);

pub(super) async fn runs(fp: &Fencepost, key: &str, result: &str) -> fencepost::Result<bool> {
    let once = fp.once(key).ttl(LONG);
    let recorded = once.run(|_| async { Ok::<_, std::io::Error>(result) }).await?;
    Ok(recorded.ran)
}

pub(super) async fn begin(fp: &Fencepost, key: &str) -> fencepost::Turn {
    match fp.once(key).ttl(LONG).begin().await.unwrap() {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => panic!("settled already: {entry:?}"),
    }
}

fn ledger(place: &Place) -> Arc<Sqlite> {
    let runtime = tokio::runtime::Handle::current();
    let around = Surroundings {
        clock: Arc::new(BootClock),
        runtime,
        tasks: TaskTracker::new(),
        create: true,
    };
    Sqlite::open(&place.path, Options::default(), &around).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn claim(name: &str, number: u64) -> Claim {
    let name = LockName::new(name).unwrap();
    Claim { name, token: token(number), label: Label::new("test").unwrap(), keep: KEEP }
}

fn finish(name: &str, number: u64, outcome: Outcome, over: Over) -> Finish {
    let Claim { name, token, label, keep } = claim(name, number);
    Finish { name, token, label, outcome, keep, over }
}

fn done(result: &[u8]) -> Outcome {
    Outcome::Done(result.to_vec())
}

#[track_caller]
fn is(entry: Option<&Entry>, state: State, number: u64, result: &[u8]) {
    let entry = entry.expect("there is a record");
    assert_eq!((entry.state, entry.token.get(), &*entry.result), (state, number, result));
    assert!(entry.kept_for <= KEEP && entry.kept_for + Duration::from_mins(1) > KEEP);
    assert!(entry.since < Duration::from_mins(1));
}

#[tokio::test]
async fn a_record_is_claimed_and_settled_by_its_token() {
    let place = place();
    let book = ledger(&place);
    let name = LockName::new("once/x").unwrap();
    assert_eq!(book.look_up(name.clone(), Moment::NEVER).await.unwrap().value, None);
    for number in [5, 5, 7] {
        assert_eq!(
            book.claim(claim("once/x", number), Moment::NEVER).await.unwrap().value,
            Claimed::Ours
        );
        is(
            book.look_up(name.clone(), Moment::NEVER).await.unwrap().value.as_ref(),
            State::Running,
            number,
            b"",
        );
    }
    assert_eq!(
        book.claim(claim("once/x", 6), Moment::NEVER).await.unwrap().value,
        Claimed::Overtaken
    );
    // The one who was overtaken marks nothing, and neither does one who never claimed.
    for number in [5, 6, 8] {
        for outcome in [done(b"theirs"), Outcome::Failed(b"no".to_vec()), Outcome::Abandoned] {
            let late = finish("once/x", number, outcome, Over::OwnClaim);
            assert!(!book.finish(late, Moment::NEVER).await.unwrap().value, "{number}");
        }
    }
    is(
        book.look_up(name.clone(), Moment::NEVER).await.unwrap().value.as_ref(),
        State::Running,
        7,
        b"",
    );
    for result in [&b"first"[..], b"a retry changes nothing"] {
        assert!(
            book.finish(finish("once/x", 7, done(result), Over::OwnClaim), Moment::NEVER)
                .await
                .unwrap()
                .value
        );
        is(
            book.look_up(name.clone(), Moment::NEVER).await.unwrap().value.as_ref(),
            State::Done,
            7,
            b"first",
        );
    }
    let Claimed::Settled(entry) =
        book.claim(claim("once/x", 9), Moment::NEVER).await.unwrap().value
    else {
        panic!("it is done")
    };
    is(Some(&entry), State::Done, 7, b"first");
    assert!(
        !book
            .finish(finish("once/x", 9, done(b""), Over::OwnClaim), Moment::NEVER)
            .await
            .unwrap()
            .value
    );
}

#[tokio::test]
async fn a_run_that_is_given_up_leaves_nothing_and_marks_nothing_later() {
    let place = place();
    let book = ledger(&place);
    let name = LockName::new("once/x").unwrap();
    book.claim(claim("once/x", 3), Moment::NEVER).await.unwrap();
    for _ in 0..2 {
        let over = finish("once/x", 3, Outcome::Abandoned, Over::OwnClaim);
        assert!(book.finish(over, Moment::NEVER).await.unwrap().value);
        assert_eq!(book.look_up(name.clone(), Moment::NEVER).await.unwrap().value, None);
    }
    assert!(
        !book
            .finish(finish("once/x", 3, done(b""), Over::OwnClaim), Moment::NEVER)
            .await
            .unwrap()
            .value
    );
    assert_eq!(book.look_up(name, Moment::NEVER).await.unwrap().value, None);
}

#[tokio::test]
async fn a_value_is_replaced_by_a_higher_token_only() {
    let place = place();
    let book = ledger(&place);
    let name = LockName::new("flight/x").unwrap();
    for (number, written) in [(4, true), (3, false), (4, true), (6, true)] {
        let result = number.to_string().into_bytes();
        let finish = finish("flight/x", number, Outcome::Done(result.clone()), Over::Older);
        assert_eq!(book.finish(finish, Moment::NEVER).await.unwrap().value, written, "{number}");
        if written {
            is(
                book.look_up(name.clone(), Moment::NEVER).await.unwrap().value.as_ref(),
                State::Done,
                number,
                &result,
            );
        }
    }
    let failed = finish("flight/x", 6, Outcome::Failed(b"no".to_vec()), Over::Older);
    assert!(book.finish(failed, Moment::NEVER).await.unwrap().value);
    is(book.look_up(name, Moment::NEVER).await.unwrap().value.as_ref(), State::Failed, 6, b"no");
}

#[tokio::test]
async fn records_are_listed_by_name_and_forgotten_by_token() {
    let place = place();
    let book = ledger(&place);
    for name in ["once/b", "once/a", "once/\u{fc}", "flight/a", "once", "oncf/a", "once/a%_"] {
        book.finish(finish(name, 2, done(b"large"), Over::Older), Moment::NEVER).await.unwrap();
    }
    let names = async |prefix: &str| {
        let entries = book.entries(prefix, Moment::NEVER).await.unwrap().value;
        assert!(entries.iter().all(|entry| entry.result.is_empty()));
        entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("once/").await, ["once/a", "once/a%_", "once/b", "once/\u{fc}"]);
    assert_eq!(names("once/a%").await, ["once/a%_"]);
    let b = LockName::new("once/b").unwrap();
    for (number, gone) in [(1, false), (3, false), (2, true), (2, false)] {
        assert_eq!(book.forget(b.clone(), token(number), Moment::NEVER).await.unwrap().value, gone);
    }
    assert_eq!(names("once/").await.len(), 3);
    assert_eq!(names("").await.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_clients_that_start_together_one_runs() {
    let place = place();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(connect(&place.path).await.unwrap());
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
    assert_eq!(clients[0].once_entries().await.unwrap().len(), 5);
}

#[tokio::test]
async fn one_that_was_overtaken_can_not_mark_it() {
    let place = place();
    let (first, second) =
        (connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap());
    let paused = begin(&first, "x").await;
    second.break_lock("once/x").await.unwrap();
    let next = begin(&second, "x").await;
    let error = paused.done("too late").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
    next.done("in time").await.unwrap();
    let entry = first.once("x").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Done, &b"in time"[..]));
}

#[tokio::test]
async fn a_record_outlives_a_restart_a_reboot_and_an_adoption() {
    let place = place();
    assert!(runs(&connect(&place.path).await.unwrap(), "x", "kept").await.unwrap());
    let fp = connect(&place.path).await.unwrap();
    assert!(!runs(&fp, "x", "again").await.unwrap());
    for change in ["boot = 'before'", "boot = 'elsewhere', machine = 'another'"] {
        edit(&place.path, &format!("UPDATE store SET {change}"));
        let url = format!("sqlite:{}?adopt=true", place.path.display());
        let fp = Fencepost::connect(&url).await.unwrap();
        assert!(!runs(&fp, "x", "again").await.unwrap());
        assert_eq!(fp.once("x").entry().await.unwrap().unwrap().result, b"kept");
    }
}

#[tokio::test]
async fn a_record_ends_by_itself_and_is_removed() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let short = fp.once("short").keep(Duration::from_secs(1));
    short.run(|_| async { Ok::<_, std::io::Error>("") }).await.unwrap();
    assert!(runs(&fp, "long", "").await.unwrap());
    let end = BootClock.now() + Duration::from_secs(30);
    while short.entry().await.unwrap().is_some() {
        assert!(BootClock.now() < end, "it is kept for a second");
        BootClock.alarm(BootClock.now() + Duration::from_millis(20)).await;
    }
    assert_eq!(fp.once_entries().await.unwrap().len(), 1, "it is not listed");
    assert!(runs(&fp, "other", "").await.unwrap());
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let ask = "SELECT group_concat(name) FROM (SELECT name FROM fencepost_records ORDER BY name)";
    let names: String = db.query_row(ask, [], |row| row.get(0)).unwrap();
    assert_eq!(names, "once/long,once/other", "nobody asked for it, and its row is gone");
    assert!(runs(&fp, "short", "").await.unwrap(), "it may be done again");
}

#[tokio::test]
async fn old_records_are_removed_when_the_file_is_opened() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    assert!(runs(&fp, "x", "").await.unwrap());
    edit(&place.path, "UPDATE fencepost_records SET ends = 1");
    let _other = connect(&place.path).await.unwrap();
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let ask = "SELECT count(*) FROM fencepost_records";
    assert_eq!(db.query_row(ask, [], |row| row.get::<_, u32>(0)).unwrap(), 0);
}

#[tokio::test]
async fn results_may_be_64_kib_of_any_bytes() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(Entry::MAX_RESULT).collect();
    begin(&fp, "x").await.done(bytes.clone()).await.unwrap();
    assert_eq!(fp.once("x").entry().await.unwrap().unwrap().result, bytes);
    let error = begin(&fp, "y").await.done(vec![0; Entry::MAX_RESULT + 1]).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn failures_are_tried_again_or_recorded_and_forgotten() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let failing = |key, how| {
        let once = fp.once(key).ttl(LONG).on_failure(how);
        async move { once.run(|_| async { Err::<&str, _>("broken") }).await.unwrap_err() }
    };
    failing("x", OnFailure::Retry).await;
    assert!(runs(&fp, "x", "").await.unwrap());
    failing("y", OnFailure::Record).await;
    let error = runs(&fp, "y", "").await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Failed);
    assert!(error.to_string().contains("broken"), "{error}");
    assert!(fp.once("y").forget().await.unwrap());
    assert!(!fp.once("y").forget().await.unwrap());
    assert!(runs(&fp, "y", "").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_computes_a_value() {
    let place = place();
    let clients = [connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap()];
    let computed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asking: Vec<_> = (0..40)
        .map(|index| {
            let flight = clients[index % 2].single_flight("v").keep(KEEP).ttl(LONG);
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
async fn the_store_says_that_it_keeps_records() {
    let place = place();
    used(&place.path, false).await;
    let fp = connect(&place.path).await.unwrap();
    assert_eq!(fp.guarantees().records, fencepost::guarantees::Records::Kept);
}
