//! The labs, with short times: they show what they should, they fail if nothing goes wrong, and they leave no process
//! behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fencepost_testkit::command::{
    LIMIT, Running, Store, children_of, is_running, outcome_of, wait_for,
};
use rustix::process::Signal;
use serde_json::Value;

const QUICK: [&str; 5] = ["lab", "pause", "--ttl=300ms", "--work=200ms", "--json"];

/// A database of the user.
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

    /// The fence may be installed. No table, mark or record of a lab is left, and the journal mode is unchanged.
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

/// Runs a lab on a machine that may be busy; its exit code, its result, and what it said on stderr.
fn lab(store: &Store, arguments: &[&str]) -> (Option<i32>, Value, String) {
    let (code, out, err) = store.run(arguments);
    let result = serde_json::from_str(&out);
    assert!(result.is_ok(), "no result: {out} {err}");
    (code, result.unwrap(), err)
}

/// Runs a lab whose result must say whether it has shown what it should. Returns the result and stderr.
fn lab_shows(store: &Store, arguments: &[&str], shown: bool) -> (Value, String) {
    let (code, result, err) = lab(store, arguments);
    let expected = (Some(i32::from(!shown)), &Value::Bool(shown));
    assert_eq!((code, &result["shown"]), expected, "{result} {err}");
    (result, err)
}

fn events<'a>(half: &'a Value, who: &str, what: &str) -> Vec<&'a Value> {
    let all = half["events"].as_array().unwrap().iter();
    all.filter(|event| event["who"] == who && event["what"] == what).collect()
}

#[test]
fn pause_loses_an_update_only_without_the_fence() {
    let store = Store::new();
    let (result, _) = lab_shows(&store, &QUICK, true);
    let [without, with] = result["halves"].as_array().unwrap().as_slice() else {
        panic!("two halves: {result}")
    };

    assert_eq!((&without["fence"], &with["fence"]), (&Value::Bool(false), &Value::Bool(true)));
    // Both writes were accepted, and one of them is lost.
    assert_eq!((&without["expected"], &without["final"]), (&180.into(), &130.into()), "{without}");
    assert_eq!(events(without, "A", "wrote").len(), 1);
    assert!(events(without, "A", "refused").is_empty());

    // A's write was refused, and the accepted one is there.
    assert_eq!((&with["expected"], &with["final"]), (&150.into(), &150.into()), "{with}");
    assert!(events(with, "A", "wrote").is_empty());
    let refused = events(with, "A", "refused")[0]["why"].as_str().unwrap();
    let (a, b) = (with["tokens"]["A"].as_u64().unwrap(), with["tokens"]["B"].as_u64().unwrap());
    assert!(a < b && refused.contains(&a.to_string()) && refused.contains(&b.to_string()));
    assert!(refused.contains("stale"), "{refused}");

    // The events are in this order, by one clock.
    for half in [without, with] {
        let at = |who, what| events(half, who, what)[0]["at_ms"].as_f64().unwrap();
        assert!(at("A", "read") < at("A", "frozen"), "{half}");
        assert!(at("A", "frozen") < at("B", "granted"), "{half}");
        assert!(at("B", "released") < at("A", "woken"), "{half}");
        // The guard of A is lost, and A does not check it.
        assert_eq!(events(half, "A", "not_held").len(), 1, "{half}");
    }
    // It had a store of its own.
    store.assert_empty();
}

