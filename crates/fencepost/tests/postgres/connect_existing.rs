//! Reads create nothing: a missing store is shown as an empty one.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{Database, LONG, SOON, connect, fails, within};

use crate::records::runs;

const SCHEMA: &str = "select count(*) from pg_namespace where nspname = 'fencepost'";

#[tokio::test]
async fn reads_create_no_schema() {
    let database = Database::fresh().unwrap();
    let looking = Fencepost::connect_existing(&database.url()).await.unwrap();
    assert!(looking.list().await.unwrap().is_empty());
    let info = looking.inspect("x").await.unwrap();
    assert!(info.holder.is_none() && info.waiting == 0);
    assert!(looking.break_lock("x").await.unwrap().is_none());
    assert!(looking.once_records().await.unwrap().is_empty());
    assert!(looking.once("k").record().await.unwrap().is_none());
    assert_eq!(looking.election("e").leader().await.unwrap(), None);
    assert_eq!(looking.guarantees().backend, "postgres");
    assert!(!looking.guarantees().server_info.is_empty());
    let remedy = ["fencepost backend install"];
    fails(looking.lock("x").try_acquire().await, ErrorKind::Refused, &remedy);
    fails(looking.lock("x").acquire().await, ErrorKind::Refused, &remedy);
    fails(looking.election("e").campaign("me").await, ErrorKind::Refused, &remedy);
    fails(runs(&looking, "k", "").await, ErrorKind::Refused, &remedy);
    let mut watch = looking.watch("x").unwrap();
    assert!(within(SOON, "it is free", watch.next()).await.unwrap().holder.is_none());
    assert_eq!(database.psql(SCHEMA).unwrap(), "0\n");

    // The schema is created while a watch is open.
    let client = connect(&database.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let seen = within(SOON, "the watch sees it", watch.next()).await.unwrap();
    assert_eq!(seen.holder.unwrap().token, Some(guard.token()));
    assert_eq!(looking.list().await.unwrap().len(), 1);
    assert!(runs(&client, "k", "").await.unwrap());
    assert_eq!(looking.once_records().await.unwrap().len(), 1);
}

/// The fence also creates the schema, but no locks in it.
#[tokio::test]
async fn schema_without_locks_is_an_empty_store() {
    let database = Database::fresh().unwrap();
    let client = crate::common::session(&database.url()).await;
    fencepost::fences::postgres::install(&client).await.unwrap();
    let looking = Fencepost::connect_existing(&database.url()).await.unwrap();
    assert!(looking.list().await.unwrap().is_empty());
    assert!(looking.inspect("x").await.unwrap().holder.is_none());
    assert_eq!(database.psql("select component from fencepost.components").unwrap(), "fences\n");
}

#[tokio::test]
async fn reads_of_a_newer_schema_are_refused() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 99 where component = 'locks'")
        .unwrap();
    let refused = Fencepost::connect_existing(&database.url()).await;
    fails(refused, ErrorKind::Refused, &["version 99", "update this program"]);
}
