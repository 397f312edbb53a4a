//! `fencepost fence` on a file: its messages and exit codes, and a frozen writer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

use fencepost_testkit::command::{LIMIT, Running, Store, outcome_of, wait_for};
use rustix::process::Signal;

struct Fixture {
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        Self { store: Store::new() }
    }

    /// `fence write report --name report` with this token, and its standard input.
    fn start(&self, token: &str) -> (Running, ChildStdin) {
        let arguments = ["fence", "write", "report", "--name", "report", "--token", token];
        let mut command = self.store.fencepost(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::new(command);
        let stdin = running.stdin();
        (running, stdin)
    }

    fn write(&self, token: &str, data: &str) -> (Option<i32>, String, String) {
        let (writer, mut stdin) = self.start(token);
        // A writer that is refused early does not read its input.
        let _ = stdin.write_all(data.as_bytes());
        drop(stdin);
        writer.end()
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.store.run(&[&["fence"], arguments].concat())
    }

    fn contents(&self) -> String {
        std::fs::read_to_string(self.store.path("report")).unwrap()
    }

    /// Files with incomplete input.
    fn spooled(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.store.path(".report.fence")) else {
            return Vec::new();
        };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("new-"))
            .collect()
    }
}

#[test]
fn file_fence_works_from_first_write_to_reset() {
    let fixture = Fixture::new();
    let (code, out, err) = fixture.write("33", "one\n");
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, "wrote 4 bytes to report with token 33 of \"report\"\n");
    let enter = |token| fixture.run(&["enter", "report", "--name", "report", "--token", token]);
    assert_eq!(enter("34").0, Some(0));
    let (code, out, err) = fixture.write("33", "late\n");
    assert_eq!((code, out.as_str()), (Some(77), ""));
    assert!(err.contains("token 33 for \"report\" is stale: 34 has entered ("), "{err}");
    assert_eq!(enter("33").0, Some(77));
    assert_eq!(fixture.contents(), "one\n");
    let (_, out, _) = fixture.run(&["show", "--resource", "file:report"]);
    assert!(out.contains("report  34 "), "{out}");
    let reset = [
        "reset",
        "report",
        "--to",
        "3",
        "--why",
        "restored",
        "--by",
        "ada",
        "--resource",
        "file:report",
        "--yes",
    ];
    assert_eq!(fixture.run(&reset).0, Some(0));
    assert_eq!(fixture.write("3", "two\n").0, Some(0));
    let (_, out, _) = fixture.run(&["show", "--resets", "--resource", "file:report"]);
    assert!(out.contains("34    3   ada"), "{out}");
    let (code, out, _) = fixture.run(&["install", "--resource", "file:report"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("nothing to install"), "{out}");
}

#[test]
fn fence_write_takes_the_token_from_run() {
    let fixture = Fixture::new();
    let own = env!("CARGO_BIN_EXE_fencepost");
    let script = format!("echo whole | '{own}' fence write report --name report --json");
    let (code, out, err) = fixture.store.run(&["run", "report", "--", "sh", "-c", &script]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, "{\"bytes\":6,\"name\":\"report\",\"token\":1,\"written\":true}\n");
    assert_eq!(fixture.contents(), "whole\n");
}

/// The failure that the spool is for: a writer that is frozen in the middle of its input, past its lease.
#[test]
fn writer_frozen_in_its_input_blocks_nobody_and_is_refused() {
    let fixture = Fixture::new();
    assert_eq!(fixture.write("32", "old\n").0, Some(0));
    let (frozen, mut stdin) = fixture.start("33");
    stdin.write_all(&vec![b'x'; 300_000]).unwrap();
    let size = |path: &PathBuf| path.metadata().map_or(0, |found| found.len());
    wait_for("incomplete input", LIMIT, || fixture.spooled().iter().any(|path| size(path) > 0));
    frozen.signal(Signal::STOP);
    let (code, _, err) = fixture.write("34", "new\n");
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(fixture.contents(), "new\n");
    assert_eq!(fixture.spooled().len(), 1, "the input of the frozen writer is unchanged");
    frozen.signal(Signal::CONT);
    drop(stdin);
    let (code, _, err) = frozen.end();
    assert_eq!(code, Some(77), "{err}");
    assert_eq!(fixture.contents(), "new\n");
    assert!(fixture.spooled().is_empty());
}

