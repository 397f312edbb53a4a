//! Entering: bad input, who waits for whom, and what the server says when it can not.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::clock::{BootClock, Clock as _};
use fencepost::fences::postgres;
use fencepost::tokio_postgres::Client;
use fencepost_testkit::wait::SOON;
use fencepost_testkit::{Database, PgBouncer, Postgres};

use crate::common::{ask, connect, error_of, fenced, name, refusal, token};

#[tokio::test]
async fn the_function_refuses_bad_input_by_itself() {
    let (_database, client) = fenced().await;
    let long = format!("'{}'", "x".repeat(513));
    let wide = format!("'{}'", "ü".repeat(257));
    let calls = [
        ("'a', 0", "FP002", "0 is no token"),
        ("'a', -1", "FP002", "-1 is no token"),
        ("'a', 9007199254740992", "FP002", "9007199254740992 is no token"),
        ("'a', NULL", "FP002", "null is no token"),
        ("'', 1", "FP002", "lock name is empty"),
        ("NULL, 1", "FP002", "lock name is empty"),
        (&format!("{long}, 1"), "FP002", "513 bytes"),
        (&format!("{wide}, 1"), "FP002", "514 bytes"),
        ("E'a\\nb', 1", "FP002", "\"a\\nb\" contains a control character"),
        ("U&'a\\0085', 1", "FP002", "control character"),
        ("'a', 1, ''", "FP002", "label is empty"),
        ("'a', 1, E'\\t'", "FP002", "control character"),
        ("'a', 'many'", "22P02", "\"many\""),
        ("'a', 1.5", "42883", "does not exist"),
        ("'a', 9223372036854775808", "42883", "does not exist"),
        ("'a'", "42883", "does not exist"),
    ];
    for (arguments, code, says) in calls {
        let found = refusal(&client, &format!("SELECT fencepost.enter({arguments})")).await;
        assert_eq!(found.0, code, "{arguments}: {}", found.1);
        assert!(found.1.contains(says), "{arguments}: {}", found.1);
    }
    assert_eq!(ask(&client, "SELECT count(*) FROM fencepost.marks").await, "0");
    let longest = format!("SELECT fencepost.enter('{}', 9007199254740991)", "ü".repeat(256));
    client.batch_execute(&longest).await.unwrap();
}

#[tokio::test]
async fn any_language_enters_and_is_told_what_to_do() {
    let (_database, client) = fenced().await;
    let enter = "BEGIN; SELECT fencepost.enter(name => 'invoice/42', token => 34); COMMIT";
    client.batch_execute(enter).await.unwrap();
    let error = client.batch_execute("SELECT fencepost.enter('invoice/42', 33)").await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "FP001");
    let start = "token 33 for \"invoice/42\" is stale: 34 has entered (postgres@127.0.0.1:";
    assert!(error.message().starts_with(start), "{}", error.message());
    assert!(error.hint().unwrap().contains("Acquire it anew"), "{error:?}");
}