/// A lab that cannot fail shows nothing.
#[test]
fn pause_lab_fails_if_nobody_is_frozen() {
    let store = Store::new();
    for (control, missing) in [
        (["--no-pause", "--fenced=second"], "an update is lost"),
        (["--keep", "--fenced=both"], "without the fence: A's write is accepted"),
        (["--keep", "--fenced=neither"], "with the fence: A's write is refused"),
    ] {
        let (code, result, err) = lab(&store, &[&QUICK[..], &control[..]].concat());
        assert_eq!((code, &result["shown"]), (Some(1), &Value::Bool(false)), "{result} {err}");
        let checks = result["checks"].as_array().unwrap();
        let failed = checks.iter().filter(|check| check["holds"] == false);
        let failed: Vec<&str> = failed.map(|check| check["what"].as_str().unwrap()).collect();
        assert!(failed.iter().any(|what| what.contains(missing)), "{failed:?}");
        assert!(err.contains("did not happen") && err.contains(missing), "{err}");
        if let Some(kept) = result["files"].as_str() {
            assert!(std::path::Path::new(kept).join("resource.db").exists());
            std::fs::remove_dir_all(kept).unwrap();
        }
    }
}

/// The description agrees with the result: no figure contradicts it, and it tells nothing that did not happen.
#[test]
fn description_matches_what_happened() {
    let store = Store::new();
    let picture = store.path("pause.svg");
    let svg = format!("--svg={}", picture.display());
    let (code, out, err) = store.run(&[&QUICK[..4], &["--no-pause", &svg]].concat());
    assert_eq!(code, Some(1), "{out} {err}");
    assert!(
        out.contains("yes  with the fence: the balance is right: expected 180, is 180"),
        "{out}"
    );
    assert!(
        out.contains("NO   without the fence: an update is lost: expected 180, is 180"),
        "{out}"
    );
    assert!(out.contains("Nobody was frozen") && !out.contains("When A wakes"), "{out}");
    assert!(out.contains(&format!("The picture is in {}.", picture.display())), "{out}");
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains("Nobody is frozen") && !drawn.contains("freezes"), "{drawn}");
    assert!(drawn.contains("With the fence nothing is lost."), "{drawn}");

    let (code, out, err) = store.run(&["lab", "crash", "--ttl=3s", "--rounds=1", "--no-kill"]);
    assert_eq!(code, Some(1), "{out} {err}");
    assert!(out.contains("then nobody") && !out.contains("then 0"), "{out}");
    assert!(out.contains("nobody was killed") && out.contains("The holder lives"), "{out}");
    assert!(!out.contains("is killed") && !out.contains("from the kill"), "{out}");
    assert!(out.contains("not in ") && !out.contains("never"), "{out}");
}

#[test]
fn lab_uses_the_store_and_resource_of_the_user() {
    let store = Store::new();
    let (url, bank) = (store.url(), Bank::new(&store));
    let resource = format!("--resource={}", bank.url);
    let picture = store.path("pause.svg");
    let svg = format!("--svg={}", picture.display());
    let (code, result, err) = lab(&store, &[&QUICK[..], &["--on", &url, &resource, &svg]].concat());
    assert_eq!(code, Some(0), "{result} {err}");
    assert_eq!((&result["store"], &result["resource"]), (&"sqlite".into(), &"sqlite".into()));
    // No lock is left in the store, and nothing but the fence in the resource.
    store.assert_empty();
    bank.assert_as_it_was();
    assert_eq!(result["fence_installed"], true);
    assert_eq!((&result["not_removed"], &result["files"]), (&Value::Null, &Value::Null));
    assert_eq!(result["svg"], picture.display().to_string());
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("130: 50 lost"), "{drawn}");
    assert!(drawn.contains("130? refused") && !drawn.contains("<script"), "{drawn}");
    assert!(drawn.contains("past its lease, without and with the fence"), "{drawn}");

    let (code, result, err) =
        lab(&store, &["lab", "nolock", "--copies=3", "--ticks=2", "--json", &resource]);
    assert_eq!(code, Some(0), "{result} {err}");
    bank.assert_as_it_was();
    // The fence is installed by now, and the lab has no files.
    let (code, out, err) = store.run(&[&QUICK[..4], &["--keep", "--on", &url, &resource]].concat());
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(!out.contains("installed") && out.contains("no files of its own to keep"), "{out}");
}

