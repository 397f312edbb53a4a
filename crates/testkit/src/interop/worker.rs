//! Processes of other makes, and what they say.

use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fencepost_process::Process;
use rustix::process::Signal;

use crate::command::{LIMIT, Running, Store, wait_for};

/// Where the workers lie, and what they need.
pub const PINNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients");
/// Where `scripts/clients` puts that.
pub const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools");

/// Fails unless what is pinned here is what was installed.
pub fn assert_installed(pinned: &str, installed: &str) {
    let pinned = read_to_string(format!("{PINNED}/{pinned}")).unwrap();
    let installed = read_to_string(format!("{TOOLS}/{installed}")).unwrap_or_default();
    assert!(
        pinned == installed,
        "the lock clients of other makes are missing: run scripts/clients"
    );
}

/// A worker in Python, with the pinned packages.
pub fn python(worker: &str) -> Command {
    assert_installed("requirements.txt", "python/requirements.txt");
    let mut command = Command::new(format!("{TOOLS}/python/bin/python"));
    // It leaves nothing beside the sources.
    command.arg("-B").arg(format!("{PINNED}/{worker}"));
    command
}

/// A process that uses another make's lock, as it is told line by line. Killed on drop.
pub struct Worker {
    process: Running,
    /// A file, since a pipe could not be read with a limit.
    answers: PathBuf,
    errors: PathBuf,
    heard: usize,
}

impl Worker {
    /// Returns when the client is ready.
    pub fn start(command: Command, store: &Store) -> Self {
        let mut worker = Self::spawn(command, store.dir.path());
        assert_eq!(worker.answer(), "ready");
        worker
    }

    /// Starts a process that may never say `ready`, with a directory for what it says.
    pub fn spawn(mut command: Command, directory: &Path) -> Self {
        let said = tempfile::tempdir_in(directory).unwrap().keep();
        let (answers, errors) = (said.join("answers"), said.join("errors"));
        command.stdin(Stdio::piped());
        command.stdout(File::create(&answers).unwrap()).stderr(File::create(&errors).unwrap());
        let process = Process::spawn(command);
        let process = process.expect("a client of another make starts: run scripts/clients");
        Self { process: Running(process), answers, errors, heard: 0 }
    }

    /// Tells it what to do next.
    pub fn tell(&mut self, order: &str) {
        self.process.0.tell(order).unwrap();
    }

    /// Waits for its next answer.
    pub fn answer(&mut self) -> String {
        let heard = self.heard;
        let answer = self.wait_for_line(|lines| lines.into_iter().nth(heard));
        self.heard += 1;
        answer
    }

    /// Waits until `find` finds what it looks for in the lines that the process has said.
    pub fn wait_for_line<T>(&mut self, find: impl Fn(Vec<String>) -> Option<T>) -> T {
        let mut found = None;
        wait_for("an answer of another make", LIMIT, || {
            let ended = self.process.has_ended();
            found = find(self.lines());
            assert!(found.is_some() || !ended, "it ended: {}", self.errors());
            found.is_some()
        });
        found.unwrap()
    }

    /// What it has said, in whole lines.
    pub fn lines(&self) -> Vec<String> {
        let said = read_to_string(&self.answers).unwrap();
        let lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.map(str::to_owned).collect()
    }

    /// What it has said on standard error.
    pub fn errors(&self) -> String {
        read_to_string(&self.errors).unwrap()
    }

    /// Tells it what to do and waits for the answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// Tells it that there is no more to do.
    pub fn hang_up(&mut self) {
        drop(self.process.0.stdin());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// `kill -9`.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits for its end; its exit code.
    pub fn end(self) -> Option<i32> {
        self.process.end().0
    }
}
