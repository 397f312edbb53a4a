//! Another process that takes a lock: this test program again, with only the test `frozen::worker`.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use crate::Process;
use fencepost::{Fencepost, Guard};
use tempfile::TempDir;

use crate::{connect, ms, until};

/// Says that this process is a worker, and what it is to do: URL, name, TTL in milliseconds.
const WORKER: &str = "FENCEPOST_TEST_WORKER";

/// Two looks of a worker that lie this far apart: it was frozen in between.
pub const GAP: Duration = Duration::from_secs(1);

/// The other process, from here.
pub struct Worker {
    /// To be frozen, woken and killed.
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

    /// What it said after this word, each time.
    pub fn said(&self, word: &str) -> Vec<String> {
        let log = self.process.log();
        let lines = log.lines().filter_map(|line| line.strip_prefix("worker: ")?.strip_suffix('.'));
        lines.filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
    }

    /// Waits until it has the lock.
    pub async fn token(&self) -> u64 {
        until("the worker is granted", async || !self.said("granted").is_empty()).await;
        self.said("granted")[0].parse().unwrap()
    }

    /// Waits until its lease was renewed once more, if it says `until` then.
    pub async fn until_renewed(&self) {
        let before = self.said("until").len();
        until("the worker's lease is renewed", async || self.said("until").len() > before).await;
    }
}

/// The worker's part: takes the lock as it was told, and says so. None if this process is no worker.
pub async fn lock_as_told() -> Option<(Fencepost, Guard)> {
    let order = std::env::var(WORKER).ok()?;
    let words: Vec<_> = order.split(' ').collect();
    let client = connect(words[0]).await;
    let lock = client.lock(words[1]).ttl(ms(words[2].parse().unwrap()));
    let guard = lock.acquire().await.unwrap();
    say(&format!("granted {}", guard.token()));
    Some((client, guard))
}

/// The worker's part: says this to the test that started it.
pub fn say(line: &str) {
    // Past the test harness, which would keep it back.
    std::io::stdout().write_all(format!("\nworker: {line}.\n").as_bytes()).unwrap();
}