/// However a lab ends, it cleans up: its tables and its mark are removed, and an earlier picture stays.
#[test]
fn interrupted_lab_leaves_nothing_in_the_database_of_the_user() {
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
            // A worker that ends unexpectedly ends the lab with an error.
            let id = children_of(running.id(), "__lab-worker")[0];
            let id = rustix::process::Pid::from_raw(id).unwrap();
            rustix::process::kill_process(id, Signal::KILL).unwrap();
        }
        let (got, _, err) = running.end();
        assert_eq!(got, Some(code), "{err}");
        assert!(!err.contains("clean up") && err.trim().lines().count() == 1, "{err}");
        bank.assert_as_it_was();
        assert_eq!(std::fs::read_to_string(&picture).unwrap(), "earlier");
    }
}

#[test]
fn leftovers_of_a_lab_are_named() {
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
    assert!(err.contains("could not clean up") && err.contains(&table), "{err}");
    assert_eq!(err.trim().lines().count(), 1, "{err}");
}

#[test]
fn timeline_is_drawn_as_the_locale_allows() {
    let store = Store::new();
    let said = |locale: &str| {
        let mut command = store.fencepost(&QUICK[..4]);
        command.env("LC_ALL", locale);
        outcome_of(&command.output().unwrap())
    };
    let (code, out, err) = said("C.UTF-8");
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains('░') && out.contains('┃') && !out.contains('\x1b'), "{out}");
    assert!(out.contains("130: 50 lost") && out.contains("130? refused"), "{out}");
    let (_, out, _) = said("C");
    assert!(out.is_ascii() && out.contains("# frozen"), "{out}");
}

#[test]
fn killed_holder_frees_the_lock_at_once_on_the_embedded_store() {
    let store = Store::new();
    let (result, _) =
        lab_shows(&store, &["lab", "crash", "--ttl=20s", "--rounds=2", "--json"], true);
    assert_eq!(result["sees_the_process_end"], true);
    for round in result["rounds"].as_array().unwrap() {
        let (free, left) = (round["free_after_ms"].as_f64(), round["lease_left_ms"].as_f64());
        assert!(free.unwrap() < left.unwrap(), "{round}");
        assert!(round["tokens"]["A"].as_u64() < round["tokens"]["B"].as_u64(), "{round}");
    }
}

#[test]
fn crash_lab_fails_if_the_holder_lives() {
    let store = Store::new();
    let arguments = ["lab", "crash", "--ttl=2s", "--rounds=1", "--no-kill", "--json"];
    let (result, err) = lab_shows(&store, &arguments, false);
    assert!(err.contains("does not wait") && err.contains("not free after"), "{err}");
    assert_eq!(result["rounds"][0]["tokens"]["B"], Value::Null, "{result}");
}

#[test]
fn job_runs_once_per_tick_with_and_without_the_lock() {
    let store = Store::new();
    let (result, _) =
        lab_shows(&store, &["lab", "nolock", "--copies=5", "--ticks=4", "--json"], true);
    for way in ["key", "lock"] {
        assert_eq!(result[way]["runs"], serde_json::json!([1, 1, 1, 1]), "{result}");
        assert_eq!(result[way]["claims"], serde_json::json!([1, 1, 1, 1]), "{result}");
    }
    assert_eq!(result["key"]["steps"], serde_json::json!([5, 5, 5, 5]));
}

#[test]
fn control_job_without_a_unique_key_runs_on_every_copy() {
    let store = Store::new();
    let arguments = ["lab", "nolock", "--copies=4", "--ticks=2", "--no-unique-key", "--json"];
    let (result, _) = lab_shows(&store, &arguments, false);
    assert_eq!(result["key"]["runs"], serde_json::json!([4, 4]), "{result}");
}

/// A check alone is not enough: the lock, and not the database, makes that half of the lab succeed.
#[test]
fn control_job_without_the_lock_runs_twice_in_some_tick() {
    let store = Store::new();
    let arguments = ["lab", "nolock", "--copies=12", "--ticks=30", "--no-lock", "--json"];
    let (_, err) = lab_shows(&store, &arguments, false);
    assert!(err.contains("by the lock the job runs once") && !err.contains("alone"), "{err}");
}

