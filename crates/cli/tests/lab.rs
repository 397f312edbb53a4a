//! The labs, with short times: what they show happens, what they are given to show when nothing is wrong they
//! say they did not see, and no process is left behind.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use fencepost_testkit::command::{LIMIT, Running, Store, children_of, heard, is_running, wait_for};
use rustix::process::Signal;
use serde_json::Value;

const QUICK: [&str; 5] = ["lab", "pause", "--ttl=300ms", "--work=200ms", "--json"];

/// A database of the user's.
struct Bank {
    url: String,
    db: rusqlite::Connection,
}

impl Bank {
    fn new(store: &Store) -> Self {
        let path = store.path("bank.db");
        let db = rusqlite::Connection::open(&path).unwrap();
        db.busy_timeout(LIMIT).unwrap();
        db.execute_batch("CREATE TABLE mine (id INTEGER)").unwrap();
        Self { url: format!("sqlite:{}", path.display()), db }
    }

    fn ask<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.db.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn lab_tables(&self) -> i64 {
        self.ask("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'fencepost_lab%'")
    }

    /// The fence may be there; a table, a mark, a record or another journal mode of a lab's may not.
    fn assert_as_it_was(&self) {
        assert_eq!(self.lab_tables(), 0);
        assert_eq!(self.ask::<String>("PRAGMA journal_mode"), "delete");
        if self.ask("SELECT count(*) FROM sqlite_schema WHERE name = 'fencepost_marks'") {
            assert_eq!(self.ask::<i64>("SELECT count(*) FROM fencepost_marks"), 0);
            assert_eq!(self.ask::<i64>("SELECT count(*) FROM fencepost_resets"), 0);
        }
    }
}

/// Text whose lines are broken anywhere.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a lab on a machine that may be busy; its exit code, its account, and what it said on stderr.
fn lab(store: &Store, arguments: &[&str]) -> (Option<i32>, Value, String) {
    let (code, out, err) = store.say(arguments);
    let account = serde_json::from_str(&out);
    assert!(account.is_ok(), "no account: {out} {err}");
    (code, account.unwrap(), err)
}

fn events<'a>(half: &'a Value, who: &str, what: &str) -> Vec<&'a Value> {
    let all = half["events"].as_array().unwrap().iter();
    all.filter(|event| event["who"] == who && event["what"] == what).collect()
}

#[test]
fn a_pause_loses_an_update_without_the_fence_and_none_with_it() {
    let store = Store::new();
    let (code, account, err) = lab(&store, &QUICK);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    let [without, with] = account["halves"].as_array().unwrap().as_slice() else {
        panic!("two halves: {account}")
    };

    assert_eq!((&without["fence"], &with["fence"]), (&Value::Bool(false), &Value::Bool(true)));
    // Both writes were accepted, and one of them is gone.
    assert_eq!((&without["expected"], &without["final"]), (&180.into(), &130.into()), "{without}");
    assert_eq!(events(without, "A", "wrote").len(), 1);
    assert!(events(without, "A", "refused").is_empty());

    // A's write was refused, and what was accepted is there.
    assert_eq!((&with["expected"], &with["final"]), (&150.into(), &150.into()), "{with}");
    assert!(events(with, "A", "wrote").is_empty());
    let refused = events(with, "A", "refused")[0]["why"].as_str().unwrap();
    let (a, b) = (with["tokens"]["A"].as_u64().unwrap(), with["tokens"]["B"].as_u64().unwrap());
    assert!(a < b && refused.contains(&a.to_string()) && refused.contains(&b.to_string()));
    assert!(refused.contains("stale"), "{refused}");

    // In this order, by one clock.
    for half in [without, with] {
        let at = |who, what| events(half, who, what)[0]["at_ms"].as_f64().unwrap();
        assert!(at("A", "read") < at("A", "frozen"), "{half}");
        assert!(at("A", "frozen") < at("B", "granted"), "{half}");
        assert!(at("B", "released") < at("A", "woken"), "{half}");
        // A is told, and does not look.
        assert_eq!(events(half, "A", "not_held").len(), 1, "{half}");
    }
    // It had a store of its own.
    store.assert_empty();
}