/// Waits until `count` backends of this database wait for a lock.
pub(crate) async fn until_waiting(client: &Client, count: usize) {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let end = BootClock.now() + SOON;
    while ask(client, sql).await != count.to_string() {
        assert!(BootClock.now() < end, "not within {SOON:?}: {count} wait at `enter`");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_enters_waits_for_the_one_inside_and_sees_what_it_wrote() {
    let (database, mut first) = fenced().await;
    first.batch_execute("CREATE TABLE t (v int); INSERT INTO t VALUES (0)").await.unwrap();
    let (mut second, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
    // The token is not new: it is the write of the mark that keeps others out.
    postgres::begin(&mut first, &name("a"), token(1)).await.unwrap().commit().await.unwrap();
    let inside = postgres::begin(&mut first, &name("a"), token(1)).await.unwrap();
    let next = tokio::spawn(async move {
        let tx = postgres::begin(&mut second, &name("a"), token(2)).await.unwrap();
        let seen: i32 = tx.query_one("SELECT v FROM t", &[]).await.unwrap().get(0);
        tx.commit().await.unwrap();
        seen
    });
    until_waiting(&watcher, 1).await;
    inside.execute("UPDATE t SET v = 1", &[]).await.unwrap();
    inside.commit().await.unwrap();
    assert_eq!(next.await.unwrap(), 1);
    let late = error_of(postgres::begin(&mut first, &name("a"), token(1)).await);
    assert_eq!(*late.kind(), ErrorKind::Stale);
}

/// Under these levels a transaction keeps to the snapshot it began with: who had to wait must begin again.
#[tokio::test]
async fn above_read_committed_who_had_to_wait_begins_again() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let (database, mut first) = fenced().await;
        let (mut second, watcher) =
            (connect(&database.url()).await, connect(&database.url()).await);
        postgres::begin(&mut first, &name("a"), token(1)).await.unwrap().commit().await.unwrap();
        let inside = postgres::begin(&mut first, &name("a"), token(1)).await.unwrap();
        let set = format!("SET default_transaction_isolation = '{level}'");
        second.batch_execute(&set).await.unwrap();
        let next = tokio::spawn(async move {
            let waited = error_of(postgres::begin(&mut second, &name("a"), token(2)).await);
            postgres::begin(&mut second, &name("a"), token(2))
                .await
                .unwrap()
                .commit()
                .await
                .unwrap();
            waited
        });
        until_waiting(&watcher, 1).await;
        inside.commit().await.unwrap();
        let waited = next.await.unwrap();
        assert_eq!(*waited.kind(), ErrorKind::Unreachable, "{level}");
        assert!(waited.to_string().contains("try the transaction again"), "{level}: {waited}");
    }
}

/// A holder that freezes inside a transaction must not keep the next one out for ever.
#[tokio::test]
async fn the_server_ends_a_transaction_that_does_nothing() {
    let (database, mut frozen) = fenced().await;
    let mut next = connect(&database.url()).await;
    let idle = Duration::from_millis(200);
    let tx = postgres::begin_within(&mut frozen, &name("a"), token(1), idle).await.unwrap();
    // No clock of ours: it waits at `enter` until the server has ended the other.
    postgres::begin(&mut next, &name("a"), token(2)).await.unwrap().commit().await.unwrap();
    let error = tx.execute("SELECT 1", &[]).await.unwrap_err();
    assert_eq!(*postgres::explain(&error).kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_shorter_time_of_the_session_is_kept() {
    let (_database, mut client) = fenced().await;
    let ask = "SELECT current_setting('idle_in_transaction_session_timeout')";
    for (was, becomes) in [("0", "30s"), ("5s", "5s"), ("250ms", "250ms"), ("1h", "30s")] {
        let set = format!("SET idle_in_transaction_session_timeout = '{was}'");
        client.batch_execute(&set).await.unwrap();
        let tx = postgres::begin(&mut client, &name("a"), token(1)).await.unwrap();
        let inside: String = tx.query_one(ask, &[]).await.unwrap().get(0);
        assert_eq!(inside, becomes, "was {was}");
        tx.rollback().await.unwrap();
        let after: String = client.query_one(ask, &[]).await.unwrap().get(0);
        assert_eq!(after, was, "it is the transaction's only");
    }
}

#[tokio::test]
async fn a_transaction_that_only_reads_refuses() {
    let (_database, mut client) = fenced().await;
    client.batch_execute("SET default_transaction_read_only = on").await.unwrap();
    let error = error_of(postgres::begin(&mut client, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("to enter is to write"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable() {
    let server = std::sync::Arc::new(Postgres::builder().start().unwrap());
    let database: Database = server.database().unwrap();
    let mut client = connect(&database.url()).await;
    postgres::install(&client).await.unwrap();
    server.kill().unwrap();
    let error = error_of(postgres::begin(&mut client, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    // What was committed is there after the crash; the mark is as durable as the data beside it.
    server.start_again().unwrap();
    let mut client = connect(&database.url()).await;
    postgres::begin(&mut client, &name("a"), token(7)).await.unwrap().commit().await.unwrap();
    server.restart().unwrap();
    let mut client = connect(&database.url()).await;
    let stale = error_of(postgres::begin(&mut client, &name("a"), token(6)).await);
    assert_eq!(*stale.kind(), ErrorKind::Stale);
}

#[tokio::test]
async fn a_standby_refuses_and_names_the_primary() {
    let primary = Postgres::builder().start().unwrap();
    let client = connect(&primary.url()).await;
    postgres::install(&client).await.unwrap();
    let standby = primary.standby("second").unwrap();
    primary.wait_in_step().unwrap();
    let mut client = connect(&standby.url()).await;
    let error = error_of(postgres::begin(&mut client, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("on the primary"), "{error}");
}

/// In transaction mode each transaction may have another session: what the fence knows of it must not be the
/// session's.
#[tokio::test]
async fn it_works_through_a_pooler() {
    let (database, admin) = fenced().await;
    admin.batch_execute("CREATE TABLE t (lock text)").await.unwrap();
    postgres::protect(&admin, "t", postgres::NameFrom::Column("lock")).await.unwrap();
    let bouncer = PgBouncer::start(database.server(), &[], 1).unwrap();
    let url = bouncer.url_of(database.name());
    let (mut old, mut new) = (connect(&url).await, connect(&url).await);
    let (insert, a) = ("INSERT INTO t VALUES ('a')", name("a"));
    for _ in 0..3 {
        let tx = postgres::begin(&mut old, &a, token(1)).await.unwrap();
        tx.batch_execute(insert).await.unwrap();
        tx.commit().await.unwrap();
        // The one session of the pool has entered before, for another client.
        assert_eq!(refusal(&new, insert).await.0, "FP003");
    }
    postgres::begin(&mut new, &a, token(2)).await.unwrap().commit().await.unwrap();
    let stale = error_of(postgres::begin(&mut old, &a, token(1)).await);
    assert_eq!(*stale.kind(), ErrorKind::Stale, "{stale}");
    assert_eq!(ask(&admin, "SELECT count(*) FROM t").await, "3");
}

/// What was entered behind a savepoint is taken back with it.
#[tokio::test]
async fn a_savepoint_takes_its_enter_back() {
    let (_database, client) = fenced().await;
    client.batch_execute("CREATE TABLE t (id int)").await.unwrap();
    postgres::protect(&client, "t", postgres::NameFrom::Name(&name("a"))).await.unwrap();
    let behind = "BEGIN; SAVEPOINT s; SELECT fencepost.enter('a', 5); ROLLBACK TO s; INSERT INTO t VALUES (1)";
    assert_eq!(refusal(&client, behind).await.0, "FP003");
    let before = "BEGIN; SELECT fencepost.enter('a', 5); SAVEPOINT s; INSERT INTO t VALUES (1); \
                  ROLLBACK TO s; INSERT INTO t VALUES (2); COMMIT";
    client.batch_execute(before).await.unwrap();
    assert_eq!(ask(&client, "SELECT id FROM t").await, "2");
}

#[tokio::test]
async fn a_number_that_is_no_token_is_not_taken_for_a_missing_fence() {
    let (_database, client) = fenced().await;
    for number in ["9223372036854775808", "1.5"] {
        let call = format!("SELECT fencepost.enter('a', {number})");
        let error = postgres::explain(&client.batch_execute(&call).await.unwrap_err());
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("2^53"), "{error}");
    }
}
