//! A store that can not be used is one line that names the file and the remedy, with its exit code.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use fencepost_testkit::command::{LIMIT, Running, Store, heard, wait_for, wait_for_text};
use rusqlite::Connection;

const COMMANDS: [&[&str]; 3] = [&["run", "x", "--", "echo", "never"], &["acquire", "x"], &["ls"]];

fn refused(store: &Store, url: &str, expected: i32, words: &[&str]) {
    refused_to(&COMMANDS, store, url, expected, words);
}

fn refused_to(lines: &[&[&str]], store: &Store, url: &str, expected: i32, words: &[&str]) {
    for line in lines {
        let (code, out, err) = store.say(&[&["--on", url], *line].concat());
        // What `acquire` prints is evaluated by a script, which must not go on.
        let stops =
            if line[0] == "acquire" { format!("(exit {expected})\n") } else { String::new() };
        assert_eq!((code, out), (Some(expected), stops), "{line:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with("fencepost: "), "{err}");
        for word in words {
            assert!(err.contains(word), "{word:?} is missing: {err}");
        }
    }
}

/// The file of this store, set up.
fn database(store: &Store) -> Connection {
    let (code, _, err) = store.say(&["run", "x", "--", "true"]);
    assert_eq!(code, Some(0), "{err}");
    Connection::open(store.path("locks.db")).unwrap()
}

#[test]
fn a_directory_that_can_not_be_written() {
    let store = Store::new();
    // A file where a directory should be refuses root as well, unlike a mode.
    std::fs::write(store.path("file"), "").unwrap();
    let url = format!("sqlite:{}", store.path("file/below/locks.db").display());
    // Who only looks finds nothing there.
    let takers = &COMMANDS[..2];
    refused_to(takers, &store, &url, 69, &["file/below", "sqlite:PATH"]);
    let nowhere = "sqlite:/proc/fencepost/locks.db";
    refused_to(takers, &store, nowhere, 69, &["/proc/fencepost", "sqlite:PATH"]);
}

#[test]
fn a_state_directory_that_can_not_be_written() {
    let store = Store::new();
    let mut command = store.fencepost(&["run", "x", "--", "echo", "never"]);
    command.env_remove("FENCEPOST_URL").env("XDG_STATE_HOME", "/proc/fencepost");
    let (code, out, err) = heard(&command.output().unwrap());
    assert_eq!((code, out.as_str()), (Some(69), ""), "{err}");
    assert!(err.contains("/proc/fencepost") && err.lines().count() == 1, "{err}");
    let mut command = store.fencepost(&["ls"]);
    command.env_remove("FENCEPOST_URL").env_remove("XDG_STATE_HOME").env_remove("HOME");
    let (code, _, err) = heard(&command.output().unwrap());
    assert_eq!(code, Some(64), "{err}");
}

#[test]
fn a_file_that_is_no_database() {
    let store = Store::new();
    std::fs::write(store.path("locks.db"), "this is a text\n".repeat(500)).unwrap();
    refused(&store, &store.url(), 69, &["locks.db"]);
}

#[test]
fn a_database_that_is_damaged() {
    let store = Store::new();
    let db = database(&store);
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    let path = store.path("locks.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // The first page keeps its header, so that it looks like a database; the rest is noise.
    bytes[100..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    refused(&store, &store.url(), 69, &["locks.db"]);
}

#[test]
fn a_file_of_a_newer_version() {
    let store = Store::new();
    database(&store).pragma_update(None, "user_version", 99).unwrap();
    refused(&store, &store.url(), 78, &["locks.db", "format 99", "newer"]);
}

#[test]
fn a_file_of_another_program() {
    let store = Store::new();
    let db = Connection::open(store.path("locks.db")).unwrap();
    db.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    refused(&store, &store.url(), 78, &["locks.db", "another program"]);
}

#[test]
fn a_file_of_another_machine() {
    let store = Store::new();
    let sql = "UPDATE store SET machine = 'elsewhere', boot = 'another'";
    assert_eq!(database(&store).execute(sql, []).unwrap(), 1);
    refused(&store, &store.url(), 78, &["locks.db", "another machine", "?adopt=true"]);
    let adopted = format!("{}?adopt=true", store.url());
    assert_eq!(store.say(&["--on", &adopted, "run", "x", "--", "true"]).0, Some(0));
    store.assert_empty();
}

/// A lock in the memory of one command would exclude nobody.
#[test]
fn the_memory_of_one_command_is_no_store_for_a_lock() {
    let store = Store::new();
    let uses: [&[&str]; 3] =
        [&["run", "x", "--", "true"], &["acquire", "x"], &["break", "x", "--yes"]];
    for arguments in uses {
        let arguments = [&["--on", "memory:"], arguments].concat();
        let (code, _, err) = store.say(&arguments);
        assert_eq!(code, Some(78), "{err}");
        assert!(err.contains("memory:") && err.contains("sqlite:PATH"), "{err}");
    }
}

#[test]
fn explain_shows_what_it_found_on_the_server() {
    let store = Store::new();
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (code, out, err) = store.say(&["--on", &server.url(), "explain"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for words in [
        "for correctness",
        "set `appendonly yes`, `appendfsync always` in redis.conf",
        "found server",
        "found appendonly",
        "found replicas",
    ] {
        assert!(out.contains(words), "{words:?} is missing: {out}");
    }
    let (code, out, _) = store.say(&["--on", &server.url(), "--json", "explain"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("\"appendonly\":\"no\""), "{out}");
    // Two nodes are an even number; that is said, and one is away.
    let url = format!("redlock://{},127.0.0.1:1", server.address());
    refused(&store, &url, 69, &["127.0.0.1:1", "1 of 2 nodes answered, 2 are needed"]);
}

#[test]
fn a_redis_that_can_not_be_used() {
    let store = Store::new();
    refused(&store, "redis://127.0.0.1:1", 69, &["127.0.0.1:1"]);
    refused(&store, "redis+sentinel://127.0.0.1:1", 64, &["not supported", "redlock://"]);
    refused(&store, "redis://h?frob=1", 64, &["frob", "prefix"]);
    let server = fencepost_testkit::Redis::builder().password("hunter2").start().unwrap();
    let url = format!("redis://{}", server.address());
    refused(&store, &url, 78, &["wants a password", "redis://:PASSWORD@HOST"]);
    let url = format!("redis://:wrong@{}", server.address());
    refused(&store, &url, 78, &["does not take this user and password"]);
}

#[test]
fn a_database_is_set_up_by_one_who_may_for_one_who_may_not() {
    let store = Store::new();
    let database = fencepost_testkit::Database::fresh().unwrap();
    database.psql("create role till login").unwrap();
    let till = database.url_as("till");
    // Who only looks finds an empty store.
    let remedy = ["fencepost backend install", "docs/backends/postgres.md"];
    refused_to(&COMMANDS[..2], &store, &till, 78, &remedy);
    let install = |words: &[&str]| {
        store.say(&[&["--on", &database.url(), "backend", "install"], words].concat())
    };
    let (code, out, err) = install(&[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{err}");
    let made = |how: &str| {
        ["locks", "records"].map(|part| format!("schema \"fencepost\", {part}: {how}\n")).concat()
    };
    assert_eq!(out, made("made version 1"));
    let (_, out, _) = install(&[]);
    assert_eq!(out, made("version 1 is there already: nothing to do"));
    let (_, out, _) = install(&["--json"]);
    let line = |part: &str| format!("{{\"before\":1,\"component\":\"{part}\",\"now\":1}}\n");
    assert_eq!(out, line("locks") + &line("records"));

    let functions = "acquire, fencepost.renew, fencepost.release, fencepost.inspect";
    database.psql("grant usage on schema fencepost to till").unwrap();
    database.psql(&format!("grant execute on function fencepost.{functions} to till")).unwrap();
    let line = ["--on", &till, "run", "x", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"];
    assert_eq!(store.say(&line), (Some(0), "1\n".into(), String::new()));

    let (code, out, _) = store.say(&["--on", &database.url(), "explain"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("found synchronous_commit  on"), "{out}");
    let (code, _, err) = store.say(&["backend", "install"]);
    assert_eq!(code, Some(64), "{err}");
}

/// The server goes away while somebody waits: the wait says so, and goes on when it is back. One that is not there at
/// the start is an error at once.
#[test]
fn a_wait_goes_on_through_an_outage() {
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (store, url) = (Store::new(), server.url());
    let script = "echo up > up; exec sleep 1000";
    let holder = store.start(&["run", "--on", &url, "--ttl", "1s", "x", "--", "sh", "-c", script]);
    wait_for_text(&store.path("up"));
    let log = store.path("log");
    let mut command = store.fencepost(&["run", "--on", &url, "x", "--", "echo", "mine"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
    let waiter = Running::new(command);
    let said = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
    wait_for("the waiter", LIMIT, || said("fencepost: waiting for \"x\""));
    server.kill().unwrap();
    wait_for("word of the outage", LIMIT, || said("fencepost: still waiting for \"x\""));
    let (code, _, err) = store.say(&["run", "--on", &url, "x", "--", "echo", "never"]);
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains(&url), "{err}");
    assert_eq!(holder.end().0, Some(76));
    server.start_again().unwrap();
    let (code, out, _) = waiter.end();
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!((code, out.as_str()), (Some(0), "mine\n"), "{log}");
    assert!(log.lines().all(|line| line.starts_with("fencepost: ")), "{log}");
}

/// The password of a URL is in no output.
#[test]
fn the_password_of_a_store_is_not_shown() {
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (_, place) =
        server.url().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let url = format!("redis://:s3cret@{place}");
    let store = Store::new();
    for line in
        [&["ls"][..], &["show", "x"], &["explain"], &["leader", "x"], &["run", "x", "--", "true"]]
    {
        for json in [&[][..], &["--json"]] {
            let (_, out, err) = store.say(&[&["--on", &url], json, line].concat());
            assert!(!format!("{out}{err}").contains("s3cret"), "{line:?}: {out}{err}");
        }
    }
}

/// A store that keeps another TTL than it was asked for says so once, in a line like all others.
#[test]
fn a_ttl_that_the_store_changes_is_shown_once() {
    let server = fencepost_testkit::Etcd::builder().start().unwrap();
    let (store, url) = (Store::new(), server.url());
    let line = ["run", "--on", &url, "--ttl", "2500ms", "x", "--", "sh", "-c", "exit 4"];
    let (code, _, err) = store.say(&line);
    assert_eq!(code, Some(4), "{err}");
    let said: Vec<_> = err.lines().filter(|line| line.contains("keeps a TTL of")).collect();
    assert_eq!(said.len(), 1, "{err}");
    assert!(said[0].starts_with("fencepost: lock \"x\": the etcd store"), "{err}");
    assert!(!store.say(&[&["-q"], &line[..]].concat()).2.contains("keeps a TTL of"));
}

/// Whoever may create a schema can plant one: no command of an administrator runs what is in it.
#[test]
fn planted_schema_is_refused_by_every_command() {
    let store = Store::new();
    let database = fencepost_testkit::Database::fresh().unwrap();
    let (name, url) = (database.name(), database.url());
    let role = format!("planter_{name}");
    database
        .psql(&format!("create role {role} login; grant create on database {name} to {role}"))
        .unwrap();
    let body =
        format!("language plpgsql as $$ begin execute 'alter role {role} superuser'; end $$");
    let plant = format!(
        "create schema fencepost;
         create table fencepost.components (component text primary key, version int not null);
         insert into fencepost.components values ('locks', 1), ('records', 1), ('fences', 1);
         create function fencepost.list() returns table (r_name text) {body};
         create function fencepost.acquire(text, uuid, bigint, text, text) returns table (status int) {body};
         create function fencepost.show(text) returns table (lock text) {body};
         create function fencepost.enter(text, bigint, text) returns void {body}"
    );
    database.psql_as(&role, &plant).unwrap();
    refused(&store, &url, 78, &[&role, "?owner="]);
    for command in [
        &["fence", "show", "--resource", &url][..],
        &["fence", "enter", "x", "--token", "1", "--resource", &url],
        &["fence", "install", "--resource", &url],
    ] {
        let (code, out, err) = store.say(command);
        assert_eq!((code, out.as_str()), (Some(78), ""), "{command:?}: {err}");
        assert!(err.contains(&role) && err.contains("?owner="), "{command:?}: {err}");
    }
    let is_superuser = format!("select rolsuper from pg_roles where rolname = '{role}'");
    assert_eq!(database.psql(&is_superuser).unwrap(), "f\n");
}
