//! Nothing outlives the test run, and a missing server fails a test instead of skipping it.
//!
//! Both concern a whole process, so this program starts itself again in a role.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Etcd, Process, Redis, ZooKeeper};

const PART: &str = "FENCEPOST_TESTBED_PART";

/// This program again, in the role that a test below needs.
fn again(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part", "--ignored", "--nocapture"]).env(PART, part);
    command
}

#[test]
#[ignore = "a part that other tests play"]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("start") => {
            // On a thread that ends: a server must outlive the thread that started it.
            let redis = std::thread::spawn(|| Redis::builder().start()).join().unwrap().unwrap();
            redis.command(&["PING"]).unwrap();
            let etcd = Etcd::builder().start().unwrap();
            let zookeeper = ZooKeeper::builder().start().unwrap();
            println!("\npids {} {} {}", redis.pid(), etcd.pid(), zookeeper.pid());
            // Waits to be killed.
            let _ = std::io::stdin().lines().next();
        }
        Ok("start nothing") => {
            println!("\n{}", Redis::builder().start().unwrap_err());
            println!("{}", Etcd::builder().start().unwrap_err());
            println!("{}", ZooKeeper::builder().start().unwrap_err());
        }
        part => panic!("there is no part {part:?}"),
    }
}

/// Whether a process runs. A zombie does not.
fn runs(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("status"));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:\tZ")))
}

#[test]
fn killed_test_process_ends_its_servers() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = again("start")
        // What it has no time to remove is removed with this.
        .env("TMPDIR", directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids =
        lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("pids ")?.to_owned()));
    let running = pids.as_deref().map(|pids| pids.split(' ').all(runs));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(running, Some(true));
    let pids = pids.unwrap();
    until(SOON, "the servers have ended", || Ok(!pids.split(' ').any(runs))).unwrap();
}

#[test]
fn missing_server_error_says_what_to_install() {
    let output = again("start nothing").env("PATH", "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for package in ["redis-server", "etcd-server", "default-jre-headless"] {
        let advice = format!("install {package} (scripts/test does)");
        assert!(text.contains(&advice), "{advice}: {text}");
    }
}

#[test]
fn frozen_process_is_woken_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    fs::File::create(&log).unwrap().write_all(b"of an earlier run\n").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap 'echo asked; exit' TERM; echo up; while :; do sleep 0.01; done"]);
    let mut process = Process::spawn(&command, &log).unwrap();
    until(SOON, "it is up", || Ok(process.log() == "up\n")).unwrap();
    assert!(process.is_running());
    process.stop().unwrap();
    assert!(process.is_running(), "a frozen process runs");
    process.terminate().unwrap();
    assert!(!process.is_running());
    assert_eq!(process.log(), "up\nasked\n");
}