/// A lab that can not fail shows nothing.
#[test]
fn a_lab_in_which_nothing_goes_wrong_says_so() {
    let store = Store::new();
    for (control, missing) in [
        (["--no-pause", "--fenced=second"], "an update is lost"),
        (["--keep", "--fenced=both"], "without the fence: A's write is accepted"),
        (["--keep", "--fenced=neither"], "with the fence: A's write is refused"),
    ] {
        let (code, account, err) = lab(&store, &[&QUICK[..], &control[..]].concat());
        assert_eq!((code, &account["shown"]), (Some(1), &Value::Bool(false)), "{account} {err}");
        let checks = account["checks"].as_array().unwrap();
        let failed = checks.iter().filter(|check| check["holds"] == false);
        let failed: Vec<&str> = failed.map(|check| check["what"].as_str().unwrap()).collect();
        assert!(failed.iter().any(|what| what.contains(missing)), "{failed:?}");
        assert!(err.contains("did not happen") && err.contains(missing), "{err}");
        if let Some(kept) = account["kept"].as_str() {
            assert!(std::path::Path::new(kept).join("resource.db").exists());
            std::fs::remove_dir_all(kept).unwrap();
        }
    }
}

/// What is said of it says so too: no figure that contradicts its word, and no story that was not.
#[test]
fn the_words_are_those_of_what_happened() {
    let store = Store::new();
    let picture = store.path("pause.svg");
    let svg = format!("--svg={}", picture.display());
    let (code, out, err) = store.say(&[&QUICK[..4], &["--no-pause", &svg]].concat());
    assert_eq!(code, Some(1), "{out} {err}");
    assert!(
        out.contains("yes  with the fence: the balance is right: expected 180, is 180"),
        "{out}"
    );
    assert!(
        out.contains("NO   without the fence: an update is lost: expected 180, is 180"),
        "{out}"
    );
    assert!(out.contains("Nobody was frozen") && !out.contains("on waking"), "{out}");
    assert!(out.contains(&format!("The picture is in {}.", picture.display())), "{out}");
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains("Nobody is frozen") && !drawn.contains("freezes"), "{drawn}");
    assert!(drawn.contains("With the fence nothing is lost."), "{drawn}");

    let (code, out, err) = store.say(&["lab", "crash", "--ttl=3s", "--rounds=1", "--no-kill"]);
    assert_eq!(code, Some(1), "{out} {err}");
    assert!(out.contains("then nobody") && !out.contains("then 0"), "{out}");
    assert!(out.contains("nobody was killed") && out.contains("The holder lives"), "{out}");
    assert!(!out.contains("is killed") && !out.contains("from the kill"), "{out}");
    assert!(out.contains("not in ") && !out.contains("never"), "{out}");
}

#[test]
fn the_store_and_the_resource_can_be_the_users() {
    let store = Store::new();
    let (url, bank) = (store.url(), Bank::new(&store));
    let resource = format!("--resource={}", bank.url);
    let picture = store.path("pause.svg");
    let svg = format!("--svg={}", picture.display());
    let (code, account, err) =
        lab(&store, &[&QUICK[..], &["--on", &url, &resource, &svg]].concat());
    assert_eq!(code, Some(0), "{account} {err}");
    assert_eq!((&account["store"], &account["resource"]), (&"sqlite".into(), &"sqlite".into()));
    // No lock is left in the store, and nothing but the fence in the resource.
    store.assert_empty();
    bank.assert_as_it_was();
    assert_eq!(account["fence_installed"], true);
    assert_eq!((&account["left_behind"], &account["kept"]), (&Value::Null, &Value::Null));
    assert_eq!(account["svg"], picture.display().to_string());
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("130: 50 lost"), "{drawn}");
    assert!(drawn.contains("130? refused") && !drawn.contains("<script"), "{drawn}");
    assert!(drawn.contains("past its lease, without and with the fence"), "{drawn}");

    let (code, account, err) =
        lab(&store, &["lab", "nolock", "--copies=3", "--ticks=2", "--json", &resource]);
    assert_eq!(code, Some(0), "{account} {err}");
    bank.assert_as_it_was();
    // It is there now; and files there are none.
    let (code, out, err) = store.say(&[&QUICK[..4], &["--keep", "--on", &url, &resource]].concat());
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(!out.contains("installed") && out.contains("no files to keep"), "{out}");
}

