//! The suite's end of a worker process. It is killed, by its id, on every path.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost_core::Token;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::harness::Harness;
use super::scene::{SOON, Stop, Verdict, ensure, until, within};
use super::worker::WORKER;

pub(super) struct Worker {
    child: Child,
    pid: Pid,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    pub(super) fn start(
        harness: &dyn Harness,
        role: &str,
        url: &str,
        arguments: &[&str],
    ) -> Verdict<Self> {
        let mut child = Command::new(harness.worker()?)
            .env(WORKER, harness.name())
            .args([role, url])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = Pid::from_child(&child);
        let (heard, lines) = unbounded_channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                    if heard.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, pid, lines })
    }

    /// The next line that the worker says.
    pub(super) async fn hear(&mut self, limit: Duration) -> Verdict<String> {
        let line = within(limit, "a worker says something", self.lines.recv()).await?;
        let line = line.ok_or_else(|| Stop::Failed("a worker ended unasked".into()))?;
        ensure!(!line.starts_with("failed "), "a worker {line}");
        Ok(line)
    }

    /// Waits until the worker is connected.
    pub(super) async fn ready(&mut self, limit: Duration) -> Verdict {
        let line = self.hear(limit).await?;
        ensure!(line == "ready", "a worker said \"{line}\" before it was ready");
        Ok(())
    }

    /// Waits until the worker is connected, and lets it start.
    pub(super) async fn go(&mut self) -> Verdict {
        self.ready(SOON).await?;
        self.tell("go")
    }

    /// What the worker says that is none of what it says unasked.
    pub(super) async fn answer(&mut self, limit: Duration) -> Verdict<String> {
        loop {
            let line = self.hear(limit).await?;
            if line != "ready" && !line.starts_with("lost ") {
                return Ok(line);
            }
        }
    }

    pub(super) fn tell(&mut self, order: &str) -> Verdict {
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or_else(|| Stop::Failed("a worker has no standard input".into()))?;
        Ok(writeln!(stdin, "{order}")?)
    }

    /// Waits for the grant of a `hold` worker: its token, and whether the store sees its process end.
    pub(super) async fn granted(&mut self, limit: Duration) -> Verdict<(Token, bool)> {
        let line = self.hear(limit).await?;
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["granted", token, by] => Ok((token.parse()?, *by == "presence")),
            _ => Err(Stop::Failed(format!("a worker said \"{line}\" instead of its grant"))),
        }
    }

    /// Freezes the worker, and waits until it stands.
    pub(super) async fn stop(&self) -> Verdict {
        kill_process(self.pid, Signal::STOP)?;
        let flags = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        until(SOON, "a worker stands still", async || {
            Ok(waitid(WaitId::Pid(self.pid), flags)?.is_some_and(|status| status.stopped()))
        })
        .await
    }

    /// Lets a frozen worker go on.
    pub(super) fn resume(&self) -> Verdict {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// Ends the worker as a crash would, and waits until it is gone.
    pub(super) fn kill(mut self) -> Verdict {
        self.end()
    }

    /// The same, for one that is still talked of.
    pub(super) fn end(&mut self) -> Verdict {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Harmless if it has ended already: until it is waited for, its id is not used again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
