//! A schema `fencepost` that another user created or changed is not used, because our functions run with the rights of
//! the caller.

use fencepost::ErrorKind;
use fencepost::fences;
use fencepost_testkit::{Database, LONG, connect, fails, try_connect, until};

use crate::common::session;

/// A role that may create schemas, and wants more rights.
fn attacker(database: &Database) -> String {
    let role = format!("planter_{}", database.name());
    let name = database.name();
    database
        .psql(&format!("create role {role} login; grant create on database {name} to {role}"))
        .unwrap();
    role
}

fn is_superuser(database: &Database, role: &str) -> bool {
    let ask = format!("select rolsuper from pg_roles where rolname = '{role}'");
    database.psql(&ask).unwrap().trim() == "t"
}

/// Everything that a client looks for. Each function makes its creator a superuser.
fn planted_schema(role: &str) -> String {
    let body = format!("$$ begin execute 'alter role {role} superuser'; end $$");
    let returns = "r_name text, r_token bigint, r_ttl bigint, r_held bigint, r_left bigint, r_label text, \
                   r_waiting bigint, r_value bytea";
    format!(
        "create schema fencepost;
         create table fencepost.components (component text primary key, version int not null);
         insert into fencepost.components values ('locks', 2), ('records', 2), ('fences', 1);
         create function fencepost.list(text, text, bigint) returns table ({returns}) language plpgsql as {body};
         create function fencepost.inspect(text, int) returns table ({returns}) language plpgsql as {body};
         create function fencepost.acquire(text, uuid, bigint, text, text, out status int, out r_token bigint)
           language plpgsql as {body};
         create function fencepost.show(text) returns table (lock text, token bigint, set_by text, set_at text)
           language plpgsql as {body};
         create function fencepost.enter(text, bigint, text) returns void language plpgsql as {body};
         create function fencepost.protect(regclass, text, text) returns boolean language plpgsql as {body};
         grant usage on schema fencepost to public;
         grant select on fencepost.components to public"
    )
}

#[tokio::test]
async fn planted_schema_is_refused_and_runs_nothing() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    database.psql_as(&role, &planted_schema(&role)).unwrap();
    let words = ["\"fencepost\"", &role, "?owner=", "drop"];
    // What `ls` and `acquire` do.
    match try_connect(&database.url()).await {
        Ok(client) => {
            let _ = client.list().await;
            assert!(!is_superuser(&database, &role), "ls ran what was planted");
            let _ = client.lock("x").try_acquire().await;
            assert!(!is_superuser(&database, &role), "acquire ran what was planted");
            panic!("a planted schema was trusted");
        }
        refused => {
            fails(refused, ErrorKind::Refused, &words);
        }
    }
    assert!(!is_superuser(&database, &role));
    // A URL that names the role trusts it.
    try_connect(&format!("{}?owner={role}", database.url())).await.unwrap();
    assert!(!is_superuser(&database, &role), "to connect calls no function");
}

/// `fencepost fence show` and the other subcommands start like this.
#[tokio::test]
async fn planted_fence_is_refused_and_runs_nothing() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    database.psql_as(&role, &planted_schema(&role)).unwrap();
    match fences::postgres::connect(&database.url()).await {
        Ok(client) => {
            let _ = fences::postgres::show(&client, None).await;
            assert!(!is_superuser(&database, &role), "show ran what was planted");
            panic!("a planted fence was trusted");
        }
        refused => {
            fails(refused.map(drop), ErrorKind::Refused, &[&role, "?owner="]);
        }
    }
    let client = session(&database.url()).await;
    let refused = fences::postgres::install(&client).await;
    fails(refused, ErrorKind::Refused, &[&role]);
    assert!(!is_superuser(&database, &role));
}