/// However a lab ends, it clears up before: its tables and its mark go, and an earlier picture stays.
#[test]
fn an_ended_lab_leaves_nothing_in_the_users_database() {
    for (signal, code) in [(Some(Signal::INT), 130), (Some(Signal::TERM), 143), (None, 70)] {
        let store = Store::new();
        let bank = Bank::new(&store);
        let picture = store.path("earlier.svg");
        std::fs::write(&picture, "earlier").unwrap();
        let resource = format!("--resource={}", bank.url);
        let svg = format!("--svg={}", picture.display());
        // With the fence from the beginning: so there is a mark.
        let pause = ["lab", "pause", "--ttl=1h", "--work=1h", "--fenced=both", &resource, &svg];
        let mut running = store.start(&pause);
        let mut lines = running.lines();
        assert!(lines.any(|line| line.unwrap().contains("is frozen")), "it froze nobody");
        assert_eq!(bank.lab_tables(), 1);
        assert_eq!(bank.ask::<i64>("SELECT count(*) FROM fencepost_marks"), 1);
        if let Some(signal) = signal {
            running.signal(signal);
        } else {
            // A worker that ends unasked is the end of the lab, by an error.
            let id = children_of(running.id(), "__lab-worker")[0];
            let id = rustix::process::Pid::from_raw(id).unwrap();
            rustix::process::kill_process(id, Signal::KILL).unwrap();
        }
        let (got, _, err) = running.end();
        assert_eq!(got, Some(code), "{err}");
        assert!(!err.contains("clear up") && err.trim().lines().count() == 1, "{err}");
        bank.assert_as_it_was();
        assert_eq!(std::fs::read_to_string(&picture).unwrap(), "earlier");
    }
}

#[test]
fn what_can_not_be_cleared_is_named() {
    let store = Store::new();
    let bank = Bank::new(&store);
    let resource = format!("--resource={}", bank.url);
    let mut running = store.start(&["lab", "pause", "--ttl=1h", "--work=1h", &resource]);
    let mut lines = running.lines();
    assert!(lines.any(|line| line.unwrap().contains("is frozen")), "it froze nobody");
    let sql = "SELECT name FROM sqlite_schema WHERE name LIKE 'fencepost_lab%'";
    let table: String = bank.ask(sql);
    bank.db.execute_batch("BEGIN IMMEDIATE").unwrap();
    running.signal(Signal::INT);
    let (code, _, err) = running.end();
    bank.db.execute_batch("ROLLBACK").unwrap();
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("could not clear up") && err.contains(&table), "{err}");
    assert_eq!(err.trim().lines().count(), 1, "{err}");
}

#[test]
fn the_lanes_are_drawn_as_the_locale_allows() {
    let store = Store::new();
    let said = |locale: &str| {
        let mut command = store.fencepost(&QUICK[..4]);
        command.env("LC_ALL", locale);
        heard(&command.output().unwrap())
    };
    let (code, out, err) = said("C.UTF-8");
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains('░') && out.contains('┃') && !out.contains('\x1b'), "{out}");
    assert!(out.contains("130: 50 lost") && out.contains("130? refused"), "{out}");
    let (_, out, _) = said("C");
    assert!(out.is_ascii() && out.contains("# frozen"), "{out}");
}

#[test]
fn a_killed_holder_frees_the_lock_at_once_on_the_embedded_store() {
    let store = Store::new();
    let (code, account, err) = lab(&store, &["lab", "crash", "--ttl=20s", "--rounds=2", "--json"]);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    assert_eq!(account["sees_the_process_end"], true);
    for round in account["rounds"].as_array().unwrap() {
        let (free, left) = (round["free_after_ms"].as_f64(), round["lease_left_ms"].as_f64());
        assert!(free.unwrap() < left.unwrap(), "{round}");
        assert!(round["tokens"]["A"].as_u64() < round["tokens"]["B"].as_u64(), "{round}");
    }
}

