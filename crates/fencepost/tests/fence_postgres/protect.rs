//! Protected tables refuse writers that have not entered, whatever the statement.

use fencepost::ErrorKind;
use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost::fences::postgres::{self, NameFrom};
use fencepost_testkit::Database;

use crate::common::{ask, error_of, fenced, name, refusal};

/// A protected table with a row of the lock `a` and one of `b`.
async fn ledger() -> (Database, Client) {
    let (database, client) = fenced().await;
    client
        .batch_execute(
            "CREATE TABLE ledger (id int PRIMARY KEY, lock text, v int NOT NULL DEFAULT 0);
             INSERT INTO ledger VALUES (1, 'a'), (2, 'b')",
        )
        .await
        .unwrap();
    postgres::protect(&client, "ledger", NameFrom::Column("lock")).await.unwrap();
    (database, client)
}

async fn state(client: &Client) -> String {
    ask(client, "SELECT string_agg(format('%s %s %s', id, lock, v), ', ' ORDER BY id) FROM ledger")
        .await
}

const UNTOUCHED: &str = "1 a 0, 2 b 0";

/// Each statement is refused with the missing call, and changes nothing.
async fn all_refused(client: &Client, statements: &[(&str, &str)]) {
    for (sql, lock) in statements {
        let (code, text) = refusal(client, sql).await;
        assert_eq!(code, "FP003", "{sql}: {text}");
        let call = format!("call fencepost.enter('{lock}', token) first in this transaction");
        assert!(text.contains(&call), "{sql}: {text}");
        assert_eq!(state(client).await, UNTOUCHED, "{sql}");
    }
}

const WRITES: &[(&str, &str)] = &[
    ("INSERT INTO ledger VALUES (3, 'c')", "c"),
    ("UPDATE ledger SET v = 1 WHERE id = 1", "a"),
    ("UPDATE ledger SET v = 1", "a"),
    ("DELETE FROM ledger WHERE id = 2", "b"),
    ("INSERT INTO ledger VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET v = 9", "a"),
    ("INSERT INTO ledger SELECT 4, 'd'", "d"),
    ("WITH gone AS (DELETE FROM ledger WHERE id = 1 RETURNING id) SELECT * FROM gone", "a"),
    ("DO $$ BEGIN UPDATE ledger SET v = 1 WHERE id = 1; END $$", "a"),
];

#[tokio::test]
async fn write_without_enter_names_the_missing_call() {
    let (_database, client) = ledger().await;
    all_refused(&client, WRITES).await;
    let merge = "MERGE INTO ledger USING (VALUES (1)) AS new (id) ON ledger.id = new.id
                 WHEN MATCHED THEN UPDATE SET v = 5";
    let version: i32 = ask(&client, "SHOW server_version_num").await.parse().unwrap();
    if version >= 150_000 {
        all_refused(&client, &[(merge, "a")]).await;
    }
}

/// Here the superuser owns the table. The replica role skips ordinary triggers.
#[tokio::test]
async fn replica_role_and_copy_are_refused() {
    let (_database, client) = ledger().await;
    client.batch_execute("SET session_replication_role = replica").await.unwrap();
    all_refused(&client, WRITES).await;
    let (code, text) = refusal(&client, "TRUNCATE ledger").await;
    assert_eq!(code, "FP003", "{text}");
    let copy = "COPY ledger FROM PROGRAM 'echo 7,x,0' (FORMAT csv)";
    all_refused(&client, &[(copy, "x")]).await;
    assert_eq!(state(&client).await, UNTOUCHED);
}

#[tokio::test]
async fn entered_transaction_writes_only_rows_of_its_lock() {
    let (_database, client) = ledger().await;
    let entered = |sql: &str| format!("BEGIN; SELECT fencepost.enter('a', 7); {sql}; COMMIT");
    for (sql, lock) in [
        ("UPDATE ledger SET v = 1", "b"),
        ("UPDATE ledger SET lock = 'b' WHERE id = 1", "b"),
        ("UPDATE ledger SET lock = 'a' WHERE id = 2", "b"),
        ("INSERT INTO ledger VALUES (3, 'a'), (4, 'b')", "b"),
        ("DELETE FROM ledger", "b"),
    ] {
        all_refused(&client, &[(&entered(sql), lock)]).await;
    }
    client.batch_execute(&entered("UPDATE ledger SET v = 1 WHERE id = 1")).await.unwrap();
    // The next transaction has not entered.
    let (code, _) = refusal(&client, "UPDATE ledger SET v = 2 WHERE id = 1").await;
    assert_eq!(code, "FP003");
    let both = "SELECT fencepost.enter('b', 1); UPDATE ledger SET lock = 'a' WHERE id = 2";
    client.batch_execute(&entered(both)).await.unwrap();
    client.batch_execute(&entered("DELETE FROM ledger")).await.unwrap();
    client.batch_execute(&entered("INSERT INTO ledger VALUES (9, 'a')")).await.unwrap();
    assert_eq!(state(&client).await, "9 a 0");
}

