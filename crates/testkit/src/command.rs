//! What the tests of the command share: a store of their own, real processes, and waiting for conditions.

use std::io::{BufRead as _, BufReader, Lines, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};
use fencepost_process::Process;
use rustix::process::Signal;

/// Longer than anything here takes, even on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The command under test. Cargo names it to the tests it runs; otherwise it is above the test program.
fn program() -> PathBuf {
    let named = std::env::var_os("CARGO_BIN_EXE_fencepost").map(PathBuf::from);
    named.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("fencepost")
    })
}

/// A fresh embedded store in a temporary directory.
pub struct Store {
    /// The directory of its file and of the test's files.
    pub dir: tempfile::TempDir,
}

impl Store {
    /// In a directory of its own.
    pub fn new() -> Self {
        Self { dir: crate::directory_on_disk().unwrap() }
    }

    /// A file in its directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// `fencepost` on this store.
    pub fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
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
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.fencepost(arguments).output().unwrap()
    }

    /// Runs it to its end and gives back its exit code and both outputs.
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        outcome_of(&self.output(arguments))
    }

    /// Starts it; it is killed if the test ends first.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.fencepost(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command)
    }

    /// The store has neither holders nor waiters.
    pub fn assert_empty(&self) {
        let (code, out, err) = self.run(&["ls", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(r#""locks":[]"#), "{out}");
    }

    /// Whether `name` is held, with this label.
    pub fn holder(&self, name: &str) -> Option<String> {
        let (code, out, err) = self.run(&["show", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        let from = out.split_once(r#""label":""#)?.1;
        Some(from.split_once('"')?.0.to_owned()).filter(|_| out.contains(r#""holder":{"#))
    }
}

/// Exit code as a shell shows it (128+N after signal N), stdout, stderr.
pub fn outcome_of(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().or_else(|| Some(128 + output.status.signal()?));
    (code, text(&output.stdout), text(&output.stderr))
}

/// A process of ours, killed on drop.
pub struct Running(pub(crate) Process);

impl Running {
    /// Starts it; from here on it ends with the test.
    pub fn new(command: Command) -> Self {
        Self(Process::spawn(command).unwrap())
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }

    /// Its standard input.
    pub fn stdin(&mut self) -> ChildStdin {
        self.0.stdin().unwrap()
    }

    /// Its standard output, line by line.
    pub fn lines(&mut self) -> Lines<BufReader<ChildStdout>> {
        BufReader::new(self.0.stdout().unwrap()).lines()
    }

    /// Waits for it to end; exit code, stdout, stderr.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let mut output = Output { status: self.wait(), stdout: Vec::new(), stderr: Vec::new() };
        if let Some(mut stdout) = self.0.stdout() {
            stdout.read_to_end(&mut output.stdout).unwrap();
        }
        if let Some(mut stderr) = self.0.stderr() {
            stderr.read_to_end(&mut output.stderr).unwrap();
        }
        outcome_of(&output)
    }

    /// Waits for it to end; the signal that ended it.
    pub fn ended_by(mut self) -> Option<i32> {
        self.wait().signal()
    }

    fn wait(&mut self) -> ExitStatus {
        wait_for("the process to end", LIMIT, || self.has_ended());
        self.0.wait().unwrap()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        !self.0.is_running()
    }
}

/// Polls until `come` is true. The only wait in this file.
#[expect(clippy::disallowed_methods, reason = "a test polls a condition, with a limit, only here")]
pub fn wait_for(what: &str, limit: Duration, mut come: impl FnMut() -> bool) {
    let until = BootClock.now() + limit;
    while !come() {
        assert!(BootClock.now() < until, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `file` has content, and returns it.
pub fn wait_for_text(file: &Path) -> String {
    let mut text = String::new();
    wait_for(&format!("text in {}", file.display()), LIMIT, || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim().to_owned()
}

/// Signals with a default action: the parent of the tests may ignore some (`nohup`), and that is inherited.
pub fn not_ignored(signals: &[Signal]) -> Vec<Signal> {
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

/// The current time on the library's clock.
pub fn now() -> Moment {
    BootClock.now()
}

/// The running processes of a group, without zombies.
pub fn running_in_group(group: i32) -> Vec<i32> {
    processes().into_iter().filter(|p| p.group == group && !p.zombie).map(|p| p.id).collect()
}

/// The children of a process whose command line contains `text`.
pub fn children_of(parent: i32, text: &str) -> Vec<i32> {
    let line = |id: i32| {
        let bytes = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let all = processes().into_iter();
    all.filter(|p| p.parent == parent && !p.zombie && line(p.id).contains(text))
        .map(|p| p.id)
        .collect()
}

/// Whether this process exists and is not a zombie.
pub fn is_running(id: i32) -> bool {
    processes().iter().any(|p| p.id == id && !p.zombie)
}

/// A process as `/proc` shows it.
struct Seen {
    id: i32,
    parent: i32,
    group: i32,
    zombie: bool,
}

fn processes() -> Vec<Seen> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let zombie = matches!(fields.next()?, "Z" | "X");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Seen { id, parent, group, zombie })
    })
    .collect()
}
