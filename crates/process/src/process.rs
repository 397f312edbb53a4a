//! The parent's side: one child process, always signalled by its id.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::spawner;

/// A child process that is killed when this is dropped.
///
/// A signal reaches this process or none: after the process was reaped its id can be used again, so no signal is sent.
/// [`is_running`](Self::is_running) does not reap it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    reaped: bool,
}

impl Process {
    /// Starts the command, on the thread that starts all processes.
    pub fn spawn(command: Command) -> io::Result<Self> {
        let child = spawner::spawn(command)?;
        Ok(Self { pid: Pid::from_child(&child), child, reaped: false })
    }

    /// Starts a worker. A thread calls `receive` with each line that the worker writes, and with `None` after the last
    /// one, until it returns false.
    pub fn start(
        mut command: Command,
        mut receive: impl FnMut(Option<String>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut worker = Self::spawn(command)?;
        let lines = worker.stdout().into_iter().flat_map(|out| BufReader::new(out).lines());
        let lines = lines.map_while(io::Result::ok).map(Some).chain([None]);
        std::thread::Builder::new().name("fencepost-worker".into()).spawn(move || {
            for line in lines {
                if !receive(line) {
                    return;
                }
            }
        })?;
        Ok(worker)
    }

    /// Sends a line to a worker. A frozen worker reads it when it wakes.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        match &mut self.child.stdin {
            Some(stdin) => writeln!(stdin, "{line}"),
            None => {
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process has no standard input"))
            }
        }
    }

    /// Takes its standard input, if that is a pipe.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes its standard output, if that is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes its standard error, if that is a pipe.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.reaped {
            let message = format!("process {} has ended", self.id());
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(kill_process(self.pid, signal)?)
    }

    /// Freezes it (SIGSTOP). It is frozen when [`is_frozen`](Self::is_frozen) says so.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues it (SIGCONT).
    pub fn wake(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether all its threads are stopped.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        matches!(self.status(WaitIdOptions::STOPPED), Ok(Some(status)) if status.stopped())
    }

    /// Whether it has not ended. A frozen process counts as running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.status(WaitIdOptions::EXITED), Ok(None))
    }

    fn status(&self, of: WaitIdOptions) -> io::Result<Option<rustix::process::WaitIdStatus>> {
        if self.reaped {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = of | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid), flags)?)
    }

    /// Ends it as a crash would (SIGKILL), frozen or not, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.wait().map(|_| ())
    }

    /// Waits for its end, without a limit. With a limit, poll [`is_running`](Self::is_running).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Harmless if it has ended: its id is not used again before it is reaped.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn frozen_worker_answers_after_waking_and_killed_one_gets_no_signal() {
        let (sender, lines) = channel();
        let next = || lines.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do echo received $line; done"]);
        let mut worker = Process::start(command, move |line| sender.send(line).is_ok()).unwrap();
        worker.send("one").unwrap();
        assert_eq!(next().as_deref(), Some("received one"));

        worker.freeze().unwrap();
        while !worker.is_frozen() {
            std::thread::yield_now();
        }
        assert!(worker.is_running());
        worker.send("two").unwrap();
        assert!(lines.recv_timeout(Duration::from_millis(50)).is_err(), "it is frozen");
        worker.wake().unwrap();
        assert_eq!(next().as_deref(), Some("received two"));

        worker.freeze().unwrap();
        worker.kill().unwrap();
        assert_eq!(next(), None);
        assert!(!worker.is_running() && !worker.is_frozen());
        assert_eq!(worker.wake().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
