//! On a terminal: the command is its foreground group, ^C and ^Z reach it, and a wait shows the holder.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use fencepost_testkit::command::{LIMIT, Running, Store, outcome_of, wait_for};

/// Runs the steps with `typist.py`. Without python3 the test is skipped visibly.
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
            let (code, _, err) = outcome_of(&output.unwrap());
            assert_eq!(code, Some(0), "{err}");
            // The last command may have printed before its lock was released.
            wait_for("an empty store", LIMIT, || {
                store.run(&["ls", "--json"]).1.contains(r#""locks":[]"#)
            });
        }
    }
}

/// A store on which `me` holds the lock `x`.
fn held() -> (Store, Running) {
    let store = Store::new();
    let holder = store.start(&["run", "--label", "me", "x", "--", "sleep", "1000"]);
    wait_for("the holder", LIMIT, || store.holder("x").is_some());
    (store, holder)
}

#[test]
fn command_is_the_foreground_group_and_reads_the_terminal() {
    let script = r#"type:fencepost run x -- sh -c 'ps -o pgid=,tpgid= -p $$; tty; read line; echo "<$line>"'\n"#;
    at_a_terminal(
        &Store::new(),
        &[
            script,
            // Its group is the terminal's foreground group.
            r"see:\n *(\d+) +\1\s",
            r"see:/dev/pts/\d+",
            r"type:words\n",
            "see:<words>",
            // The shell has the terminal back.
            r"type:echo back $?\n",
            "see:back 0",
        ],
    );
}

#[test]
fn control_c_ends_the_command_and_its_exit_code_is_passed_on() {
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
fn control_z_returns_to_the_shell_and_fg_continues() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'echo u''p; read line; echo go''t $line; exit 3'\n",
            "see:up",
            r"type:\x1a",
            "see:stopped: lock \"x\" is lost and the command killed in [0-9.]+m?s",
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
fn stopped_command_is_killed_when_the_lease_ends() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run --ttl 1s x -- sh -c 'echo u''p; exec sleep 1000'\n",
            "see:up",
            r"type:\x1a",
            "see:Stopped",
            r"type:fencepost run y -- echo the shell work''s\n",
            "see:works",
            // Granted only when the lease of the stopped command has ended.
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
fn background_job_that_reads_the_terminal_stops() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost run x -- sh -c 'read line; echo go''t $line' &\n",
            "see:stopped: lock",
            // The message comes just before the stop.
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
fn command_in_a_pipeline_gets_the_terminal_when_it_reads() {
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
fn wait_shows_the_holder() {
    let (store, holder) = held();
    let leave = format!("type:kill {}\\n", holder.id());
    at_a_terminal(
        &store,
        &[
            r"type:fencepost run x -- echo min''e &\n",
            r#"see:waiting for "x" \(1 of 1\): held by me for [0-9.]+m?s, lease [0-9.]+s left"#,
            // The line is updated.
            r#"see:waiting for "x" \(1 of 1\): held by me for [0-9.]+s"#,
            &leave,
            "see:mine",
        ],
    );
}

#[test]
fn break_asks_first() {
    let (store, holder) = held();
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
            "see:lower tokens are refused now",
            // A raised mark admits no further token, so there is no question.
            r"type:fencepost fence reset k --to 35 --why te''st\n",
            "see:is now 35; it was 34",
            r"type:fencepost fence reset k --to 3 --why te''st\n",
            r"see:is 35 \(.*the mark 3 admits all tokens from 3 on. Lower it\? \[y/N\] ",
            r"type:n\n",
            "see:was not reset: you answered no",
            r"type:fencepost fence reset k --forget --why te''st\n",
            r"see:any token can enter. Forget it\? \[y/N\] ",
            r"type:y\n",
            "see:is forgotten; it was 35",
        ],
    );
}

#[test]
fn advise_asks_a_few_questions() {
    at_a_terminal(
        &Store::new(),
        &[
            r"type:fencepost advise\n",
            "see:What does it protect",
            r"type:nothing\n",
            "see:1-7: ",
            r"type:2\n",
            "see:What happens if two",
            r"type:2\n",
            "see:What can the resource check",
            r"type:3\n",
            "see:Where do the competing",
            r"type:1\n",
            "see:nightly-billing: a job",
            "see:fencepost once",
            r"type:echo back $?\n",
            "see:back 0",
        ],
    );
}

#[test]
fn control_c_ends_a_leader_without_another_campaign() {
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
fn forgetting_a_record_asks_first() {
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

/// As with `flock`, one ^C ends the shell's loop. The terminal sends ^C only to the command, its foreground group, so
/// fencepost must let the shell know.
#[test]
fn control_c_ends_a_loop_around_fencepost() {
    for script in [
        // The interactive shell's own loop.
        r"type:while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000'; done\n",
        // A script's loop: its shell is in fencepost's process group, which got nothing from the terminal.
        r#"type:bash -c "while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        r#"type:sh -c "while :; do fencepost once k -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        r#"type:sh -c "while :; do fencepost elect x -- sh -c 'echo u''p; exec sleep 1000'; done"\n"#,
        // Stdin is not the terminal: fencepost gets ^C itself and forwards it.
        r#"type:sh -c "while :; do fencepost run x -- sh -c 'echo u''p; exec sleep 1000' </dev/null; done"\n"#,
        r#"type:sh -c "while :; do fencepost watch x | sed 's/is free/u''p/'; done"\n"#,
    ] {
        at_a_terminal(
            &Store::new(),
            &[script, "see:up", r"type:\x03", r"type:echo over $?\n", "see:over 130"],
        );
    }
}

/// The same during a wait, which gives up its position.
#[test]
fn control_c_ends_a_loop_around_a_wait() {
    let (store, holder) = held();
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

/// A command that handles ^C and exits does not end the loop.
#[test]
fn control_c_handled_by_the_command_does_not_end_fencepost() {
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
