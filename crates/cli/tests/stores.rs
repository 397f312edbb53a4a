//! A store that cannot be used is reported on one line, with the file, the remedy and an exit code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fencepost_testkit::command::{LIMIT, Running, Store, outcome_of, wait_for, wait_for_text};
use rusqlite::Connection;

const COMMANDS: [&[&str]; 3] = [&["run", "x", "--", "echo", "never"], &["acquire", "x"], &["ls"]];

fn refused(store: &Store, url: &str, expected: i32, words: &[&str]) {
    refused_to(&COMMANDS, store, url, expected, words);
}

fn refused_to(lines: &[&[&str]], store: &Store, url: &str, expected: i32, words: &[&str]) {
    for line in lines {
        let (code, out, err) = store.run(&[&["--on", url], *line].concat());
        // A script evaluates what `acquire` prints, and must not continue.
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
    let (code, _, err) = store.run(&["run", "x", "--", "true"]);
    assert_eq!(code, Some(0), "{err}");
    Connection::open(store.path("locks.db")).unwrap()
}

#[test]
fn unwritable_directory_is_reported() {
    let store = Store::new();
    // A file where a directory should be refuses root as well, unlike a mode.
    std::fs::write(store.path("file"), "").unwrap();
    let url = format!("sqlite:{}", store.path("file/below/locks.db").display());
    // A read finds an empty store.
    let writers = &COMMANDS[..2];
    refused_to(writers, &store, &url, 69, &["file/below", "sqlite:PATH"]);
    let nowhere = "sqlite:/proc/fencepost/locks.db";
    refused_to(writers, &store, nowhere, 69, &["/proc/fencepost", "sqlite:PATH"]);
}

#[test]
fn unwritable_state_directory_is_reported() {
    let store = Store::new();
    let mut command = store.fencepost(&["run", "x", "--", "echo", "never"]);
    command.env_remove("FENCEPOST_URL").env("XDG_STATE_HOME", "/proc/fencepost");
    let (code, out, err) = outcome_of(&command.output().unwrap());
    assert_eq!((code, out.as_str()), (Some(69), ""), "{err}");
    assert!(err.contains("/proc/fencepost") && err.lines().count() == 1, "{err}");
    let mut command = store.fencepost(&["ls"]);
    command.env_remove("FENCEPOST_URL").env_remove("XDG_STATE_HOME").env_remove("HOME");
    let (code, _, err) = outcome_of(&command.output().unwrap());
    assert_eq!(code, Some(64), "{err}");
}

#[test]
fn file_that_is_not_a_database_is_reported() {
    let store = Store::new();
    std::fs::write(store.path("locks.db"), "this is a text\n".repeat(500)).unwrap();
    refused(&store, &store.url(), 69, &["locks.db"]);
}

#[test]
fn damaged_database_is_reported() {
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
fn file_of_a_newer_version_is_refused() {
    let store = Store::new();
    database(&store).pragma_update(None, "user_version", 99).unwrap();
    refused(&store, &store.url(), 78, &["locks.db", "layout 99", "newer"]);
}

#[test]
fn file_of_another_program_is_refused() {
    let store = Store::new();
    let db = Connection::open(store.path("locks.db")).unwrap();
    db.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    refused(&store, &store.url(), 78, &["locks.db", "another program"]);
}

#[test]
fn file_of_another_machine_is_refused() {
    let store = Store::new();
    let sql = "UPDATE fencepost_store SET machine = 'elsewhere', boot = 'another'";
    assert_eq!(database(&store).execute(sql, []).unwrap(), 1);
    refused(&store, &store.url(), 78, &["locks.db", "another machine", "?adopt=true"]);
    let adopted = format!("{}?adopt=true", store.url());
    assert_eq!(store.run(&["--on", &adopted, "run", "x", "--", "true"]).0, Some(0));
    store.assert_empty();
}

/// A lock in the memory of one command would exclude nobody.
#[test]
fn memory_store_is_refused() {
    let store = Store::new();
    let uses: [&[&str]; 3] =
        [&["run", "x", "--", "true"], &["acquire", "x"], &["break", "x", "--yes"]];
    for arguments in uses {
        let arguments = [&["--on", "memory:"], arguments].concat();
        let (code, _, err) = store.run(&arguments);
        assert_eq!(code, Some(78), "{err}");
        assert!(err.contains("memory:") && err.contains("sqlite:PATH"), "{err}");
    }
}

#[test]
fn explain_shows_server_info() {
    let store = Store::new();
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (code, out, err) = store.run(&["--on", &server.url(), "explain"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for words in [
        "\nlayout                     2\n",
        "for correctness",
        "set `appendonly yes`, `appendfsync always` in redis.conf",
        "\nserver ",
        "\nappendonly ",
        "\nreplicas ",
    ] {
        assert!(out.contains(words), "{words:?} is missing: {out}");
    }
    let (code, out, _) = store.run(&["--on", &server.url(), "--json", "explain"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("\"appendonly\":\"no\"") && out.contains("\"layout\":2"), "{out}");
    // One of two nodes is unreachable.
    let url = format!("redlock://{},127.0.0.1:1", server.address());
    refused(&store, &url, 69, &["127.0.0.1:1", "1 of 2 nodes answered, 2 are needed"]);
}

#[test]
fn unusable_redis_is_reported() {
    let store = Store::new();
    refused(&store, "redis://127.0.0.1:1", 69, &["127.0.0.1:1"]);
    refused(&store, "redis+sentinel://127.0.0.1:1", 64, &["not supported", "redlock://"]);
    refused(&store, "redis://h?frob=1", 64, &["frob", "prefix"]);
    let server = fencepost_testkit::Redis::builder().password("hunter2").start().unwrap();
    let url = format!("redis://{}", server.address());
    refused(&store, &url, 78, &["requires a password", "redis://:PASSWORD@HOST"]);
    let url = format!("redis://:wrong@{}", server.address());
    refused(&store, &url, 78, &["rejected the credentials"]);
}

#[test]
fn admin_role_installs_the_schema_for_an_unprivileged_role() {
    let store = Store::new();
    let database = fencepost_testkit::Database::fresh().unwrap();
    database.psql("create role till login").unwrap();
    let till = database.url_as("till");
    // A read finds an empty store.
    let remedy = ["fencepost backend install", "docs/backends/postgres.md"];
    refused_to(&COMMANDS[..2], &store, &till, 78, &remedy);
    let install = |words: &[&str]| {
        store.run(&[&["--on", &database.url(), "backend", "install"], words].concat())
    };
    let (code, out, err) = install(&[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{err}");
    let lines = |how: &str| {
        ["locks", "records"].map(|part| format!("schema \"fencepost\", {part}: {how}\n")).concat()
    };
    assert_eq!(out, lines("created version 2"));
    let (_, out, _) = install(&[]);
    assert_eq!(out, lines("version 2 is already installed: nothing to do"));
    let (_, out, _) = install(&["--json"]);
    let line = |part: &str| format!("{{\"before\":2,\"component\":\"{part}\",\"now\":2}}\n");
    assert_eq!(out, line("locks") + &line("records"));

    let functions = "acquire, fencepost.renew, fencepost.release, fencepost.inspect";
    database.psql("grant usage on schema fencepost to till").unwrap();
    database.psql(&format!("grant execute on function fencepost.{functions} to till")).unwrap();
    let line = ["--on", &till, "run", "x", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"];
    assert_eq!(store.run(&line), (Some(0), "1\n".into(), String::new()));

    let (code, out, _) = store.run(&["--on", &database.url(), "explain"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("\nsynchronous_commit  on"), "{out}");
    let (code, _, err) = store.run(&["backend", "install"]);
    assert_eq!(code, Some(64), "{err}");
}

/// The server goes away during a wait: the wait reports it, and continues when the server is back. A server that is
/// unreachable at the start is an error at once.
#[test]
fn wait_continues_through_an_outage() {
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
    wait_for("a report of the outage", LIMIT, || said("fencepost: still waiting for \"x\""));
    let (code, _, err) = store.run(&["run", "--on", &url, "x", "--", "echo", "never"]);
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
fn password_of_a_store_is_not_shown() {
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (_, place) =
        server.url().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let url = format!("redis://:s3cret@{place}");
    let store = Store::new();
    for line in
        [&["ls"][..], &["show", "x"], &["explain"], &["leader", "x"], &["run", "x", "--", "true"]]
    {
        for json in [&[][..], &["--json"]] {
            let (_, out, err) = store.run(&[&["--on", &url], json, line].concat());
            assert!(!format!("{out}{err}").contains("s3cret"), "{line:?}: {out}{err}");
        }
    }
}

/// A store that raises the requested TTL is reported once, in a line like all others.
#[test]
fn ttl_that_the_store_raises_is_shown_once() {
    let server = fencepost_testkit::Etcd::builder().start().unwrap();
    let (store, url) = (Store::new(), server.url());
    let line = ["run", "--on", &url, "--ttl", "2500ms", "x", "--", "sh", "-c", "exit 4"];
    let (code, _, err) = store.run(&line);
    assert_eq!(code, Some(4), "{err}");
    let said: Vec<_> = err.lines().filter(|line| line.contains("grants a TTL of")).collect();
    assert_eq!(said.len(), 1, "{err}");
    assert!(said[0].starts_with("fencepost: lock \"x\": the etcd store"), "{err}");
    assert!(!store.run(&[&["-q"], &line[..]].concat()).2.contains("grants a TTL of"));
}

/// A role that can create a schema can plant one: no command of an administrator runs the functions in it.
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
         insert into fencepost.components values ('locks', 2), ('records', 2), ('fences', 1);
         create function fencepost.list(text, text, bigint) returns table (r_name text) {body};
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
        let (code, out, err) = store.run(command);
        assert_eq!((code, out.as_str()), (Some(78), ""), "{command:?}: {err}");
        assert!(err.contains(&role) && err.contains("?owner="), "{command:?}: {err}");
    }
    let is_superuser = format!("select rolsuper from pg_roles where rolname = '{role}'");
    assert_eq!(database.psql(&is_superuser).unwrap(), "f\n");
}
