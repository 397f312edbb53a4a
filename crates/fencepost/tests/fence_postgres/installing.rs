//! Putting the fence into a database, and who may do what with it then.

use fencepost::ErrorKind;
use fencepost::fences::postgres::{self, Installed, NameFrom};
use fencepost_testkit::Database;

use crate::common::{ask, connect, error_of, fenced, name, refusal, token};

#[tokio::test]
async fn it_is_installed_once_whoever_comes_first() {
    let database = Database::fresh().unwrap();
    let (one, two) = (connect(&database.url()).await, connect(&database.url()).await);
    let (first, second) = tokio::join!(postgres::install(&one), postgres::install(&two));
    let mut both = [first.unwrap(), second.unwrap()];
    both.sort_by_key(|done| *done == Installed::Already);
    assert_eq!(both, [Installed::Now, Installed::Already]);
    assert_eq!(postgres::install(&one).await.unwrap(), Installed::Already);
}

#[tokio::test]
async fn a_newer_fence_is_left_alone() {
    let (_database, client) = fenced().await;
    client.batch_execute("UPDATE fencepost.components SET version = 99").await.unwrap();
    let error = error_of(postgres::install(&client).await);
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("99"), "{error}");
}

#[tokio::test]
async fn without_the_fence_the_error_says_how_to_get_it() {
    let database = Database::fresh().unwrap();
    let mut client = connect(&database.url()).await;
    let error = error_of(postgres::begin(&mut client, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("fencepost fence install"), "{error}");
}

#[tokio::test]
async fn a_role_needs_two_grants_to_enter_and_can_do_nothing_else() {
    let (database, admin) = fenced().await;
    let role = format!("app_{}", database.name());
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let mut app = connect(&database.url_as(&role)).await;

    let error = error_of(postgres::begin(&mut app, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("GRANT USAGE"), "{error}");
    let error = error_of(postgres::install(&app).await);
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("may create a schema"), "{error}");

    let grants = format!(
        "GRANT USAGE ON SCHEMA fencepost TO {role}; GRANT EXECUTE ON FUNCTION fencepost.enter TO {role}"
    );
    admin.batch_execute(&grants).await.unwrap();
    postgres::begin(&mut app, &name("a"), token(5)).await.unwrap().commit().await.unwrap();
    let stale = error_of(postgres::begin(&mut app, &name("a"), token(4)).await);
    assert_eq!(*stale.kind(), ErrorKind::Stale);

    assert_eq!(postgres::install(&app).await.unwrap(), Installed::Already);
    let shown = error_of(postgres::show(&app, None).await);
    assert!(shown.to_string().contains("GRANT EXECUTE ON FUNCTION fencepost.show"), "{shown}");

    let forgotten = error_of(postgres::reset(&app, &name("a"), None, "eve", "why not").await);
    assert_eq!(*forgotten.kind(), ErrorKind::Refused);
    for sql in [
        "UPDATE fencepost.marks SET token = 1",
        "DELETE FROM fencepost.marks",
        "SELECT * FROM fencepost.marks",
        "INSERT INTO fencepost.resets (name) VALUES ('a')",
        "SELECT fencepost.show()",
        "SELECT fencepost.reset('a', 1, 'eve', 'why not')",
        "CREATE TABLE fencepost.mine ()",
    ] {
        assert_eq!(refusal(&app, sql).await.0, "42501", "{sql}");
    }
    assert_eq!(ask(&admin, "SELECT token FROM fencepost.marks").await, "5");
    assert_eq!(ask(&admin, "SELECT count(*) FROM fencepost.resets").await, "0");
}

#[tokio::test]
async fn an_owner_protects_its_tables_and_nobody_elses() {
    let (database, admin) = fenced().await;
    let role = format!("owner_{}", database.name());
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {role};
         CREATE TABLE theirs (id int); CREATE TABLE own (id int);
         ALTER TABLE own OWNER TO {role}; GRANT ALL ON theirs TO {role}"
    );
    admin.batch_execute(&sql).await.unwrap();
    let owner = connect(&database.url_as(&role)).await;
    let lock = name("own");
    assert!(!postgres::protect(&owner, "own", NameFrom::Name(&lock)).await.unwrap());
    assert!(postgres::protect(&owner, "own", NameFrom::Column("id")).await.unwrap(), "it was");
    assert_eq!(refusal(&owner, "INSERT INTO own VALUES (1)").await.0, "FP003");
    for refused in [postgres::protect(&owner, "theirs", NameFrom::Name(&lock)).await, {
        postgres::protect(&admin, "theirs", NameFrom::Name(&lock)).await.unwrap();
        postgres::unprotect(&owner, "theirs").await
    }] {
        let error = error_of(refused);
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("theirs is its owner's"), "{error}");
    }
    assert!(postgres::unprotect(&admin, "theirs").await.unwrap());
    owner.batch_execute("INSERT INTO theirs VALUES (1)").await.unwrap();
}

/// Who was given a schema, and may make none, can install in it.
#[tokio::test]
async fn the_owner_of_an_empty_schema_installs_there() {
    let database = Database::fresh().unwrap();
    let admin = connect(&database.url()).await;
    let role = format!("given_{}", database.name());
    let sql = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA fencepost AUTHORIZATION {role}");
    admin.batch_execute(&sql).await.unwrap();
    let owner = connect(&database.url_as(&role)).await;
    assert_eq!(postgres::install(&owner).await.unwrap(), Installed::Now);
    // Whoever could make the schema is told whose it is, and not that all is well.
    let error = error_of(postgres::install(&admin).await);
    assert!(error.to_string().contains(&role), "{error}");
}

