//! P1: two holders never work at the same time. The work is a read-modify-write with a gap in it, so that
//! an overlap shows as a lost update; each check has a control without the lock that must lose some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::Fencepost;
use fencepost_core::Moment;
use tokio::task::JoinSet;

use super::{History, Verdict, cases};
use crate::process::Worker;
use crate::scene::{LONG, Scene, Stop, ensure, now, within};

cases![
    exclusion_among_tasks,
    exclusion_among_threads,
    exclusion_among_processes,
    without_the_lock_tasks_lose_updates,
    without_the_lock_processes_lose_updates,
];

const NAME: &str = "counter";
const TASKS: u64 = 8;
const ROUNDS: u64 = 20;
const PROCESSES: usize = 4;
const PROCESS_ROUNDS: usize = 20;

async fn exclusion_among_tasks(scene: &Scene) -> Verdict {
    let clients = [scene.client().await?, scene.client().await?, scene.client().await?];
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
    while let Some(done) = within(LONG, "the tasks are done", tasks.join_next()).await? {
        done??;
    }
    let count = counter.load(Ordering::Relaxed);
    ensure!(count == TASKS * ROUNDS, "{count} of {} updates are left", TASKS * ROUNDS);
    ensure!(history.len() as u64 == count, "{} grants for {count} updates", history.len());
    history.check()
}

async fn exclusion_among_threads(scene: &Scene) -> Verdict {
    let counter = Arc::new(AtomicU64::new(0));
    let history = Arc::new(History::of(NAME)?);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let client = fencepost::blocking::Fencepost::from(scene.client().await?);
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
    while let Some(done) = within(LONG, "the threads are done", tasks.join_next()).await? {
        done??;
    }
    let count = counter.load(Ordering::Relaxed);
    ensure!(count == 4 * ROUNDS, "{count} of {} updates are left", 4 * ROUNDS);
    history.check()
}

/// The control: if this sees no lost update, the case above would not see one either.
async fn without_the_lock_tasks_lose_updates(_: &Scene) -> Verdict {
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
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    let count = counter.load(Ordering::Relaxed);
    ensure!(count < TASKS * ROUNDS, "no update was lost without the lock: the check is blind");
    Ok(())
}

/// Nothing here is atomic as a whole, and others run in the gap.
async fn increment(counter: &AtomicU64) {
    let read = counter.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    counter.store(read + 1, Ordering::Relaxed);
}

async fn exclusion_among_processes(scene: &Scene) -> Verdict {
    let count = count_in_processes(scene, "locked").await?;
    let all = PROCESSES * PROCESS_ROUNDS;
    ensure!(count == all, "{count} of {all} updates are left");
    let history = History::of(NAME)?;
    let log = std::fs::read_to_string(scene.file("log"))?;
    let mut last = None;
    for line in log.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [token, from, until] = fields.as_slice() else {
            return Err(Stop::Failed(format!("a torn line: \"{line}\"")));
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

async fn without_the_lock_processes_lose_updates(scene: &Scene) -> Verdict {
    let all = PROCESSES * PROCESS_ROUNDS;
    for _ in 0..5 {
        // On a busy machine they may come to run one after the other; not every time.
        if count_in_processes(scene, "unlocked").await? < all {
            return Ok(());
        }
    }
    Err(Stop::Failed("no update was lost without the lock: the check is blind".into()))
}

async fn count_in_processes(scene: &Scene, how: &str) -> Verdict<usize> {
    let (file, log) = (scene.file("count"), scene.file("log"));
    std::fs::write(&file, "0")?;
    let rounds = PROCESS_ROUNDS.to_string();
    let (file_name, log_name) = (file.to_string_lossy(), log.to_string_lossy());
    let arguments = [NAME, &*file_name, &*log_name, &*rounds, how];
    // They are meant to meet.
    let mut workers =
        Worker::start_together(PROCESSES, || scene.worker("count", &arguments)).await?;
    for worker in &mut workers {
        worker.done().await?;
    }
    // Nothing of theirs is left when they are done.
    let client: Fencepost = scene.client().await?;
    crate::scene::until_free(&client, NAME).await?;
    Ok(std::fs::read_to_string(file)?.trim().parse()?)
}
