//! `fencepost once`: one run per key, with many callers, and even if the runner dies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Read as _;
use std::process::Stdio;

use fencepost_testkit::command::{
    LIMIT, Running, Store, outcome_of, running_in_group, wait_for, wait_for_text,
};
use rustix::process::Signal;
use serde_json::Value;

/// Records its token and its group, and waits to be killed.
const SIT: &str = "echo $FENCEPOST_TOKEN >> tokens; echo $$ > group; exec sleep 1000";

fn log(store: &Store) -> String {
    std::fs::read_to_string(store.path("log")).unwrap_or_default()
}

fn wait_for_waiters(store: &Store, name: &str, count: usize) {
    let wanted = format!("\"waiting\":{count}");
    wait_for(&wanted, LIMIT, || store.run(&["show", "--json", name]).1.contains(&wanted));
}

fn state(store: &Store, key: &str) -> Value {
    let (code, out, err) = store.run(&["once", "show", "--json", key]);
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

/// Starts twelve at once. Each line in the log is a run. The first run waits until the others wait.
fn twelve(line: &[&str], lock: &str) -> (String, Vec<(Option<i32>, String, String)>) {
    let store = Store::new();
    let script = "echo ran >> log; until [ -e go ]; do sleep 0.01; done; echo 412 invoices";
    let line = [line, &["--", "sh", "-c", script]].concat();
    let all: Vec<Running> = (0..12).map(|_| store.start(&line)).collect();
    wait_for_waiters(&store, lock, 11);
    std::fs::write(store.path("go"), "").unwrap();
    let ended = all.into_iter().map(Running::end).collect();
    store.assert_empty();
    (log(&store), ended)
}

#[test]
fn one_of_twelve_runs_and_all_get_its_output() {
    let (log, ended) = twelve(&["once", "--keep-output", "billing"], "once/billing");
    assert_eq!(log, "ran\n");
    let mut late = 0;
    for (code, out, err) in ended {
        assert_eq!((code, out.as_str()), (Some(0), "412 invoices\n"), "{err}");
        late += usize::from(err.contains("\"billing\" is already done"));
    }
    assert_eq!(late, 11);
}

/// Control: with a lock alone all twelve run, one after the other.
#[test]
fn control_all_twelve_run_with_a_lock_alone() {
    let (log, _) = twelve(&["run", "billing"], "billing");
    assert_eq!(log, "ran\n".repeat(12));
}

#[test]
fn failed_command_is_retried_by_the_next_caller() {
    let store = Store::new();
    let script =
        "echo $FENCEPOST_KEY $FENCEPOST_NAME $FENCEPOST_TOKEN >> log; [ -e ready ] || exit 3";
    let once = || store.run(&["once", "k", "--", "sh", "-c", script]);
    assert_eq!(once().0, Some(3));
    let (code, out, err) = store.run(&["once", "show", "k"]);
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    std::fs::write(store.path("ready"), "").unwrap();
    assert_eq!(once().0, Some(0));
    assert_eq!(log(&store), "k once/k 1\nk once/k 2\n");
    let (code, _, err) = once();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("\"k\" is already done: ") && err.contains("(token 2)"), "{err}");
    assert_eq!(log(&store).lines().count(), 2);
    // A command that does not exist has not failed, because it has not run.
    assert_eq!(store.run(&["once", "--record-failure", "none", "--", "./none"]).0, Some(127));
    assert_eq!(store.run(&["once", "show", "none"]).0, Some(75));
    store.assert_empty();
}