#[tokio::test]
async fn rolled_back_savepoint_has_not_entered() {
    let (_database, client) = ledger().await;
    let undone = "BEGIN; SAVEPOINT s; SELECT fencepost.enter('a', 1); ROLLBACK TO s;
                  UPDATE ledger SET v = 1 WHERE id = 1";
    all_refused(&client, &[(undone, "a")]).await;
    let kept = "BEGIN; SAVEPOINT s; SELECT fencepost.enter('a', 1); RELEASE s;
                UPDATE ledger SET v = 1 WHERE id = 1; COMMIT";
    client.batch_execute(kept).await.unwrap();
    assert_eq!(state(&client).await, "1 a 1, 2 b 0");
}

/// An application's trigger may run after ours and change the row.
#[tokio::test]
async fn trigger_that_changes_the_name_is_checked() {
    let (_database, client) = ledger().await;
    client
        .batch_execute(
            "CREATE FUNCTION steal() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN NEW.lock := 'b'; RETURN NEW; END $$;
             CREATE TRIGGER zzzz BEFORE UPDATE ON ledger FOR EACH ROW EXECUTE FUNCTION steal()",
        )
        .await
        .unwrap();
    let sql = "BEGIN; SELECT fencepost.enter('a', 1); UPDATE ledger SET v = 1 WHERE id = 1; COMMIT";
    all_refused(&client, &[(sql, "b")]).await;
}

#[tokio::test]
async fn cascade_is_checked() {
    let (_database, client) = fenced().await;
    client
        .batch_execute(
            "CREATE TABLE customer (id int PRIMARY KEY);
             CREATE TABLE ledger (id int, lock text, v int DEFAULT 0,
                 customer int REFERENCES customer ON DELETE CASCADE ON UPDATE CASCADE);
             INSERT INTO customer VALUES (1);
             INSERT INTO ledger VALUES (1, 'a', 0, 1), (2, 'b', 0, 1)",
        )
        .await
        .unwrap();
    postgres::protect(&client, "ledger", NameFrom::Column("lock")).await.unwrap();
    let cascades = [("DELETE FROM customer", "a"), ("UPDATE customer SET id = 2", "a")];
    all_refused(&client, &cascades).await;
    let (code, text) = refusal(&client, "TRUNCATE customer CASCADE").await;
    assert_eq!(code, "FP003", "{text}");
    assert_eq!(state(&client).await, UNTOUCHED);
}

#[tokio::test]
async fn row_without_a_name_is_refused() {
    let (_database, client) = ledger().await;
    for sql in [
        "INSERT INTO ledger VALUES (3, NULL)",
        "BEGIN; SELECT fencepost.enter('a', 1); UPDATE ledger SET lock = NULL WHERE id = 1",
    ] {
        let (code, text) = refusal(&client, sql).await;
        assert_eq!(code, "FP003", "{text}");
        assert!(text.contains("NULL"), "{text}");
    }
    assert_eq!(state(&client).await, UNTOUCHED);
}

#[tokio::test]
async fn truncate_is_refused_by_rows_and_checked_by_name() {
    let (_database, client) = ledger().await;
    let entered = "BEGIN; SELECT fencepost.enter('a', 1), fencepost.enter('b', 1); TRUNCATE ledger";
    let (code, text) = refusal(&client, entered).await;
    assert_eq!(code, "FP003");
    assert!(text.contains("different locks"), "{text}");
    let lock = name("the ledger's");
    postgres::protect(&client, "ledger", NameFrom::Name(&lock)).await.unwrap();
    all_refused(
        &client,
        &[("TRUNCATE ledger", "the ledger''s"), ("DELETE FROM ledger", "the ledger''s")],
    )
    .await;
    let entered = "BEGIN; SELECT fencepost.enter('the ledger''s', 1); TRUNCATE ledger; COMMIT";
    client.batch_execute(entered).await.unwrap();
    assert_eq!(state(&client).await, "");
}

#[tokio::test]
async fn unprotect_removes_the_protection() {
    let (_database, client) = ledger().await;
    assert!(postgres::unprotect(&client, "ledger").await.unwrap());
    assert!(!postgres::unprotect(&client, "ledger").await.unwrap());
    client.batch_execute("UPDATE ledger SET v = 1; TRUNCATE ledger").await.unwrap();
}

