//! Server settings that end our statements: timeouts and isolation levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::ErrorKind;
use fencepost_testkit::{Database, LONG, SOON, connect, fails, ms, nothing_is_left, two, within};

use crate::common::session;

fn set(database: &Database, setting: &str) {
    database.psql(&format!("alter database {} set {setting}", database.name())).unwrap();
}

/// Another session keeps the row of a lock locked.
async fn locked_row_is_reported(setting: &str, word: &str) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await.lock("x").acquire().await.unwrap().release().await.unwrap();
    set(&database, setting);
    let (ours, theirs) = two(&database.url()).await;
    let guard = theirs.lock("y").ttl(LONG).acquire().await.unwrap();
    let blocker = session(&database.url()).await;
    blocker
        .batch_execute("begin; select from fencepost.locks where name = 'x' for update")
        .await
        .unwrap();
    let outcome = within(SOON, "the call ends", ours.lock("x").try_acquire()).await;
    fails(outcome, ErrorKind::Unreachable, &[word, &database.server().address().to_string()]);
    // Other locks are not affected.
    nothing_is_left(&ours, "z").await;
    guard.check().unwrap();
    blocker.batch_execute("commit").await.unwrap();
    nothing_is_left(&ours, "x").await;
}

#[tokio::test]
async fn statement_timeout_is_named() {
    locked_row_is_reported("statement_timeout = '200ms'", "statement_timeout").await;
}

#[tokio::test]
async fn lock_timeout_is_named() {
    locked_row_is_reported("lock_timeout = '200ms'", "lock_timeout").await;
}

#[tokio::test]
async fn locked_row_does_not_hang_the_caller() {
    locked_row_is_reported("statement_timeout = 0", "holds a row of this lock").await;
}

/// Renewals share a batch. Another session keeps the row of one lock locked: the others are still renewed.
#[tokio::test]
async fn locked_row_does_not_end_other_guards() {
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
    let blocker = session(&database.url()).await;
    blocker
        .batch_execute("begin; select from fencepost.locks where name = 'x100' for update")
        .await
        .unwrap();
    within(SOON, "its lease cannot be renewed", guards[100].lost()).await;
    drop(guards.remove(100));
    for guard in &guards {
        guard.check().unwrap();
    }
    blocker.batch_execute("commit").await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Above READ COMMITTED the server refuses a transaction that met another one: it is retried.
async fn locks_work_under(isolation: &str) {
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
        within(LONG, "all tasks end", task).await.unwrap();
    }
    nothing_is_left(&client, "x").await;
}

#[tokio::test]
async fn locks_work_under_serializable() {
    locks_work_under("serializable").await;
}

#[tokio::test]
async fn locks_work_under_repeatable_read() {
    locks_work_under("repeatable read").await;
}

/// After a failover the name may resolve to the old primary for a while, which is read-only.
#[tokio::test]
async fn temporary_read_only_mode_ends_no_wait_and_no_release() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let guard = client.lock("held").ttl(LONG).acquire().await.unwrap();
    set(&database, "default_transaction_read_only = on");
    // Existing sessions are not affected.
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and application_name = 'fencepost'";
    database.psql(end).unwrap();
    let refused = client.lock("x").try_acquire().await;
    fails(refused, ErrorKind::Unreachable, &["is read-only", "primary"]);
    let lock = client.lock("x").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    drop(guard);
    fencepost_testkit::until("the wait continues", async || {
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
