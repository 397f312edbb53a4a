//! The schema makes itself, once; and who may not make it, or not use it, is told what to do.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{Database, LONG, connect, fails, nothing_is_left, try_connect};

use crate::common::{session, until_blocked};
use crate::records::runs;

/// What docs/backends/postgres.md tells to grant: for locks, for elections, and for records.
fn grants() -> [String; 3] {
    let page = include_str!("../../../../docs/backends/postgres.md");
    let mut parts = page.split("```sql\n").skip(1);
    [(); 3].map(|()| {
        let part = parts.next().expect("the page has the SQL");
        part.split_once("```").expect("which ends").0.to_owned()
    })
}

#[tokio::test]
async fn clients_that_come_at_once_make_it_once() {
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
    assert_eq!(found.unwrap(), "locks|1\nrecords|1\n");
}

#[tokio::test]
async fn a_schema_that_is_newer_than_ours_is_refused() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 99 where component = 'locks'")
        .unwrap();
    let refused = try_connect(&database.url()).await;
    fails(refused, &ErrorKind::Refused, &["version 99", "version 1", "update this program"]);
}

/// What a client does not use it does not need.
#[tokio::test]
async fn records_that_are_newer_than_ours_are_refused_and_locks_are_not() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 99 where component = 'records'")
        .unwrap();
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let words = ["version 99", "\"records\"", "update this program"];
    fails(client.election("e").campaign("me").await, &ErrorKind::Refused, &words);
    fails(runs(&client, "k", "").await, &ErrorKind::Refused, &words);
}

/// A session that waits for its turn outlives its client. It must not wait for ever, with others behind it.
#[tokio::test]
async fn who_waits_for_its_turn_to_install_is_sent_away_by_the_server() {
    let database = Database::fresh().unwrap();
    let busy = session(&database.url()).await;
    busy.batch_execute("select pg_advisory_lock(7378424937699110771)").await.unwrap();
    let url = database.url();
    let waiting = tokio::spawn(async move { try_connect(&url).await });
    until_blocked(&database, 1).await;
    waiting.abort();
    until_blocked(&database, 0).await;
    // One whose client is there asks again.
    let url = database.url();
    let waiting = tokio::spawn(async move { try_connect(&url).await });
    until_blocked(&database, 1).await;
    busy.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_and_needs_no_more() {
    let database = Database::fresh().unwrap();
    let app = format!("app_{}", database.name());
    database.psql(&format!("create role {app} login")).unwrap();
    let remedy = ["fencepost backend install", "docs/backends/postgres.md"];
    // Nothing is there, and it may not make it.
    fails(try_connect(&database.url_as(&app)).await, &ErrorKind::Refused, &remedy);
    // It is there, and it may not use it.
    connect(&database.url()).await;
    fails(try_connect(&database.url_as(&app)).await, &ErrorKind::Refused, &remedy);
    // It may look, and not lock.
    database.psql(&format!("grant usage on schema fencepost to {app}")).unwrap();
    let client = connect(&database.url_as(&app)).await;
    let refused = client.lock("x").try_acquire().await;
    fails(
        refused,
        &ErrorKind::Refused,
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
    fails(refused, &ErrorKind::Refused, &["campaign", "docs/backends/postgres.md"]);
    database.psql(&elections).unwrap();
    let leadership = client.election("e").ttl(LONG).campaign("me").await.unwrap();
    leadership.proclaim("still me").await.unwrap();
    assert!(client.election("e").leader().await.unwrap().is_some());
    let refused = runs(&client, "k", "").await;
    fails(refused, &ErrorKind::Refused, &["GRANT EXECUTE ON FUNCTION", "fencepost.look_up"]);
    database.psql(&records).unwrap();
    assert!(runs(&client, "k", "").await.unwrap());
    assert_eq!(client.once_entries().await.unwrap().len(), 1);
    assert!(client.once("k").forget().await.unwrap());
    for table in ["locks", "waiters", "notes", "tokens", "leaders", "records", "store"] {
        let error =
            database.psql_as(&app, &format!("select * from fencepost.{table}")).unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{error}");
    }
}

/// A name is not kept for ever; the sequence is.
#[tokio::test]
async fn rows_of_old_locks_go_and_tokens_stay() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let old = client.lock("old").acquire().await.unwrap();
    let token = old.token();
    old.release().await.unwrap();
    let _held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    database
        .psql("update fencepost.locks set expires = expires - interval '2 h' where owner is null")
        .unwrap();
    assert_eq!(database.psql("select fencepost.tidy(3600000)").unwrap(), "1\n");
    assert_eq!(database.psql("select name from fencepost.locks").unwrap(), "held\n");
    assert!(client.lock("old").acquire().await.unwrap().token() > token);
}

#[tokio::test]
async fn without_tokens_nobody_is_granted() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    database.psql("select setval('fencepost.tokens', 9007199254740991)").unwrap();
    fails(client.lock("x").try_acquire().await, &ErrorKind::Refused, &["no tokens left"]);
    assert!(client.inspect("x").await.unwrap().holder.is_none());
}

