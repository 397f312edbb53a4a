//! What the tests of the command share: a store of their own, real processes, and waiting for conditions.

#![allow(dead_code, reason = "each test file uses its part")]

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes, even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A fresh embedded store in a directory that goes with it.
pub(crate) struct Store {
    pub(crate) dir: tempfile::TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { dir: fencepost_testbed::directory_on_disk().unwrap() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// `fencepost` on this store.
    pub(crate) fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        command
            .args(arguments)
            .env("FENCEPOST_URL", self.url())
            .env("XDG_STATE_HOME", self.dir.path())
            .env_remove("FENCEPOST_OWNER")
            .env_remove("FENCEPOST_LOG")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.fencepost(arguments).output().unwrap()
    }

    /// Runs it to its end and gives back its exit code and both outputs.
    pub(crate) fn say(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        heard(&self.output(arguments))
    }

    /// Starts it; it is killed if the test ends first.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.fencepost(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command.spawn().unwrap())
    }

    /// Nobody holds or waits for anything.
    pub(crate) fn assert_empty(&self) {
        let (code, out, err) = self.say(&["ls", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(r#""locks":[]"#), "{out}");
    }

    /// Whether `name` is held, by whom it says.
    pub(crate) fn holder(&self, name: &str) -> Option<String> {
        let (code, out, err) = self.say(&["show", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        let from = out.split_once(r#""label":""#)?.1;
        Some(from.split_once('"')?.0.to_owned()).filter(|_| out.contains(r#""holder":{"#))
    }
}

/// Exit code as a shell shows it (128+N after signal N), stdout, stderr.
pub(crate) fn heard(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().or_else(|| Some(128 + output.status.signal()?));
    (code, text(&output.stdout), text(&output.stderr))
}

/// A process of ours, killed on drop.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        Self(Some(child))
    }

    pub(crate) fn id(&self) -> i32 {
        self.0.as_ref().unwrap().id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id()).unwrap(), signal).unwrap();
    }

    /// What it prints on stdout, line by line as it comes.
    pub(crate) fn lines(
        &mut self,
    ) -> std::io::Lines<std::io::BufReader<std::process::ChildStdout>> {
        use std::io::BufRead as _;
        let stdout = self.0.as_mut().unwrap().stdout.take().unwrap();
        std::io::BufReader::new(stdout).lines()
    }

    /// Waits for it to end; exit code, stdout, stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let child = self.0.as_mut().unwrap();
        wait_for("the process to end", LIMIT, || child.try_wait().unwrap().is_some());
        heard(&self.0.take().unwrap().wait_with_output().unwrap())
    }

    /// Waits for it to end; the signal that ended it.
    pub(crate) fn ended_by(mut self) -> Option<i32> {
        let child = self.0.as_mut().unwrap();
        wait_for("the process to end", LIMIT, || child.try_wait().unwrap().is_some());
        self.0.take().unwrap().wait().unwrap().signal()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Looks again and again until `come` is true. The one place here that waits.
#[expect(clippy::disallowed_methods, reason = "a test polls a condition, with a limit, only here")]
pub(crate) fn wait_for(what: &str, limit: Duration, mut come: impl FnMut() -> bool) {
    let until = BootClock.now() + limit;
    while !come() {
        assert!(BootClock.now() < until, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `file` has something in it, and gives it back.
pub(crate) fn wait_for_text(file: &Path) -> String {
    let mut text = String::new();
    wait_for(&format!("text in {}", file.display()), LIMIT, || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim().to_owned()
}

/// Those that do something: whoever started the tests may ignore some (`nohup`), and that is inherited.
pub(crate) fn not_ignored(signals: &[Signal]) -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignored = u64::from_str_radix(mask, 16).unwrap();
    let (deaf, listening): (Vec<_>, Vec<_>) =
        signals.iter().partition(|signal| ignored >> (signal.as_raw() - 1) & 1 == 1);
    if !deaf.is_empty() {
        println!("SKIPPED: the tests were started with {deaf:?} ignored");
    }
    listening
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// The processes of a group that run, zombies left out.
pub(crate) fn running_in_group(group: i32) -> Vec<i32> {
    processes().into_iter().filter(|p| p.group == group && !p.zombie).map(|p| p.id).collect()
}

/// The children of a process whose command line contains `text`.
pub(crate) fn children_of(parent: i32, text: &str) -> Vec<i32> {
    let line = |id: i32| {
        let bytes = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let all = processes().into_iter();
    all.filter(|p| p.parent == parent && !p.zombie && line(p.id).contains(text))
        .map(|p| p.id)
        .collect()
}

pub(crate) fn is_running(id: i32) -> bool {
    processes().iter().any(|p| p.id == id && !p.zombie)
}

struct Process {
    id: i32,
    parent: i32,
    group: i32,
    zombie: bool,
}

fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let zombie = matches!(fields.next()?, "Z" | "X");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Process { id, parent, group, zombie })
    })
    .collect()
}
