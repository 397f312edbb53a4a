//! Effect and record in one transaction: both exist, or neither.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use fencepost::{ErrorKind, LossCause};
use fencepost_process::Process;
use fencepost_testkit::{Database, LONG, connect, fails, fails_because, two};
use tokio_postgres::{Client, Transaction};

use crate::common::{ask, session};
use crate::records::{begin, runs};

/// The orders of a worker process: whether to commit, and the URL.
const WORKER: &str = "FENCEPOST_TEST_DONE_IN";

async fn fixture() -> (Database, Client) {
    let database = Database::fresh().unwrap();
    database.psql("create table invoices (id serial primary key, by text)").unwrap();
    let client = session(&database.url()).await;
    (database, client)
}

async fn effect(tx: &Transaction<'_>, by: &str) {
    tx.execute("insert into invoices (by) values ($1)", &[&by]).await.unwrap();
}

fn effects(database: &Database) -> String {
    database.psql("select by from invoices order by id").unwrap()
}

#[tokio::test]
async fn effect_and_record_are_committed_together() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let once = client.once("x").ttl(LONG);
    let recorded = once.run(async |run| {
        let mut tx = db.transaction().await.unwrap();
        effect(&tx, "once").await;
        run.done_in(&mut tx, "1 invoice").await?;
        tx.commit().await.unwrap();
        Ok::<_, fencepost::Error>("not this one")
    });
    let recorded = recorded.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"1 invoice");
    assert_eq!(effects(&database), "once\n");
    assert!(!runs(&client, "x", "").await.unwrap());
}

#[tokio::test]
async fn rolled_back_work_is_neither_done_nor_recorded() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let once = client.once("x").ttl(LONG);
    let forgot = once.run(async |run| {
        let mut tx = db.transaction().await.unwrap();
        effect(&tx, "rolled back").await;
        run.done_in(&mut tx, "").await?;
        tx.rollback().await.unwrap();
        Ok::<_, fencepost::Error>("")
    });
    fails(forgot.await, ErrorKind::Failed, &["not committed"]);
    assert_eq!(effects(&database), "");
    assert!(runs(&client, "x", "").await.unwrap());
}

/// The reply to a commit is lost: the work retries, as database code does, and must not have its effect twice.
#[tokio::test]
async fn second_transaction_of_a_run_finds_the_first_committed() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let once = client.once("x").ttl(LONG);
    let tried = once.run(async |run| {
        for by in ["first", "second"] {
            let mut tx = db.transaction().await.unwrap();
            effect(&tx, by).await;
            run.done_in(&mut tx, by).await?;
            tx.commit().await.unwrap();
        }
        Ok::<_, fencepost::Error>("")
    });
    let recorded = tried.await.unwrap();
    assert!(recorded.ran);
    assert_eq!(recorded.result, b"first");
    assert_eq!(effects(&database), "first\n");
}

/// A paused run is overtaken, resumes, and finds its transaction still open. Its effect must be refused together with
/// its record.
#[tokio::test]
async fn overtaken_run_records_nothing_in_its_transaction() {
    let (database, mut db) = fixture().await;
    let (ours, theirs) = two(&database.url()).await;
    let paused = begin(&ours, "x").await;
    // It began before the run was overtaken.
    let mut late = session(&database.url()).await;
    let mut tx = late.transaction().await.unwrap();
    effect(&tx, "too late").await;
    theirs.break_lock("once/x").await.unwrap();
    let next = begin(&theirs, "x").await;
    let (lost, cause) = (ErrorKind::Lost, LossCause::TakenOver);
    fails_because(paused.done_in(&mut tx, "").await, lost, cause, &["once/x"]);
    tx.rollback().await.unwrap();

    let mut tx = db.transaction().await.unwrap();
    effect(&tx, "in time").await;
    next.done_in(&mut tx, "in time").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(next.committed().await.unwrap().result, b"in time");
    // Again after the next run has finished.
    let mut tx = late.transaction().await.unwrap();
    fails_because(paused.done_in(&mut tx, "").await, lost, cause, &["once/x"]);
    tx.rollback().await.unwrap();
    assert_eq!(effects(&database), "in time\n");
}