#[tokio::test]
async fn planted_objects_in_a_good_schema_are_not_run() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    connect(&database.url()).await.lock("x").acquire().await.unwrap().release().await.unwrap();
    let url = database.url();
    // A role that may create there can put anything beside our objects.
    database.psql(&format!("grant usage, create on schema fencepost to {role}")).unwrap();
    let refused = try_connect(&url).await;
    fails(refused, ErrorKind::Refused, &["may create", &role, "REVOKE CREATE ON SCHEMA fencepost"]);
    let kinds = [
        ("function", "create function fencepost.list(int) returns int language sql as 'select 1'"),
        (
            "operator",
            "create operator fencepost.= (leftarg = int, rightarg = text, function = int4eq)",
        ),
        ("type", "create type fencepost.t as enum ('a')"),
        ("sequence", "create sequence fencepost.s"),
        ("table", "create table fencepost.waiting (id int)"),
        ("view", "create view fencepost.v as select 1 as one"),
        ("collation", "create collation fencepost.c from \"C\""),
    ];
    for (kind, sql) in kinds {
        let sql = sql.replace("rightarg = text", "rightarg = int");
        database.psql_as(&role, &sql).unwrap();
        database.psql(&format!("revoke create on schema fencepost from {role}")).unwrap();
        let refused = try_connect(&url).await;
        fails(refused, ErrorKind::Refused, &[kind, &role, "?owner="]);
        let refused = fences::postgres::connect(&url).await;
        fails(refused.map(drop), ErrorKind::Refused, &[kind, &role]);
        // An owner that the URL trusts may.
        connect(&format!("{url}?owner={role}")).await;
        database.psql(&format!("drop owned by {role}")).unwrap();
        database.psql(&format!("grant usage, create on schema fencepost to {role}")).unwrap();
    }
    database.psql("revoke create on schema fencepost from public").unwrap();
    database.psql(&format!("revoke create on schema fencepost from {role}")).unwrap();
    connect(&url).await;
    // A trigger runs with the rights of the writer, which here are those of our functions.
    database
        .psql(&format!(
            "grant trigger on fencepost.locks to {role}; create schema own authorization {role}"
        ))
        .unwrap();
    let trigger = "create function own.f() returns trigger language plpgsql as $$ begin return new; end $$;
                   create trigger t before update on fencepost.locks for each row execute function own.f()";
    database.psql_as(&role, trigger).unwrap();
    fails(try_connect(&url).await, ErrorKind::Refused, &["trigger t", &role]);
}

/// An operator with better matching types is preferred to the server's own, wherever it is in the path.
#[tokio::test]
async fn operators_in_public_are_not_run() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    database.psql(&format!("grant usage, create on schema public to {role}")).unwrap();
    let mut sql = String::new();
    for (name, left, right, result) in [
        ("*", "numeric", "integer", "numeric"),
        ("*", "double precision", "integer", "double precision"),
        ("||", "text", "integer", "text"),
        ("||", "bigint", "text", "text"),
        ("=", "name", "text", "boolean"),
        ("=", "oid", "integer", "boolean"),
    ] {
        let plant = format!(
            "create or replace function public.evil(a {left}, b {right}) returns {result} language plpgsql as
               $$ begin execute 'alter role {role} superuser'; return null; end $$;
             create operator public.{name} (leftarg = {left}, rightarg = {right}, function = public.evil);"
        );
        sql.push_str(&plant);
    }
    database.psql_as(&role, &sql).unwrap();
    let client = connect(&database.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert_eq!(client.list().await.unwrap().len(), 1);
    guard.release().await.unwrap();
    client.election("e").campaign("me").await.unwrap().resign().await.unwrap();
    let mut fence = fences::postgres::connect(&database.url()).await.unwrap();
    fences::postgres::install(&fence).await.unwrap();
    let (name, token) = (fencepost::LockName::new("x").unwrap(), fencepost::Token::new(1).unwrap());
    let fencing = fencepost::FencingToken::new(name, token);
    let tx = fences::postgres::begin(&mut fence, &fencing).await.unwrap();
    tx.commit().await.unwrap();
    fences::postgres::show(&fence, None).await.unwrap();
    assert!(!is_superuser(&database, &role), "what was planted ran");
}

/// The owner drops the schema, and another user creates one with that name.
#[tokio::test]
async fn replaced_schema_is_noticed() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    database.psql("drop schema fencepost cascade").unwrap();
    // Meanwhile clients learn that it is gone.
    until("it is seen that the schema is gone", async || {
        let gone = client.list().await;
        gone.is_err_and(|error| error.one_line().contains("has no schema"))
    })
    .await;
    database.psql_as(&role, &planted_schema(&role)).unwrap();
    fails(client.list().await, ErrorKind::Refused, &[&role, "?owner="]);
    fails(client.lock("x").try_acquire().await, ErrorKind::Refused, &[&role]);
    assert!(!is_superuser(&database, &role));
}