#[test]
fn a_holder_that_lives_frees_nothing() {
    let store = Store::new();
    let arguments = ["lab", "crash", "--ttl=2s", "--rounds=1", "--no-kill", "--json"];
    let (code, account, err) = lab(&store, &arguments);
    assert_eq!((code, &account["shown"]), (Some(1), &Value::Bool(false)), "{account} {err}");
    assert!(err.contains("does not wait") && err.contains("not free after"), "{err}");
    assert_eq!(account["rounds"][0]["tokens"]["B"], Value::Null, "{account}");
}

#[test]
fn a_job_runs_once_per_tick_with_and_without_the_lock() {
    let store = Store::new();
    let (code, account, err) = lab(&store, &["lab", "nolock", "--copies=5", "--ticks=4", "--json"]);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    for way in ["key", "lock"] {
        assert_eq!(account[way]["runs"], serde_json::json!([1, 1, 1, 1]), "{account}");
        assert_eq!(account[way]["claims"], serde_json::json!([1, 1, 1, 1]), "{account}");
    }
    assert_eq!(account["key"]["steps"], serde_json::json!([5, 5, 5, 5]));
}

#[test]
fn without_a_unique_key_the_job_runs_on_every_copy() {
    let store = Store::new();
    let arguments = ["lab", "nolock", "--copies=4", "--ticks=2", "--no-unique-key", "--json"];
    let (code, account, err) = lab(&store, &arguments);
    assert_eq!((code, &account["shown"]), (Some(1), &Value::Bool(false)), "{account} {err}");
    assert_eq!(account["key"]["runs"], serde_json::json!([4, 4]), "{account}");
}

/// A look alone does not do it: the database does not make the lock's half of the lab come out right.
#[test]
fn without_the_lock_some_tick_runs_the_job_twice() {
    let store = Store::new();
    let arguments = ["lab", "nolock", "--copies=12", "--ticks=30", "--no-lock", "--json"];
    let (code, account, err) = lab(&store, &arguments);
    assert_eq!((code, &account["shown"]), (Some(1), &Value::Bool(false)), "{account} {err}");
    assert!(err.contains("by the lock the job runs once") && !err.contains("alone"), "{err}");
}

/// What the store made of the TTL is told: etcd has no lease of less than a second or two.
#[test]
fn the_ttl_is_the_one_that_the_store_keeps() {
    let etcd = fencepost_testkit::Etcd::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", etcd.url());
    let crash = ["lab", "crash", "--ttl=200ms", "--rounds=1", &on];
    let (code, account, err) = lab(&store, &[&crash[..], &["--json"]].concat());
    assert_eq!((code, &account["ttl_asked_ms"]), (Some(0), &200.into()), "{account} {err}");
    let kept = account["ttl_ms"].as_u64().unwrap();
    assert!(kept >= 1000, "{account}");
    let (code, out, err) = store.say(&crash);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("(asked for 200ms)"), "{out}");
    assert!(words(&out).contains("the lock is free when the lease has run out"), "{out}");
}

