//! One server process, with its log: started, frozen, crashed, ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::bound::bound;
use crate::wait::{SOON, until};

/// How many lines of a log an error shows.
const TAIL: usize = 20;

/// A child process that is killed when this is dropped, and by the kernel when the test process ends, however
/// that ends (on Linux with `setpriv` from util-linux installed).
#[derive(Debug)]
pub struct Process {
    child: fencepost_process::Process,
    log: PathBuf,
    /// Where in the log this run of the server begins.
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

    /// Whether it has not ended. A frozen process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_running()
    }

    /// Freezes the process (SIGSTOP), and waits until it stands.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        until(SOON, &format!("process {} stands still", self.pid()), || {
            self.must_run()?;
            Ok(self.child.is_frozen())
        })
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Ends the process as a crash would (SIGKILL), frozen or not, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Asks the process to end (SIGTERM), wakes it if it is frozen, and kills it if it does not end in time.
    pub fn terminate(&mut self) -> io::Result<()> {
        if self.is_running() {
            self.signal(Signal::TERM)?;
            self.signal(Signal::CONT)?;
            // Too late is no failure: the kill below makes sure.
            let _ = until(SOON, "a process ends", || Ok(!self.is_running()));
        }
        self.kill()
    }

    /// What this run of the process has written to its log, or as much as can be read of it.
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
            Err(error) => format!("(the log can not be read: {error})"),
        }
    }

    /// An error for a server that did not come up: what was wanted, what went wrong, the end of its log.
    ///
    /// Its kind is [`AddrInUse`](io::ErrorKind::AddrInUse) if the log says that, so that the caller can try
    /// another port.
    #[must_use]
    pub fn failure(&self, wanted: &str, error: &io::Error) -> io::Error {
        let log = self.log();
        // Java and C write it with a capital letter, Go does not.
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
