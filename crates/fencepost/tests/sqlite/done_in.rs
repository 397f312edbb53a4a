//! Effect and record in one transaction: both exist, or neither.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost::ledger::State;
use fencepost::{ErrorKind, LossCause};
use fencepost_process::Process;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::records::{LONG, begin, runs};
use super::{connect, edit, store_file};

const INVOICES: &str = "CREATE TABLE IF NOT EXISTS invoices (id INTEGER PRIMARY KEY, by TEXT)";
/// The orders of a worker process: whether to commit, and the file.
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
async fn effect_and_record_are_committed_together() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
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
    assert_eq!(invoices(&store_file.path), ["once"]);
    assert!(!runs(&fp, "x", "").await.unwrap());
}

#[tokio::test]
async fn rolled_back_work_is_neither_done_nor_recorded() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
    let once = fp.once("x").ttl(LONG);
    let forgot = once.run(async |run| {
        let tx = transaction(&mut db);
        insert(&tx, "rolled back");
        run.done_in_sqlite(&tx, "")?;
        drop(tx);
        Ok::<_, fencepost::Error>("")
    });
    let error = forgot.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.one_line().contains("not committed"), "{error}");
    assert!(invoices(&store_file.path).is_empty());
    assert!(runs(&fp, "x", "").await.unwrap());
}

/// The reply to a commit is lost: the work retries, as database code does, and must not have its effect twice.
#[tokio::test]
async fn second_transaction_of_a_run_finds_the_first_committed() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
    let once = fp.once("x").ttl(LONG);
    let tried = once.run(async |run| {
        for by in ["first", "second"] {
            let tx = transaction(&mut db);
            insert(&tx, by);
            run.done_in_sqlite(&tx, by)?;
            tx.commit().unwrap();
        }
        Ok::<_, fencepost::Error>("")
    });
    let recorded = tried.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"first");
    assert_eq!(invoices(&store_file.path), ["first"]);
}

/// A paused run is overtaken, resumes, and finds its transaction still open. Its effect must be refused together with
/// its record.
#[tokio::test]
async fn overtaken_run_records_nothing_in_its_transaction() {
    let store_file = store_file();
    let (first, second) =
        (connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap());
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
    let paused = begin(&first, "x").await;
    second.break_lock("once/x").await.unwrap();
    let next = begin(&second, "x").await;
    let late = |db: &mut Connection| {
        let tx = transaction(db);
        insert(&tx, "too late");
        let error = paused.done_in_sqlite(&tx, "").unwrap_err();
        let why = (error.kind(), error.loss_cause());
        assert_eq!(why, (ErrorKind::Lost, Some(LossCause::TakenOver)), "{error}");
        tx.rollback().unwrap();
    };
    late(&mut db);
    let tx = transaction(&mut db);
    insert(&tx, "in time");
    next.done_in_sqlite(&tx, "in time").unwrap();
    tx.commit().unwrap();
    let record = next.committed().await.unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"in time"[..]));
    late(&mut db);
    assert_eq!(invoices(&store_file.path), ["in time"]);
    let record = first.once("x").record().await.unwrap().unwrap();
    assert_eq!(record.result, b"in time");
}

#[tokio::test]
async fn transaction_of_another_database_is_refused() {
    let (store_file, other) = (store_file(), store_file());
    let fp = connect(&store_file.path).await.unwrap();
    // Another store, where the record of this name runs under the same token.
    let other_client = connect(&other.path).await.unwrap();
    let (ours, theirs) = (begin(&fp, "x").await, begin(&other_client, "x").await);
    assert_eq!(ours.token(), theirs.token());
    for mut db in [Connection::open_in_memory().unwrap(), Connection::open(&other.path).unwrap()] {
        let tx = transaction(&mut db);
        let error = ours.done_in_sqlite(&tx, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.one_line().contains("another database"), "{error}");
    }
    theirs.done("").await.unwrap();

    // In an attached file the store is found, under any schema name.
    let mut db = Connection::open_in_memory().unwrap();
    let path = store_file.path.to_str().unwrap();
    db.execute("ATTACH ? AS \"a \"\" b\"", [path]).unwrap();
    let tx = transaction(&mut db);
    ours.done_in_sqlite(&tx, "attached").unwrap();
    tx.commit().unwrap();
    assert_eq!(ours.committed().await.unwrap().result, b"attached");
}