/// Who may tidy up may not end the locks of others by it.
#[tokio::test]
async fn what_is_held_is_not_tidied_away() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    assert_eq!(database.psql("select fencepost.tidy(-90000000)").unwrap(), "0\n");
    held.release().await.unwrap();
}

/// What is put into a schema is in the hands of its owner.
#[tokio::test]
async fn a_schema_of_somebody_else_is_not_used() {
    let database = Database::fresh().unwrap();
    let squatter = format!("squatter_{}", database.name());
    database.psql(&format!("create role {squatter} login")).unwrap();
    database.psql(&format!("create schema fencepost authorization {squatter}")).unwrap();
    let refused = try_connect(&database.url()).await;
    fails(refused, &ErrorKind::Refused, &["belongs to", &squatter, "?owner="]);
    // And one that is trusted is not filled by others.
    let refused = try_connect(&format!("{}?owner={squatter}", database.url())).await;
    fails(refused, &ErrorKind::Refused, &["belongs to", &squatter, "Install as"]);
    assert_eq!(database.psql("select to_regclass('fencepost.locks') is null").unwrap(), "t\n");
}

/// Whoever calls the functions by hand can not leave behind what others have to live with.
#[tokio::test]
async fn a_request_that_no_client_makes_is_refused() {
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
        assert!(error.to_string().contains("this is no request for a lock"), "{bad}: {error}");
    }
    nothing_is_left(&client, "x").await;
}

/// Its `"$user"` is our schema: what it creates without naming a schema would land there.
#[tokio::test]
async fn role_called_as_the_schema_is_sent_elsewhere_before_it_installs() {
    // A server of its own: roles are the server's, and this one has the name that it must have.
    let server = std::sync::Arc::new(fencepost_testkit::Postgres::builder().start().unwrap());
    server
        .psql("create role fencepost login; grant create on database postgres to fencepost")
        .unwrap();
    let url = server.url().replace("postgres@", "fencepost@");
    let words = ["ALTER ROLE fencepost SET search_path = public"];
    fails(try_connect(&url).await, &ErrorKind::Refused, &words);
    let own = session(&url).await;
    fails(fencepost::fences::postgres::install(&own).await, &ErrorKind::Refused, &words);
    assert_eq!(server.psql("select to_regnamespace('fencepost') is null").unwrap(), "t\n");
    // As it was told.
    server.psql("ALTER ROLE fencepost SET search_path = public").unwrap();
    nothing_is_left(&connect(&url).await, "x").await;
    server.psql("grant create on schema public to fencepost").unwrap();
    server.psql_at(&url, "create table own (id int)").unwrap();
    assert_eq!(server.psql("select 'public.own'::regclass").unwrap(), "own\n");
    // Who only uses what is there may be called so, whatever its path.
    server.psql("ALTER ROLE fencepost RESET search_path").unwrap();
    nothing_is_left(&connect(&url).await, "x").await;
}
