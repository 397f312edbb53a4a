//! Settings of the server that end our statements: time limits, and isolation levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::ErrorKind;
use fencepost_testkit::{Database, LONG, SOON, connect, fails, ms, nothing_is_left, two, within};

use crate::common::session;

fn set(database: &Database, setting: &str) {
    database.psql(&format!("alter database {} set {setting}", database.name())).unwrap();
}

/// Somebody has the row of a lock and does not let go.
async fn a_row_is_locked(setting: &str, word: &str) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await.lock("x").acquire().await.unwrap().release().await.unwrap();
    set(&database, setting);
    let (ours, theirs) = two(&database.url()).await;
    let guard = theirs.lock("y").ttl(LONG).acquire().await.unwrap();
    let thief = session(&database.url()).await;
    thief
        .batch_execute("begin; select from fencepost.locks where name = 'x' for update")
        .await
        .unwrap();
    let outcome = within(SOON, "nobody hangs", ours.lock("x").try_acquire()).await;
    fails(outcome, &ErrorKind::Unreachable, &[word, &database.server().address().to_string()]);
    // Other locks do not mind.
    nothing_is_left(&ours, "z").await;
    guard.check().unwrap();
    thief.batch_execute("commit").await.unwrap();
    nothing_is_left(&ours, "x").await;
}

#[tokio::test]
async fn a_statement_timeout_is_named() {
    a_row_is_locked("statement_timeout = '200ms'", "statement_timeout").await;
}

#[tokio::test]
async fn a_lock_timeout_is_named() {
    a_row_is_locked("lock_timeout = '200ms'", "lock_timeout").await;
}

#[tokio::test]
async fn a_row_that_is_kept_from_us_does_not_hang_us() {
    a_row_is_locked("statement_timeout = 0", "keeps a row of this lock from us").await;
}

/// Heartbeats go to the server together. Somebody has the row of one lock: the other ones are renewed all the same.
#[tokio::test]
async fn a_row_that_is_kept_from_us_does_not_cost_us_other_locks() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    // So many that they are due at the same time.
    let acquired: Vec<_> = (0..200)
        .map(|number| {
            let lock = client.lock(format!("x{number}")).ttl(ms(3000));
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for guard in acquired {
        guards.push(guard.await.unwrap());
    }
    let thief = session(&database.url()).await;
    thief
        .batch_execute("begin; select from fencepost.locks where name = 'x100' for update")
        .await
        .unwrap();
    within(SOON, "its lease can not be renewed", guards[100].lost()).await;
    drop(guards.remove(100));
    for guard in &guards {
        guard.check().unwrap();
    }
    thief.batch_execute("commit").await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Above READ COMMITTED the server refuses what another transaction was in the way of: it is asked again.
async fn under(isolation: &str) {
    let database = Database::fresh().unwrap();
    set(&database, &format!("default_transaction_isolation = '{isolation}'"));
    let client = connect(&database.url()).await;
    let last = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (client, last) = (client.clone(), Arc::clone(&last));
            tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
                    let token = guard.token().get();
                    let before = last.swap(token, Ordering::SeqCst);
                    assert!(before < token, "{token} after {before}");
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        within(LONG, "all have had their turns", task).await.unwrap();
    }
    nothing_is_left(&client, "x").await;
}

#[tokio::test]
async fn locks_work_where_transactions_are_serializable() {
    under("serializable").await;
}

#[tokio::test]
async fn locks_work_under_repeatable_read() {
    under("repeatable read").await;
}

/// After a failover the name may lead to the old primary for a while, which only reads.
#[tokio::test]
async fn server_that_only_reads_for_a_while_ends_no_wait_and_no_release() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let guard = client.lock("held").ttl(LONG).acquire().await.unwrap();
    set(&database, "default_transaction_read_only = on");
    // Sessions from before do not mind.
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and application_name = 'fencepost'";
    database.psql(end).unwrap();
    let refused = client.lock("x").try_acquire().await;
    fails(refused, &ErrorKind::Unreachable, &["is read-only", "primary"]);
    let lock = client.lock("x").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    drop(guard);
    fencepost_testkit::until("the wait goes on", async || {
        assert!(!waiting.is_finished());
        fencepost_testkit::log().contains("release failed; retrying")
    })
    .await;
    // psql's own session would be read-only, too.
    database
        .psql(&format!(
            "begin read write; alter database {} reset default_transaction_read_only; commit",
            database.name()
        ))
        .unwrap();
    let guard = within(LONG, "the waiter is granted", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    nothing_is_left(&client, "held").await;
}
