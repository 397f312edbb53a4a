//! The setting by which a protected table learns who has entered, and other settings that a caller chooses.

use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost_testkit::Database;

use crate::common::{ask, attempt, connect, fenced, plant, refusal};

/// A table that is protected by its column, the mark 1 for "a", and a role that may write it, but not enter.
async fn written_by_a_role() -> (Database, Client, Client) {
    let (database, admin) = fenced().await;
    let role = format!("writer_{}", database.name());
    let setup = format!(
        "CREATE TABLE t (lock text, v int); SELECT fencepost.protect('t', 'lock', NULL);
         CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {role}; GRANT ALL ON t TO {role};
         SELECT fencepost.enter('a', 1)"
    );
    admin.batch_execute(&setup).await.unwrap();
    let writer = connect(&database.url_as(&role)).await;
    (database, admin, writer)
}

const WRITE: &str = "INSERT INTO t VALUES ('a', 1)";
const ID: &str = "pg_catalog.starts_with(noted, pg_catalog.pg_current_xact_id()::pg_catalog.text \
                  OPERATOR(pg_catalog.||) E'\\n')";
const SECRET: &str = "pg_catalog.strpos(noted, m.secret) OPERATOR(pg_catalog.>) 0";

/// A pooler or an application may keep settings longer than a transaction.
#[tokio::test]
async fn setting_of_an_earlier_transaction_lets_nobody_write() {
    let (_database, admin, _) = written_by_a_role().await;
    let keep = "BEGIN; SELECT fencepost.enter('a', 1);
                SELECT set_config('fencepost.entered', current_setting('fencepost.entered'), false); COMMIT";
    admin.batch_execute(keep).await.unwrap();
    assert!(ask(&admin, "SHOW fencepost.entered").await.contains('-'), "it was kept");
    assert_eq!(refusal(&admin, WRITE).await.0, "FP003");
    // It is in nobody's way.
    let entered = format!("BEGIN; SELECT fencepost.enter('a', 1); {WRITE}; COMMIT");
    attempt(&admin, &entered).await.unwrap();
    assert_eq!(refusal(&admin, WRITE).await.0, "FP003");

    plant(&admin, "has_entered", ID, "true").await;
    attempt(&admin, WRITE).await.expect("control: without the id it is accepted");
}

#[tokio::test]
async fn role_that_may_not_enter_cannot_forge_the_setting() {
    let (_database, admin, writer) = written_by_a_role().await;
    let forge = "BEGIN; SELECT set_config('fencepost.entered', pg_current_xact_id() || E'\\n' || guess, true)
                 FROM (VALUES ('a'), (''), (repeat(gen_random_uuid()::text, 9))) AS v (guess)";
    let forged = format!("{forge}; {WRITE}");
    assert_eq!(refusal(&writer, &forged).await.0, "FP003");
    for sql in [
        "SELECT secret FROM fencepost.marks",
        "SELECT fencepost.enter('a', 1)",
        "SELECT fencepost.admit('a', 1, NULL)",
        "SELECT fencepost.set_mark(NULL, 'a', 1, 'eve')",
        "SELECT fencepost.has_entered('a')",
    ] {
        assert_eq!(refusal(&writer, sql).await.0, "42501", "{sql}");
    }
    assert_eq!(ask(&admin, "SELECT count(*) FROM t").await, "0");

    plant(&admin, "has_entered", SECRET, "true").await;
    attempt(&writer, &forged).await.expect("control: without the secret it is accepted");
}

/// The setting holds for the mark as it is: after a reset within the transaction it must enter again.
#[tokio::test]
async fn entry_does_not_outlive_its_mark() {
    let (_database, admin, _) = written_by_a_role().await;
    let reset =
        "BEGIN; SELECT fencepost.enter('a', 1); SELECT fencepost.reset('a', 1, 'ann', 'moved')";
    assert_eq!(refusal(&admin, &format!("{reset}; {WRITE}")).await.0, "FP003");
    let again = format!("{reset}; SELECT fencepost.enter('a', 1); {WRITE}; COMMIT");
    attempt(&admin, &again).await.unwrap();
    // A restored dump has the marks as they were, and no transaction has entered.
    let restored = "CREATE TABLE dump AS TABLE fencepost.marks; DELETE FROM fencepost.marks;
                    INSERT INTO fencepost.marks SELECT * FROM dump";
    admin.batch_execute(restored).await.unwrap();
    assert_eq!(refusal(&admin, WRITE).await.0, "FP003");
}

