//! `fencepost run`: what it passes through, what ends the command, and that nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use fencepost_testkit::command::{
    LIMIT, Store, children_of, is_running, not_ignored, now, outcome_of, running_in_group,
    wait_for, wait_for_text,
};
use rustix::process::{Pid, Signal, kill_process};

/// A command that records its group, and waits to be killed.
const SIT: &str = "echo $$ > group; exec sleep 1000";

#[test]
fn input_output_environment_and_exit_code_belong_to_the_command() {
    let store = Store::new();
    let script = r#"read line; echo "got $line"; echo oops >&2
        echo "$FENCEPOST_NAME $FENCEPOST_TOKEN $FENCEPOST_URL"; exit 42"#;
    let mut command = store.fencepost(&["run", "a name", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"this\n").unwrap();
    let (code, out, err) = outcome_of(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(42), "{err}");
    assert_eq!(out, format!("got this\na name 1 {}\n", store.url()));
    assert_eq!(err, "oops\n");
    store.assert_empty();
}

#[test]
fn arguments_that_are_not_utf8_are_passed_on() {
    use std::os::unix::ffi::OsStringExt as _;
    let store = Store::new();
    let odd = std::ffi::OsString::from_vec(b"\xff\xfe".to_vec());
    let mut command = store.fencepost(&["run", "x", "--", "printf", "%s"]);
    let output = command.arg(odd).output().unwrap();
    assert_eq!(output.stdout, b"\xff\xfe");
    let odd_name = std::ffi::OsString::from_vec(b"\xff".to_vec());
    let mut command = store.fencepost(&["run"]);
    let (code, _, err) = outcome_of(&command.arg(odd_name).args(["--", "true"]).output().unwrap());
    assert_eq!(code, Some(64), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn held_lock_is_not_acquired() {
    let store = Store::new();
    let holder = store.start(&["run", "--label", "me", "x", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    let limits = [
        &["--no-wait"][..],
        &["--wait", "100ms"],
        &["--wait", "0s"],
        &["-n"],
        &["-w", "0.1"],
        &["-w0"],
    ];
    for limit in limits {
        let mut line = vec!["run"];
        line.extend(limit);
        line.extend(["x", "--", "echo", "never"]);
        let (code, out, err) = store.run(&line);
        assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
        assert!(err.contains("held by me (token 1)"), "{err}");
        let (code, _, err) = store.run(&[&["acquire", "x"], limit].concat());
        assert_eq!(code, Some(75), "{err}");
    }
    // As `flock -E`: for a cron job that may be skipped.
    for (command, code) in [("run", 0), ("run", 9), ("once", 9)] {
        let code_text = code.to_string();
        let key = if command == "once" { "k" } else { "x" };
        if command == "once" {
            let taken = store.run(&["acquire", "--ttl", "1h", "once/k"]);
            assert_eq!(taken.0, Some(0), "{}", taken.2);
        }
        let line = [command, "-n", "-E", &code_text, key, "--", "echo", "never"];
        let (got, out, err) = store.run(&line);
        assert_eq!((got, out.as_str()), (Some(code), ""), "{err}");
    }
    assert_eq!(store.run(&["break", "--yes", "once/k"]).0, Some(0));
    assert_eq!(store.holder("x").as_deref(), Some("me"));
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().0, Some(143));
    store.assert_empty();
}

#[test]
fn signal_ends_the_wait_and_gives_up_the_position() {
    let store = Store::new();
    let holder = store.start(&["run", "x", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    for signal in not_ignored(&[Signal::INT, Signal::TERM, Signal::HUP]) {
        let waiter = store.start(&["run", "x", "--", "echo", "never"]);
        wait_for("a waiter", LIMIT, || {
            store.run(&["show", "--json", "x"]).1.contains(r#""waiting":1"#)
        });
        waiter.signal(signal);
        assert_eq!(waiter.ended_by(), Some(signal.as_raw()));
        assert!(store.run(&["show", "--json", "x"]).1.contains(r#""waiting":0"#));
    }
    holder.signal(Signal::TERM);
    holder.end();
    store.assert_empty();
}

#[test]
fn signals_are_passed_on_to_the_whole_group() {
    let store = Store::new();
    // The command, and a child in its group, record the signals that they get.
    let script = r#"
        trap 'echo usr1 >> signals' USR1; trap 'echo usr2 >> signals' USR2; trap 'echo hup >> signals' HUP
        trap 'echo winch >> signals' WINCH; trap 'echo quit >> signals' QUIT
        trap 'echo int >> signals; exit 9' INT
        sh -c 'trap "echo child >> child" USR1; echo ready > ready; while :; do sleep 0.01; done' &
        echo $$ > group; while :; do sleep 0.01; done"#;
    let run = store.start(&["run", "x", "--", "sh", "-c", script]);
    wait_for_text(&store.path("group"));
    wait_for_text(&store.path("ready"));
    let mut so_far = String::new();
    for (signal, word) in [
        (Signal::USR1, "usr1"),
        (Signal::USR2, "usr2"),
        (Signal::HUP, "hup"),
        (Signal::WINCH, "winch"),
        (Signal::QUIT, "quit"),
        (Signal::INT, "int"),
    ] {
        run.signal(signal);
        so_far.push_str(word);
        so_far.push('\n');
        wait_for(word, LIMIT, || {
            std::fs::read_to_string(store.path("signals")).unwrap_or_default() == so_far
        });
        if signal == Signal::USR1 {
            // The next signal would end the child, which expects only this one.
            assert_eq!(wait_for_text(&store.path("child")), "child");
        }
    }
    assert_eq!(run.end().0, Some(9));
    store.assert_empty();
}

/// `nohup fencepost run ...`: a signal that is ignored at the start is ignored by the command too.
#[test]
fn ignored_signal_stays_ignored() {
    let store = Store::new();
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" run x -- sh -c 'kill -HUP $$; echo alive'"])
        .arg(env!("CARGO_BIN_EXE_fencepost"))
        .env("FENCEPOST_URL", store.url());
    let (code, out, err) = outcome_of(&command.output().unwrap());
    assert_eq!((code, out.as_str()), (Some(0), "alive\n"), "{err}");
}

#[test]
fn leftover_processes_are_ended_before_the_release() {
    let store = Store::new();
    let script = "sh -c \"trap '' TERM; echo \\$PPID > group; read never < fifo\" & sleep 1000 & \
                  until [ -s group ]; do sleep 0.01; done; exit 5";
    Command::new("mkfifo").arg(store.path("fifo")).status().unwrap();
    let (code, _, err) = store.run(&["run", "--ttl", "2s", "x", "--", "sh", "-c", script]);
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("left 2 processes running") && err.lines().count() == 1, "{err}");
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    assert_eq!(running_in_group(group), Vec::<i32>::new());
    store.assert_empty();
}

#[test]
fn killed_watchdog_is_replaced() {
    let store = Store::new();
    let run = store.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", SIT]);
    let group: i32 = wait_for_text(&store.path("group")).parse().unwrap();
    let watchdogs = || children_of(run.id(), "__watchdog");
    let first = watchdogs();
    assert_eq!(first.len(), 1, "one watchdog");
    kill_process(Pid::from_raw(first[0]).unwrap(), Signal::KILL).unwrap();
    wait_for("another watchdog", LIMIT, || watchdogs().first().is_some_and(|id| *id != first[0]));
    assert_eq!(running_in_group(group), [group], "the command still runs");
    // The new watchdog works: if fencepost is killed, it kills the command.
    run.signal(Signal::KILL);
    wait_for("the command to be gone", LIMIT, || running_in_group(group).is_empty());
}

#[test]
fn watchdog_ignores_signals() {
    let store = Store::new();
    let run = store.start(&["run", "x", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    let watchdog = children_of(run.id(), "__watchdog")[0];
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1, Signal::ALARM] {
        kill_process(Pid::from_raw(watchdog).unwrap(), signal).unwrap();
    }
    run.signal(Signal::TERM);
    let (code, _, err) = run.end();
    assert_eq!(code, Some(143), "{err}");
    assert!(!err.contains("watchdog"), "{err}");
    assert!(!is_running(watchdog));
}

/// What makes a start fast must not be what makes it safe. So this checks the order of the system calls, and that some are
/// not made at all.
#[test]
fn start_syncs_the_grant_before_the_watchdog_and_that_before_the_command() {
    let store = Store::new();
    assert_eq!(store.run(&["run", "x", "--", "true"]).0, Some(0), "the store exists from here on");
    let command = store.fencepost(&[]);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-o", "trace", "-e", "trace=fsync,fdatasync,execve,openat"]);
    strace.arg(command.get_program()).args(["run", "x", "--", "/bin/true"]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let traced = strace.current_dir(store.dir.path()).output().expect("strace is installed");
    assert!(traced.status.success(), "{traced:?}");
    let trace = std::fs::read_to_string(store.path("trace")).unwrap();
    let at = |words: &[&str]| {
        trace.lines().position(|line| words.iter().all(|word| line.contains(word)))
    };
    let synced = at(&["sync(", "locks.db-wal>"]);
    let (watchdog, started) = (at(&["execve(", "__watchdog"]), at(&["execve(", "[\"/bin/true\"]"]));
    assert!(synced.is_some() && synced < watchdog && watchdog < started, "{trace}");
    assert_eq!(at(&["/etc/ssl"]), None, "no certificates are read");
    assert_eq!(at(&["\"/proc/1/stat\""]), None, "no process of another group is inspected");
}

#[test]
fn max_hold_sends_term_first() {
    let store = Store::new();
    let script = "trap 'echo asked > asked; exit 0' TERM; while :; do sleep 0.01; done";
    let before = now();
    let (code, _, err) = store.run(&["run", "--max-hold", "1s", "x", "--", "sh", "-c", script]);
    assert_eq!(code, Some(76), "{err}");
    // The grant came after `before`, and TERM not before --max-hold.
    assert!(now().since(before) >= std::time::Duration::from_secs(1), "{err}");
    assert!(err.contains("--max-hold"), "{err}");
    assert_eq!(wait_for_text(&store.path("asked")), "asked");
    store.assert_empty();
}

/// A near miss is shown even without `FENCEPOST_LOG`.
#[test]
fn max_hold_that_is_nearly_reached_is_shown() {
    let store = Store::new();
    let script = "trap '' TERM; while :; do sleep 0.01; done";
    let (code, _, err) = store.run(&["run", "--max-hold", "2s", "x", "--", "sh", "-c", script]);
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("fencepost: lock \"x\": its max_hold is nearly reached"), "{err}");
    assert!(err.lines().all(|line| line.starts_with("fencepost: ")), "{err}");
    let quiet = ["-q", "run", "--max-hold", "2s", "x", "--", "sh", "-c", script];
    let (code, _, err) = store.run(&quiet);
    assert_eq!(code, Some(76), "{err}");
    assert!(!err.contains("nearly reached"), "{err}");
}

#[test]
fn max_hold_kills_a_command_that_ignores_term() {
    let store = Store::new();
    let script = "trap '' TERM; echo $$ > group; while :; do sleep 0.01; done";
    let (code, _, err) = store.run(&["run", "--max-hold", "500ms", "x", "--", "sh", "-c", script]);
    assert_eq!(code, Some(76), "{err}");
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    assert_eq!(running_in_group(group), Vec::<i32>::new());
    store.assert_empty();
}

#[test]
fn break_kills_the_command_of_the_holder() {
    let store = Store::new();
    let run = store.start(&["run", "--label", "me", "x", "--", "sh", "-c", SIT]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    let (code, out, err) = store.run(&["break", "--yes", "--json", "x"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(r#""floor":2,"label":"me","token":1},"name":"x""#), "{out}");
    assert!(out.contains(r#""broken":{"confirmed":"#), "{out}");
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("an operator broke it") && err.lines().count() == 1, "{err}");
    assert_eq!(running_in_group(group), Vec::<i32>::new());
    let (_, token, _) = store.run(&["run", "x", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(token.trim().parse::<u64>().unwrap() > 2, "{token}");
    store.assert_empty();
}

#[test]
fn watch_prints_each_change_and_ends_quietly() {
    let store = Store::new();
    let mut watch = store.start(&["watch", "--count", "3", "--json", "x"]);
    let mut lines = watch.lines();
    assert!(lines.next().unwrap().unwrap().contains(r#""holder":null"#));
    let run = store.start(&["run", "x", "--", "sh", "-c", SIT]);
    assert!(lines.next().unwrap().unwrap().contains(r#""token":1"#));
    run.signal(Signal::TERM);
    run.end();
    assert!(lines.next().unwrap().unwrap().contains(r#""holder":null"#));
    assert_eq!(watch.end().0, Some(0));

    let mut endless = store.start(&["watch", "x"]);
    // After its first line it listens for signals.
    let line = endless.lines().next().unwrap().unwrap();
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    assert_eq!(rest, "\"x\" is free, 0 waiting");
    endless.signal(Signal::INT);
    assert_eq!(endless.ended_by(), Some(Signal::INT.as_raw()));
}

/// A shell that waits for fencepost stops its loop only if fencepost dies by the signal too.
#[test]
fn run_dies_by_the_signal_that_ended_its_command() {
    let store = Store::new();
    for signal in not_ignored(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT]) {
        for line in [["run", "x"], ["elect", "x"], ["once", "k"]] {
            let script = "echo up > up; exec sleep 1000";
            let run = store.start(&[&line[..], &["--", "sh", "-c", script]].concat());
            wait_for_text(&store.path("up"));
            std::fs::remove_file(store.path("up")).unwrap();
            run.signal(signal);
            assert_eq!(run.ended_by(), Some(signal.as_raw()), "{line:?}");
            store.assert_empty();
        }
    }
    // A command that handles the signal has an exit code. A command that another process killed is reported as 128+N.
    let script = "trap 'exit 9' TERM; echo up > up; while :; do sleep 0.01; done";
    let run = store.start(&["run", "x", "--", "sh", "-c", script]);
    wait_for_text(&store.path("up"));
    run.signal(Signal::TERM);
    assert_eq!(run.end().0, Some(9));
    let status = store.output(&["run", "x", "--", "sh", "-c", "kill -TERM $$"]).status;
    assert_eq!(status.code(), Some(143));
}

/// A process that leaves the group just after the command's end is not reported as "0 processes".
#[test]
fn process_that_leaves_the_group_is_not_reported_as_leftover() {
    let store = Store::new();
    for _ in 0..100 {
        let (code, _, err) = store.run(&["run", "x", "--", "setsid", "true"]);
        assert_eq!(code, Some(0), "{err}");
        assert!(!err.contains("left 0"), "{err}");
    }
}

/// A command that waits for the lock under which it runs.
#[test]
fn nested_run_of_the_same_name_warns_about_its_parent() {
    let store = Store::new();
    let own = env!("CARGO_BIN_EXE_fencepost");
    let inner = [own, "-q", "run", "-w", "3", "x", "--", "echo", "never"];
    let (code, out, err) = store.run(&[&["run", "x", "--"], &inner[..]].concat());
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    assert!(err.contains("waits for its own parent"), "{err}");
    // With another name, or on another store, there is no warning.
    let other = format!("sqlite:{}", store.path("other.db").display());
    for inner in [&["y"][..], &["--on", &other, "x"]] {
        let line = [&["run", "x", "--", own, "run"], inner, &["--", "echo", "ran"]].concat();
        let (code, out, err) = store.run(&line);
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "ran\n", ""));
    }
}

#[test]
fn break_with_a_token_ends_only_that_grant() {
    let store = Store::new();
    let run = store.start(&["run", "--label", "me", "x", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    let (code, out, err) = store.run(&["break", "--yes", "--token", "7", "x"]);
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    assert!(err.contains("with token 7 is over") && err.contains("held by me (token 1)"), "{err}");
    assert_eq!(store.holder("x").as_deref(), Some("me"));
    let (code, _, err) = store.run(&["break", "--yes", "--token", "x", "x"]);
    assert_eq!(code, Some(64), "{err}");
    let (code, out, err) = store.run(&["break", "--yes", "--token", "1", "x"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("me held it with token 1; no later token is below 2"), "{out}");
    assert!(out.contains("confirmed"), "{out}");
    assert_eq!(run.end().0, Some(76));
    let (code, out, _) = store.run(&["break", "--yes", "--token", "1", "x"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("nobody holds"), "{out}");
}

/// The grant of a script has no process that could confirm.
#[test]
fn break_explains_the_risk_of_an_unconfirmed_holder() {
    let store = Store::new();
    assert_eq!(store.run(&["acquire", "--ttl", "1h", "a b"]).0, Some(0));
    let (code, out, err) = store.run(&["break", "--yes", "a b"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("has not confirmed: it may keep working until its deadline, at most 59m"),
        "{out}"
    );
    assert!(out.contains("fencepost fence enter 'a b' --token 2"), "{out}");
}

/// Reads create nothing, and name the store.
#[test]
fn reads_create_no_store() {
    let store = Store::new();
    let shown = store.url();
    for line in [
        &["ls"][..],
        &["ls", "--hot"],
        &["show", "x"],
        &["watch", "--count", "1", "x"],
        &["explain"],
        &["elect", "x", "--observe", "--count", "1"],
        &["once", "ls"],
    ] {
        for json in [&[][..], &["--json"]] {
            let (code, out, err) = store.run(&[line, json].concat());
            assert_eq!(code, Some(0), "{line:?}: {err}");
            assert!(format!("{out}{err}").contains(&shown), "{line:?}: {out}{err}");
        }
    }
    for line in [&["leader", "x"][..], &["once", "show", "k"]] {
        let (code, _, err) = store.run(line);
        assert_eq!(code, Some(75), "{line:?}: {err}");
        assert!(err.contains(&shown), "{err}");
    }
    assert_eq!(std::fs::read_dir(store.dir.path()).unwrap().count(), 0, "something was created");
}

#[test]
fn ls_takes_a_prefix() {
    let store = Store::new();
    for name in ["invoice/1", "invoice/2", "report"] {
        assert_eq!(store.run(&["acquire", "--ttl", "1h", name]).0, Some(0));
    }
    let (code, out, err) = store.run(&["ls", "invoice/"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("invoice/1") && out.contains("invoice/2") && !out.contains("report"),
        "{out}"
    );
    // The line about the store is on stderr, and `-q` leaves it out.
    assert!(err.starts_with("fencepost: locks in sqlite:"), "{err}");
    assert_eq!(store.run(&["ls", "-q"]).2, "");
}

/// The reason of the failed renewals is reported.
#[test]
fn loss_names_its_cause() {
    let store = Store::new();
    let run = store.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", SIT]);
    wait_for_text(&store.path("group"));
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(store.path(file)).unwrap();
    }
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    let last = err.lines().last().unwrap();
    assert!(last.contains("locks.db was removed or replaced"), "{err}");
}

/// Blocks all writers of the store until it is dropped.
fn cut_off(store: &Store) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    db.busy_timeout(LIMIT).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    db
}

#[test]
fn outage_ends_the_command_before_the_lease_ends() {
    let store = Store::new();
    let script =
        "trap 'echo asked > asked; exit 0' TERM; echo $$ > group; while :; do sleep 0.01; done";
    let run = store.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", script]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    let cut = cut_off(&store);
    assert_eq!(wait_for_text(&store.path("asked")), "asked");
    wait_for("the command to be gone", LIMIT, || running_in_group(group).is_empty());
    drop(cut);
    let (code, _, err) = run.end();
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("store"), "{err}");
    wait_for("the lease to end", LIMIT, || store.holder("x").is_none());
}

#[test]
fn failed_release_does_not_hide_the_exit_code() {
    let store = Store::new();
    let script = "echo $$ > group; until [ -e go ]; do sleep 0.01; done; exit 6";
    let run = store.start(&["run", "--ttl", "2s", "x", "--", "sh", "-c", script]);
    wait_for_text(&store.path("group"));
    let cut = cut_off(&store);
    std::fs::write(store.path("go"), "").unwrap();
    let (code, _, err) = run.end();
    drop(cut);
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("could not be released") && err.contains("lease"), "{err}");
    wait_for("the lease to end", LIMIT, || store.holder("x").is_none());
}

/// Each process of the chain starts the next one and ends, faster than the processes can be listed. The lock was once
/// released while such a chain still ran.
#[test]
fn chain_of_forking_processes_does_not_outlive_the_lock() {
    let store = Store::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chain.c");
    let chain = store.path("chain");
    assert!(Command::new("cc").args(["-o"]).arg(&chain).arg(source).status().unwrap().success());
    let next = "echo NEXT >> log; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
    for _ in 0..20 {
        let (code, _, err) = store.run(&["run", "x", "--", "sh", "-c", "./chain & exit 0"]);
        assert_eq!(code, Some(0), "{err}");
        let (code, _, err) = store.run(&["run", "x", "--", "sh", "-c", next]);
        assert_eq!(code, Some(0), "{err}");
        let log = std::fs::read_to_string(store.path("log")).unwrap();
        assert!(log.ends_with("NEXT\n"), "the chain continued without the lock");
    }
}

/// A relative path would be another file, and so another store, in another directory.
#[test]
fn command_finds_the_same_store_from_any_directory() {
    let store = Store::new();
    std::fs::create_dir(store.path("elsewhere")).unwrap();
    let script = format!("cd elsewhere; {} ls --json", env!("CARGO_BIN_EXE_fencepost"));
    let url = "sqlite:rel.db?adopt=true";
    let (code, out, err) = store.run(&["run", "--on", url, "x", "--", "sh", "-c", &script]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(r#""name":"x""#), "{out}");
}

/// A stopped watchdog is continued before it is needed.
#[test]
fn stopped_watchdog_is_continued() {
    let store = Store::new();
    let holder = store.start(&["run", "x", "--", "sh", "-c", "echo up > up; exec sleep 1000"]);
    wait_for_text(&store.path("up"));
    let watchdog = children_of(holder.id(), "__watchdog")[0];
    let state = || std::fs::read_to_string(format!("/proc/{watchdog}/stat")).unwrap();
    kill_process(Pid::from_raw(watchdog).unwrap(), Signal::STOP).unwrap();
    wait_for("it to continue", LIMIT, || !state().contains(") T "));
    holder.signal(Signal::TERM);
}