/// Where it is the session that counts, nobody says that it is the lease.
#[test]
fn on_a_zookeeper_the_session_decides() {
    let zookeeper = fencepost_testkit::ZooKeeper::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", zookeeper.url());
    let (code, out, err) = store.say(&["lab", "crash", "--ttl=2s", "--rounds=1", &on]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(words(&out).contains("the lock is free when its session has timed out"), "{out}");
    assert!(out.contains("waits for the lease's end, and for the session's"), "{out}");
    let (code, out, err) = store.say(&["lab", "pause", "--ttl=2s", "--work=100ms", &on]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("A's lease ends, its session not yet"), "{out}");
    assert!(
        words(&out).contains("after the end of A's lease. Here the lock is free when its"),
        "{out}"
    );
}

/// A server can not see a process end: there the lease decides, and the fence is needed just the same.
#[test]
fn on_a_redis_the_next_waits_for_the_lease() {
    let redis = fencepost_testkit::Redis::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", redis.url());
    let (code, account, err) = lab(&store, &[&QUICK[..], &[&on]].concat());
    assert_eq!((code, &account["store"]), (Some(0), &"redis".into()), "{account} {err}");
    let (code, account, err) =
        lab(&store, &["lab", "crash", "--ttl=500ms", "--rounds=2", "--json", &on]);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    assert_eq!(account["sees_the_process_end"], false);
    let (code, account, err) =
        lab(&store, &["lab", "nolock", "--copies=4", "--ticks=2", "--json", &on]);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    let (_, left, _) = store.say(&["ls", "--json", &on]);
    assert!(left.contains(r#""locks":[]"#), "{left}");
}

#[test]
fn the_resource_can_be_a_postgresql_database() {
    let database = fencepost_testkit::Postgres::shared().unwrap().database().unwrap();
    let store = Store::new();
    let resource = format!("--resource={}", database.url());
    let (code, account, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, &account["resource"]), (Some(0), &"postgres".into()), "{account} {err}");
    let halves = &account["halves"];
    assert_eq!((&halves[0]["final"], &halves[1]["final"]), (&130.into(), &150.into()), "{account}");
    let (code, account, err) =
        lab(&store, &["lab", "nolock", "--copies=4", "--ticks=3", "--json", &resource]);
    assert_eq!((code, &account["shown"]), (Some(0), &Value::Bool(true)), "{account} {err}");
    let tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencepost_lab%'";
    assert_eq!(database.psql(tables).unwrap().trim(), "0");
    // Neither marks nor records of resets.
    let marks =
        "SELECT (SELECT count(*) FROM fencepost.marks) + (SELECT count(*) FROM fencepost.resets)";
    assert_eq!(database.psql(marks).unwrap().trim(), "0");
    // One that is interrupted clears up, too.
    let pause = ["lab", "pause", "--ttl=1h", "--work=1h", "--fenced=both", &resource];
    let mut running = store.start(&pause);
    assert!(running.lines().any(|line| line.unwrap().contains("is frozen")), "it froze nobody");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");
    running.signal(Signal::INT);
    let (code, _, err) = running.end();
    assert_eq!(code, Some(130), "{err}");
    assert!(!err.contains("clear up"), "{err}");
    assert_eq!(database.psql(tables).unwrap().trim(), "0");
    assert_eq!(database.psql(marks).unwrap().trim(), "0");
    // The controls, here too.
    let arguments = [&QUICK[..], &["--fenced=neither", &resource]].concat();
    assert_eq!(lab(&store, &arguments).0, Some(1));
    let arguments =
        ["lab", "nolock", "--copies=12", "--ticks=30", "--no-lock", "--json", &resource];
    let (code, account, err) = lab(&store, &arguments);
    assert_eq!(code, Some(1), "{account} {err}");
    assert!(err.contains("by the lock the job runs once") && !err.contains("alone"), "{err}");
}

/// Where the fence is, whoever may enter can see the lab; its owner is another.
#[test]
fn a_role_that_does_not_own_the_fence_needs_no_more_than_to_enter() {
    let database = fencepost_testkit::Postgres::shared().unwrap().database().unwrap();
    database.psql("CREATE ROLE lab_app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").unwrap();
    let store = Store::new();
    let resource = format!("--resource={}", database.url());
    let (code, _, err) = store.say(&["fence", "install", &resource]);
    assert_eq!(code, Some(0), "{err}");
    database
        .psql(
            "GRANT USAGE ON SCHEMA fencepost TO lab_app;
             GRANT EXECUTE ON FUNCTION fencepost.enter TO lab_app",
        )
        .unwrap();
    let resource = format!("--resource={}", database.url_as("lab_app"));

    // The fence has nothing to do with it.
    for which in ["pause", "nolock"] {
        let (code, out, err) = store.say(&["lab", which, &resource]);
        assert_eq!(code, Some(78), "{out} {err}");
        assert!(err.contains("GRANT CREATE ON SCHEMA public") && !err.contains("enter"), "{err}");
        assert_eq!((err.trim().lines().count(), out.as_str()), (1, ""), "{err}");
    }

    database.psql("GRANT CREATE ON SCHEMA public TO lab_app").unwrap();
    let (code, account, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, &account["fence_installed"]), (Some(0), &Value::Bool(false)), "{err}");
    // To forget a mark is for admins: it is named.
    assert!(err.contains("fence reset fencepost-lab/pause/"), "{err}");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");

    database.psql("GRANT EXECUTE ON FUNCTION fencepost.reset TO lab_app").unwrap();
    let (code, account, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{account}");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");
    assert_eq!(
        database.psql("SELECT why FROM fencepost.resets").unwrap().trim(),
        "the lab is over"
    );
}

/// Whoever ends the lab ends its workers, the frozen one too: by ^C, or by killing it.
#[test]
fn nothing_is_left_of_a_lab_that_is_ended() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, 137)] {
        let store = Store::new();
        let mut command = store.fencepost(&["lab", "pause", "--ttl=1h", "--work=1h"]);
        command.env("TMPDIR", store.dir.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut running = Running::new(command);
        let frozen = running.lines().any(|line| line.unwrap().contains("is frozen"));
        assert!(frozen, "it ended before it froze anybody");
        let workers = children_of(running.id(), "__lab-worker");
        assert_eq!(workers.len(), 2);
        running.signal(signal);
        assert_eq!(running.end().0, Some(code));
        wait_for("the workers' end", LIMIT, || !workers.iter().any(|id| is_running(*id)));
        if signal != Signal::KILL {
            let left = std::fs::read_dir(store.dir.path()).unwrap();
            let left = left.filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("fencepost-lab-")
            });
            assert_eq!(left.count(), 0, "files are left");
        }
    }
}

