//! Processes of third-party clients, and their output.

use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fencepost_process::Process;
use rustix::process::Signal;

use crate::command::{LIMIT, Running, Store, wait_for};

/// Where the workers and their packages are.
pub const PINNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients");
/// The directory that `scripts/clients` fills.
pub const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools");

/// Fails unless the pinned versions are installed.
pub fn assert_installed(pinned: &str, installed: &str) {
    let pinned = read_to_string(format!("{PINNED}/{pinned}")).unwrap();
    let installed = read_to_string(format!("{TOOLS}/{installed}")).unwrap_or_default();
    assert!(pinned == installed, "the third-party lock clients are missing: run scripts/clients");
}

/// A worker in Python, with the pinned packages.
pub fn python(worker: &str) -> Command {
    assert_installed("requirements.txt", "python/requirements.txt");
    let mut command = Command::new(format!("{TOOLS}/python/bin/python"));
    // Do not write bytecode beside the sources.
    command.arg("-B").arg(format!("{PINNED}/{worker}"));
    command
}

/// A process that uses a third-party lock, one order per line. Killed on drop.
pub struct Worker {
    process: Running,
    /// A file, because a pipe cannot be read with a timeout.
    answers: PathBuf,
    errors: PathBuf,
    received: usize,
}

impl Worker {
    /// Returns when the client is ready.
    pub fn start(command: Command, store: &Store) -> Self {
        let mut worker = Self::spawn(command, store.dir.path());
        assert_eq!(worker.answer(), "ready");
        worker
    }

    /// Starts a process that may never say `ready`, with a directory for its output.
    pub fn spawn(mut command: Command, directory: &Path) -> Self {
        let said = tempfile::tempdir_in(directory).unwrap().keep();
        let (answers, errors) = (said.join("answers"), said.join("errors"));
        command.stdin(Stdio::piped());
        command.stdout(File::create(&answers).unwrap()).stderr(File::create(&errors).unwrap());
        let process = Process::spawn(command);
        let process = process.expect("a third-party client starts: run scripts/clients");
        Self { process: Running(process), answers, errors, received: 0 }
    }

    /// Sends it an order.
    pub fn send(&mut self, order: &str) {
        self.process.0.send(order).unwrap();
    }

    /// Waits for its next reply.
    pub fn answer(&mut self) -> String {
        let received = self.received;
        let answer = self.wait_for_line(|lines| lines.into_iter().nth(received));
        self.received += 1;
        answer
    }

    /// Waits until `find` finds something in its output.
    pub fn wait_for_line<T>(&mut self, find: impl Fn(Vec<String>) -> Option<T>) -> T {
        let mut found = None;
        wait_for("a reply of a third-party client", LIMIT, || {
            let ended = self.process.has_ended();
            found = find(self.lines());
            assert!(found.is_some() || !ended, "it ended: {}", self.errors());
            found.is_some()
        });
        found.unwrap()
    }

    /// Its output so far, in whole lines.
    pub fn lines(&self) -> Vec<String> {
        let said = read_to_string(&self.answers).unwrap();
        let lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.map(str::to_owned).collect()
    }

    /// Its standard error so far.
    pub fn errors(&self) -> String {
        read_to_string(&self.errors).unwrap()
    }

    /// Sends an order and waits for the reply.
    pub fn ask(&mut self, order: &str) -> String {
        self.send(order);
        self.answer()
    }

    /// Closes its standard input.
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

    /// Waits for its end. Returns its exit code.
    pub fn end(self) -> Option<i32> {
        self.process.end().0
    }
}
