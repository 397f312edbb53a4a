//! The tables match `docs/layouts/postgres.md`, and an older layout is refused.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{Database, LONG, connect, fails, ms, try_connect};

const PAGE: &str = include_str!("../../../../docs/layouts/postgres.md");
/// The tables of version 1, as an earlier fencepost created them, with a grant, a record and the last token 41, and some of
/// its functions.
const VERSION_1: &str = r#"
create schema fencepost;
create table fencepost.components (component text primary key, version int not null);
grant select on fencepost.components to public;
insert into fencepost.components values ('locks', 1), ('records', 1);
create sequence fencepost.tokens as bigint minvalue 1 maxvalue 9007199254740991 no cycle cache 1;
create table fencepost.locks (
  name text collate "C" primary key, token bigint not null default 0, ttl_ms bigint not null default 0,
  granted timestamptz not null default clock_timestamp(), expires timestamptz not null default clock_timestamp(),
  owner uuid, broken uuid, broken_token bigint, wanted boolean not null default false, label text not null default '-'
) with (fillfactor = 50);
create table fencepost.waiters (
  id bigint generated always as identity, name text collate "C" not null, owner uuid not null,
  since timestamptz not null, until timestamptz not null, channel text not null, label text not null,
  primary key (name, id), unique (name, owner)
) with (fillfactor = 50);
create table fencepost.notes (
  name text collate "C" not null, owner uuid not null, until timestamptz not null, primary key (name, owner)
);
create table fencepost.leaders (name text collate "C" primary key, token bigint not null, value bytea not null);
create table fencepost.records (
  name text collate "C" primary key, token bigint not null, since timestamptz not null, ends timestamptz not null,
  state int not null check (state in (0, 1, 2)), label text not null, result bytea not null, marked_in xid8
);
create table fencepost.store (one boolean primary key default true check (one), id uuid not null);
create function fencepost.place() returns interval language sql immutable as $$ select interval '1500 ms' $$;
create function fencepost.lock_row(p_name text) returns fencepost.locks language sql
  as $$ select * from fencepost.locks where name = p_name $$;
create function fencepost.list() returns table (r_name text) language sql as $$ select name from fencepost.locks $$;
select setval('fencepost.tokens', 41);
insert into fencepost.locks values ('x', 41, 60000, now(), now() + interval '1 h', gen_random_uuid());
insert into fencepost.records values ('once/k', 40, now(), now() + interval '1 h', 1, 'old', '');
"#;
const ALL: &str = "select string_agg(t, ' ' order by t) from (
    select relname || relkind::text as t from pg_class where relnamespace = 'fencepost'::regnamespace
    union all select proname::text from pg_proc where pronamespace = 'fencepost'::regnamespace
    union all select component || version from fencepost.components
    union all select 'tokens' || last_value from fencepost.tokens) t";

/// If it counted as empty, its tokens would restart, and resources would refuse the new holders.
#[tokio::test]
async fn older_layout_is_refused_and_unchanged() {
    let database = Database::fresh().unwrap();
    database.psql(VERSION_1).unwrap();
    let before = database.psql(ALL).unwrap();
    let said = [
        "version 1 of \"locks\"",
        "version 2",
        "docs/layouts/postgres.md",
        "keep the sequence fencepost.tokens",
    ];
    fails(try_connect(&database.url()).await, ErrorKind::Refused, &said);
    fails(Fencepost::connect_existing(&database.url()).await, ErrorKind::Refused, &said);
    let installed = fencepost::backends::postgres::install(&database.url()).await;
    fails(installed, ErrorKind::Refused, &said);
    assert_eq!(database.psql(ALL).unwrap(), before, "nothing was written");

    // The remedy, as the page has it.
    let blocks = PAGE.split("```sql\n").skip(1).map(|part| part.split_once("```").unwrap().0);
    let [drop_it] = blocks.collect::<Vec<_>>()[..] else { panic!("the page has one block") };
    database.psql(drop_it).unwrap();
    fencepost::backends::postgres::install(&database.url()).await.unwrap();
    let guard = connect(&database.url()).await.lock("x").acquire().await.unwrap();
    assert_eq!(guard.token().get(), 42);
}

/// A client needs only the components that it uses.
#[tokio::test]
async fn older_records_are_refused_and_locks_are_not() {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database
        .psql("update fencepost.components set version = 1 where component = 'records'")
        .unwrap();
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let said = ["version 1 of \"records\"", "version 2", "docs/layouts/postgres.md", "run again"];
    fails(crate::records::runs(&client, "k", "").await, ErrorKind::Refused, &said);
}

/// The page, the code and a real database agree.
#[tokio::test]
async fn tables_match_the_page() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let tables = "select rpad(table_name, 18) || string_agg(column_name || ' ' || data_type, ', ' \
                  order by ordinal_position) from information_schema.columns \
                  where table_schema = 'fencepost' group by table_name order by table_name";
    let tables = database.psql(tables).unwrap();
    assert_eq!(tables.lines().count(), 7, "{tables}");
    let shown = |line: &str| {
        assert!(PAGE.contains(line), "docs/layouts/postgres.md does not have:\n{line}");
    };
    tables.lines().for_each(shown);
    let tokens = "select 'tokens            sequence, ' || min_value || ' to ' || max_value \
                  from pg_sequences where schemaname = 'fencepost' and sequencename = 'tokens'";
    shown(&database.psql(tokens).unwrap());
    let versions = "select component, version from fencepost.components order by 1";
    assert_eq!(database.psql(versions).unwrap(), "locks|2\nrecords|2\n");
    shown("Version 2 of the components `locks` and `records`");

    let lock = client.lock("orders/7").ttl(ms(30_000)).label("web-1");
    let _guard = lock.acquire().await.unwrap();
    let select = PAGE.lines().find(|line| line.starts_with("SELECT name, token")).unwrap();
    shown(&format!("{select}\n{}", database.psql(select).unwrap()));

    let _leader = client.election("e").ttl(LONG).campaign("10.0.0.7").await.unwrap();
    let value = "select name, token, convert_from(value, 'UTF8') from fencepost.candidate_values";
    assert_eq!(database.psql(value).unwrap(), "e|2|10.0.0.7\n");
    crate::records::begin(&client, "k").await.done("412 invoices").await.unwrap();
    let record = "select name, token, state, convert_from(result, 'UTF8'), finished_in from fencepost.records";
    assert_eq!(database.psql(record).unwrap(), "once/k|3|1|412 invoices|\n");
}