#[tokio::test]
async fn partitions_are_protected_one_by_one() {
    let (_database, client) = fenced().await;
    client
        .batch_execute(
            "CREATE TABLE ledger (id int, lock text, v int DEFAULT 0) PARTITION BY RANGE (id);
             CREATE TABLE low PARTITION OF ledger FOR VALUES FROM (0) TO (2);
             CREATE TABLE high PARTITION OF ledger FOR VALUES FROM (2) TO (9);
             INSERT INTO ledger VALUES (1, 'a'), (2, 'b')",
        )
        .await
        .unwrap();
    let error = error_of(postgres::protect(&client, "ledger", NameFrom::Column("lock")).await);
    assert!(error.one_line().contains("partitions one by one"), "{error}");
    for part in ["low", "high"] {
        postgres::protect(&client, part, NameFrom::Column("lock")).await.unwrap();
    }
    let writes = [
        ("INSERT INTO ledger VALUES (1, 'c')", "c"),
        ("INSERT INTO low VALUES (1, 'c')", "c"),
        ("UPDATE ledger SET v = 1", "a"),
        ("UPDATE low SET v = 1", "a"),
        ("DELETE FROM high", "b"),
        // It moves to the other partition.
        ("UPDATE ledger SET id = 5 WHERE id = 1", "a"),
        (
            "BEGIN; SELECT fencepost.enter('a', 1); UPDATE ledger SET id = 5, lock = 'b' WHERE id = 1",
            "b",
        ),
    ];
    all_refused(&client, &writes).await;
    for truncate in ["TRUNCATE ledger", "TRUNCATE low"] {
        assert_eq!(refusal(&client, truncate).await.0, "FP003", "{truncate}");
    }
    assert_eq!(state(&client).await, UNTOUCHED);
}

#[tokio::test]
async fn table_that_cannot_be_protected_is_named_and_nothing_is_written() {
    let (_database, client) = fenced().await;
    client
        .batch_execute(
            "CREATE TABLE t (lock text); CREATE TABLE parent (lock text);
             CREATE TABLE child () INHERITS (parent); CREATE VIEW v AS SELECT * FROM t;
             CREATE MATERIALIZED VIEW m AS SELECT * FROM t; CREATE SEQUENCE s",
        )
        .await
        .unwrap();
    let cases = [
        ("nope", "lock", "\"nope\" does not exist"),
        ("no.where", "lock", "\"no\" does not exist"),
        ("T; DROP TABLE t", "lock", "syntax"),
        ("", "lock", "name"),
        ("t", "kcol", "has no column \"kcol\""),
        ("t", "ctid", "has no column \"ctid\""),
        ("t", "", "has no column \"\""),
        ("v", "lock", "is a view"),
        ("m", "lock", "materialized view"),
        ("s", "lock", "is not a table"),
        ("parent", "lock", "inherit"),
        ("fencepost.marks", "name", "belongs to fencepost or to PostgreSQL"),
        ("pg_catalog.pg_class", "relname", "belongs to fencepost or to PostgreSQL"),
    ];
    for (table, column, says) in cases {
        let error = error_of(postgres::protect(&client, table, NameFrom::Column(column)).await);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{table}: {error}");
        assert!(error.one_line().contains(says), "{table}: {error}");
    }
    let error = error_of(postgres::unprotect(&client, "nope").await);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let made = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencepost%'";
    assert_eq!(ask(&client, made).await, "0");
}

#[tokio::test]
async fn quoted_names_work() {
    let (_database, client) = fenced().await;
    client
        .batch_execute("CREATE SCHEMA \"My Shop\"; CREATE TABLE \"My Shop\".\"It's\" (\"lock \"\"name\"\"\" text, id int)")
        .await
        .unwrap();
    let table = "\"My Shop\".\"It's\"";
    postgres::protect(&client, table, NameFrom::Column("lock \"name\"")).await.unwrap();
    let insert = format!("INSERT INTO {table} VALUES ('o''clock')");
    let (code, text) = refusal(&client, &insert).await;
    assert_eq!(code, "FP003");
    assert!(text.contains("fencepost.enter('o''clock', token)"), "{text}");
    // Columns of other types are compared as text.
    postgres::protect(&client, table, NameFrom::Column("id")).await.unwrap();
    let entered = format!(
        "BEGIN; SELECT fencepost.enter('42', 1); INSERT INTO {table} VALUES ('x', 42); COMMIT"
    );
    client.batch_execute(&entered).await.unwrap();
}
