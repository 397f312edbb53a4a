//! What the command says, as transcripts in `tests/cmd`: a reviewer reads them, and a changed word shows.
//! `TRYCMD=overwrite cargo test -p fencepost-cli --test transcripts` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

/// A database to be protected; an empty file is one.
fn resource(directory: &std::path::Path) -> String {
    let path = directory.join("shop.db");
    std::fs::write(&path, "").unwrap();
    format!("sqlite:{}", path.display())
}

fn run(cases: &str) {
    let state = fencepost_testbed::directory_on_disk().unwrap();
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
fn help_teaches() {
    run("tests/cmd/help*.trycmd");
}

// Each file on a store of its own, so that its last `ls` shows that nothing was left behind.
#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    run("tests/cmd/bad-input.trycmd");
}

#[test]
fn looking_at_an_empty_store() {
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