/// The database's owner and the role itself need no option; any other role does.
#[tokio::test]
async fn trusted_owners_need_no_option() {
    let database = Database::fresh().unwrap();
    let (role, name) = (attacker(&database), database.name());
    connect(&database.url_as(&role)).await;
    connect(&database.url_as(&role)).await;
    fails(try_connect(&database.url()).await, ErrorKind::Refused, &[&role]);
    connect(&format!("{}?owner={role}", database.url())).await;
    let own = session(&database.url()).await;
    let refused = fences::postgres::check_owner(&own, None).await;
    fails(refused, ErrorKind::Refused, &[&role]);
    fences::postgres::check_owner(&own, Some(&role)).await.unwrap();
    database.psql(&format!("alter database {name} owner to {role}")).unwrap();
    connect(&database.url()).await;
    fences::postgres::check_owner(&own, None).await.unwrap();
}

/// The server records no dependency on its predefined roles, so the owner must be read from the object itself.
#[tokio::test]
async fn objects_of_a_predefined_role_are_not_run() {
    let database = Database::fresh().unwrap();
    let role = attacker(&database);
    database.psql(&format!("grant pg_monitor to {role}")).unwrap();
    database.psql_as(&role, &planted_schema(&role)).unwrap();
    let give = "grant create on schema fencepost to pg_monitor;
                alter function fencepost.list(text,text,bigint) owner to pg_monitor;
                revoke create on schema fencepost from pg_monitor";
    database.psql_as(&role, give).unwrap();
    database.psql(&format!("reassign owned by {role} to postgres")).unwrap();
    let url = database.url();
    let refused = try_connect(&url).await;
    fails(
        refused,
        ErrorKind::Refused,
        &["function fencepost.list(text,text,bigint)", "pg_monitor"],
    );
    let refused = fences::postgres::connect(&url).await;
    fails(
        refused.map(drop),
        ErrorKind::Refused,
        &["function fencepost.list(text,text,bigint)", "pg_monitor"],
    );
    database.psql("drop schema fencepost cascade").unwrap();
    connect(&url).await;
    let kinds = [
        ("aggregate", "a(int)", "create aggregate fencepost.a(int) (sfunc = int4pl, stype = int)"),
        ("table", "t", "create table fencepost.t (a int, b int)"),
        ("view", "v", "create view fencepost.v as select 1 as one"),
        ("sequence", "s", "create sequence fencepost.s"),
        ("type", "e", "create type fencepost.e as enum ('a')"),
        ("domain", "d", "create domain fencepost.d as int"),
        (
            "operator",
            "= (int, int)",
            "create operator fencepost.= (leftarg = int, rightarg = int, function = int4eq)",
        ),
        ("operator family", "f using btree", "create operator family fencepost.f using btree"),
        (
            "operator class",
            "o using btree",
            "create operator family fencepost.of using btree;
             create operator class fencepost.o for type int using btree family fencepost.of as storage int",
        ),
        ("collation", "c", "create collation fencepost.c from \"C\""),
        ("conversion", "n", "create conversion fencepost.n for 'LATIN1' to 'UTF8' from iso8859_1_to_utf8"),
        ("text search configuration", "g", "create text search configuration fencepost.g (copy = simple)"),
        ("text search dictionary", "w", "create text search dictionary fencepost.w (template = simple)"),
        (
            "statistics",
            "x",
            "create table public.x (a int, b int); create statistics fencepost.x on a, b from public.x",
        ),
    ];
    for (kind, name, make) in kinds {
        database
            .psql(&format!("{make}; alter {kind} fencepost.{name} owner to pg_monitor"))
            .unwrap();
        fails(try_connect(&url).await, ErrorKind::Refused, &["belongs to pg_monitor"]);
        let remove = format!(
            "drop {kind} fencepost.{name}; drop operator family if exists fencepost.of using btree"
        );
        database.psql(&remove).unwrap();
    }
    connect(&url).await;
    // An object that only names the schema is not in it.
    let names = format!(
        "create schema own authorization {role}; set role {role};
         create table own.t (s oid default 'fencepost'::regnamespace::oid);
         create view own.v as select 'fencepost'::regnamespace as s;
         create function own.f(s regnamespace default 'fencepost') returns int language sql as 'select 1'"
    );
    database.psql(&names).unwrap();
    connect(&url).await;
}
