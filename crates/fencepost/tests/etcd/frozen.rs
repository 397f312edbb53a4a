//! A process that uses locks stands still, and goes on.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use fencepost_testbed::{Etcd, Process};
use tempfile::TempDir;

use crate::common::{
    LONG, SOON, connect, granted, line, ms, now, pass, shared, until, until_waiting, waits,
};

/// Says that this process is a worker, and what it is to do: URL and name.
const WORKER: &str = "FENCEPOST_ETCD_TEST_WORKER";
const TTL: Duration = Duration::from_secs(2);
/// Two looks of a worker that lie this far apart: it was frozen in between.
const GAP: Duration = Duration::from_secs(1);

/// This is no test but the other process, if it was started as one: takes the lock, and looks at its guard all
/// the time.
#[tokio::test]
async fn worker() {
    let Ok(order) = std::env::var(WORKER) else { return };
    let (url, name) = order.split_once(' ').unwrap();
    let guard = connect(url).await.lock(name).ttl(TTL).acquire().await.unwrap();
    say(&format!("granted {}.", guard.token()));
    let mut last = now();
    loop {
        pass(ms(1)).await;
        let state = guard.state();
        if now().since(last) > GAP {
            say(&format!("woke {state:?}."));
        }
        last = now();
    }
}

fn say(line: &str) {
    // Past the test harness, which would keep it back.
    std::io::stdout().write_all(format!("\nworker: {line}\n").as_bytes()).unwrap();
}

/// The other process, from here.
struct Worker {
    process: Process,
    _directory: TempDir,
}

impl Worker {
    fn start(etcd: &Etcd, name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["frozen::worker", "--exact", "--nocapture"]);
        command.env(WORKER, format!("{} {name}", etcd.url()));
        let process = Process::spawn(&command, &directory.path().join("log")).unwrap();
        Self { process, _directory: directory }
    }

    /// What it said, line by line.
    fn said(&self) -> Vec<String> {
        let log = self.process.log();
        let lines = log.lines().filter_map(|line| line.strip_prefix("worker: ")?.strip_suffix('.'));
        lines.map(str::to_owned).collect()
    }

    /// Waits until it has the lock.
    async fn token(&self) -> u64 {
        let mut token = None;
        until("the worker is granted", async || {
            let said = self.said();
            let granted = said.iter().find_map(|line| line.strip_prefix("granted "));
            token = granted.map(|token| token.parse().unwrap());
            token.is_some()
        })
        .await;
        token.unwrap()
    }
}

/// The story behind fencing: a holder freezes past its lease and wakes up sure of its lock. Here its first look
/// tells it, before any timer or packet does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_is_lost_at_its_first_look() {
    let etcd = shared();
    let name = "frozen/holder";
    let theirs = connect(&etcd.url()).await;
    let worker = Worker::start(&etcd, name);
    let token = worker.token().await;
    worker.process.stop().unwrap();
    let next = granted(waits(&theirs, name, LONG)).await;
    assert!(next.token().get() > token, "{} after {token}", next.token());
    let before = worker.said().len();
    worker.process.resume().unwrap();
    until("the worker wakes", async || worker.said().len() > before).await;
    let first = &worker.said()[before];
    assert!(first.starts_with("woke Lost("), "{first}");
    next.check().unwrap();
    assert_eq!(line(&etcd, name).len(), 1, "it undid nothing that is not its own");
    next.release().await.unwrap();
}

/// etcd#11456, #9921: the waiter's lease had died in its sleep; when its predecessor had gone it believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_waiter_does_not_hold_when_it_wakes() {
    let etcd = shared();
    let name = "frozen/waiter";
    let theirs = connect(&etcd.url()).await;
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let worker = Worker::start(&etcd, name);
    until_waiting(&theirs, name, 1).await;
    let old = line(&etcd, name)[1].clone();
    worker.process.stop().unwrap();
    // Its lease dies; the holder goes, and another one has the lock.
    until_waiting(&theirs, name, 0).await;
    holder.release().await.unwrap();
    let next = theirs.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
    worker.process.resume().unwrap();
    until_waiting(&theirs, name, 1).await;
    assert_ne!(line(&etcd, name)[1], old, "a fresh place");
    assert!(worker.said().is_empty(), "{:?}", worker.said());
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(worker.token().await > token);
}
