//! P1: two holders never work at the same time. The work is a read-modify-write with a gap in it, so an overlap shows as a
//! lost update. Each check has a control without the lock, which must lose some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::Fencepost;
use fencepost_core::Moment;
use tokio::task::JoinSet;

use super::{History, Verdict, cases};
use crate::fixture::{Fixture, LONG, Stop, ensure, join_all, now};
use crate::process::Worker;

cases![
    exclusion_among_tasks,
    exclusion_among_threads,
    exclusion_among_processes,
    control_tasks_lose_updates_without_the_lock,
    control_processes_lose_updates_without_the_lock,
];

const NAME: &str = "counter";
const TASKS: u64 = 8;
const ROUNDS: u64 = 20;
const PROCESSES: usize = 4;
const PROCESS_ROUNDS: usize = 20;

async fn exclusion_among_tasks(fixture: &Fixture) -> Verdict {
    let clients = [fixture.client().await?, fixture.client().await?, fixture.client().await?];
    let counter = Arc::new(AtomicU64::new(0));
    let history = Arc::new(History::of(NAME)?);
    let mut tasks = JoinSet::new();
    for client in clients.iter().cycle().take(TASKS as usize) {
        let (client, counter, history) = (client.clone(), counter.clone(), history.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.lock(NAME).ttl(LONG).acquire().await?;
                let from = now();
                increment(&counter).await;
                history.add(guard.token(), from, now());
                guard.release().await?;
            }
            Ok::<_, fencepost::Error>(())
        });
    }
    join_all(LONG, tasks).await?;
    let count = counter.load(Ordering::Relaxed);
    ensure!(count == TASKS * ROUNDS, "{count} of {} updates are left", TASKS * ROUNDS);
    ensure!(history.len() as u64 == count, "{} grants for {count} updates", history.len());
    history.check()
}

async fn exclusion_among_threads(fixture: &Fixture) -> Verdict {
    let counter = Arc::new(AtomicU64::new(0));
    let history = Arc::new(History::of(NAME)?);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let client = fencepost::blocking::Fencepost::from(fixture.client().await?);
        let (counter, history) = (counter.clone(), history.clone());
        tasks.spawn_blocking(move || {
            for _ in 0..ROUNDS {
                let guard = client.lock(NAME).ttl(LONG).acquire()?;
                let from = now();
                let read = counter.load(Ordering::Relaxed);
                std::thread::yield_now();
                counter.store(read + 1, Ordering::Relaxed);
                history.add(guard.token(), from, now());
                guard.release()?;
            }
            Ok::<_, fencepost::Error>(())
        });
    }
    join_all(LONG, tasks).await?;
    let count = counter.load(Ordering::Relaxed);
    ensure!(count == 4 * ROUNDS, "{count} of {} updates are left", 4 * ROUNDS);
    history.check()
}

/// The control: if this loses no update, the case above would not notice one either.
async fn control_tasks_lose_updates_without_the_lock(_: &Fixture) -> Verdict {
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let counter = counter.clone();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                increment(&counter).await;
            }
        });
    }
    tasks.join_all().await;
    let count = counter.load(Ordering::Relaxed);
    ensure!(count < TASKS * ROUNDS, "no update was lost without the lock");
    Ok(())
}

/// Not atomic: other tasks run in the gap.
async fn increment(counter: &AtomicU64) {
    let read = counter.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    counter.store(read + 1, Ordering::Relaxed);
}

async fn exclusion_among_processes(fixture: &Fixture) -> Verdict {
    let count = count_in_processes(fixture, "locked").await?;
    let all = PROCESSES * PROCESS_ROUNDS;
    ensure!(count == all, "{count} of {all} updates are left");
    let history = History::of(NAME)?;
    let log = std::fs::read_to_string(fixture.file("log"))?;
    let mut last = None;
    for line in log.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [token, from, until] = fields.as_slice() else {
            return Err(Stop::Failed(format!("an incomplete line: \"{line}\"")));
        };
        let token = token.parse()?;
        let moment = |nanos: &str| nanos.parse().map(Moment::from_nanos);
        history.add(token, moment(from)?, moment(until)?);
        ensure!(Some(token) > last, "token {token} was written under the lock after {last:?}");
        last = Some(token);
    }
    ensure!(history.len() == all, "{} grants for {all} updates", history.len());
    history.check()
}

async fn control_processes_lose_updates_without_the_lock(fixture: &Fixture) -> Verdict {
    let all = PROCESSES * PROCESS_ROUNDS;
    for _ in 0..5 {
        // On a busy machine the workers may happen to run one after the other, but not every time.
        if count_in_processes(fixture, "unlocked").await? < all {
            return Ok(());
        }
    }
    Err(Stop::Failed("no update was lost without the lock".into()))
}

async fn count_in_processes(fixture: &Fixture, how: &str) -> Verdict<usize> {
    let (file, log) = (fixture.file("count"), fixture.file("log"));
    std::fs::write(&file, "0")?;
    let rounds = PROCESS_ROUNDS.to_string();
    let (file_name, log_name) = (file.to_string_lossy(), log.to_string_lossy());
    let arguments = [NAME, &*file_name, &*log_name, &*rounds, how];
    // Started together, so that they collide.
    let mut workers =
        Worker::start_together(PROCESSES, || fixture.worker("count", &arguments)).await?;
    for worker in &mut workers {
        worker.done().await?;
    }
    // The workers leave nothing behind.
    let client: Fencepost = fixture.client().await?;
    crate::fixture::until_free(&client, NAME).await?;
    Ok(std::fs::read_to_string(file)?.trim().parse()?)
}
