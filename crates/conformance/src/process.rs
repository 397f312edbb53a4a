//! The suite's end of a worker process. It is killed, by its id, on every path.

use std::process::Command;
use std::time::Duration;

use fencepost_core::Token;
use fencepost_process::Process;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::harness::Harness;
use super::scene::{SOON, Stop, Verdict, ensure, until, within};
use super::worker::WORKER;

pub(super) struct Worker {
    process: Process,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    pub(super) fn start(
        harness: &dyn Harness,
        role: &str,
        url: &str,
        arguments: &[&str],
    ) -> Verdict<Self> {
        let mut command = Command::new(harness.worker()?);
        command.env(WORKER, harness.name()).args([role, url]).args(arguments);
        let (heard, lines) = unbounded_channel();
        let hear = move |line: Option<String>| line.is_some_and(|line| heard.send(line).is_ok());
        Ok(Self { process: Process::start(command, hear)?, lines })
    }

    /// Workers that begin together: all are connected before the first starts.
    pub(super) async fn start_together(
        count: usize,
        mut start: impl FnMut() -> Verdict<Self>,
    ) -> Verdict<Vec<Self>> {
        let mut workers = (0..count).map(|_| start()).collect::<Verdict<Vec<_>>>()?;
        for worker in &mut workers {
            worker.ready(SOON * 5).await?;
        }
        for worker in &mut workers {
            worker.tell("go")?;
        }
        Ok(workers)
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
        Ok(self.process.tell(order)?)
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
        self.process.freeze()?;
        until(SOON, "a worker stands still", async || Ok(self.process.is_frozen())).await
    }

    /// Lets a frozen worker go on.
    pub(super) fn resume(&self) -> Verdict {
        Ok(self.process.wake()?)
    }

    /// Waits until the worker says that all its work is done.
    pub(super) async fn done(&mut self) -> Verdict {
        let line = self.answer(SOON * 10).await?;
        ensure!(line == "done", "a worker said \"{line}\"");
        Ok(())
    }

    /// Ends the worker as a crash would, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Verdict {
        Ok(self.process.kill()?)
    }
}