/// The lab reports the TTL that the store granted: etcd has a minimum of a second or two.
#[test]
fn lab_reports_the_ttl_that_the_store_grants() {
    let etcd = fencepost_testkit::Etcd::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", etcd.url());
    let crash = ["lab", "crash", "--ttl=200ms", "--rounds=1", &on];
    let (code, result, err) = lab(&store, &[&crash[..], &["--json"]].concat());
    assert_eq!((code, &result["ttl_asked_ms"]), (Some(0), &200.into()), "{result} {err}");
    let kept = result["ttl_ms"].as_u64().unwrap();
    assert!(kept >= 1000, "{result}");
    let (code, out, err) = store.run(&crash);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("(requested 200ms)"), "{out}");
    assert!(words(&out).contains("the lock is free when the lease has ended"), "{out}");
}

/// On a store with sessions, the lab says that the session counts, and not the lease.
#[test]
fn crash_lab_on_zookeeper_waits_for_the_session() {
    let zookeeper = fencepost_testkit::ZooKeeper::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", zookeeper.url());
    let (code, out, err) = store.run(&["lab", "crash", "--ttl=2s", "--rounds=1", &on]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(words(&out).contains("the lock is free when its session has timed out"), "{out}");
    assert!(out.contains("waits for the end of the lease, and of the session"), "{out}");
    let (code, out, err) = store.run(&["lab", "pause", "--ttl=2s", "--work=100ms", &on]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("A's lease ends, but not its session"), "{out}");
    assert!(
        words(&out).contains("after the end of A's lease. Here the lock is free when its"),
        "{out}"
    );
}

/// A server cannot detect the end of a process, so the lease decides there. The fence is needed as well.
#[test]
fn crash_lab_on_redis_waits_for_the_lease() {
    let redis = fencepost_testkit::Redis::builder().start().unwrap();
    let store = Store::new();
    let on = format!("--on={}", redis.url());
    let (code, result, err) = lab(&store, &[&QUICK[..], &[&on]].concat());
    assert_eq!((code, &result["store"]), (Some(0), &"redis".into()), "{result} {err}");
    let (result, _) =
        lab_shows(&store, &["lab", "crash", "--ttl=500ms", "--rounds=2", "--json", &on], true);
    assert_eq!(result["sees_the_process_end"], false);
    lab_shows(&store, &["lab", "nolock", "--copies=4", "--ticks=2", "--json", &on], true);
    let (_, left, _) = store.run(&["ls", "--json", &on]);
    assert!(left.contains(r#""locks":[]"#), "{left}");
}

#[test]
fn pause_lab_works_with_a_postgresql_resource() {
    let database = fencepost_testkit::Postgres::shared().unwrap().database().unwrap();
    let store = Store::new();
    let resource = format!("--resource={}", database.url());
    let (code, result, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, &result["resource"]), (Some(0), &"postgres".into()), "{result} {err}");
    let halves = &result["halves"];
    assert_eq!((&halves[0]["final"], &halves[1]["final"]), (&130.into(), &150.into()), "{result}");
    lab_shows(&store, &["lab", "nolock", "--copies=4", "--ticks=3", "--json", &resource], true);
    let tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencepost_lab%'";
    assert_eq!(database.psql(tables).unwrap().trim(), "0");
    // Neither marks nor records of resets are left.
    let marks =
        "SELECT (SELECT count(*) FROM fencepost.marks) + (SELECT count(*) FROM fencepost.resets)";
    assert_eq!(database.psql(marks).unwrap().trim(), "0");
    // An interrupted lab cleans up too.
    let pause = ["lab", "pause", "--ttl=1h", "--work=1h", "--fenced=both", &resource];
    let mut running = store.start(&pause);
    assert!(running.lines().any(|line| line.unwrap().contains("is frozen")), "it froze nobody");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");
    running.signal(Signal::INT);
    let (code, _, err) = running.end();
    assert_eq!(code, Some(130), "{err}");
    assert!(!err.contains("clean up"), "{err}");
    assert_eq!(database.psql(tables).unwrap().trim(), "0");
    assert_eq!(database.psql(marks).unwrap().trim(), "0");
    // The controls fail here too.
    let arguments = [&QUICK[..], &["--fenced=neither", &resource]].concat();
    assert_eq!(lab(&store, &arguments).0, Some(1));
    let arguments =
        ["lab", "nolock", "--copies=12", "--ticks=30", "--no-lock", "--json", &resource];
    let (code, result, err) = lab(&store, &arguments);
    assert_eq!(code, Some(1), "{result} {err}");
    assert!(err.contains("by the lock the job runs once") && !err.contains("alone"), "{err}");
}

/// If the fence is installed, a role that can enter can run the lab. Another role owns the fence.
#[test]
fn pause_lab_works_for_a_role_that_can_only_enter() {
    let database = fencepost_testkit::Postgres::shared().unwrap().database().unwrap();
    database.psql("CREATE ROLE lab_app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").unwrap();
    let store = Store::new();
    let resource = format!("--resource={}", database.url());
    let (code, _, err) = store.run(&["fence", "install", &resource]);
    assert_eq!(code, Some(0), "{err}");
    database
        .psql(
            "GRANT USAGE ON SCHEMA fencepost TO lab_app;
             GRANT EXECUTE ON FUNCTION fencepost.enter TO lab_app",
        )
        .unwrap();
    let resource = format!("--resource={}", database.url_as("lab_app"));

    // The error is about tables, not about the fence.
    for which in ["pause", "nolock"] {
        let (code, out, err) = store.run(&["lab", which, &resource]);
        assert_eq!(code, Some(78), "{out} {err}");
        assert!(err.contains("GRANT CREATE ON SCHEMA public") && !err.contains("enter"), "{err}");
        assert_eq!((err.trim().lines().count(), out.as_str()), (1, ""), "{err}");
    }

    database.psql("GRANT CREATE ON SCHEMA public TO lab_app").unwrap();
    let (code, result, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, &result["fence_installed"]), (Some(0), &Value::Bool(false)), "{err}");
    // Only admins can forget a mark, so the lab reports the one that is left.
    assert!(err.contains("fence reset fencepost-lab/pause/"), "{err}");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");

    database.psql("GRANT EXECUTE ON FUNCTION fencepost.reset TO lab_app").unwrap();
    let (code, result, err) = lab(&store, &[&QUICK[..], &[&resource]].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{result}");
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.marks").unwrap().trim(), "1");
    assert_eq!(
        database.psql("SELECT why FROM fencepost.resets").unwrap().trim(),
        "the lab is over"
    );
}

/// ^C, TERM and KILL end the lab and its workers, the frozen one too.
#[test]
fn interrupted_lab_leaves_no_processes_or_files() {
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
        (&["lab", "pause", "--resource", "sqlite:"], 64, "has no path"),
        (&["lab", "pause", "--resource", ""], 64, "the resource is empty: give sqlite:PATH"),
        (&["lab", "pause", "--resource", "bank.db"], 64, "has no scheme: give sqlite:PATH"),
        (&["lab", "pause", "--resource", "sqlite:/nowhere/x.db"], 69, "/nowhere/x.db cannot be"),
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
        let (got, out, err) = store.run(arguments);
        assert_eq!(got, Some(code), "{arguments:?}: {out} {err}");
        assert!(err.contains(words) && err.trim().lines().count() == 1, "{arguments:?}: {err}");
        assert!(!err.contains("secret"), "{err}");
        // A lab that does not start prints nothing.
        assert_eq!(out, "", "{arguments:?}");
    }
}
