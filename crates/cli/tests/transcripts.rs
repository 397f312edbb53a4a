//! The output of the command, as transcripts in `tests/cmd`, so that a review shows each changed word.
//! `TRYCMD=overwrite cargo test -p fencepost-cli --test transcripts` rewrites them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

/// A SQLite database to protect: an empty file.
fn resource(directory: &std::path::Path) -> String {
    let path = directory.join("shop.db");
    std::fs::write(&path, "").unwrap();
    format!("sqlite:{}", path.display())
}

fn run(cases: &str) {
    let state = fencepost_testkit::directory_on_disk().unwrap();
    let store = format!("sqlite:{}", state.path().join("fencepost/locks.db").display());
    // So that a transcript can nest `fencepost` in `fencepost run`.
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    trycmd::TestCases::new()
        .env("XDG_STATE_HOME", state.path().to_str().unwrap())
        .env("FENCEPOST_URL", store.clone())
        .env("FENCEPOST_RESOURCE", resource(state.path()))
        .env("PATH", path)
        .insert_var("[STORE]", store)
        .unwrap()
        .case(cases)
        .run();
}

#[test]
fn help_texts() {
    run("tests/cmd/help*.trycmd");
}

// Each file has a store of its own, and its last `ls` shows that nothing was left behind.
#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    run("tests/cmd/bad-input.trycmd");
}

#[test]
fn inspecting_an_empty_store() {
    run("tests/cmd/looking.trycmd");
}

#[test]
fn running_a_command() {
    run("tests/cmd/running.trycmd");
}

#[test]
fn fencing_a_database() {
    run("tests/cmd/fencing.trycmd");
}

#[test]
fn running_once_per_key() {
    run("tests/cmd/once.trycmd");
}

#[test]
fn electing_a_leader() {
    run("tests/cmd/electing.trycmd");
}

#[test]
fn advising() {
    run("tests/cmd/advise.trycmd");
}

#[test]
fn wrong_urls_are_reported_without_their_password() {
    run("tests/cmd/urls.trycmd");
}

#[test]
fn store_that_cannot_be_used_is_one_line() {
    run("tests/cmd/failing.trycmd");
}

#[test]
fn lost_lock_is_reported() {
    run("tests/cmd/losing.trycmd");
}

#[test]
fn json_is_what_programs_read() {
    run("tests/cmd/json.trycmd");
}

/// The paths in a JSON value, with the type of what is there.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                shape(value, &format!("{path}.{name}"), into);
            }
            return;
        }
        Value::Array(items) => {
            for item in items {
                shape(item, &format!("{path}[]"), into);
            }
            return;
        }
        Value::String(_) => "text",
        Value::Number(_) => "number",
        Value::Bool(_) => "true or false",
        Value::Null => "null",
    };
    into.insert(format!("{path}: {kind}"));
}

/// The result of a lab differs from run to run, but its fields do not.
#[test]
fn lab_results_have_a_fixed_shape() {
    let mut actual = String::new();
    for line in [
        "pause --ttl 300ms --work 200ms",
        "crash --ttl 300ms --rounds 1",
        "nolock --ticks 3 --copies 3",
    ] {
        let mut lab = std::process::Command::new(env!("CARGO_BIN_EXE_fencepost"));
        let output = lab.args(["lab", "--json"]).args(line.split(' ')).output().unwrap();
        let account: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut paths = BTreeSet::new();
        shape(&account, "", &mut paths);
        // It depends on the scheduler whether A's guard was lost while A ran.
        paths.remove(".halves[].events[].cause: text");
        writeln!(actual, "lab {line}").unwrap();
        for path in paths {
            writeln!(actual, "  {path}").unwrap();
        }
    }
    let golden = std::path::Path::new("tests/cmd/lab-json.txt");
    if std::env::var("TRYCMD").is_ok_and(|to| to == "overwrite") {
        std::fs::write(golden, &actual).unwrap();
    }
    assert_eq!(actual, std::fs::read_to_string(golden).unwrap(), "{}", golden.display());
}
