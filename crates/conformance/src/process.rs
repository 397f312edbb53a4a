//! The suite's side of a worker process. It is killed by its id in every case.

use std::process::Command;
use std::time::Duration;

use fencepost_core::Token;
use fencepost_process::Process;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::fixture::{SOON, Stop, Verdict, ensure, until, within};
use super::harness::Harness;
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
        let (sender, lines) = unbounded_channel();
        let receive =
            move |line: Option<String>| line.is_some_and(|line| sender.send(line).is_ok());
        Ok(Self { process: Process::start(command, receive)?, lines })
    }

    /// Starts workers together: all are connected before the first begins.
    pub(super) async fn start_together(
        count: usize,
        mut start: impl FnMut() -> Verdict<Self>,
    ) -> Verdict<Vec<Self>> {
        let mut workers = (0..count).map(|_| start()).collect::<Verdict<Vec<_>>>()?;
        for worker in &mut workers {
            worker.ready(SOON * 5).await?;
        }
        for worker in &mut workers {
            worker.send("go")?;
        }
        Ok(workers)
    }

    /// The worker's next line.
    pub(super) async fn read_line(&mut self, limit: Duration) -> Verdict<String> {
        let line = within(limit, "a worker writes a line", self.lines.recv()).await?;
        let line = line.ok_or_else(|| Stop::Failed("a worker ended without an order".into()))?;
        ensure!(!line.starts_with("failed "), "a worker {line}");
        Ok(line)
    }

    /// Waits until the worker is connected.
    pub(super) async fn ready(&mut self, limit: Duration) -> Verdict {
        let line = self.read_line(limit).await?;
        ensure!(line == "ready", "a worker said \"{line}\" before it was ready");
        Ok(())
    }

    /// Waits until the worker is connected, and starts it.
    pub(super) async fn go(&mut self) -> Verdict {
        self.ready(SOON).await?;
        self.send("go")
    }

    /// The worker's next line that replies to an order.
    pub(super) async fn read_reply(&mut self, limit: Duration) -> Verdict<String> {
        loop {
            let line = self.read_line(limit).await?;
            if line != "ready" && !line.starts_with("lost ") {
                return Ok(line);
            }
        }
    }

    pub(super) fn send(&mut self, order: &str) -> Verdict {
        Ok(self.process.send(order)?)
    }

    /// Waits for the grant of a `hold` worker. Returns its token, and whether the store notices the end of its process.
    pub(super) async fn granted(&mut self, limit: Duration) -> Verdict<(Token, bool)> {
        let line = self.read_line(limit).await?;
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["granted", token, by] => Ok((token.parse()?, *by == "presence")),
            _ => Err(Stop::Failed(format!("a worker said \"{line}\" instead of its grant"))),
        }
    }

    /// Freezes the worker, and waits until it is frozen.
    pub(super) async fn stop(&self) -> Verdict {
        self.process.freeze()?;
        until(SOON, "a worker is frozen", async || Ok(self.process.is_frozen())).await
    }

    /// Continues a frozen worker.
    pub(super) fn resume(&self) -> Verdict {
        Ok(self.process.wake()?)
    }

    /// Waits until the worker reports that all its work is done.
    pub(super) async fn done(&mut self) -> Verdict {
        let line = self.read_reply(SOON * 10).await?;
        ensure!(line == "done", "a worker said \"{line}\"");
        Ok(())
    }

    /// Kills the worker as a crash would, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Verdict {
        Ok(self.process.kill()?)
    }
}
