//! What a lock costs: `cargo bench -p fencepost`, or `scripts/bench`.
//!
//! Side by side in one run, since machines are noisy: the library on `sqlite:` against the same two
//! transactions by hand; hand-off between processes; what it costs to wait.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use rusqlite::{Connection, TransactionBehavior};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url, rounds] = arguments.as_slice()
        && role == "waiter"
    {
        return waiter(url, rounds.parse()?);
    }
    // `cargo test` runs benchmarks too, to see that they work.
    let full = arguments.iter().any(|argument| argument == "--bench");
    let scale = if full { 1 } else { 50 };
    memory(200_000 / scale)?;
    sqlite_by_hand(4_000 / scale)?;
    hand_off(16, 400 / scale)?;
    idle(20, Duration::from_secs(if full { 10 } else { 1 }))
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Runs `cycles` of acquire and release from each of `tasks` tasks, each on a name of its own.
fn cycles(
    runtime: &tokio::runtime::Runtime,
    fp: &Fencepost,
    tasks: usize,
    cycles: usize,
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let fp = fp.clone();
            running.push(tokio::spawn(async move {
                let name = format!("bench/{task}");
                for _ in 0..cycles {
                    fp.lock(&name).acquire().await?.release().await?;
                }
                Ok::<(), fencepost::Error>(())
            }));
        }
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

fn memory(count: usize) -> Outcome<()> {
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect("memory:bench"))?;
    println!("memory: uncontended acquire + release");
    for tasks in [1, 64] {
        let took = cycles(&runtime, &fp, tasks, count / tasks)?;
        println!("  {tasks:>3} tasks  {}", rate(count, took));
    }
    Ok(())
}

fn rate(count: usize, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let count = count as f64;
    format!("{:>9.0} cycles/s  {:>8.2} µs each", count / seconds, seconds / count * 1e6)
}

/// What somebody would write without us: one transaction to take the row and draw a token, one to delete
/// it; the same durability.
struct ByHand(Connection);

impl ByHand {
    fn open(path: &Path) -> Outcome<Self> {
        let db = Connection::open(path)?;
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        db.execute_batch(
            "PRAGMA synchronous = FULL;
             CREATE TABLE counter (last INTEGER NOT NULL); INSERT INTO counter VALUES (0);
             CREATE TABLE locks (name TEXT PRIMARY KEY, owner BLOB NOT NULL, token INTEGER NOT NULL,
                label TEXT NOT NULL, deadline INTEGER NOT NULL) WITHOUT ROWID;",
        )?;
        Ok(Self(db))
    }

    fn cycle(&mut self, name: &str, owner: u128) -> Outcome<()> {
        let acquire = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = BootClock.now().as_nanos().cast_signed();
        let held = acquire
            .prepare_cached("SELECT 1 FROM locks WHERE name = ? AND deadline > ?")?
            .exists((name, now))?;
        assert!(!held, "nobody else is here");
        let token: i64 = acquire
            .prepare_cached("UPDATE counter SET last = last + 1 RETURNING last")?
            .query_row([], |row| row.get(0))?;
        acquire
            .prepare_cached("INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?, ?)")?
            .execute((name, owner.to_be_bytes(), token, "host:1", now + 30_000_000_000))?;
        acquire.commit()?;
        let release = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let gone = release
            .prepare_cached("DELETE FROM locks WHERE name = ? AND owner = ?")?
            .execute((name, owner.to_be_bytes()))?;
        assert_eq!(gone, 1, "it was ours");
        Ok(release.commit()?)
    }
}

fn sqlite_by_hand(count: usize) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("ours.db").display());
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(&url))?;
    let mut by_hand = ByHand::open(&directory.path().join("by-hand.db"))?;
    // Turn and turn about, so that a slow spell of the disk hits both.
    let slices = 20;
    let each = (count / slices).max(1);
    let (mut hand, mut ours) = (Duration::ZERO, Duration::ZERO);
    for slice in 0..slices {
        let start = BootClock.now();
        for cycle in 0..each {
            by_hand.cycle("bench/0", (slice * each + cycle) as u128)?;
        }
        hand += BootClock.now().since(start);
        ours += cycles(&runtime, &fp, 1, each)?;
    }
    println!("sqlite: uncontended acquire + release, synced");
    println!("  by hand    {}", rate(slices * each, hand));
    println!(
        "  ours, 1    {}  {:.2}x by hand",
        rate(slices * each, ours),
        hand.as_secs_f64() / ours.as_secs_f64()
    );
    for tasks in [16, 64] {
        let took = cycles(&runtime, &fp, tasks, (count / tasks).max(1))?;
        println!("  ours, {tasks}   {}", rate((count / tasks).max(1) * tasks, took));
    }
    Ok(())
}