#[test]
fn failure_can_be_recorded_and_forgotten() {
    let store = Store::new();
    let once = ["once", "--record-failure", "k", "--", "sh", "-c", "echo ran >> log; exit 42"];
    assert_eq!(store.run(&once).0, Some(42));
    let (code, out, err) = store.run(&once);
    assert_eq!((code, out.as_str()), (Some(42), ""), "{err}");
    assert!(err.contains("has failed before: exit code 42"), "{err}");
    assert_eq!(log(&store), "ran\n");
    assert_eq!(state(&store, "k")["state"], "failed");
    let (code, _, err) = store.run(&["once", "forget", "k"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("recorded as failed") && err.contains("--yes"), "{err}");
    assert_eq!(store.run(&["once", "forget", "--yes", "k"]).0, Some(0));
    let (code, _, err) = store.run(&["once", "forget", "--yes", "k"]);
    assert_eq!(code, Some(75), "{err}");
    assert_eq!(store.run(&once).0, Some(42));
    assert_eq!(log(&store), "ran\nran\n");
    store.assert_empty();
}

/// A command that was asked to end has not failed.
#[test]
fn signal_to_fencepost_is_not_recorded_as_a_failure() {
    let store = Store::new();
    let run = store.start(&["once", "--record-failure", "k", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    run.signal(Signal::TERM);
    assert_eq!(run.end().0, Some(143));
    assert_eq!(store.run(&["once", "show", "k"]).0, Some(75));
    store.assert_empty();
}

/// A command that exits with 0 after a signal may have left work undone.
#[test]
fn terminated_command_is_not_recorded_as_done() {
    let store = Store::new();
    let work = "trap 'exit 0' TERM; echo $$ >group; while :; do sleep 0.01; done";
    let run = store.start(&["once", "k", "--", "sh", "-c", work]);
    wait_for_text(&store.path("group"));
    run.signal(Signal::TERM);
    let (code, _, err) = run.end();
    assert_eq!(code, Some(75), "{err}");
    assert!(err.contains("not recorded as done"), "{err}");
    assert_eq!(store.run(&["once", "show", "k"]).0, Some(75));
    store.assert_empty();
}

#[test]
fn key_that_is_too_long_is_refused() {
    let store = Store::new();
    let (code, _, err) = store.run(&["once", "", "--", "true"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("0 bytes: give 1 to 507"), "{err}");
    let (code, _, err) = store.run(&["once", &"k".repeat(508), "--", "true"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("508 bytes: give 1 to 507"), "{err}");
    assert_eq!(store.run(&["once", &"k".repeat(507), "--", "true"]).0, Some(0));
}

/// Output above the limit is missing for later callers, which is reported.
#[test]
fn truncated_output_is_reported_each_time() {
    let store = Store::new();
    let line = ["once", "--keep-output", "k", "--", "head", "-c", "70000", "/dev/zero"];
    let (_, out, err) = store.run(&line);
    assert_eq!(out.len(), 70_000);
    assert!(err.contains("the first 65536 are recorded"), "{err}");
    let (_, out, err) = store.run(&line);
    assert_eq!(out.len(), 65_536);
    assert!(err.contains("may have printed more"), "{err}");
    assert_eq!(state(&store, "k")["truncated"], true);
}

#[test]
fn next_caller_takes_over_from_a_killed_runner() {
    let store = Store::new();
    let first = store.start(&["once", "--label", "first", "k", "--", "sh", "-c", SIT]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    for limit in [&["--no-wait"][..], &["--wait", "50ms"]] {
        let line = [&["once"], limit, &["k", "--", "echo", "never"]].concat();
        let (code, out, err) = store.run(&line);
        assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
        assert!(err.contains("held by first"), "{err}");
    }
    let (code, _, err) = store.run(&["once", "forget", "--yes", "k"]);
    assert_eq!(code, Some(75), "{err}");
    assert!(err.contains("held by first"), "{err}");
    assert_eq!(state(&store, "k")["live"], true);
    let second = store.start(&["once", "--label", "second", "k", "--", "echo", "taken over"]);
    wait_for_waiters(&store, "once/k", 1);
    first.signal(Signal::KILL);
    let (code, out, err) = second.end();
    assert_eq!((code, out.as_str()), (Some(0), "taken over\n"), "{err}");
    assert_eq!(running_in_group(group), Vec::<i32>::new());
    let record = state(&store, "k");
    assert_eq!(
        (&record["state"], &record["label"]),
        (&"done".into(), &"second".into()),
        "{record}"
    );
    store.assert_empty();
}

#[test]
fn run_that_lost_its_lock_does_not_change_the_record() {
    let store = Store::new();
    let run = store.start(&["once", "--ttl", "3s", "k", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    assert_eq!(store.run(&["break", "--yes", "once/k"]).0, Some(0));
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    let record = state(&store, "k");
    assert_eq!((&record["state"], &record["live"]), (&"running".into(), &false.into()), "{record}");
    assert!(store.run(&["once", "ls"]).1.contains("interrupted"));
    assert_eq!(store.run(&["once", "k", "--", "true"]).0, Some(0));
    assert_eq!(state(&store, "k")["state"], "done");
}

/// Its command exits with 0, but meanwhile another runner has done the work.
#[test]
fn overtaken_run_does_not_write_the_record() {
    let store = Store::new();
    let script = "echo > begun; until test -e end; do sleep 0.01; done";
    let run = store.start(&["once", "--ttl", "1h", "k", "--", "sh", "-c", script]);
    wait_for_text(&store.path("begun"));
    // Not `break`, which would notify it: it must not know that its grant is gone.
    let db = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    db.busy_timeout(LIMIT).unwrap();
    assert_eq!(db.execute("DELETE FROM fencepost_locks", []).unwrap(), 1);
    assert_eq!(store.run(&["once", "--label", "other", "k", "--", "true"]).0, Some(0));
    std::fs::write(store.path("end"), "").unwrap();
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("another runner has claimed \"k\""), "{err}");
    assert_eq!(state(&store, "k")["label"], "other");
}

#[test]
fn first_64_kib_of_the_output_are_kept() {
    let store = Store::new();
    let script = "head -c 100000 /dev/zero | tr '\\0' x";
    let (code, out, err) = store.run(&["once", "--keep-output", "k", "--", "sh", "-c", script]);
    assert_eq!((code, out.len()), (Some(0), 100_000), "{err}");
    assert!(err.contains("printed 100000 bytes: the first 65536 are recorded"), "{err}");
    let late = store.output(&["once", "k", "--", "echo", "never"]);
    assert_eq!(late.stdout, vec![b'x'; 65536]);
    // Bytes that are not text are recorded unchanged.
    let odd = ["once", "--keep-output", "odd", "--", "printf", r"\377\000\n"];
    assert_eq!(store.output(&odd).stdout, b"\xff\0\n");
    assert_eq!(store.output(&odd).stdout, b"\xff\0\n");
    // Without the option nothing is recorded, and the command has our stdout.
    assert_eq!(store.run(&["once", "plain", "--", "echo", "hello"]).1, "hello\n");
    assert_eq!(store.run(&["once", "plain", "--", "echo", "hello"]).1, "");
    let (code, out, _) =
        store.run(&["once", "--json", "k2", "--keep-output", "--", "echo", "hello"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello\n"));
    let late: Value =
        serde_json::from_str(&store.run(&["once", "--json", "k2", "--", "true"]).1).unwrap();
    assert_eq!((&late["state"], &late["result"]), (&"done".into(), &"hello\n".into()));
}

/// The run is recorded even if a process keeps the pipe open, or nobody reads stdout.
#[test]
fn stuck_readers_and_leftover_processes_do_not_delay_the_record() {
    let store = Store::new();
    let leaves = "setsid sh -c 'echo $$ > left; until [ -e stop ]; do sleep 0.01; done' 2> /dev/null & \
                  until [ -s left ]; do sleep 0.01; done; echo done";
    let (code, out, err) =
        store.run(&["once", "--keep-output", "leaves", "--", "sh", "-c", leaves]);
    std::fs::write(store.path("stop"), "").unwrap();
    assert_eq!((code, out.as_str()), (Some(0), "done\n"), "{err}");
    // A reader that goes away after the first line.
    let script = "echo first; until [ -e gone ]; do sleep 0.01; done; echo second";
    let mut command = store.fencepost(&["once", "--keep-output", "k", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    drop(stdout);
    std::fs::write(store.path("gone"), "").unwrap();
    let (code, _, err) = outcome_of(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(store.run(&["once", "k", "--", "true"]).1, "first\nsecond\n");
}

#[test]
fn key_named_like_a_subcommand_can_be_run() {
    let store = Store::new();
    assert_eq!(store.run(&["once", "--key", "ls", "--", "echo", "hi"]).1, "hi\n");
    assert_eq!(store.run(&["once", "help", "--", "echo", "hi"]).1, "hi\n");
    let (code, out, err) = store.run(&["once", "ls", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let records: Value = serde_json::from_str(&out).unwrap();
    let keys: Vec<_> =
        records["records"].as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["help", "ls"]);
    assert_eq!(store.run(&["once", "show", "ls"]).0, Some(0));
    for wrong in [
        &["once"][..],
        &["once", "k"],
        &["once", "k", "ls"],
        &["once", "--key", "k", "ls"],
        &["once", "k", "--key", "k", "--", "true"],
        &["once", "--retain-for", "0s", "k", "--", "true"],
        &["once", "--retain-for", "99999d", "k", "--", "true"],
        &["once", "", "--no-wait", "--wait", "1s", "--", "true"],
    ] {
        let (code, _, err) = store.run(wrong);
        assert_eq!((code, err.lines().count()), (Some(64), 1), "{wrong:?}: {err}");
    }
    let (code, _, err) = store.run(&["once", "--on", "memory:", "k", "--", "true"]);
    assert_eq!(code, Some(78), "{err}");
}
