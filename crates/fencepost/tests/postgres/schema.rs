//! The schema is created once, by the first client; a role without rights gets the remedy.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{Database, LONG, connect, fails, nothing_is_left, try_connect};

use crate::common::{session, until_blocked};
use crate::records::runs;

/// The grants in docs/backends/postgres.md: for locks, for elections, and for records.
fn grants() -> [String; 3] {
    let page = include_str!("../../../../docs/backends/postgres.md");
    let mut parts = page.split("```sql\n").skip(1);
    [(); 3].map(|()| {
        let part = parts.next().expect("the page has the SQL");
        part.split_once("```").expect("which ends").0.to_owned()
    })
}

#[tokio::test]
async fn concurrent_clients_create_the_schema_once() {
    let database = Database::fresh().unwrap();
    let url = database.url();
    let connects = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { Fencepost::connect(&url).await })
    });
    for connect in connects.collect::<Vec<_>>() {
        connect.await.unwrap().unwrap();
    }
    let found = database.psql("select component, version from fencepost.components order by 1");
    assert_eq!(found.unwrap(), "locks|2\nrecords|2\n");
}

#[tokio::test]
async fn newer_schema_is_refused() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 99 where component = 'locks'")
        .unwrap();
    let refused = try_connect(&database.url()).await;
    fails(refused, ErrorKind::Refused, &["version 99", "version 2", "update this program"]);
}

/// A client needs only the components that it uses.
#[tokio::test]
async fn newer_records_component_is_refused_and_locks_work() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 99 where component = 'records'")
        .unwrap();
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let words = ["version 99", "\"records\"", "update this program"];
    fails(client.election("e").campaign("me").await, ErrorKind::Refused, &words);
    fails(runs(&client, "k", "").await, ErrorKind::Refused, &words);
}

/// A session that waits for the install lock outlives its client. It must not wait forever, with others behind it.
#[tokio::test]
async fn server_ends_a_wait_for_the_install_lock() {
    let database = Database::fresh().unwrap();
    let busy = session(&database.url()).await;
    busy.batch_execute("select pg_advisory_lock(7378424937699110771)").await.unwrap();
    let url = database.url();
    let waiting = tokio::spawn(async move { try_connect(&url).await });
    until_blocked(&database, 1).await;
    waiting.abort();
    until_blocked(&database, 0).await;
    // A client that is still there retries.
    let url = database.url();
    let waiting = tokio::spawn(async move { try_connect(&url).await });
    until_blocked(&database, 1).await;
    busy.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn missing_rights_are_named_and_no_more_are_needed() {
    let database = Database::fresh().unwrap();
    let app = format!("app_{}", database.name());
    database.psql(&format!("create role {app} login")).unwrap();
    let remedy = ["fencepost backend install", "docs/backends/postgres.md"];
    // There is no schema, and the role may not create it.
    fails(try_connect(&database.url_as(&app)).await, ErrorKind::Refused, &remedy);
    // There is one, and the role may not use it.
    connect(&database.url()).await;
    fails(try_connect(&database.url_as(&app)).await, ErrorKind::Refused, &remedy);
    // The role may read, and not lock.
    database.psql(&format!("grant usage on schema fencepost to {app}")).unwrap();
    let client = connect(&database.url_as(&app)).await;
    let refused = client.lock("x").try_acquire().await;
    fails(
        refused,
        ErrorKind::Refused,
        &["permission denied for function", "docs/backends/postgres.md"],
    );

    let [locks, elections, records] = grants().map(|sql| sql.replace("app", &app));
    database.psql(&locks).unwrap();
    let client = connect(&database.url_as(&app)).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert_eq!(client.list().await.unwrap().len(), 1);
    client.break_lock("x").await.unwrap().expect("it was held");
    drop(guard);
    nothing_is_left(&client, "x").await;
    let refused = client.election("e").campaign("me").await;
    fails(refused, ErrorKind::Refused, &["campaign", "docs/backends/postgres.md"]);
    database.psql(&elections).unwrap();
    let leadership = client.election("e").ttl(LONG).campaign("me").await.unwrap();
    leadership.proclaim("still me").await.unwrap();
    assert!(client.election("e").leader().await.unwrap().is_some());
    let refused = runs(&client, "k", "").await;
    fails(refused, ErrorKind::Refused, &["GRANT EXECUTE ON FUNCTION", "fencepost.look_up"]);
    database.psql(&records).unwrap();
    assert!(runs(&client, "k", "").await.unwrap());
    assert_eq!(client.once_records().await.unwrap().len(), 1);
    assert!(client.once("k").forget().await.unwrap());
    for table in ["locks", "waiters", "withdrawn", "tokens", "candidate_values", "records", "store"]
    {
        let error =
            database.psql_as(&app, &format!("select * from fencepost.{table}")).unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{error}");
    }
}

/// The row of a name is not kept forever; the sequence is.
#[tokio::test]
async fn rows_of_old_locks_are_removed_and_tokens_stay() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let old = client.lock("old").acquire().await.unwrap();
    let token = old.token();
    old.release().await.unwrap();
    let _held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    database
        .psql("update fencepost.locks set expires = expires - interval '2 h' where owner is null")
        .unwrap();
    assert_eq!(database.psql("select fencepost.gc_locks(3600000)").unwrap(), "1\n");
    assert_eq!(database.psql("select name from fencepost.locks").unwrap(), "held\n");
    assert!(client.lock("old").acquire().await.unwrap().token() > token);
}