#[test]
fn bad_input_is_one_line() {
    let store = Store::new();
    for (arguments, code, words) in [
        (&["lab", "pause", "--on", "memory:"][..], 78, "memory of one process"),
        (&["lab", "pause", "--resource", "mysql://root:secret@x"], 64, "\"mysql:...\""),
        (&["lab", "pause", "--resource", "sqlite:"], 64, "names no file"),
        (&["lab", "pause", "--resource", ""], 64, "the resource is empty: give sqlite:PATH"),
        (&["lab", "pause", "--resource", "bank.db"], 64, "has no scheme: give sqlite:PATH"),
        (&["lab", "pause", "--resource", "sqlite:/nowhere/x.db"], 69, "/nowhere/x.db can not be"),
        (&["lab", "pause", "--ttl", "-5s"], 64, "--ttl <DURATION>: \"-5s\""),
        (&["lab", "pause", "--work", "-5s"], 64, "--work <DURATION>: \"-5s\""),
        (&["lab", "pause", "--svg", ""], 64, "--svg"),
        (&["lab", "crash", "--rounds", "-1"], 64, "-1' for '--rounds <N>'"),
        (&["lab", "nolock", "--ticks", "-1"], 64, "-1' for '--ticks <N>'"),
        (&["lab", "pause", "--resource", "postgres://a:secret@127.0.0.1:1/x"], 69, "127.0.0.1:1"),
        (&["lab", "pause", "--resource", "postgres://a:secret@x:y/z"], 64, "does not parse"),
        (&["lab", "pause", "--ttl", "1ms"], 64, "100ms to 24h"),
        (&["lab", "pause", "--work", "25h"], 64, "at most 24h"),
        (&["lab", "pause", "--on", "redis://127.0.0.1:1"], 69, "127.0.0.1:1"),
        (&["lab", "pause", "--svg", "/nowhere/x.svg"], 64, "/nowhere/x.svg"),
        (&["lab", "crash", "--rounds", "0"], 64, "0 is not in"),
        (&["lab", "nolock", "--copies", "1"], 64, "1 is not in"),
        (&["lab", "nolock", "--resource", "sqlite:/nowhere/x.db"], 69, "/nowhere"),
        (&["lab"], 64, "fencepost lab --help"),
        (&["__lab-worker"], 64, "own use"),
    ] {
        let (got, out, err) = store.say(arguments);
        assert_eq!(got, Some(code), "{arguments:?}: {out} {err}");
        assert!(err.contains(words) && err.trim().lines().count() == 1, "{arguments:?}: {err}");
        assert!(!err.contains("secret"), "{err}");
        // Nothing is told of a lab that does not begin.
        assert_eq!(out, "", "{arguments:?}");
    }
}
