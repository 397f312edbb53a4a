//! Transactions that keep one snapshot, or may not write.

use std::sync::Arc;

use fencepost::ErrorKind;
use fencepost::fences::postgres;
use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost_testkit::{Database, Postgres};

use crate::common::{ask, attempt, connect, error_of, fenced, fencing, plant};
use crate::enter::until_waiting;

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// A server of its own, because any commit on it counts; the mark 1 for "a", the value 0, and two connections.
pub(crate) async fn alone() -> (Database, Client, Client) {
    let server = Arc::new(Postgres::builder().start().unwrap());
    let database = server.database().unwrap();
    let client = connect(&database.url()).await;
    postgres::install(&client).await.unwrap();
    client
        .batch_execute(
            "CREATE TABLE t (v int); INSERT INTO t VALUES (0); CREATE TABLE other (v int);
             SELECT fencepost.enter('a', 1)",
        )
        .await
        .unwrap();
    let other = connect(&database.url()).await;
    (database, client, other)
}

/// What of the last holder's transaction comes before the snapshot of the next one, and what after it.
const OLD_SNAPSHOTS: [(&str, &str, &str); 3] = [
    // All of it comes after.
    (
        "",
        "SELECT count(*) FROM t",
        "BEGIN; SELECT fencepost.enter('a', 1); UPDATE t SET v = 1; COMMIT",
    ),
    // It is open.
    (
        "BEGIN; SELECT fencepost.enter('a', 1); UPDATE t SET v = 1",
        "SELECT count(*) FROM t",
        "COMMIT",
    ),
    // The next holder has an id before the last one has its own.
    (
        "",
        "INSERT INTO other VALUES (1)",
        "BEGIN; SELECT fencepost.enter('a', 1); UPDATE t SET v = 1; COMMIT",
    ),
];

/// The next holder's snapshot lacks the last one's work, which leaves no trace in the mark.
#[tokio::test]
async fn new_token_with_an_old_snapshot_must_be_retried() {
    for level in LEVELS {
        let (_database, last, next) = alone().await;
        for (before, snapshot, after) in OLD_SNAPSHOTS {
            last.batch_execute(before).await.unwrap();
            next.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; {snapshot}"))
                .await
                .unwrap();
            last.batch_execute(after).await.unwrap();
            let entered = attempt(&next, "SELECT fencepost.enter('a', 2)").await;
            assert_eq!(entered, Err("40001".into()), "{level}: {snapshot}");
        }
        let retry = format!("BEGIN ISOLATION LEVEL {level}; SELECT fencepost.enter('a', 2)");
        attempt(&next, &retry).await.unwrap();
        assert_eq!(ask(&next, "SELECT v FROM t").await, "1");
    }
}

#[tokio::test]
async fn control_without_the_check_a_new_holder_misses_the_last_ones_work() {
    let (_database, last, next) = alone().await;
    let check = "PERFORM fencepost.check_snapshot();";
    plant(&last, "set_mark", check, "").await;
    for (number, (before, snapshot, after)) in (2..).zip(OLD_SNAPSHOTS) {
        let token = number - 1;
        let holder = |sql: &str| sql.replace("'a', 1)", &format!("'a', {token})"));
        last.batch_execute("UPDATE t SET v = 0").await.unwrap();
        last.batch_execute(&holder(before)).await.unwrap();
        next.batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {snapshot}"))
            .await
            .unwrap();
        last.batch_execute(&holder(after)).await.unwrap();
        let entered = attempt(&next, &format!("SELECT fencepost.enter('a', {number})")).await;
        assert_eq!(entered, Ok(()), "{snapshot}");
        assert_eq!(ask(&next, "SELECT v FROM t").await, "0", "{snapshot}: it sees the write");
        next.batch_execute("COMMIT").await.unwrap();
    }
}

/// The old holder's snapshot shows its mark, which has been raised since.
#[tokio::test]
async fn old_token_with_an_old_snapshot_is_refused() {
    for (level, writes) in [(LEVELS[0], ""), (LEVELS[1], ""), (LEVELS[0], "READ ONLY")] {
        let (_database, next, old) = alone().await;
        let begin = format!("BEGIN ISOLATION LEVEL {level} {writes}; SELECT count(*) FROM t");
        old.batch_execute(&begin).await.unwrap();
        next.batch_execute("SELECT fencepost.enter('a', 2)").await.unwrap();
        let enter = "SELECT fencepost.enter('a', 1)";
        assert_eq!(attempt(&old, enter).await, Err("40001".into()), "{level}");
        let retry = format!("BEGIN ISOLATION LEVEL {level} {writes}; {enter}");
        assert_eq!(attempt(&old, &retry).await, Err("FP001".into()), "{level}");

        // Control: without the check it enters, and a write of it passes.
        let check = "IF NOT unchanged THEN PERFORM fencepost.check_snapshot(); END IF;";
        plant(&next, "admit", check, "").await;
        old.batch_execute(&begin.replace("READ ONLY", "")).await.unwrap();
        next.batch_execute("SELECT fencepost.enter('a', 3)").await.unwrap();
        let write = "SELECT fencepost.enter('a', 2); UPDATE t SET v = 2; COMMIT";
        assert_eq!(attempt(&old, write).await, Ok(()), "control, {level}");
    }
}