#[tokio::test]
async fn exhausted_tokens_grant_nothing() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    database.psql("select setval('fencepost.tokens', 9007199254740991)").unwrap();
    fails(client.lock("x").try_acquire().await, ErrorKind::Refused, &["no tokens left"]);
    assert!(client.inspect("x").await.unwrap().holder.is_none());
}

/// A role that may run gc must not be able to end the locks of others.
#[tokio::test]
async fn gc_does_not_remove_held_locks() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    assert_eq!(database.psql("select fencepost.gc_locks(-90000000)").unwrap(), "0\n");
    held.release().await.unwrap();
}

/// The owner of a schema controls its contents.
#[tokio::test]
async fn schema_of_another_owner_is_refused() {
    let database = Database::fresh().unwrap();
    let squatter = format!("squatter_{}", database.name());
    database.psql(&format!("create role {squatter} login")).unwrap();
    database.psql(&format!("create schema fencepost authorization {squatter}")).unwrap();
    let refused = try_connect(&database.url()).await;
    fails(refused, ErrorKind::Refused, &["belongs to", &squatter, "?owner="]);
    // And other roles do not install into one that is trusted.
    let refused = try_connect(&format!("{}?owner={squatter}", database.url())).await;
    fails(refused, ErrorKind::Refused, &["belongs to", &squatter, "Install as"]);
    assert_eq!(database.psql("select to_regclass('fencepost.locks') is null").unwrap(), "t\n");
}

/// Direct calls of the functions must not leave behind what other clients cannot handle.
#[tokio::test]
async fn invalid_request_is_refused() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    for bad in [
        "'x', gen_random_uuid(), 1000, 'me', ''",
        "'x', gen_random_uuid(), 1000, E'a\\nb', null",
        "'x', gen_random_uuid(), 9000000000000, 'me', null",
        "'x', gen_random_uuid(), 99, 'me', null",
        "'', gen_random_uuid(), 1000, 'me', null",
        "null, gen_random_uuid(), 1000, 'me', null",
    ] {
        let error = database.psql(&format!("select fencepost.acquire({bad})")).unwrap_err();
        assert!(error.to_string().contains("not a valid request for a lock"), "{bad}: {error}");
    }
    nothing_is_left(&client, "x").await;
}

/// Its `"$user"` resolves to our schema: whatever it creates without a schema would land there.
#[tokio::test]
async fn role_named_like_the_schema_is_refused_before_the_install() {
    // A server of its own: roles belong to the server, and this one needs this name.
    let server = std::sync::Arc::new(fencepost_testkit::Postgres::builder().start().unwrap());
    server
        .psql("create role fencepost login; grant create on database postgres to fencepost")
        .unwrap();
    let url = server.url().replace("postgres@", "fencepost@");
    let words = ["ALTER ROLE fencepost SET search_path = public"];
    fails(try_connect(&url).await, ErrorKind::Refused, &words);
    let own = session(&url).await;
    fails(fencepost::fences::postgres::install(&own).await, ErrorKind::Refused, &words);
    assert_eq!(server.psql("select to_regnamespace('fencepost') is null").unwrap(), "t\n");
    // As the error says.
    server.psql("ALTER ROLE fencepost SET search_path = public").unwrap();
    nothing_is_left(&connect(&url).await, "x").await;
    server.psql("grant create on schema public to fencepost").unwrap();
    server.psql_at(&url, "create table own (id int)").unwrap();
    assert_eq!(server.psql("select 'public.own'::regclass").unwrap(), "own\n");
    // A role that only uses the schema may have this name, whatever its path.
    server.psql("ALTER ROLE fencepost RESET search_path").unwrap();
    nothing_is_left(&connect(&url).await, "x").await;
}
