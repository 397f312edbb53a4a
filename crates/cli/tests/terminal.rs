//! On a terminal: the command is its foreground group, ^C and ^Z reach it, and a wait shows for whom.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::process::Command;

use fencepost_testkit::command::{LIMIT, Store, heard, wait_for};

/// Types and looks as `typist.py` is told. Without python3 there is nobody to type: that is said, not hidden.
fn at_a_terminal(store: &Store, steps: &[&str]) {
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("python3");
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/typist.py"))
        .args(steps)
        .env("PATH", path)
        .env("FENCEPOST_URL", store.url())
        .env("TERM", "dumb")
        .current_dir(store.dir.path());
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIPPED: no python3 to open a terminal with");
        }
        output => {
            let (code, _, err) = heard(&output.unwrap());
            assert_eq!(code, Some(0), "{err}");
            // What the last command printed came before its lock was released.
            wait_for("an empty store", LIMIT, || {
                store.say(&["ls", "--json"]).1.contains(r#""locks":[]"#)
            });
        }
    }
}

#[test]
fn the_command_is_the_foreground_group_and_reads_the_terminal() {
    let script = r#"type:fencepost run x -- sh -c 'ps -o pgid=,tpgid= -p $$; tty; read line; echo "<$line>"'\n"#;
    at_a_terminal(
        &Store::new(),
        &[
            script,
            // Its group, and the terminal's, are the same number.
            r"see:\n *(\d+) +\1\s",
            r"see:/dev/pts/\d+",
            r"type:words\n",
            "see:<words>",
            // And the shell has it back.
            r"type:echo back $?\n",
            "see:back 0",
        ],
    );
}

#[test]
fn control_c_ends_the_command_and_its_code_is_passed_on() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'echo u''p; exec sleep 1000'\n",
            "see:up",
            r"type:\x03",
            r"see:\$ ",
            r"type:echo code $?\n",
            "see:code 130",
        ],
    );
}

#[test]
fn control_z_gives_the_shell_its_prompt_and_fg_goes_on() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'echo u''p; read line; echo go''t $line; exit 3'\n",
            "see:up",
            r"type:\x1a",
            "see:stopped; lock \"x\" is lost and the command killed in [0-9.]+m?s",
            "see:Stopped",
            r"type:jobs; echo prompt''ed\n",
            "see:prompted",
            r"type:fg\n",
            "see:fencepost run",
            r"type:words\n",
            "see:got words",
            r"type:echo code $?\n",
            "see:code 3",
        ],
    );
}

#[test]
fn a_command_left_stopped_is_killed_when_the_lease_ends() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run --ttl 1s x -- sh -c 'echo u''p; exec sleep 1000'\n",
            "see:up",
            r"type:\x1a",
            "see:Stopped",
            r"type:fencepost run y -- echo the shell work''s\n",
            "see:works",
            // Granted only when the lease of the stopped one has ended.
            r"type:fencepost run x -- echo nex''t\n",
            "see:next",
            r"type:fg\n",
            "see:lock \"x\" was lost",
            r"type:echo code $?\n",
            "see:code 76",
        ],
    );
}

#[test]
fn a_background_job_that_wants_the_terminal_stops_as_any_job() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'read line; echo go''t $line' &\n",
            "see:stopped; lock",
            // It says so just before it stops.
            r"type:until jobs | grep Stopped; do sleep 0.05; done\n",
            r"see:\[1\]\+ +Stopped",
            r"type:fg\n",
            "see:fencepost run",
            r"type:words\n",
            "see:got words",
        ],
    );
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'read line; echo go''t $line' | cat\n",
            r"type:words\n",
            "see:got words",
            r"type:echo prompt''ed\n",
            "see:prompted",
        ],
    );
}

#[test]
fn a_wait_shows_who_holds_the_lock() {
    let store = Store::new();
    let holder = store.start(&["run", "--label", "me", "x", "--", "sleep", "1000"]);
    wait_for("the holder", LIMIT, || store.holder("x").is_some());
    let leave = format!("type:kill {}\\n", holder.id());
    at_a_terminal(
        &store,
        &[
            r"type:fencepost run x -- echo min''e &\n",
            "see:waiting for \"x\": held by me for [0-9.]+m?s, lease [0-9.]+s left; 0 ahead of",
            // It is kept up to date.
            "see:waiting for \"x\": held by me for [0-9.]+s",
            &leave,
            "see:mine",
        ],
    );
}

