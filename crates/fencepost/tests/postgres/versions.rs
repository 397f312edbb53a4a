//! A database from before elections and records: its locks work as before, for old and new programs, and new
//! components are needed only by those who use them.

use fencepost::{ErrorKind, Value};
use fencepost_testkit::{Database, LONG, connect, fails, ms};
use tokio_postgres::Client;

use crate::common::{ask, session};
use crate::records::runs;

const LOCKS_1: &str = include_str!("../../src/backends/postgres/locks.sql");
/// The grants that the docs gave at that time.
const GRANTS_1: &str = "fencepost.acquire, fencepost.renew, fencepost.release, fencepost.is_released, \
                        fencepost.break_lock, fencepost.inspect, fencepost.list, fencepost.gc_locks";
/// Everything that locks consist of.
const LOCKS: &str = "select string_agg(d, '' order by d) from (
    select pg_get_functiondef(p.oid) || p.proacl::text as d from pg_proc p
     where p.pronamespace = 'fencepost'::regnamespace and p.proname in
       ('acquire', 'renew', 'release', 'break_lock', 'inspect', 'list', 'gc_locks', 'lock_row', 'first_waiter')
    union all
    select table_name || column_name || data_type from information_schema.columns
     where table_schema = 'fencepost' and table_name in ('locks', 'waiters', 'withdrawn')
    union all
    select component || version from fencepost.components where component = 'locks') t";

/// A database as an old program left it, with a role `app_...` that uses locks, and a role `eye_...` that reads.
async fn older_database() -> (Database, Client) {
    let database = Database::fresh().unwrap();
    let session = session(&database.url()).await;
    let name = database.name();
    let make = format!(
        "create schema fencepost;
         create table fencepost.components (component text primary key, version int not null);
         grant select on fencepost.components to public;
         {LOCKS_1};
         insert into fencepost.components values ('locks', 2);
         create role app_{name} login;
         create role eye_{name} login;
         grant usage on schema fencepost to app_{name}, eye_{name};
         grant execute on function {GRANTS_1} to app_{name};
         grant execute on function fencepost.inspect to public"
    );
    session.batch_execute(&make).await.unwrap();
    (database, session)
}

#[tokio::test]
async fn plain_locks_work_without_the_records_component() {
    let (database, session) = older_database().await;
    let before: String = ask(&session, LOCKS).await;
    let client = connect(&database.url_as(&format!("app_{}", database.name()))).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(client.inspect("x").await.unwrap().holder.is_some());
    assert_eq!(client.list().await.unwrap().len(), 1);
    client.lock("x").wait_timeout(ms(50)).acquire().await.unwrap_err();
    client.renew("x", guard.owner(), None).await.unwrap();
    guard.release().await.unwrap();
    let there = "select component from fencepost.components";
    assert_eq!(database.psql(there).unwrap(), "locks\n");
    // For more, the error names whom to ask.
    let remedy = ["\"records\"", "fencepost backend install", "belongs to"];
    fails(client.election("e").campaign("me").await, ErrorKind::Refused, &remedy);
    fails(runs(&client, "k", "").await, ErrorKind::Refused, &remedy);
    assert_eq!(ask::<String>(&session, LOCKS).await, before);
}

#[tokio::test]
async fn new_components_are_added_and_old_programs_continue() {
    let (database, session) = older_database().await;
    // An old program has a lock, on a session that continues.
    let acquire = |name: &str| {
        format!(
            "select r_token from fencepost.acquire('{name}', gen_random_uuid(), 600000, 'old', null)"
        )
    };
    let before: String = ask(&session, LOCKS).await;
    let token: i64 = ask(&session, &acquire("held")).await;
    let app = connect(&database.url_as(&format!("app_{}", database.name()))).await;

    let client = connect(&database.url()).await;
    assert!(runs(&client, "k", "").await.unwrap(), "a role with the right creates it when needed");
    let holder = client.inspect("held").await.unwrap().holder.unwrap();
    assert_eq!((holder.token.unwrap().get().cast_signed(), holder.value), (token, None));
    let next: i64 = ask(&session, &acquire("other")).await;
    assert!(next > token);
    assert_eq!(ask::<String>(&session, LOCKS).await, before, "nothing that it knows has changed");

    // A role that could lock may lead, and one that could read sees the leader; records need a grant.
    let leadership = app.election("e").ttl(LONG).campaign("me").await.unwrap();
    leadership.proclaim("still me").await.unwrap();
    assert!(leadership.term().get().cast_signed() > next);
    let eye = connect(&database.url_as(&format!("eye_{}", database.name()))).await;
    let leader = eye.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value, Some(Value::from_store(b"still me")));
    fails(eye.lock("x").try_acquire().await, ErrorKind::Refused, &["permission denied"]);
    fails(runs(&app, "k", "").await, ErrorKind::Refused, &["GRANT EXECUTE", "fencepost.claim"]);
}