/// In WAL mode SQLite does not commit several files atomically.
#[tokio::test]
async fn transaction_that_writes_another_file_is_refused() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let run_guard = begin(&fp, "x").await;
    let elsewhere = store_file.path.with_file_name("shop.db");
    edit(&elsewhere, INVOICES);
    let mut db = Connection::open(&elsewhere).unwrap();
    db.execute("ATTACH ? AS store", [store_file.path.to_str().unwrap()]).unwrap();
    let tx = db.transaction().unwrap();
    insert(&tx, "in the other file");
    let error = run_guard.done_in_sqlite(&tx, "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("shop.db"), "{error}");
    drop(tx);
    // A transaction that only reads the other file is accepted.
    let tx = db.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM invoices", [], |_| Ok(())).unwrap();
    run_guard.done_in_sqlite(&tx, "read").unwrap();
    tx.commit().unwrap();
    assert_eq!(run_guard.committed().await.unwrap().result, b"read");
}

#[tokio::test]
async fn claim_outside_the_snapshot_does_not_lose_the_guard() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
    // It read before the claim, or the record is gone.
    for (early, words) in [(true, "begin it inside the work"), (false, "forgotten")] {
        let run_guard = if early { None } else { Some(begin(&fp, "x").await) };
        if !early {
            edit(&store_file.path, "DELETE FROM fencepost_records");
        }
        let tx = db.transaction().unwrap();
        tx.query_row("SELECT count(*) FROM invoices", [], |_| Ok(())).unwrap();
        let run_guard = match run_guard {
            Some(run_guard) => run_guard,
            None => begin(&fp, "x").await,
        };
        let error = run_guard.done_in_sqlite(&tx, "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.one_line().contains(words), "{error}");
        drop(tx);
        run_guard.give_up().await.unwrap();
    }
}

#[tokio::test]
async fn second_record_in_one_transaction_is_refused() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let mut db = Connection::open(&store_file.path).unwrap();
    let run_guard = begin(&fp, "x").await;
    let tx = transaction(&mut db);
    run_guard.done_in_sqlite(&tx, "first").unwrap();
    let error = run_guard.done_in_sqlite(&tx, "second").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    tx.commit().unwrap();
    assert_eq!(run_guard.committed().await.unwrap().result, b"first");
}

/// The lock is lost after the commit and before the work ends.
#[tokio::test]
async fn work_committed_before_the_lock_was_lost_is_done() {
    let store_file = store_file();
    let (fp, other) =
        (connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap());
    edit(&store_file.path, INVOICES);
    let mut db = Connection::open(&store_file.path).unwrap();
    // The next renewal reports it.
    let once = fp.once("x").ttl(std::time::Duration::from_secs(9));
    let recorded = once.run(async |run| {
        let tx = transaction(&mut db);
        insert(&tx, "once");
        run.done_in_sqlite(&tx, "committed")?;
        tx.commit().unwrap();
        other.break_lock("once/x").await?;
        std::future::pending::<fencepost::Result<&str>>().await
    });
    let recorded = recorded.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"committed");
    assert_eq!(invoices(&store_file.path), ["once"]);
}

#[tokio::test]
async fn store_without_transactions_is_refused() {
    let fp = fencepost::Fencepost::connect("memory:done-in").await.unwrap();
    let fencepost::Start::Claimed(run_guard) = fp.once("x").may_repeat().begin().await.unwrap()
    else {
        panic!("nobody did it")
    };
    let mut db = Connection::open_in_memory().unwrap();
    let error = run_guard.done_in_sqlite(&transaction(&mut db), "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("memory store"), "{error}");
}

/// Goes as far as ordered, reports it, and waits to be killed.
#[tokio::test]
async fn worker() {
    let Ok(order) = std::env::var(WORKER) else { return };
    let (committed, path) = order.split_once(' ').unwrap();
    let fp = connect(Path::new(path)).await.unwrap();
    let mut db = Connection::open(path).unwrap();
    let run_guard = begin(&fp, "x").await;
    let tx = transaction(&mut db);
    insert(&tx, "worker");
    run_guard.done_in_sqlite(&tx, "by the worker").unwrap();
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
async fn killed_run_leaves_effect_and_record_or_neither() {
    for committed in [false, true] {
        let store_file = store_file();
        let fp = connect(&store_file.path).await.unwrap();
        edit(&store_file.path, INVOICES);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["done_in::worker", "--exact", "--nocapture"]).stdout(Stdio::piped());
        command.env(WORKER, format!("{committed} {}", store_file.path.display()));
        let mut worker = Process::spawn(command).unwrap();
        let lines = BufReader::new(worker.stdout().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line == "worker: ready");
        worker.kill().unwrap();
        assert!(ready, "the worker should have come so far");
        assert_eq!(runs(&fp, "x", "ours").await.unwrap(), !committed);
        let effects: &[&str] = if committed { &["worker"] } else { &[] };
        assert_eq!(invoices(&store_file.path), effects);
        let result = fp.once("x").record().await.unwrap().unwrap().result;
        assert_eq!(result, if committed { &b"by the worker"[..] } else { b"ours" });
    }
}