#[test]
fn break_asks_first() {
    let store = Store::new();
    let holder = store.start(&["run", "--label", "me", "x", "--", "sleep", "1000"]);
    wait_for("the holder", LIMIT, || store.holder("x").is_some());
    at_a_terminal(
        &store,
        &[
            r"type:fencepost break x\n",
            r"see:held by me \(token 1\).*Break it\? \[y/N\]",
            r"type:n\n",
            "see:was not broken",
            r"type:fencepost break x\n",
            r"see:Break it\? \[y/N\]",
            r"type:y\n",
            r"see:me held it with token 1; no later token is below 2",
        ],
    );
    assert_eq!(holder.end().0, Some(76));
}

#[test]
fn lowering_a_mark_asks_first() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:export FENCEPOST_RESOURCE=file:report; fencepost fence enter k --token 34\n",
            "see:lower ones are refused now",
            // A raised mark lets nobody in.
            r"type:fencepost fence reset k --to 35 --why te''st\n",
            "see:is 35 now; it was 34",
            r"type:fencepost fence reset k --to 3 --why te''st\n",
            r"see:is 35 \(.*with 3 it lets in tokens from 3 on. Lower it\? \[y/N\] ",
            r"type:n\n",
            "see:was not reset: you said no",
            r"type:fencepost fence reset k --forget --why te''st\n",
            r"see:any token may enter. Forget it\? \[y/N\] ",
            r"type:y\n",
            "see:is forgotten; it was 35",
        ],
    );
}

#[test]
fn advice_is_given_after_a_few_questions() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost advise\n",
            "see:What does it protect",
            r"type:nothing\n",
            "see:1-7: ",
            r"type:2\n",
            "see:What does it cost",
            r"type:2\n",
            "see:What can the resource check",
            r"type:3\n",
            "see:Where do those run",
            r"type:1\n",
            "see:nightly-billing: a job",
            "see:fencepost once",
            r"type:echo back $?\n",
            "see:back 0",
        ],
    );
}

#[test]
fn control_c_ends_a_leader_and_nobody_campaigns_again() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost elect x -- sh -c 'echo u''p; exec sleep 1000'\n",
            "see:up",
            r"type:\x03",
            r"see:\$ ",
            r"type:echo back $?\n",
            "see:back 130",
        ],
    );
}

#[test]
fn a_record_is_forgotten_after_a_question() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost once k -- true; fencepost once forget k\n",
            r"see:Forget it\? \[y/N\] ",
            r"type:n\n",
            "see:was not forgotten",
            r"type:fencepost once forget k\n",
            r"see:Forget it\? \[y/N\] ",
            r"type:y\n",
            "see:forgot \"k\"",
        ],
    );
}

/// As with `flock`: one ^C, and the shell's loop is over. The terminal sends it to the command alone, which has the
/// terminal, so we must see to it that the shell learns of it.
#[test]
fn control_c_ends_a_loop_around_us() {
    for script in [
        // The interactive shell's own loop.
        r"type:while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000'; done\n",
        // A script's: its shell is in our process group, and the terminal did not send it anything.
        r#"type:bash -c "while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        r#"type:sh -c "while :; do fencepost once k -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        r#"type:sh -c "while :; do fencepost elect x -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        // Stdin is not the terminal: we get it ourselves and pass it on.
        r#"type:sh -c "while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000' </dev/null; done"\n"#,
        r#"type:sh -c "while :; do fencepost watch x | sed 's/is free/u''p/'; done"\n"#,
    ] {
        at_a_terminal(
            &Store::new(),
            &[script, "see:up", r"type:\x03", r"type:echo over $?\n", "see:over 130"],
        );
    }
}

/// Likewise while it waits, and the wait is given up.
#[test]
fn control_c_ends_a_loop_around_a_wait() {
    let store = Store::new();
    let holder = store.start(&["run", "--label", "me", "x", "--", "sleep", "1000"]);
    wait_for("the holder", LIMIT, || store.holder("x").is_some());
    let leave = format!("type:kill {}\\n", holder.id());
    at_a_terminal(
        &store,
        &[
            r#"type:sh -c "while :; do fencepost run x -- echo never; done"\n"#,
            "see:held by me",
            r"type:\x03",
            r"type:echo over $?\n",
            "see:over 130",
            &leave,
            r"type:until fencepost run -n x -- echo go''ne; do sleep 0.05; done\n",
            "see:gone",
        ],
    );
}

/// A command that handles ^C and ends well does not end the loop.
#[test]
fn control_c_that_the_command_handles_is_its_own() {
    at_a_terminal(
        &Store::new(),
        &[
            r#"type:for i in 1 2; do fencepost run x -- bash -c "trap 'exit 7' INT; echo u''p; while :; do sleep 0.05; done"; echo code $?; done\n"#,
            "see:up",
            r"type:\x03",
            "see:code 7",
            "see:up",
            r"type:\x03",
            "see:code 7",
        ],
    );
}