/// The usual case at these levels: the mark has this token. Others may commit as much as they like.
#[tokio::test]
async fn token_of_the_mark_enters_at_each_level_in_parallel() {
    let (_database, first, second) = alone().await;
    // A mark that was raised, and one that was set by a reset.
    second.batch_execute("SELECT fencepost.enter('a', 2)").await.unwrap();
    second.batch_execute("SELECT fencepost.reset('a', 1, 'me', 'a test')").await.unwrap();
    for level in LEVELS {
        first.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1")).await.unwrap();
        second
            .batch_execute("SELECT fencepost.enter('a', 1); INSERT INTO other VALUES (1)")
            .await
            .unwrap();
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t");
        second.batch_execute(&begin).await.unwrap();
        let enter = "SET LOCAL lock_timeout = '1ms'; SELECT fencepost.enter('a', 1)";
        attempt(&first, enter).await.unwrap();
        attempt(&second, enter).await.unwrap();
        first.batch_execute("INSERT INTO other VALUES (2); COMMIT").await.unwrap();
        second.batch_execute("COMMIT").await.unwrap();
    }
    // A raise that was rolled back changes nothing.
    first.batch_execute("BEGIN; SELECT fencepost.enter('a', 2); ROLLBACK").await.unwrap();
    for level in LEVELS {
        let equal =
            format!("BEGIN ISOLATION LEVEL {level}; SELECT fencepost.enter('a', 1); COMMIT");
        attempt(&second, &equal).await.unwrap();
    }
}

/// It reads what a holder may read, and the next holder waits for it.
#[tokio::test]
async fn read_only_transaction_enters_with_the_token_of_the_mark() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let (database, mut reader) = fenced().await;
        let (next, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
        let options = format!(
            "SET default_transaction_isolation = '{level}'; SET default_transaction_read_only = on"
        );
        next.batch_execute("SELECT fencepost.enter('a', 1)").await.unwrap();
        reader.batch_execute(&options).await.unwrap();
        let tx = postgres::begin(&mut reader, &fencing("a", 1)).await.unwrap();
        let id = "SELECT pg_current_xact_id_if_assigned() IS NULL";
        assert!(tx.query_one(id, &[]).await.unwrap().get::<_, bool>(0), "{level}: it needs no id");
        let raise = tokio::spawn(async move {
            next.batch_execute("SELECT fencepost.enter('a', 2)").await.unwrap();
        });
        until_waiting(&watcher, 1).await;
        tx.commit().await.unwrap();
        raise.await.unwrap();
        let stale = error_of(postgres::begin(&mut reader, &fencing("a", 1)).await);
        assert_eq!(stale.kind(), ErrorKind::Stale, "{level}");
        let new = error_of(postgres::begin(&mut reader, &fencing("a", 3)).await);
        assert_eq!(new.kind(), ErrorKind::Refused, "{level}: {new}");
        assert!(new.one_line().contains("read-write"), "{level}: {new}");
    }
}

/// The marks of a standby may be older than those of the primary.
#[tokio::test]
async fn standby_refuses_the_token_of_its_mark() {
    let primary = Postgres::builder().start().unwrap();
    let client = connect(&primary.url()).await;
    postgres::install(&client).await.unwrap();
    client.batch_execute("SELECT fencepost.enter('a', 1)").await.unwrap();
    let standby = primary.standby("second").unwrap();
    primary.wait_in_step().unwrap();
    let mut reader = connect(&standby.url()).await;
    let error = error_of(postgres::begin(&mut reader, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("on the primary"), "{error}");

    // Control: nothing else would stop it.
    let check =
        "IF pg_catalog.pg_is_in_recovery() THEN PERFORM fencepost.refuse_standby(); END IF;";
    plant(&client, "enter", check, "").await;
    primary.wait_in_step().unwrap();
    postgres::begin(&mut reader, &fencing("a", 1)).await.unwrap();
}
