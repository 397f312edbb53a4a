//! `fencepost once`: one run per key, whoever comes, and whatever becomes of the runner.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::io::Read as _;
use std::process::Stdio;

use fencepost_testkit::command::{
    LIMIT, Running, Store, heard, running_in_group, wait_for, wait_for_text,
};
use rustix::process::Signal;
use serde_json::Value;

/// Says that it runs, and in which group, and waits to be ended.
const SIT: &str = "echo $FENCEPOST_TOKEN >> tokens; echo $$ > group; exec sleep 1000";

fn log(store: &Store) -> String {
    std::fs::read_to_string(store.path("log")).unwrap_or_default()
}

fn wait_for_waiters(store: &Store, name: &str, count: usize) {
    let wanted = format!("\"waiting\":{count}");
    wait_for(&wanted, LIMIT, || store.say(&["show", "--json", name]).1.contains(&wanted));
}

fn state(store: &Store, key: &str) -> Value {
    let (code, out, err) = store.say(&["once", "show", "--json", key]);
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

/// Twelve at once; each line in the log is a run. The first one to run waits until the others are there.
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
fn of_twelve_one_runs_and_all_succeed_with_its_output() {
    let (log, ended) = twelve(&["once", "--keep-output", "billing"], "once/billing");
    assert_eq!(log, "ran\n");
    let mut late = 0;
    for (code, out, err) in ended {
        assert_eq!((code, out.as_str()), (Some(0), "412 invoices\n"), "{err}");
        late += usize::from(err.contains("\"billing\" is done already"));
    }
    assert_eq!(late, 11);
}

/// The check above can fail: with a lock alone all twelve run, one after the other.
#[test]
fn with_a_lock_alone_twelve_run() {
    let (log, _) = twelve(&["run", "billing"], "billing");
    assert_eq!(log, "ran\n".repeat(12));
}

#[test]
fn a_command_that_fails_is_tried_again_by_the_next() {
    let store = Store::new();
    let script =
        "echo $FENCEPOST_KEY $FENCEPOST_NAME $FENCEPOST_TOKEN >> log; [ -e ready ] || exit 3";
    let once = || store.say(&["once", "k", "--", "sh", "-c", script]);
    assert_eq!(once().0, Some(3));
    let (code, out, err) = store.say(&["once", "show", "k"]);
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    std::fs::write(store.path("ready"), "").unwrap();
    assert_eq!(once().0, Some(0));
    assert_eq!(log(&store), "k once/k 1\nk once/k 2\n");
    let (code, _, err) = once();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("\"k\" is done already: ") && err.contains("(token 2)"), "{err}");
    assert_eq!(log(&store).lines().count(), 2);
    // A command that is not there has not failed: it has not run.
    assert_eq!(store.say(&["once", "--record-failure", "none", "--", "./none"]).0, Some(127));
    assert_eq!(store.say(&["once", "show", "none"]).0, Some(75));
    store.assert_empty();
}

