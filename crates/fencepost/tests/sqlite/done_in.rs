//! Effect and mark in one transaction: both are there, or neither is.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost::ledger::State;
use fencepost::{ErrorKind, LossCause};
use fencepost_process::Process;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::records::{LONG, begin, runs};
use super::{connect, edit, place};

const INVOICES: &str = "CREATE TABLE IF NOT EXISTS invoices (id INTEGER PRIMARY KEY, by TEXT)";
/// Says that this process is a worker, and what it is to do: how far to go, and the file.
const WORKER: &str = "FENCEPOST_TEST_DONE_IN";

fn invoices(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut ask = db.prepare("SELECT by FROM invoices ORDER BY id").unwrap();
    let rows = ask.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

fn transaction(db: &mut Connection) -> Transaction<'_> {
    db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn insert(tx: &Connection, by: &str) {
    tx.execute("INSERT INTO invoices (by) VALUES (?)", [by]).unwrap();
}

#[tokio::test]
async fn effect_and_mark_are_committed_together() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    let once = fp.once("x").ttl(LONG);
    let recorded = once.run(async |run| {
        let mut tx = transaction(&mut db);
        insert(&tx, "once");
        run.done_in(&mut tx, "1 invoice").await?;
        tx.commit().unwrap();
        Ok::<_, fencepost::Error>("not this one")
    });
    let recorded = recorded.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"1 invoice");
    assert_eq!(invoices(&place.path), ["once"]);
    assert!(!runs(&fp, "x", "").await.unwrap());
}

#[tokio::test]
async fn what_is_rolled_back_is_neither_done_nor_marked() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    let once = fp.once("x").ttl(LONG);
    let forgot = once.run(async |run| {
        let tx = transaction(&mut db);
        insert(&tx, "rolled back");
        run.done_in_now(&tx, "")?;
        drop(tx);
        Ok::<_, fencepost::Error>("")
    });
    let error = forgot.await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Failed);
    assert!(error.to_string().contains("not committed"), "{error}");
    assert!(invoices(&place.path).is_empty());
    assert!(runs(&fp, "x", "").await.unwrap());
}

/// A commit whose answer got lost: the work tries again, as database code does, and must not have its effect twice.
#[tokio::test]
async fn a_second_transaction_of_the_same_run_is_told_that_the_first_was_committed() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    let once = fp.once("x").ttl(LONG);
    let tried = once.run(async |run| {
        for by in ["first", "second"] {
            let tx = transaction(&mut db);
            insert(&tx, by);
            run.done_in_now(&tx, by)?;
            tx.commit().unwrap();
        }
        Ok::<_, fencepost::Error>("")
    });
    let recorded = tried.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"first");
    assert_eq!(invoices(&place.path), ["first"]);
}

/// The story of a paused runner: it is overtaken, wakes, and has its transaction before it. Its effect must go with
/// its mark.
#[tokio::test]
async fn one_that_was_overtaken_marks_nothing_in_its_transaction() {
    let place = place();
    let (first, second) =
        (connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap());
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    let paused = begin(&first, "x").await;
    second.break_lock("once/x").await.unwrap();
    let next = begin(&second, "x").await;
    let late = |db: &mut Connection| {
        let tx = transaction(db);
        insert(&tx, "too late");
        let error = paused.done_in_now(&tx, "").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Lost(LossCause::TakenOver), "{error}");
        tx.rollback().unwrap();
    };
    late(&mut db);
    let tx = transaction(&mut db);
    insert(&tx, "in time");
    next.done_in_now(&tx, "in time").unwrap();
    tx.commit().unwrap();
    let entry = next.committed().await.unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Done, &b"in time"[..]));
    late(&mut db);
    assert_eq!(invoices(&place.path), ["in time"]);
    let entry = first.once("x").entry().await.unwrap().unwrap();
    assert_eq!(entry.result, b"in time");
}

#[tokio::test]
async fn a_transaction_of_another_database_is_refused() {
    let (place, other) = (place(), place());
    let fp = connect(&place.path).await.unwrap();
    // Another store, in which the record of this name runs under the very same token.
    let stranger = connect(&other.path).await.unwrap();
    let (ours, theirs) = (begin(&fp, "x").await, begin(&stranger, "x").await);
    assert_eq!(ours.token(), theirs.token());
    for mut db in [Connection::open_in_memory().unwrap(), Connection::open(&other.path).unwrap()] {
        let tx = transaction(&mut db);
        let error = ours.done_in_now(&tx, "").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("another database"), "{error}");
    }
    theirs.done("").await.unwrap();

    // In an attached file it is found, by whatever name.
    let mut db = Connection::open_in_memory().unwrap();
    let path = place.path.to_str().unwrap();
    db.execute("ATTACH ? AS \"a \"\" b\"", [path]).unwrap();
    let tx = transaction(&mut db);
    ours.done_in_now(&tx, "attached").unwrap();
    tx.commit().unwrap();
    assert_eq!(ours.committed().await.unwrap().result, b"attached");
}