/// An uncommitted record locks its row: no other run can take the key over meanwhile.
#[tokio::test]
async fn uncommitted_record_blocks_the_next_run() {
    let (database, mut db) = fixture().await;
    let (ours, theirs) = two(&database.url()).await;
    let first = begin(&ours, "x").await;
    let mut tx = db.transaction().await.unwrap();
    effect(&tx, "first").await;
    first.done_in(&mut tx, "first").await.unwrap();
    theirs.break_lock("once/x").await.unwrap();
    let taking = tokio::spawn(async move { runs(&theirs, "x", "second").await });
    crate::common::until_blocked(&database, 1).await;
    tx.commit().await.unwrap();
    assert!(!taking.await.unwrap().unwrap(), "it is done");
    assert_eq!(effects(&database), "first\n");
}

#[tokio::test]
async fn transaction_of_another_database_is_refused() {
    let database = Database::fresh().unwrap();
    let (other, empty) = (Database::fresh().unwrap(), Database::fresh().unwrap());
    let client = connect(&database.url()).await;
    // Another store, where the record of this name runs under the same token.
    let other_client = connect(&other.url()).await;
    let (ours, theirs) = (begin(&client, "x").await, begin(&other_client, "x").await);
    assert_eq!(ours.token(), theirs.token());
    for database in [&other, &empty] {
        let mut session = session(&database.url()).await;
        let mut tx = session.transaction().await.unwrap();
        let result = ours.done_in(&mut tx, "").await;
        fails(result, ErrorKind::Refused, &["another database than the store"]);
    }
    theirs.done("").await.unwrap();
}

/// The application's role may call only the function that finishes.
#[tokio::test]
async fn role_that_may_only_finish_can_finish() {
    let (database, _db) = fixture().await;
    let client = connect(&database.url()).await;
    let app = format!("app_{}", database.name());
    database.psql(&format!("create role {app} login")).unwrap();
    database.psql(&format!("grant usage on schema fencepost to {app}")).unwrap();
    let run_guard = begin(&client, "x").await;
    let mut db = session(&database.url_as(&app)).await;
    let mut tx = db.transaction().await.unwrap();
    let words = ["fencepost.finish_own", "permission denied"];
    fails(run_guard.done_in(&mut tx, "").await, ErrorKind::Refused, &words);
    tx.rollback().await.unwrap();
    database.psql(&format!("grant execute on function fencepost.finish_own to {app}")).unwrap();
    let mut tx = db.transaction().await.unwrap();
    run_guard.done_in(&mut tx, "").await.unwrap();
    tx.commit().await.unwrap();
    run_guard.committed().await.unwrap();
    assert!(db.query("select * from fencepost.records", &[]).await.is_err());
    let finish = "select fencepost.finish('once/x', 1, 'me', 1, '', 1000, true)";
    assert!(db.query(finish, &[]).await.is_err(), "it writes over nothing else");
}

#[tokio::test]
async fn claim_outside_the_snapshot_does_not_lose_the_guard() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let mut early = session(&database.url()).await;
    let look = "select count(*) from invoices";
    // It began before the claim: there is no record yet.
    let serial = tokio_postgres::IsolationLevel::RepeatableRead;
    let mut tx = early.build_transaction().isolation_level(serial).start().await.unwrap();
    tx.query(look, &[]).await.unwrap();
    let run_guard = begin(&client, "x").await;
    let words = ["once/x", "does not see the claim", "begin it inside the work"];
    fails(run_guard.done_in(&mut tx, "").await, ErrorKind::Refused, &words);
    tx.rollback().await.unwrap();
    // There is a record of an earlier run.
    let mut tx = early.build_transaction().isolation_level(serial).start().await.unwrap();
    tx.query(look, &[]).await.unwrap();
    client.break_lock("once/x").await.unwrap();
    let run_guard = begin(&client, "x").await;
    let words = ["once/x", "has changed", "begin it inside the work"];
    fails(run_guard.done_in(&mut tx, "").await, ErrorKind::Unreachable, &words);
    tx.rollback().await.unwrap();
    // The record was forgotten.
    let forget = format!("select fencepost.forget('once/x', {})", run_guard.token());
    assert_eq!(database.psql(&forget).unwrap(), "t\n");
    let mut tx = db.transaction().await.unwrap();
    fails(run_guard.done_in(&mut tx, "").await, ErrorKind::Refused, &["once/x", "forgotten"]);
}