#[test]
fn a_failure_can_be_recorded_and_forgotten() {
    let store = Store::new();
    let once = ["once", "--record-failure", "k", "--", "sh", "-c", "echo ran >> log; exit 42"];
    assert_eq!(store.say(&once).0, Some(42));
    let (code, out, err) = store.say(&once);
    assert_eq!((code, out.as_str()), (Some(42), ""), "{err}");
    assert!(err.contains("has failed before: exit code 42"), "{err}");
    assert_eq!(log(&store), "ran\n");
    assert_eq!(state(&store, "k")["state"], "failed");
    let (code, _, err) = store.say(&["once", "forget", "k"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("recorded as failed") && err.contains("--yes"), "{err}");
    assert_eq!(store.say(&["once", "forget", "--yes", "k"]).0, Some(0));
    let (code, _, err) = store.say(&["once", "forget", "--yes", "k"]);
    assert_eq!(code, Some(75), "{err}");
    assert_eq!(store.say(&once).0, Some(42));
    assert_eq!(log(&store), "ran\nran\n");
    store.assert_empty();
}

/// Who is told to end has not failed.
#[test]
fn a_signal_to_us_is_no_failure_of_the_work() {
    let store = Store::new();
    let run = store.start(&["once", "--record-failure", "k", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    run.signal(Signal::TERM);
    assert_eq!(run.end().0, Some(143));
    assert_eq!(store.say(&["once", "show", "k"]).0, Some(75));
    store.assert_empty();
}

/// Who ends well because it is told to end may have left the rest for later.
#[test]
fn work_that_was_told_to_end_is_not_done() {
    let store = Store::new();
    let work = "trap 'exit 0' TERM; echo $$ >group; while :; do sleep 0.01; done";
    let run = store.start(&["once", "k", "--", "sh", "-c", work]);
    wait_for_text(&store.path("group"));
    run.signal(Signal::TERM);
    let (code, _, err) = run.end();
    assert_eq!(code, Some(75), "{err}");
    assert!(err.contains("not recorded as done"), "{err}");
    assert_eq!(store.say(&["once", "show", "k"]).0, Some(75));
    store.assert_empty();
}

#[test]
fn keys_have_a_length() {
    let store = Store::new();
    let (code, _, err) = store.say(&["once", "", "--", "true"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("0 bytes: give 1 to 507"), "{err}");
    let (code, _, err) = store.say(&["once", &"k".repeat(508), "--", "true"]);
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("508 bytes: give 1 to 507"), "{err}");
    assert_eq!(store.say(&["once", &"k".repeat(507), "--", "true"]).0, Some(0));
}

/// What is over the limit is not there for those who come later, and they are told.
#[test]
fn output_that_was_cut_is_told_each_time() {
    let store = Store::new();
    let line = ["once", "--keep-output", "k", "--", "head", "-c", "70000", "/dev/zero"];
    let (_, out, err) = store.say(&line);
    assert_eq!(out.len(), 70_000);
    assert!(err.contains("the first 65536 are kept"), "{err}");
    let (_, out, err) = store.say(&line);
    assert_eq!(out.len(), 65_536);
    assert!(err.contains("there may have been more"), "{err}");
    assert_eq!(state(&store, "k")["cut"], true);
}

#[test]
fn a_killed_runner_is_taken_over() {
    let store = Store::new();
    let first = store.start(&["once", "--label", "first", "k", "--", "sh", "-c", SIT]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    for limit in [&["--no-wait"][..], &["--wait", "50ms"]] {
        let line = [&["once"], limit, &["k", "--", "echo", "never"]].concat();
        let (code, out, err) = store.say(&line);
        assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
        assert!(err.contains("held by first"), "{err}");
    }
    let (code, _, err) = store.say(&["once", "forget", "--yes", "k"]);
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
fn a_run_that_lost_its_lock_leaves_the_record_alone() {
    let store = Store::new();
    let run = store.start(&["once", "--ttl", "3s", "k", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    assert_eq!(store.say(&["break", "--yes", "once/k"]).0, Some(0));
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    let record = state(&store, "k");
    assert_eq!((&record["state"], &record["live"]), (&"running".into(), &false.into()), "{record}");
    assert!(store.say(&["once", "ls"]).1.contains("interrupted"));
    assert_eq!(store.say(&["once", "k", "--", "true"]).0, Some(0));
    assert_eq!(state(&store, "k")["state"], "done");
}

/// Its command ends well, but meanwhile somebody else has done the work.
#[test]
fn a_run_that_was_overtaken_does_not_mark() {
    let store = Store::new();
    let script = "echo > begun; until test -e end; do sleep 0.01; done";
    let run = store.start(&["once", "--ttl", "1h", "k", "--", "sh", "-c", script]);
    wait_for_text(&store.path("begun"));
    // Not a break, of which it would be notified: it does not know that its grant is gone.
    let db = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    db.busy_timeout(LIMIT).unwrap();
    assert_eq!(db.execute("DELETE FROM locks", []).unwrap(), 1);
    assert_eq!(store.say(&["once", "--label", "other", "k", "--", "true"]).0, Some(0));
    std::fs::write(store.path("end"), "").unwrap();
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("somebody else has claimed \"k\""), "{err}");
    assert_eq!(state(&store, "k")["label"], "other");
}

#[test]
fn what_is_kept_of_the_output() {
    let store = Store::new();
    let script = "head -c 100000 /dev/zero | tr '\\0' x";
    let (code, out, err) = store.say(&["once", "--keep-output", "k", "--", "sh", "-c", script]);
    assert_eq!((code, out.len()), (Some(0), 100_000), "{err}");
    assert!(err.contains("printed 100000 bytes: the first 65536 are kept"), "{err}");
    let late = store.output(&["once", "k", "--", "echo", "never"]);
    assert_eq!(late.stdout, vec![b'x'; 65536]);
    // Bytes that are no text come back as they were.
    let odd = ["once", "--keep-output", "odd", "--", "printf", r"\377\000\n"];
    assert_eq!(store.output(&odd).stdout, b"\xff\0\n");
    assert_eq!(store.output(&odd).stdout, b"\xff\0\n");
    // Without the option nothing is kept, and nothing stands between the command and stdout.
    assert_eq!(store.say(&["once", "plain", "--", "echo", "hello"]).1, "hello\n");
    assert_eq!(store.say(&["once", "plain", "--", "echo", "hello"]).1, "");
    let (code, out, _) =
        store.say(&["once", "--json", "k2", "--keep-output", "--", "echo", "hello"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello\n"));
    let late: Value =
        serde_json::from_str(&store.say(&["once", "--json", "k2", "--", "true"]).1).unwrap();
    assert_eq!((&late["state"], &late["result"]), (&"done".into(), &"hello\n".into()));
}

/// Whatever holds the pipe open, or does not read, the work is done and recorded.
#[test]
fn readers_and_leftovers_do_not_hold_up_the_record() {
    let store = Store::new();
    let leaves = "setsid sh -c 'echo $$ > left; until [ -e stop ]; do sleep 0.01; done' 2> /dev/null & \
                  until [ -s left ]; do sleep 0.01; done; echo done";
    let (code, out, err) =
        store.say(&["once", "--keep-output", "leaves", "--", "sh", "-c", leaves]);
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
    let (code, _, err) = heard(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(store.say(&["once", "k", "--", "true"]).1, "first\nsecond\n");
}

#[test]
fn keys_and_records_have_names_of_their_own() {
    let store = Store::new();
    assert_eq!(store.say(&["once", "--key", "ls", "--", "echo", "hi"]).1, "hi\n");
    assert_eq!(store.say(&["once", "help", "--", "echo", "hi"]).1, "hi\n");
    let (code, out, err) = store.say(&["once", "ls", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let records: Value = serde_json::from_str(&out).unwrap();
    let keys: Vec<_> =
        records["records"].as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["help", "ls"]);
    assert_eq!(store.say(&["once", "show", "ls"]).0, Some(0));
    for wrong in [
        &["once"][..],
        &["once", "k"],
        &["once", "k", "ls"],
        &["once", "--key", "k", "ls"],
        &["once", "k", "--key", "k", "--", "true"],
        &["once", "--keep", "0s", "k", "--", "true"],
        &["once", "--keep", "99999d", "k", "--", "true"],
        &["once", "", "--no-wait", "--wait", "1s", "--", "true"],
    ] {
        let (code, _, err) = store.say(wrong);
        assert_eq!((code, err.lines().count()), (Some(64), 1), "{wrong:?}: {err}");
    }
    let (code, _, err) = store.say(&["once", "--on", "memory:", "k", "--", "true"]);
    assert_eq!(code, Some(78), "{err}");
}
