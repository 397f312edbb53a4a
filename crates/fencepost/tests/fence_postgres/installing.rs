//! Putting the fence into a database, and who may do what with it then.

use fencepost::ErrorKind;
use fencepost::fences::postgres::{self, Installed, NameFrom};
use fencepost_testbed::Database;

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
    postgres::protect(&owner, "own", NameFrom::Name(&lock)).await.unwrap();
    postgres::protect(&owner, "own", NameFrom::Column("id")).await.unwrap();
    assert_eq!(refusal(&owner, "INSERT INTO own VALUES (1)").await.0, "FP003");
    let error = error_of(postgres::protect(&owner, "theirs", NameFrom::Name(&lock)).await);
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("as its owner"), "{error}");
    owner.batch_execute("INSERT INTO theirs VALUES (1)").await.unwrap();
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