/// What the numbers of another server's transactions would do after a dump and a restore: some day a transaction
/// of this server has the number that a mark was restored with.
#[tokio::test]
async fn a_mark_that_came_with_a_dump_lets_nobody_in() {
    let (_database, client) = fenced().await;
    // Other tests of this server draw numbers too, so there are marks for many of the next ones.
    client
        .batch_execute(
            "CREATE TABLE t (lock text); SELECT fencepost.protect('t', 'lock', NULL);
             INSERT INTO fencepost.marks SELECT number::text, 1, number::text::xid8, now(), 'dump'
               FROM (SELECT pg_current_xact_id()::text::bigint AS here) AS now,
                 generate_series(here + 1, here + 5000) AS number",
        )
        .await
        .unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    let fits = "SELECT count(*) FROM fencepost.marks WHERE xid = pg_current_xact_id()";
    assert_eq!(ask(&client, fits).await, "1", "there is a mark with this transaction's number");
    let insert = "INSERT INTO t VALUES (pg_current_xact_id()::text)";
    assert_eq!(refusal(&client, insert).await.0, "FP003");
}

/// The checks run with the rights of the fence's owner: neither a column's name nor its type may bring in code of
/// somebody else's.
#[tokio::test]
async fn a_tables_owner_gets_no_rights_from_protecting_it() {
    let (database, admin) = fenced().await;
    let app = format!("app_{}", database.name());
    let setup = format!(
        "CREATE ROLE {app} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {app};
         GRANT EXECUTE ON FUNCTION fencepost.enter TO {app}; CREATE SCHEMA own AUTHORIZATION {app}"
    );
    admin.batch_execute(&setup).await.unwrap();
    let client = connect(&database.url_as(&app)).await;
    let sly = "x$check$;DROP TABLE fencepost.marks;--$body$''";
    let table = format!("SET check_function_bodies = off; CREATE TABLE own.sly (\"{sly}\" text)");
    client.batch_execute(&table).await.unwrap();
    postgres::protect(&client, "own.sly", NameFrom::Column(sly)).await.unwrap();
    let write = "INSERT INTO own.sly VALUES ('a')";
    assert_eq!(refusal(&client, write).await.0, "FP003");
    let entered = format!("BEGIN; SELECT fencepost.enter('a', 1); {write}; COMMIT");
    client.batch_execute(&entered).await.unwrap();

    client
        .batch_execute(
            "CREATE TYPE own.evil AS (x int);
             CREATE FUNCTION own.boom(own.evil) RETURNS text LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'it ran as %', current_user; END $$;
             CREATE CAST (own.evil AS text) WITH FUNCTION own.boom(own.evil);
             CREATE DOMAIN own.worse AS own.evil;
             CREATE TABLE own.t (n own.evil, m own.worse, d date, c char(9), v varchar, i int)",
        )
        .await
        .unwrap();
    for column in ["n", "m", "d", "c"] {
        let refused = postgres::protect(&client, "own.t", NameFrom::Column(column)).await;
        let error = error_of(refused);
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("text, varchar, uuid or an integer"), "{error}");
    }
    // Nor by a trigger of one's own making, with a function that serves a column of this name.
    client.batch_execute("CREATE TABLE own.good (n text)").await.unwrap();
    postgres::protect(&client, "own.good", NameFrom::Column("n")).await.unwrap();
    let found = ask(
        &client,
        "SELECT tgfoid::regproc FROM pg_trigger
          WHERE tgrelid = 'own.good'::regclass AND tgname = 'fencepost_rows'",
    )
    .await;
    let trigger = format!(
        "CREATE TRIGGER mine AFTER INSERT ON own.t FOR EACH ROW EXECUTE FUNCTION {found}()"
    );
    client.batch_execute(&trigger).await.unwrap();
    let (code, said) = refusal(&client, "INSERT INTO own.t (n) VALUES (row(1))").await;
    assert_eq!(code, "FP003", "{said}");
}

/// A mark that a crash could take back would let a stale token in.
#[tokio::test]
async fn who_enters_waits_for_the_disk() {
    let (_database, client) = fenced().await;
    client.batch_execute("SET synchronous_commit = off; BEGIN").await.unwrap();
    ask(&client, "SELECT fencepost.enter('a', 1)").await;
    assert_eq!(ask(&client, "SHOW synchronous_commit").await, "local");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(ask(&client, "SHOW synchronous_commit").await, "off");
}

#[tokio::test]
async fn resets_take_turns() {
    let (database, client) = fenced().await;
    let other = connect(&database.url()).await;
    client.batch_execute("BEGIN; SELECT fencepost.reset('r', 9, 'ann', 'moved')").await.unwrap();
    let waiting = tokio::spawn(async move {
        postgres::reset(&other, &name("r"), Some(token(3)), "bob", "moved").await
    });
    crate::entering::until_waiting(&client, 1).await;
    client.batch_execute("COMMIT").await.unwrap();
    let old = waiting.await.unwrap().unwrap().expect("it finds what the first one set");
    assert_eq!(old.token, token(9));
}
