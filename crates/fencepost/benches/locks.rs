//! What a lock costs: `cargo bench -p fencepost`, or `scripts/bench`.
//!
//! Both are measured in one run, because machines are noisy: the library on `sqlite:` against the same two
//! transactions by hand; hand-off between processes; the cost of waiting.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{
    NAME, Outcome, Waiters, cpu_nanos, cycles, full, hand_off_times, percentiles, rate, runtime,
};
use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use rusqlite::{Connection, TransactionBehavior};

fn main() -> Outcome<()> {
    if common::is_waiter()? {
        return Ok(());
    }
    let scale = if full() { 1 } else { 50 };
    memory(200_000 / scale)?;
    sqlite(4_000 / scale)?;
    hand_off(16, 400 / scale)?;
    idle(20, Duration::from_secs(if full() { 10 } else { 1 }))
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

/// The hand-written baseline with the same durability: one transaction takes the row and draws a token, one deletes
/// the row.
struct Baseline(Connection);

impl Baseline {
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

fn sqlite(count: usize) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("ours.db").display());
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(&url))?;
    let mut baseline = Baseline::open(&directory.path().join("by-hand.db"))?;
    // Alternating, so that a slow period of the disk affects both.
    let slices = 20;
    let each = (count / slices).max(1);
    let (mut by_hand, mut ours) = (Duration::ZERO, Duration::ZERO);
    for slice in 0..slices {
        let start = BootClock.now();
        for cycle in 0..each {
            baseline.cycle("bench/0", (slice * each + cycle) as u128)?;
        }
        by_hand += BootClock.now().since(start);
        ours += cycles(&runtime, &fp, 1, each)?;
    }
    println!("sqlite: uncontended acquire + release, synced");
    println!("  by hand    {}", rate(slices * each, by_hand));
    println!(
        "  ours, 1    {}  {:.2}x by hand",
        rate(slices * each, ours),
        by_hand.as_secs_f64() / ours.as_secs_f64()
    );
    for tasks in [16, 64] {
        let took = cycles(&runtime, &fp, tasks, (count / tasks).max(1))?;
        println!("  ours, {tasks}   {}", rate((count / tasks).max(1) * tasks, took));
    }
    Ok(())
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("hand-off.db").display());
    let (gaps, waits) = hand_off_times(&mut Waiters::start(processes, &url, rounds.max(3))?)?;
    println!("sqlite: hand-off on one name, {processes} processes, 5 ms holds");
    println!("  hand-off   {}", percentiles(&gaps));
    println!("  wait       {}", percentiles(&waits));
    Ok(())
}

fn idle(processes: usize, span: Duration) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("idle.db").display());
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(&url))?;
    let guard = runtime.block_on(fp.lock(NAME).acquire())?;
    let waiters = Waiters::start(processes, &url, 1)?;
    while runtime.block_on(fp.inspect(NAME))?.waiting < processes {
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
