//! `acquire`, `renew`, `release`: a lock that a script holds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fencepost_testkit::command::{LIMIT, Store, now, outcome_of, wait_for};

/// The value of a string in a flat JSON object.
fn field(json: &str, name: &str) -> String {
    let from = json.split_once(&format!("\"{name}\":")).unwrap().1;
    from.trim_start_matches('"').split(['"', ',', '}']).next().unwrap().to_owned()
}

#[test]
fn script_can_eval_the_output_of_acquire() {
    let store = Store::new();
    let script = r#"
        set -e
        eval "$("$0" acquire --ttl 5s "it's \$HOME; a name")"
        test "$FENCEPOST_NAME" = "it's \$HOME; a name"
        test "$FENCEPOST_TOKEN" = 1
        test "$FENCEPOST_TTL_MS" = 5000
        test "$FENCEPOST_URL" = "$STORE"
        "$0" show --json "$FENCEPOST_NAME" | grep -q "\"label\":\"[^\"]*:$$\""
        ! "$0" acquire --no-wait "$FENCEPOST_NAME" 2>/dev/null
        "$0" renew --ttl 9s "$FENCEPOST_NAME"
        "$0" show --json "$FENCEPOST_NAME" | grep -q '"ttl_ms":9000'
        "$0" release "$FENCEPOST_NAME"
        ! "$0" release "$FENCEPOST_NAME" 2>/dev/null
    "#;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_fencepost")]);
    command
        .env("FENCEPOST_URL", store.url())
        .env("STORE", store.url())
        .env_remove("FENCEPOST_OWNER");
    let (code, _, err) = outcome_of(&command.output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    store.assert_empty();
}

/// P3. The stale owner wakes up: its lease has ended, and another client holds the lock.
#[test]
fn stale_owner_changes_nothing() {
    let store = Store::new();
    let (code, old, err) = store.run(&["acquire", "--json", "--ttl", "100ms", "x"]);
    assert_eq!(code, Some(0), "{err}");
    let (code, new, err) = store.run(&["acquire", "--json", "--ttl", "1h", "--label", "new", "x"]);
    assert_eq!(code, Some(0), "{err}");
    let owner = field(&old, "owner");
    for verb in ["renew", "release"] {
        let mut command = store.fencepost(&[verb, "x"]);
        let (code, out, err) =
            outcome_of(&command.env("FENCEPOST_OWNER", &owner).output().unwrap());
        assert_eq!((code, out.as_str()), (Some(76), ""), "{err}");
        assert!(err.contains("not held") && !err.contains(&owner), "{err}");
    }
    assert_eq!(store.holder("x").as_deref(), Some("new"));
    let tokens = [&old, &new].map(|grant| field(grant, "token").parse::<u64>().unwrap());
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    let (code, _, err) = store.run(&["renew", "--owner", &field(&new, "owner"), "x"]);
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = store.run(&["release", "--owner", &field(&new, "owner"), "x"]);
    assert_eq!(code, Some(0), "{err}");
    store.assert_empty();
}

#[test]
fn unrenewed_lock_ends_with_its_ttl() {
    let store = Store::new();
    let before = now();
    assert_eq!(store.run(&["acquire", "--ttl", "400ms", "x"]).0, Some(0));
    assert!(store.holder("x").is_some() || now().since(before).as_millis() >= 400);
    let (code, ..) = store.run(&["run", "--wait", "10s", "x", "--", "true"]);
    assert_eq!(code, Some(0));
    assert!(now().since(before).as_millis() >= 400);
    wait_for("nothing to be held", LIMIT, || store.holder("x").is_none());
}

#[test]
fn acquire_releases_if_stdout_is_closed() {
    let store = Store::new();
    let mut command = store.fencepost(&["acquire", "x"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (code, _, err) = outcome_of(&command.stdout(writer).output().unwrap());
    assert_eq!(code, Some(70), "{err}");
    store.assert_empty();
}

/// The owner is a secret: it is printed by `acquire` and nowhere else, not even in a trace.
#[test]
fn owner_is_in_no_log() {
    let store = Store::new();
    let mut command = store.fencepost(&["acquire", "--json", "--ttl", "1m", "x"]);
    let (_, grant, log) = outcome_of(&command.env("FENCEPOST_LOG", "trace").output().unwrap());
    let owner = field(&grant, "owner");
    assert!(!log.is_empty() && !log.contains(&owner), "{log}");
    for verb in ["renew", "release", "release"] {
        let mut command = store.fencepost(&[verb, "x"]);
        command.env("FENCEPOST_LOG", "trace").env("FENCEPOST_OWNER", &owner);
        let (_, out, log) = outcome_of(&command.output().unwrap());
        assert!(!log.contains(&owner) && !out.contains(&owner), "{log}");
    }
}

#[test]
fn log_filter_that_cannot_be_read_is_refused() {
    let store = Store::new();
    let mut command = store.fencepost(&["ls"]);
    let (code, _, log) =
        outcome_of(&command.env("FENCEPOST_LOG", "fencepost=loud").output().unwrap());
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("FENCEPOST_LOG is \"fencepost=loud\""), "{log}");
}

/// `eval ""` succeeds, so a script that evaluates nothing would continue without the lock.
#[test]
fn script_that_evals_a_failed_acquire_stops() {
    let store = Store::new();
    let holder = store.start(&["run", "x", "--", "sleep", "1000"]);
    wait_for("the holder", LIMIT, || store.holder("x").is_some());
    for (arguments, wanted) in [("--no-wait x", 75), ("--bogus x", 64), ("''", 64)] {
        let script = format!(r#"eval "$("$0" acquire {arguments})" || exit; echo UNLOCKED"#);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_fencepost")]);
        let (code, out, err) =
            outcome_of(&command.env("FENCEPOST_URL", store.url()).output().unwrap());
        assert_eq!((code, out.as_str()), (Some(wanted), ""), "{arguments}: {err}");
    }
    holder.signal(rustix::process::Signal::TERM);
}

/// `renew` and `release` use the store of `acquire`, even after the script has changed its directory.
#[test]
fn renew_and_release_find_the_store_of_acquire() {
    let store = Store::new();
    let script = r#"
        set -e
        eval "$("$0" acquire --on "sqlite:it's here.db" x)"
        cd /
        "$0" renew x && "$0" release x
    "#;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_fencepost")]).current_dir(store.dir.path());
    command.env("FENCEPOST_URL", store.url()).env_remove("FENCEPOST_OWNER");
    let (code, _, err) = outcome_of(&command.output().unwrap());
    assert_eq!(code, Some(0), "{err}");
}

/// An empty variable in a script must not select the default file, where the lock excludes no other host.
#[test]
fn empty_url_is_refused() {
    let store = Store::new();
    for line in [&["run", "x", "--", "true"][..], &["ls"], &["acquire", "x"]] {
        let mut command = store.fencepost(line);
        let (code, _, err) = outcome_of(&command.env("FENCEPOST_URL", "").output().unwrap());
        assert_eq!(code, Some(64), "{err}");
        assert!(err.contains("FENCEPOST_URL is empty"), "{err}");
    }
}
