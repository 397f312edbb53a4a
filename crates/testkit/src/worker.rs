//! Another process that takes a lock: this test program again, running only the test `frozen::worker`.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use crate::Process;
use fencepost::{Fencepost, Guard};
use tempfile::TempDir;

use crate::{connect, ms, until};

/// Makes this process a worker: URL, name, TTL in milliseconds.
const WORKER: &str = "FENCEPOST_TEST_WORKER";

/// If two loops of a worker are this far apart, it was frozen in between.
pub const GAP: Duration = Duration::from_secs(1);

/// The other process, as the test sees it.
pub struct Worker {
    /// To be frozen, resumed and killed.
    pub process: Process,
    _directory: TempDir,
}

impl Worker {
    /// Starts it; it acquires the lock at once.
    pub fn start(url: &str, name: &str, ttl: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["frozen::worker", "--exact", "--nocapture"]);
        command.env(WORKER, format!("{url} {name} {}", ttl.as_millis()));
        let process = Process::spawn(&command, &directory.path().join("log")).unwrap();
        Self { process, _directory: directory }
    }

    /// What followed this word in its output, each time.
    pub fn reports(&self, word: &str) -> Vec<String> {
        let log = self.process.log();
        let lines = log.lines().filter_map(|line| line.strip_prefix("worker: ")?.strip_suffix('.'));
        lines.filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
    }

    /// Waits until it holds the lock.
    pub async fn token(&self) -> u64 {
        until("the worker is granted", async || !self.reports("granted").is_empty()).await;
        self.reports("granted")[0].parse().unwrap()
    }

    /// Waits until its lease was renewed again, as it reports with `until`.
    pub async fn until_renewed(&self) {
        let before = self.reports("until").len();
        until("the worker's lease is renewed", async || self.reports("until").len() > before).await;
    }
}

/// The worker's part: takes the lock and reports it. None if this process is not a worker.
pub async fn run_worker() -> Option<(Fencepost, Guard)> {
    let order = std::env::var(WORKER).ok()?;
    let words: Vec<_> = order.split(' ').collect();
    let client = connect(words[0]).await;
    let lock = client.lock(words[1]).ttl(ms(words[2].parse().unwrap()));
    let guard = lock.acquire().await.unwrap();
    report(&format!("granted {}", guard.token()));
    Some((client, guard))
}

/// The worker's part: reports this to the test.
pub fn report(line: &str) {
    // Around the test harness, which would capture it.
    std::io::stdout().write_all(format!("\nworker: {line}.\n").as_bytes()).unwrap();
}
