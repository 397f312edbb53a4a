//! Entering: invalid input, which transactions wait for others, and what the server reports when it refuses.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::clock::{BootClock, Clock as _};
use fencepost::fences::postgres;
use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost_testkit::wait::SOON;
use fencepost_testkit::{Database, PgBouncer, Postgres};

use crate::common::{ask, connect, error_of, fenced, fencing, name, refusal};
use crate::snapshots::alone;

#[tokio::test]
async fn function_refuses_invalid_input() {
    let (_database, client) = fenced().await;
    let long = format!("'{}'", "x".repeat(513));
    let wide = format!("'{}'", "ü".repeat(257));
    let calls = [
        ("'a', 0", "FP002", "0 is not a token"),
        ("'a', -1", "FP002", "-1 is not a token"),
        ("'a', 9007199254740992", "FP002", "9007199254740992 is not a token"),
        ("'a', NULL", "FP002", "null is not a token"),
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
async fn sql_client_enters_and_gets_a_hint() {
    let (_database, client) = fenced().await;
    let enter = "BEGIN; SELECT fencepost.enter(name => 'invoice/42', token => 34); COMMIT";
    client.batch_execute(enter).await.unwrap();
    let error = client.batch_execute("SELECT fencepost.enter('invoice/42', 33)").await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "FP001");
    let start = "token 33 for \"invoice/42\" is stale: 34 has entered (postgres@127.0.0.1:";
    assert!(error.message().starts_with(start), "{}", error.message());
    assert!(error.hint().unwrap().contains("Acquire it again"), "{error:?}");
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
async fn enter_waits_for_the_open_transaction_and_sees_its_writes() {
    let (database, mut first) = fenced().await;
    first.batch_execute("CREATE TABLE t (v int); INSERT INTO t VALUES (0)").await.unwrap();
    let (mut second, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
    // An equal token: it is the write of the mark that blocks others.
    postgres::begin(&mut first, &fencing("a", 1)).await.unwrap().commit().await.unwrap();
    let inside = postgres::begin(&mut first, &fencing("a", 1)).await.unwrap();
    let next = tokio::spawn(async move {
        let tx = postgres::begin(&mut second, &fencing("a", 2)).await.unwrap();
        let seen: i32 = tx.query_one("SELECT v FROM t", &[]).await.unwrap().get(0);
        tx.commit().await.unwrap();
        seen
    });
    until_waiting(&watcher, 1).await;
    inside.execute("UPDATE t SET v = 1", &[]).await.unwrap();
    inside.commit().await.unwrap();
    assert_eq!(next.await.unwrap(), 1);
    let late = error_of(postgres::begin(&mut first, &fencing("a", 1)).await);
    assert_eq!(late.kind(), ErrorKind::Stale);
}

/// At these levels a transaction keeps its first snapshot: one that had to wait must be retried.
#[tokio::test]
async fn enter_that_waited_above_read_committed_must_be_retried() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let (database, mut first, mut second) = alone().await;
        let watcher = connect(&database.url()).await;
        postgres::begin(&mut first, &fencing("a", 1)).await.unwrap().commit().await.unwrap();
        let inside = postgres::begin(&mut first, &fencing("a", 1)).await.unwrap();
        let set = format!("SET default_transaction_isolation = '{level}'");
        second.batch_execute(&set).await.unwrap();
        let next = tokio::spawn(async move {
            let waited = error_of(postgres::begin(&mut second, &fencing("a", 2)).await);
            postgres::begin(&mut second, &fencing("a", 2)).await.unwrap().commit().await.unwrap();
            waited
        });
        until_waiting(&watcher, 1).await;
        inside.commit().await.unwrap();
        let waited = next.await.unwrap();
        assert_eq!(waited.kind(), ErrorKind::Unreachable, "{level}");
        assert!(waited.one_line().contains("retry the transaction"), "{level}: {waited}");
    }
}

/// A holder that freezes inside a transaction must not block the next one forever.
#[tokio::test]
async fn server_ends_an_idle_transaction() {
    let (database, mut frozen) = fenced().await;
    let mut next = connect(&database.url()).await;
    let idle = Duration::from_millis(200);
    let tx = postgres::begin_within(&mut frozen, &fencing("a", 1), idle).await.unwrap();
    // No clock of ours: `enter` waits until the server has ended the other transaction.
    postgres::begin(&mut next, &fencing("a", 2)).await.unwrap().commit().await.unwrap();
    let error = tx.execute("SELECT 1", &[]).await.unwrap_err();
    assert_eq!(postgres::explain(&error).kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn shorter_session_timeout_is_kept() {
    let (_database, mut client) = fenced().await;
    let ask = "SELECT current_setting('idle_in_transaction_session_timeout')";
    for (was, becomes) in [("0", "30s"), ("5s", "5s"), ("250ms", "250ms"), ("1h", "30s")] {
        let set = format!("SET idle_in_transaction_session_timeout = '{was}'");
        client.batch_execute(&set).await.unwrap();
        let tx = postgres::begin(&mut client, &fencing("a", 1)).await.unwrap();
        let inside: String = tx.query_one(ask, &[]).await.unwrap().get(0);
        assert_eq!(inside, becomes, "was {was}");
        tx.rollback().await.unwrap();
        let after: String = client.query_one(ask, &[]).await.unwrap().get(0);
        assert_eq!(after, was, "it is the transaction's only");
    }
}

#[tokio::test]
async fn read_only_transaction_is_refused() {
    let (_database, mut client) = fenced().await;
    client.batch_execute("SET default_transaction_read_only = on").await.unwrap();
    let error = error_of(postgres::begin(&mut client, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("`enter` writes"), "{error}");
}

#[tokio::test]
async fn dead_server_is_unreachable() {
    let server = std::sync::Arc::new(Postgres::builder().start().unwrap());
    let database: Database = server.database().unwrap();
    let mut client = connect(&database.url()).await;
    postgres::install(&client).await.unwrap();
    server.kill().unwrap();
    let error = error_of(postgres::begin(&mut client, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // The committed mark survives the crash, like the data beside it.
    server.start_again().unwrap();
    let mut client = connect(&database.url()).await;
    postgres::begin(&mut client, &fencing("a", 7)).await.unwrap().commit().await.unwrap();
    server.restart().unwrap();
    let mut client = connect(&database.url()).await;
    let stale = error_of(postgres::begin(&mut client, &fencing("a", 6)).await);
    assert_eq!(stale.kind(), ErrorKind::Stale);
}

#[tokio::test]
async fn standby_refuses_and_names_the_primary() {
    let primary = Postgres::builder().start().unwrap();
    let client = connect(&primary.url()).await;
    postgres::install(&client).await.unwrap();
    let standby = primary.standby("second").unwrap();
    primary.wait_in_step().unwrap();
    let mut client = connect(&standby.url()).await;
    let error = error_of(postgres::begin(&mut client, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("on the primary"), "{error}");
}

/// In transaction mode each transaction may use another session: the fence must not keep state in the session.
#[tokio::test]
async fn fence_works_through_a_pooler() {
    let (database, admin) = fenced().await;
    admin.batch_execute("CREATE TABLE t (lock text)").await.unwrap();
    postgres::protect(&admin, "t", postgres::NameFrom::Column("lock")).await.unwrap();
    let bouncer = PgBouncer::start(database.server(), &[], 1).unwrap();
    let url = bouncer.url_of(database.name());
    let (mut old, mut new) = (connect(&url).await, connect(&url).await);
    let (insert, a) = ("INSERT INTO t VALUES ('a')", |number| fencing("a", number));
    for _ in 0..3 {
        let tx = postgres::begin(&mut old, &a(1)).await.unwrap();
        tx.batch_execute(insert).await.unwrap();
        tx.commit().await.unwrap();
        // The pool's only session has entered before, for another client.
        assert_eq!(refusal(&new, insert).await.0, "FP003");
    }
    postgres::begin(&mut new, &a(2)).await.unwrap().commit().await.unwrap();
    let stale = error_of(postgres::begin(&mut old, &a(1)).await);
    assert_eq!(stale.kind(), ErrorKind::Stale, "{stale}");
    assert_eq!(ask(&admin, "SELECT count(*) FROM t").await, "3");
}

/// A rollback to the savepoint undoes what was entered after it.
#[tokio::test]
async fn rolled_back_savepoint_undoes_its_enter() {
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
async fn invalid_token_is_not_taken_for_a_missing_fence() {
    let (_database, client) = fenced().await;
    for number in ["9223372036854775808", "1.5"] {
        let call = format!("SELECT fencepost.enter('a', {number})");
        let error = postgres::explain(&client.batch_execute(&call).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.one_line().contains("2^53"), "{error}");
    }
}

#[tokio::test]
async fn prepared_enter_refuses_a_stale_token_too() {
    let (_database, mut client) = fenced().await;
    let prepared = postgres::PreparedEnter::new(&client).await.unwrap();
    for (token, wanted) in [(33, None), (34, None), (33, Some(ErrorKind::Stale)), (34, None)] {
        let tx = client.transaction().await.unwrap();
        let entered = prepared.enter(&tx, &fencing("x", token)).await;
        assert_eq!(entered.as_ref().err().map(fencepost::Error::kind), wanted, "{entered:?}");
        if wanted.is_none() {
            tx.commit().await.unwrap();
        }
    }
    assert_eq!(ask(&client, "SELECT token FROM fencepost.marks").await, "34");
}

/// A pooler can give the connection of another session, in which the name of the statement means nothing, or another one.
#[tokio::test]
async fn prepared_enter_of_another_session_does_not_enter() {
    let (_database, mut client) = fenced().await;
    let prepared = postgres::PreparedEnter::new(&client).await.unwrap();
    let named = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%fencepost.enter%'";
    let name = ask(&client, named).await;
    client.batch_execute("DEALLOCATE ALL").await.unwrap();
    let tx = client.transaction().await.unwrap();
    let unknown = error_of(prepared.enter(&tx, &fencing("x", 33)).await);
    assert_eq!(unknown.kind(), ErrorKind::Invalid);
    assert!(unknown.to_string().contains("prepare it again"), "{unknown}");
    tx.rollback().await.unwrap();
    let other = format!("PREPARE {name} (text, int8, text) AS SELECT $1 || $3, $2 + 1");
    client.batch_execute(&other).await.unwrap();
    let tx = client.transaction().await.unwrap();
    let other = error_of(prepared.enter(&tx, &fencing("x", 33)).await);
    assert_eq!(other.kind(), ErrorKind::Refused);
    assert!(other.to_string().contains("another prepared statement"), "{other}");
}
