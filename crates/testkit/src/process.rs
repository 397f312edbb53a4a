//! One server process with its log: start, freeze, crash, end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;

use crate::bound::bound;
use crate::wait::{SOON, until};

/// How many lines of a log an error shows.
const TAIL: usize = 20;

/// A child process that is killed when this is dropped, and by the kernel however the test process ends (on Linux with
/// `setpriv` from util-linux).
#[derive(Debug)]
pub struct Process {
    child: fencepost_process::Process,
    log: PathBuf,
    /// Where this run begins in the log.
    log_start: u64,
}

impl Process {
    /// Starts the command, with its output added to `log_file` and without input.
    ///
    /// Program, arguments, environment and directory are taken from the command; redirections are not.
    pub fn spawn(command: &Command, log_file: &Path) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log_file)?;
        let log_start = log.metadata()?.len();
        let mut command = bound(command)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = fencepost_process::Process::spawn(command)?;
        Ok(Self { child, log: log_file.to_owned(), log_start })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended. A frozen process counts as running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_running()
    }

    /// Freezes the process (SIGSTOP), and waits until it is frozen.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        until(SOON, &format!("process {} is frozen", self.pid()), || {
            self.must_run()?;
            Ok(self.child.is_frozen())
        })
    }

    /// Continues a frozen process (SIGCONT).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the process as a crash would (SIGKILL), frozen or not, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Asks the process to end (SIGTERM), wakes it if it is frozen, and kills it if it does not end in time.
    pub fn terminate(&mut self) -> io::Result<()> {
        if self.is_running() {
            self.signal(Signal::TERM)?;
            self.signal(Signal::CONT)?;
            // A timeout here does not matter: the kill below makes sure.
            let _ = until(SOON, "a process ends", || Ok(!self.is_running()));
        }
        self.kill()
    }

    /// Asks the process to end (SIGTERM), and returns how it ended; an error if it does not end in time.
    pub fn shut_down(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let ended = until(SOON, "a process ends after SIGTERM", || Ok(!self.is_running()));
        ended.map_err(|error| self.failure("a process to end", &error))?;
        self.child.wait()
    }

    /// The log of this run, as far as it can be read.
    #[must_use]
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        let read = |text: &mut Vec<u8>| -> io::Result<usize> {
            let mut log = File::open(&self.log)?;
            log.seek(SeekFrom::Start(self.log_start))?;
            log.read_to_end(text)
        };
        match read(&mut text) {
            Ok(_) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("(the log cannot be read: {error})"),
        }
    }

    /// The error for a server that did not start: the goal, the cause, and the end of its log.
    ///
    /// Its kind is [`AddrInUse`](io::ErrorKind::AddrInUse) if the log says that, so that the caller can try
    /// another port.
    #[must_use]
    pub fn failure(&self, wanted: &str, error: &io::Error) -> io::Error {
        let log = self.log();
        // Java and C capitalise it, Go does not.
        let taken = log.to_lowercase().contains("address already in use");
        let kind = if taken { io::ErrorKind::AddrInUse } else { error.kind() };
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        io::Error::new(kind, format!("wanted {wanted}: {error}; the end of its log:\n{tail}"))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        self.must_run()?;
        self.child.signal(signal)
    }

    fn must_run(&self) -> io::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let message = format!("process {} has ended", self.pid());
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }
}