/// The functions run with their owner's rights, and their caller chooses the `search_path`.
#[tokio::test]
async fn objects_of_the_caller_are_not_used() {
    let (database, admin, writer) = written_by_a_role().await;
    let role = format!("writer_{}", database.name());
    let grant = format!(
        "GRANT EXECUTE ON FUNCTION fencepost.enter TO {role};
         CREATE SCHEMA sly AUTHORIZATION {role}"
    );
    admin.batch_execute(&grant).await.unwrap();
    writer
        .batch_execute(
            "CREATE FUNCTION sly.boom() RETURNS text LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'it ran as %', current_user USING ERRCODE = 'XX999'; END $$;
             CREATE FUNCTION sly.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT sly.boom() IS NULL';
             CREATE FUNCTION sly.same(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT sly.boom() IS NULL';
             CREATE FUNCTION sly.same(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT sly.boom() IS NULL';
             CREATE FUNCTION sly.joined(text, text) RETURNS text LANGUAGE sql AS 'SELECT sly.boom()';
             CREATE FUNCTION sly.xor(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT length(sly.boom())';
             CREATE OPERATOR sly.= (leftarg = text, rightarg = text, function = sly.same);
             CREATE OPERATOR sly.<> (leftarg = text, rightarg = text, function = sly.same);
             CREATE OPERATOR sly.= (leftarg = bigint, rightarg = bigint, function = sly.same);
             CREATE OPERATOR sly.= (leftarg = int, rightarg = int, function = sly.same);
             CREATE OPERATOR sly.> (leftarg = int, rightarg = int, function = sly.same);
             CREATE OPERATOR sly.|| (leftarg = text, rightarg = text, function = sly.joined);
             CREATE OPERATOR sly.# (leftarg = bigint, rightarg = bigint, function = sly.xor);
             CREATE FUNCTION sly.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT sly.boom()';
             CREATE FUNCTION sly.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT sly.boom()';
             CREATE FUNCTION sly.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT sly.boom()';
             CREATE FUNCTION sly.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT sly.boom() IS NULL';
             CREATE FUNCTION sly.strpos(text, text) RETURNS int LANGUAGE sql AS 'SELECT length(sly.boom())';
             CREATE FUNCTION sly.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT sly.boom()';
             CREATE FUNCTION sly.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT sly.boom() IS NULL';
             CREATE FUNCTION sly.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT sly.boom()::xid8';
             CREATE FUNCTION sly.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql
               AS 'SELECT length(sly.boom())';
             CREATE FUNCTION sly.pg_try_advisory_xact_lock_shared(bigint) RETURNS boolean LANGUAGE sql
               AS 'SELECT sly.boom() IS NULL';
             CREATE DOMAIN sly.text AS pg_catalog.text CHECK (sly.boom() IS NULL);
             CREATE DOMAIN sly.bool AS pg_catalog.bool CHECK (sly.boom() IS NULL);
             CREATE COLLATION sly.\"C\" (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE TABLE sly.marks (name text, token bigint, secret text);
             SET search_path = sly, pg_catalog, public",
        )
        .await
        .unwrap();
    assert_eq!(
        refusal(&writer, "SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text").await.0,
        "XX999"
    );
    assert_eq!(refusal(&writer, WRITE).await.0, "FP003");
    for number in [1, 2, 2] {
        let write = format!(
            "BEGIN; SELECT fencepost.enter('a', {number}); {WRITE}; UPDATE t SET v = 7;
             UPDATE t SET lock = lock; DELETE FROM t; COMMIT"
        );
        attempt(&writer, &write).await.unwrap();
    }
    attempt(&writer, "BEGIN READ ONLY; SELECT fencepost.enter('a', 2); COMMIT").await.unwrap();
    assert_eq!(refusal(&writer, "SELECT fencepost.enter('a', 1)").await.0, "FP001");
}

/// In a collation where other texts are equal, `A` is still another lock than `a`.
#[tokio::test]
async fn names_differ_whatever_the_columns_collation() {
    let (_database, client) = fenced().await;
    client
        .batch_execute(
            "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE TABLE t (lock text COLLATE folded); INSERT INTO t VALUES ('a');
             SELECT fencepost.protect('t', 'lock', NULL)",
        )
        .await
        .unwrap();
    let entered = "BEGIN; SELECT fencepost.enter('a', 1)";
    for write in ["UPDATE t SET lock = 'A'", "INSERT INTO t VALUES ('A')"] {
        let (code, text) = refusal(&client, &format!("{entered}; {write}")).await;
        assert_eq!(code, "FP003", "{text}");
        assert!(text.contains("'A'"), "{text}");
    }
    attempt(&client, &format!("{entered}; UPDATE t SET lock = 'a'; DELETE FROM t; COMMIT"))
        .await
        .unwrap();
}
