//! `fencepost elect`: one candidate leads, its command runs meanwhile, and the next one leads after the command has ended.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::BufRead as _;

use fencepost_testkit::command::{
    LIMIT, Running, Store, running_in_group, wait_for, wait_for_text,
};
use rustix::process::Signal;
use serde_json::Value;

/// Records its term and its group, and waits to be killed.
fn sit(who: &str) -> String {
    format!("echo $FENCEPOST_TOKEN >> {who}.terms; echo $$ > {who}.group; exec sleep 1000")
}

/// A candidate whose command waits to be ended.
fn candidate(store: &Store, who: &str, ttl: &str) -> Running {
    let value = format!("{who}:80");
    let sit = sit(who);
    let line =
        ["elect", "web", "--label", who, "--value", &value, "--ttl", ttl, "--", "sh", "-c", &sit];
    store.start(&line)
}

/// The terms in which it has led so far, when there are this many.
fn terms(store: &Store, who: &str, count: usize) -> Vec<u64> {
    let mut terms = Vec::new();
    wait_for(&format!("{count} terms of {who}"), LIMIT, || {
        let text = std::fs::read_to_string(store.path(&format!("{who}.terms"))).unwrap_or_default();
        terms = text.lines().filter_map(|line| line.parse().ok()).collect();
        terms.len() >= count && text.ends_with('\n')
    });
    terms
}

fn group(store: &Store, who: &str) -> i32 {
    wait_for_text(&store.path(&format!("{who}.group"))).parse().unwrap()
}

fn wait_for_waiters(store: &Store, name: &str, count: usize) {
    let wanted = format!("\"waiting\":{count}");
    wait_for(&wanted, LIMIT, || store.run(&["show", "--json", name]).1.contains(&wanted));
}