#[tokio::test]
async fn second_record_in_one_transaction_is_refused() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let run_guard = begin(&client, "x").await;
    let mut tx = db.transaction().await.unwrap();
    let mut part = tx.transaction().await.unwrap();
    run_guard.done_in(&mut part, "first").await.unwrap();
    part.commit().await.unwrap();
    let words = ["once/x", "this transaction has recorded"];
    fails(run_guard.done_in(&mut tx, "second").await, ErrorKind::Invalid, &words);
    tx.commit().await.unwrap();
    assert_eq!(run_guard.committed().await.unwrap().result, b"first");
}

/// The row of the record stays locked until the commit, so the server must end a frozen runner.
#[tokio::test]
async fn transaction_with_a_record_may_not_idle_for_long() {
    let (database, mut db) = fixture().await;
    let client = connect(&database.url()).await;
    let limit = "select current_setting('idle_in_transaction_session_timeout')";
    for (key, set, then) in [("a", "0", "30s"), ("b", "1h", "30s"), ("c", "5s", "5s")] {
        let set = format!("set idle_in_transaction_session_timeout = '{set}'");
        db.batch_execute(&set).await.unwrap();
        let before: String = ask(&db, limit).await;
        let run_guard = begin(&client, key).await;
        let mut tx = db.transaction().await.unwrap();
        run_guard.done_in(&mut tx, "").await.unwrap();
        let now: String = tx.query_one(limit, &[]).await.unwrap().get(0);
        assert_eq!(now, then, "{set}");
        tx.commit().await.unwrap();
        run_guard.committed().await.unwrap();
        assert_eq!(ask::<String>(&db, limit).await, before);
    }
}

/// The reply to a commit is lost while the commit is in flight: the work fails, and is done all the same.
#[tokio::test]
async fn work_that_fails_during_its_commit_is_done() {
    let (database, db) = fixture().await;
    let client = connect(&database.url()).await;
    // Its transaction outlives the work.
    let db: &'static mut Client = Box::leak(Box::new(db));
    let (sender, under_way) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let once = client.once("x").ttl(LONG);
        let work = |run: fencepost::RunHandle| async move {
            let mut tx = db.transaction().await.unwrap();
            effect(&tx, "done").await;
            run.done_in(&mut tx, "done").await.unwrap();
            assert!(sender.send(tx).is_ok());
            Err::<&str, _>("the connection broke")
        };
        once.run(work).await
    });
    let tx = under_way.await.unwrap();
    // The client has read, found nothing, and gives up.
    crate::common::until_blocked(&database, 1).await;
    tx.commit().await.unwrap();
    let recorded = running.await.unwrap().unwrap();
    assert!(recorded.ran);
    assert_eq!((recorded.result, effects(&database)), (b"done".to_vec(), "done\n".to_owned()));
}

/// Goes as far as ordered, reports it, and waits to be killed.
#[tokio::test]
async fn worker() {
    let Ok(order) = std::env::var(WORKER) else { return };
    let (committed, url) = order.split_once(' ').unwrap();
    let client = connect(url).await;
    let run_guard = begin(&client, "x").await;
    let mut db = session(url).await;
    let mut tx = db.transaction().await.unwrap();
    effect(&tx, "worker").await;
    run_guard.done_in(&mut tx, "by the worker").await.unwrap();
    let _open = if committed == "true" {
        tx.commit().await.unwrap();
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
        let (database, db) = fixture().await;
        let client = connect(&database.url()).await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["done_in::worker", "--exact", "--nocapture"]).stdout(Stdio::piped());
        command.env(WORKER, format!("{committed} {}", database.url()));
        let mut worker = Process::spawn(command).unwrap();
        let lines = BufReader::new(worker.stdout().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line == "worker: ready");
        worker.kill().unwrap();
        assert!(ready, "the worker should have come so far");
        // Its lease would run for another minute.
        client.break_lock("once/x").await.unwrap();
        assert_eq!(runs(&client, "x", "ours").await.unwrap(), !committed);
        assert_eq!(effects(&database), if committed { "worker\n" } else { "" });
        let done: i64 = ask(&db, "select count(*) from fencepost.records where state = 1").await;
        assert_eq!(done, 1);
        let result = client.once("x").record().await.unwrap().unwrap().result;
        assert_eq!(result, if committed { &b"by the worker"[..] } else { b"ours" });
    }
}