/// A process that takes one lock again and again, holds it for 5 ms, and says when.
fn waiter(url: &str, rounds: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let fp = Fencepost::connect(url).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        for _ in 0..rounds {
            let asked = BootClock.now();
            let guard = fp.lock("hand-off").acquire().await?;
            let granted = BootClock.now();
            BootClock.alarm(granted + Duration::from_millis(5)).await;
            let (token, released) = (guard.token(), BootClock.now());
            guard.release().await?;
            println!("{token} {} {} {}", asked.as_nanos(), granted.as_nanos(), released.as_nanos());
        }
        Ok(())
    })
}

struct Waiters(Vec<(Child, BufReader<std::process::ChildStdout>)>);

impl Waiters {
    fn start(count: usize, url: &str, rounds: usize) -> Outcome<Self> {
        let mut waiters = Self(Vec::new());
        for _ in 0..count {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["waiter", url, &rounds.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?);
            waiters.0.push((child, lines));
        }
        for (child, lines) in &mut waiters.0 {
            lines.read_line(&mut String::new())?;
            child.stdin.take().ok_or("no stdin")?.write_all(b"go\n")?;
        }
        Ok(waiters)
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("hand-off.db").display());
    let mut waiters = Waiters::start(processes, &url, rounds.max(3))?;
    let mut grants = Vec::new();
    for (child, lines) in &mut waiters.0 {
        for line in lines.by_ref().lines() {
            let numbers: Result<Vec<u64>, _> = line?.split(' ').map(str::parse).collect();
            if let [token, asked, granted, released] = numbers?[..] {
                grants.push((token, asked, granted, released));
            }
        }
        assert!(child.wait()?.success(), "a waiter failed");
    }
    grants.sort_unstable();
    let gaps = grants.windows(2).filter_map(|pair| {
        let ((_, _, _, released), (_, asked, granted, _)) = (pair[0], pair[1]);
        // Only those who waited: at the end one process has the lock to itself.
        (asked < released).then(|| granted.saturating_sub(released))
    });
    println!("sqlite: hand-off on one name, {processes} processes, 5 ms holds");
    println!("  hand-off   {}", percentiles(gaps.collect()));
    let waits = grants.iter().map(|(_, asked, granted, _)| granted - asked);
    println!("  wait       {}", percentiles(waits.collect()));
    Ok(())
}

fn percentiles(mut nanos: Vec<u64>) -> String {
    nanos.sort_unstable();
    let at = |share: usize| {
        let index = (nanos.len() * share / 100).min(nanos.len().saturating_sub(1));
        Duration::from_nanos(nanos.get(index).copied().unwrap_or_default())
    };
    format!("p50 {:.2?}  p99 {:.2?}  max {:.2?}  of {}", at(50), at(99), at(100), nanos.len())
}

fn idle(processes: usize, span: Duration) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("idle.db").display());
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(&url))?;
    let guard = runtime.block_on(fp.lock("hand-off").acquire())?;
    let waiters = Waiters::start(processes, &url, 1)?;
    while runtime.block_on(fp.inspect("hand-off"))?.waiting < processes {
        std::thread::yield_now();
    }
    let (before, start) = (cpu_nanos(&waiters)?, BootClock.now());
    runtime.block_on(BootClock.alarm(start + span));
    let (spent, took) = (cpu_nanos(&waiters)? - before, BootClock.now().since(start));
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let share = spent as f64 / 1e9 / took.as_secs_f64() * 100.0;
    println!("sqlite: {processes} processes waiting for one lock");
    println!("  all of them use {share:.2}% of one core");
    runtime.block_on(guard.release())?;
    Ok(())
}

/// Time on a processor of all threads of all of them, in nanoseconds. The ticks in `stat` are too coarse:
/// they miss most of what wakes and sleeps again within one.
fn cpu_nanos(waiters: &Waiters) -> Outcome<u64> {
    let mut nanos = 0;
    for (child, _) in &waiters.0 {
        for thread in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
            let spent = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += spent.split(' ').next().ok_or("no time")?.parse::<u64>()?;
        }
    }
    Ok(nanos)
}