/// A kill cannot show a missing or late sync, which matters only when the machine crashes. So this checks the order of the
/// system calls.
#[test]
fn mark_is_on_disk_before_the_file_is_replaced() {
    let fixture = Fixture::new();
    assert_eq!(fixture.write("1", "old\n").0, Some(0));
    let own = env!("CARGO_BIN_EXE_fencepost");
    let mut command = std::process::Command::new("strace");
    command.args([
        "-f",
        "-y",
        "-o",
        "trace",
        "-e",
        "trace=fsync,fdatasync,flock,rename,renameat,renameat2",
    ]);
    command.args([own, "fence", "write", "report", "--name", "report", "--token", "2"]);
    command.current_dir(fixture.store.dir.path()).stdin(Stdio::null());
    let traced = command.output().expect("strace is installed");
    assert!(traced.status.success(), "{traced:?}");
    let trace = std::fs::read_to_string(fixture.store.path("trace")).unwrap();
    let directory = fixture.store.dir.path().canonicalize().unwrap();
    let (file, beside) = (directory.display(), directory.join(".report.fence"));
    let beside = beside.display();
    // The first line after `from` that has all these words.
    let find = |what: &str, from: usize, words: &[&str]| {
        let mut lines = trace.lines().enumerate().skip(from);
        let found = lines.find(|(_, line)| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("{what} does not come after line {from}:\n{trace}")).0 + 1
    };
    let at = find("the sync of the input", 0, &["fsync(", "/new-"]);
    let at = find("the lock", at, &["flock(", "/lock>", "LOCK_EX"]);
    let at = find("the sync of the marks", at, &["fsync(", "/new-"]);
    let at = find("the new marks", at, &["renameat(", "\"marks\""]);
    let at = find("the sync of their directory", at, &["fsync(", &format!("<{beside}>")]);
    let at = find("the sync of its own", at, &["fsync(", &format!("<{file}>")]);
    let replaced = find("the new file", at, &["renameat(", "\"report\""]);
    assert_eq!(replaced, find("it", 0, &["renameat(", "\"report\""]), "not before:\n{trace}");
    find("the sync of its directory", replaced, &["fsync(", &format!("<{file}>")]);
}

#[test]
fn full_disk_leaves_the_file_unchanged() {
    let fixture = Fixture::new();
    assert_eq!(fixture.write("1", "old\n").0, Some(0));
    let own = env!("CARGO_BIN_EXE_fencepost");
    // 8 blocks of 512 bytes or 1 kB, as the shell counts: less than the input, more than the marks.
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; head -c 100000 /dev/zero | '{own}' fence write report --name report --token 2"
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(fixture.store.dir.path());
    let (code, out, err) = outcome_of(&command.output().unwrap());
    assert_eq!((code, out.as_str()), (Some(78), ""), "{err}");
    assert!(err.contains("larger than this system allows"), "{err}");
    assert_eq!(fixture.contents(), "old\n");
    assert!(fixture.spooled().is_empty());
    let (_, out, _) = fixture.run(&["show", "--resource", "file:report"]);
    assert!(out.contains("report  1 "), "the mark was raised: {out}");
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    let fixture = Fixture::new();
    let write = ["write", "report", "--name", "report"];
    for (arguments, expected, words) in [
        (&[&write[..], &["--token", "0"]].concat()[..], 64, "0 is not a token"),
        (&write[..], 64, "no token is given"),
        (&["write", "report", "--token", "1"], 64, "--name"),
        (&["write", "report", "--name", "", "--token", "1"], 64, "the lock name is empty"),
        (
            &["write", "r", "--name", "a", "--token", "1", "--resource", "file:x"],
            64,
            "leave --resource out",
        ),
        (&["write", ".", "--name", "a", "--token", "1"], 64, "not a regular file"),
        (&["write", "/dev/null", "--name", "a", "--token", "1"], 64, "not a regular file"),
        (&["write", "no/where", "--name", "a", "--token", "1"], 69, "create its directory"),
        (
            &["enter", "report", "--name", "a", "--token", "1", "--resource", "file:x"],
            64,
            "leave --resource out",
        ),
        (
            &["enter", "report", "--token", "1"],
            64,
            "with --resource or FENCEPOST_RESOURCE: sqlite:PATH",
        ),
        (&["write", "new/", "--name", "a", "--token", "1"], 64, "ends with a slash"),
        (&["show", "--resource", "file://localhost/x"], 64, "file:///PATH"),
        (&["enter", "", "--name", "a", "--token", "1"], 64, "path"),
        (&["show", "--resource", "file:"], 64, "file:PATH"),
        (&["protect", "t", "--name", "a", "--resource", "file:report"], 78, "postgres://"),
    ] {
        let (code, out, err) = fixture.run(arguments);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains(words), "{words:?} is missing: {err}");
    }
    assert_eq!(std::fs::read_dir(fixture.store.dir.path()).unwrap().count(), 0);
}