/// In WAL mode SQLite commits several files one after the other.
#[tokio::test]
async fn a_transaction_that_writes_another_file_too_is_refused() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let turn = begin(&fp, "x").await;
    let elsewhere = place.path.with_file_name("shop.db");
    edit(&elsewhere, INVOICES);
    let mut db = Connection::open(&elsewhere).unwrap();
    db.execute("ATTACH ? AS store", [place.path.to_str().unwrap()]).unwrap();
    let tx = db.transaction().unwrap();
    insert(&tx, "in the other file");
    let error = turn.done_in_now(&tx, "").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("shop.db"), "{error}");
    drop(tx);
    // One that only reads there is fine.
    let tx = db.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM invoices", [], |_| Ok(())).unwrap();
    turn.done_in_now(&tx, "read").unwrap();
    tx.commit().unwrap();
    assert_eq!(turn.committed().await.unwrap().result, b"read");
}

#[tokio::test]
async fn a_claim_that_the_transaction_does_not_see_is_no_loss() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    // It has read before the claim, or the record is gone.
    for (early, words) in [(true, "begin it inside the work"), (false, "forgotten")] {
        let turn = if early { None } else { Some(begin(&fp, "x").await) };
        if !early {
            edit(&place.path, "DELETE FROM fencepost_records");
        }
        let tx = db.transaction().unwrap();
        tx.query_row("SELECT count(*) FROM invoices", [], |_| Ok(())).unwrap();
        let turn = match turn {
            Some(turn) => turn,
            None => begin(&fp, "x").await,
        };
        let error = turn.done_in_now(&tx, "").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        drop(tx);
        turn.give_up().await.unwrap();
    }
}

#[tokio::test]
async fn a_second_mark_in_one_transaction_is_told_apart() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let mut db = Connection::open(&place.path).unwrap();
    let turn = begin(&fp, "x").await;
    let tx = transaction(&mut db);
    turn.done_in_now(&tx, "first").unwrap();
    let error = turn.done_in_now(&tx, "second").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
    tx.commit().unwrap();
    assert_eq!(turn.committed().await.unwrap().result, b"first");
}

/// The lock is lost after the commit and before the work comes to its end.
#[tokio::test]
async fn what_was_committed_before_the_lock_was_lost_is_done() {
    let place = place();
    let (fp, other) = (connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap());
    edit(&place.path, INVOICES);
    let mut db = Connection::open(&place.path).unwrap();
    // The next renewal tells.
    let once = fp.once("x").ttl(std::time::Duration::from_secs(9));
    let recorded = once.run(async |run| {
        let tx = transaction(&mut db);
        insert(&tx, "once");
        run.done_in_now(&tx, "committed")?;
        tx.commit().unwrap();
        other.break_lock("once/x").await?;
        std::future::pending::<fencepost::Result<&str>>().await
    });
    let recorded = recorded.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"committed");
    assert_eq!(invoices(&place.path), ["once"]);
}

#[tokio::test]
async fn a_store_without_transactions_says_so() {
    let fp = fencepost::Fencepost::connect("memory:done-in").await.unwrap();
    let fencepost::Begun::Ours(turn) = fp.once("x").may_repeat().begin().await.unwrap() else {
        panic!("nobody did it")
    };
    let mut db = Connection::open_in_memory().unwrap();
    let error = turn.done_in_now(&transaction(&mut db), "").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("memory store"), "{error}");
}

/// Goes as far as it was told, says so, and waits to be killed.
#[tokio::test]
async fn worker() {
    let Ok(order) = std::env::var(WORKER) else { return };
    let (committed, path) = order.split_once(' ').unwrap();
    let fp = connect(Path::new(path)).await.unwrap();
    let mut db = Connection::open(path).unwrap();
    let turn = begin(&fp, "x").await;
    let tx = transaction(&mut db);
    insert(&tx, "worker");
    turn.done_in_now(&tx, "by the worker").unwrap();
    let _open = if committed == "true" {
        tx.commit().unwrap();
        None
    } else {
        Some(tx)
    };
    println!("\nworker: ready");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_runner_killed_before_its_commit_left_nothing_and_one_killed_after_left_both() {
    for committed in [false, true] {
        let place = place();
        let fp = connect(&place.path).await.unwrap();
        edit(&place.path, INVOICES);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["done_in::worker", "--exact", "--nocapture"]).stdout(Stdio::piped());
        command.env(WORKER, format!("{committed} {}", place.path.display()));
        let mut worker = Process::spawn(command).unwrap();
        let lines = BufReader::new(worker.stdout().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line == "worker: ready");
        worker.kill().unwrap();
        assert!(ready, "the worker should have come so far");
        assert_eq!(runs(&fp, "x", "ours").await.unwrap(), !committed);
        let effects: &[&str] = if committed { &["worker"] } else { &[] };
        assert_eq!(invoices(&place.path), effects);
        let result = fp.once("x").entry().await.unwrap().unwrap().result;
        assert_eq!(result, if committed { &b"by the worker"[..] } else { b"ours" });
    }
}
