//! The parent's side: one child process, always signalled by its id.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::spawner;

/// A child process that is killed when this is dropped.
///
/// A signal reaches this process or nobody: its id is free for others once it has been waited for, and from then on
/// no signal is sent. Looking whether it runs does not wait for it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    waited_for: bool,
}

impl Process {
    /// Starts the command, from the thread that starts all of them.
    pub fn spawn(command: Command) -> io::Result<Self> {
        let child = spawner::spawn(command)?;
        Ok(Self { pid: Pid::from_child(&child), child, waited_for: false })
    }

    /// Starts a worker. `hear` is given each line that it writes, and `None` after the last one, on a thread of its
    /// own, until it returns false.
    pub fn start(
        mut command: Command,
        mut hear: impl FnMut(Option<String>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut worker = Self::spawn(command)?;
        let lines = worker.stdout().into_iter().flat_map(|out| BufReader::new(out).lines());
        let lines = lines.map_while(io::Result::ok).map(Some).chain([None]);
        std::thread::Builder::new().name("fencepost-worker".into()).spawn(move || {
            for line in lines {
                if !hear(line) {
                    return;
                }
            }
        })?;
        Ok(worker)
    }

    /// Tells a worker something. A frozen one finds it when it wakes.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.child.stdin {
            Some(stdin) => writeln!(stdin, "{line}"),
            None => Err(io::Error::new(io::ErrorKind::BrokenPipe, "it has no standard input")),
        }
    }

    /// Its standard input, if that is a pipe and was not taken before.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The same of its standard output.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The same of its standard error.
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
        if self.waited_for {
            let message = format!("process {} has ended", self.id());
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(kill_process(self.pid, signal)?)
    }

    /// Freezes it (SIGSTOP). That takes effect when [`is_frozen`](Self::is_frozen) says so.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub fn wake(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether none of its threads runs, until it is woken.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        matches!(self.look(WaitIdOptions::STOPPED), Ok(Some(status)) if status.stopped())
    }

    /// Whether it has not ended. A frozen process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.look(WaitIdOptions::EXITED), Ok(None))
    }

    fn look(&self, at: WaitIdOptions) -> io::Result<Option<rustix::process::WaitIdStatus>> {
        if self.waited_for {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = at | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid), flags)?)
    }

    /// Ends it as a crash would (SIGKILL), frozen or not, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.wait().map(|_| ())
    }

    /// Waits for its end, without a limit: [`is_running`](Self::is_running) is for those who have one.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.waited_for = true;
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Harmless if it has ended already: until it is waited for, its id is not used again.
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
        let (heard, lines) = channel();
        let next = || lines.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do echo heard $line; done"]);
        let mut worker = Process::start(command, move |line| heard.send(line).is_ok()).unwrap();
        worker.tell("one").unwrap();
        assert_eq!(next().as_deref(), Some("heard one"));

        worker.freeze().unwrap();
        while !worker.is_frozen() {
            std::thread::yield_now();
        }
        assert!(worker.is_running());
        worker.tell("two").unwrap();
        assert!(lines.recv_timeout(Duration::from_millis(50)).is_err(), "it stands still");
        worker.wake().unwrap();
        assert_eq!(next().as_deref(), Some("heard two"));

        worker.freeze().unwrap();
        worker.kill().unwrap();
        assert_eq!(next(), None);
        assert!(!worker.is_running() && !worker.is_frozen());
        assert_eq!(worker.wake().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