#[test]
fn command_runs_while_leading_and_its_exit_code_is_passed_on() {
    let store = Store::new();
    let script = format!(
        "echo $FENCEPOST_NAME $FENCEPOST_TOKEN; {} leader web; exit 7",
        env!("CARGO_BIN_EXE_fencepost")
    );
    let (code, out, err) =
        store.run(&["elect", "web", "--value", "10.0.0.7:80", "--", "sh", "-c", &script]);
    assert_eq!((code, out.as_str()), (Some(7), "web 1\n10.0.0.7:80\n"), "{err}");
    assert_eq!(err, "fencepost: \"web\": leading in term 1\n");
    store.assert_empty();
    // Without --value it is the label.
    let (_, out, _) = store.run(&[
        "elect",
        "web",
        "--label",
        "me",
        "--",
        env!("CARGO_BIN_EXE_fencepost"),
        "leader",
        "--json",
        "web",
    ]);
    assert!(out.contains(r#""term":2,"value":"me"}"#), "{out}");
    // A command that cannot be started ends the term at once.
    let (code, _, err) = store.run(&["elect", "web", "--", "./no-such-thing"]);
    assert_eq!(code, Some(127), "{err}");
    store.assert_empty();
}

#[test]
fn leader_prints_the_value_or_exits_75() {
    let store = Store::new();
    let (code, out, err) = store.run(&["leader", "web"]);
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    assert!(err.contains("nobody leads \"web\""), "{err}");
    let (code, out, err) = store.run(&[
        "run",
        "--label",
        "me",
        "web",
        "--",
        env!("CARGO_BIN_EXE_fencepost"),
        "leader",
        "web",
    ]);
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    assert!(err.contains("me holds \"web\" as a plain lock"), "{err}");
    for wrong in [
        &["elect", "web"][..],
        &["elect", "web", "--observe", "--", "true"],
        &["elect", "web", "--observe", "--value", "x"],
        &["elect", "web", "--count", "1", "--", "true"],
        &["elect", "web", "--value", &"x".repeat(5000), "--", "true"],
    ] {
        let (code, _, err) = store.run(wrong);
        assert_eq!((code, err.lines().count()), (Some(64), 1), "{err}");
    }
    let (code, _, err) = store.run(&["elect", "--on", "memory:", "web", "--", "true"]);
    assert_eq!(code, Some(78), "{err}");
    store.assert_empty();
}

#[test]
fn next_candidate_follows_a_killed_leader() {
    let store = Store::new();
    let first = candidate(&store, "a", "30s");
    let (term, led_by) = (terms(&store, "a", 1)[0], group(&store, "a"));
    let second = candidate(&store, "b", "30s");
    wait_for_waiters(&store, "web", 1);
    assert_eq!(store.run(&["leader", "web"]).1, "a:80\n");
    first.signal(Signal::KILL);
    assert!(terms(&store, "b", 1)[0] > term);
    assert_eq!(running_in_group(led_by), Vec::<i32>::new());
    assert_eq!(store.run(&["leader", "web"]).1, "b:80\n");
    second.signal(Signal::TERM);
    assert_eq!(second.end().0, Some(143));
    store.assert_empty();
}

#[test]
fn frozen_leader_loses_its_command_and_campaigns_again() {
    let store = Store::new();
    let first = candidate(&store, "a", "2s");
    let led_by = group(&store, "a");
    let second = candidate(&store, "b", "1m");
    wait_for_waiters(&store, "web", 1);
    first.signal(Signal::STOP);
    let next = terms(&store, "b", 1)[0];
    // On a busy machine the first candidate may have been replaced once before.
    let before = *terms(&store, "a", 1).last().unwrap();
    assert!(next > before, "{next} after {before}");
    assert_eq!(running_in_group(led_by), Vec::<i32>::new());
    first.signal(Signal::CONT);
    wait_for_waiters(&store, "web", 1);
    assert!(!first.has_ended());
    let led = terms(&store, "a", 1).len();
    second.signal(Signal::TERM);
    assert_eq!(second.end().0, Some(143));
    let again = *terms(&store, "a", led + 1).last().unwrap();
    assert!(again > next, "{again} after {next}");
    first.signal(Signal::TERM);
    let (code, _, err) = first.end();
    assert_eq!(code, Some(143), "{err}");
    for said in ["leading in term", "no longer leading: lock \"web\" was lost", "campaigning again"]
    {
        assert!(err.contains(said), "{said:?} is missing:\n{err}");
    }
    store.assert_empty();
}

/// The story of client-go#728: a leader that was asked to end released its lease first and continued to work. Here all
/// write to one log, and the order of the lines counts.
fn order_of_events(leader: &str, meanwhile: impl FnOnce(&Store)) -> String {
    let store = Store::new();
    let first = store.start(&["elect", "x", "--label", "first", "--", "sh", "-c", leader]);
    wait_for_text(&store.path("up"));
    let next = "echo next >> log; exec sleep 1000";
    let second = store.start(&["elect", "x", "--", "sh", "-c", next]);
    wait_for_waiters(&store, "x", 1);
    first.signal(Signal::TERM);
    wait_for("the drain", LIMIT, || log(&store).contains("draining"));
    meanwhile(&store);
    std::fs::write(store.path("go"), "").unwrap();
    wait_for("both", LIMIT, || log(&store).contains("next") && log(&store).contains("drained"));
    assert_eq!(first.end().0, Some(0));
    second.signal(Signal::TERM);
    second.end();
    log(&store)
}

fn log(store: &Store) -> String {
    std::fs::read_to_string(store.path("log")).unwrap_or_default()
}

#[test]
fn next_candidate_leads_after_the_terminated_leader_has_drained() {
    let drain = "trap 'echo draining >> log; until [ -e go ]; do sleep 0.01; done; echo drained >> log; exit 0' TERM; \
                 echo > up; while :; do sleep 0.01; done";
    let order = order_of_events(drain, |store| {
        // Enough time for the other candidate, if it could lead.
        for _ in 0..20 {
            assert_eq!(store.holder("x").as_deref(), Some("first"));
        }
    });
    assert_eq!(order, "draining\ndrained\nnext\n");
}

/// Control: work that left the command's group is drained only after the next candidate leads.
#[test]
fn resign_does_not_wait_for_a_process_that_left_the_group() {
    let leaves = "trap 'setsid sh -c \"until [ -e go ]; do sleep 0.01; done; echo drained >> log\" 2> /dev/null & \
                  echo draining >> log; exit 0' TERM; echo > up; while :; do sleep 0.01; done";
    let order = order_of_events(leaves, |store| {
        wait_for("the next one", LIMIT, || log(store).contains("next"));
    });
    assert_eq!(order, "draining\nnext\ndrained\n");
}

#[test]
fn term_that_reaches_max_hold_is_followed_by_another() {
    let store = Store::new();
    let sit = sit("a");
    let line =
        ["--json", "elect", "web", "--label", "a", "--max-hold", "1s", "--", "sh", "-c", &sit];
    let leader = store.start(&line);
    let led = terms(&store, "a", 2);
    assert!(led[1] > led[0], "{led:?}");
    leader.signal(Signal::TERM);
    let (_, out, err) = leader.end();
    assert_eq!(out, "", "stdout is the command's");
    let mut events: Vec<Value> =
        err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The near miss of --max-hold is reported too.
    assert_eq!(events[1]["event"], "near_miss", "{err}");
    events.retain(|event| event["event"] != "near_miss");
    let named: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(named[..4], ["leading", "lost", "campaigning", "leading"], "{err}");
    assert_eq!(events[0]["term"], led[0]);
    assert!(events[1]["why"].as_str().unwrap().contains("--max-hold"), "{err}");
    assert_eq!(events[3]["term"], led[1]);
    store.assert_empty();
}

#[test]
fn observer_sees_terms_in_order_and_always_the_last() {
    let store = Store::new();
    let mut watcher = store.start(&["elect", "web", "--observe"]);
    let mut lines = watcher.lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "nobody leads");
    for term in 1..=2 {
        let leader = candidate(&store, "a", "1m");
        assert_eq!(next(), format!("term {term}  a:80  a"));
        leader.signal(Signal::TERM);
        leader.end();
        assert_eq!(next(), "nobody leads");
    }
    watcher.signal(Signal::TERM);
    assert_eq!(watcher.ended_by(), Some(Signal::TERM.as_raw()));
    let output = store.output(&["elect", "web", "--observe", "--count", "1", "--json"]);
    let line = output.stdout.lines().next().unwrap().unwrap();
    let url = store.url();
    let expected =
        format!(r#"{{"label":null,"name":"web","store":"{url}","term":null,"value":null}}"#);
    assert_eq!(line, expected);
    store.assert_empty();
}

/// The server is down for longer than the lease: the command is ended in time. It runs again, in a higher term, when the
/// server is back.
#[test]
fn candidate_leads_again_when_the_store_is_back() {
    let server = fencepost_testkit::Redis::builder().start().unwrap();
    let (store, url, sit) = (Store::new(), server.url(), sit("a"));
    let leader =
        store.start(&["--on", &url, "elect", "web", "--ttl", "3s", "--", "sh", "-c", &sit]);
    let (term, led_by) = (terms(&store, "a", 1)[0], group(&store, "a"));
    server.kill().unwrap();
    wait_for("the command's end", LIMIT, || running_in_group(led_by).is_empty());
    server.start_again().unwrap();
    assert!(terms(&store, "a", 2)[1] > term);
    leader.signal(Signal::TERM);
    let (code, _, err) = leader.end();
    assert_eq!(code, Some(143), "{err}");
    for said in
        ["it could not be renewed: no connection to", "no longer leading", "campaigning again"]
    {
        assert!(err.contains(said), "{said:?} is missing:\n{err}");
    }
}
