//! The worker process, which contends for the lock, and which the lab freezes or kills.
//!
//! The lab sends a worker lines of text. The first one is its [`Task`] as JSON. (It is not an argument, because a URL
//! can contain a password, and `ps` shows arguments to all users.) The worker answers with [`Report`]s, as lines of
//! JSON. The further lines are orders. When the lab ends, the worker's standard input ends, and so does the worker.

use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Guard, GuardStatus, Moment};
use fencepost_process::worker::{self, end_with_parent, orders};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::environment::{alarm, now};
use crate::error::{LabError, Result};
use crate::event::Action;
use crate::resource::{Resource, Session};

/// The hidden command.
pub const WORKER: &str = "__lab-worker";

/// What a worker does.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// The URL of the lock store.
    pub(crate) store: String,
    pub(crate) name: String,
    pub(crate) label: String,
    pub(crate) ttl_ms: u64,
    pub(crate) wait_timeout_ms: u64,
    pub(crate) role: Role,
}

/// The kinds of work.
#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    /// Adds to a balance: reads it, works, writes it. Waits for an order before it starts and before it writes. The
    /// second one ensures that the freeze comes between.
    Add { resource: Resource, amount: i64, work_ms: u64, fence: bool },
    /// Acquires the lock, and holds it until it is killed or gets an order.
    Hold,
    /// Runs a job once per tick; each order is a tick.
    Job { resource: Resource, method: Method },
}

/// How the copies ensure that the job runs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// Insert-if-absent.
    Key,
    /// The lock, and a check whether the job is done.
    Lock,
    /// The check alone: the control.
    CheckOnly,
}

/// What a worker reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It is connected.
    Ready,
    /// Something happened.
    Happened { at: u64, what: Action },
    /// The deadline of its guard. `presence`: the store detects the end of this process. `ttl_ms`: the granted TTL,
    /// which can be longer than the requested one.
    Deadline { at: u64, presence: bool, ttl_ms: u32 },
    /// This copy is done with a tick: whether it ran the job, its calls to store and resource, its time.
    Ticked { ran: bool, steps: u64, micros: u64 },
    /// It failed, and ends.
    Failed { kind: FailureKind, message: String },
}

/// The kinds of errors that have different exit codes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum FailureKind {
    Held,
    Unreachable,
    Refused,
    Invalid,
    System,
}

/// Runs a worker process, on a current-thread runtime. Returns its exit code.
pub async fn worker_main() -> u8 {
    end_with_parent();
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    let Ok(task) = serde_json::from_str(&line) else {
        let _ = writeln!(
            std::io::stderr(),
            "fencepost: {WORKER} is for fencepost's own use: see `fencepost lab --help`"
        );
        return 64;
    };
    match work(task, &mut orders()).await {
        Ok(()) => 0,
        Err(error) => {
            let kind = match &error {
                LabError::System(_) => FailureKind::System,
                LabError::Lock(error) => match error.kind() {
                    ErrorKind::Held => FailureKind::Held,
                    ErrorKind::Refused => FailureKind::Refused,
                    ErrorKind::Invalid => FailureKind::Invalid,
                    _ => FailureKind::Unreachable,
                },
            };
            say(&Report::Failed { kind, message: error.to_string() });
            1
        }
    }
}

async fn work(task: Task, orders: &mut UnboundedReceiver<String>) -> Result<()> {
    let store = Fencepost::connect(&task.store).await?;
    match &task.role {
        Role::Add { resource, amount, work_ms, fence } => {
            let work = Duration::from_millis(*work_ms);
            add(&task, &store, resource, *amount, work, *fence, orders).await?;
        }
        Role::Hold => {
            say(&Report::Ready);
            orders.recv().await;
            let guard = acquire(&task, &store).await?;
            orders.recv().await;
            release(guard).await?;
        }
        Role::Job { resource, method } => job(&task, &store, resource, *method, orders).await?,
    }
    store.close().await;
    Ok(())
}

async fn acquire(task: &Task, store: &Fencepost) -> Result<Guard> {
    happened(Action::Asked);
    let lock = store.lock(&task.name).ttl(Duration::from_millis(task.ttl_ms)).label(&task.label);
    let guard = lock.wait_timeout(Duration::from_millis(task.wait_timeout_ms)).acquire().await?;
    let (presence, ttl_ms) = (guard.presence().is_some(), guard.ttl().as_millis());
    let report_deadline = move |deadline: Moment| {
        say(&Report::Deadline { at: deadline.as_nanos(), presence, ttl_ms });
    };
    // Before the grant, so that the lab knows the deadline of each grant.
    report_deadline(guard.deadline());
    happened(Action::Granted { token: guard.token().get() });
    let mut changes = guard.changes();
    tokio::spawn(async move {
        loop {
            match changes.next().await {
                (GuardStatus::Lost(cause), _) => {
                    return happened(Action::Lost { cause: cause.to_string() });
                }
                (_, deadline) => report_deadline(deadline),
            }
        }
    });
    Ok(guard)
}

async fn release(guard: Guard) -> Result<()> {
    match guard.release().await {
        Ok(()) => happened(Action::Released),
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotHeld) => {
            happened(Action::NotHeld { why: error.one_line() });
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Reads, works, writes. It deliberately does not check its guard before it writes: a process can also freeze between
/// the check and the write.
async fn add(
    task: &Task,
    store: &Fencepost,
    resource: &Resource,
    amount: i64,
    work: Duration,
    fence: bool,
    orders: &mut UnboundedReceiver<String>,
) -> Result<()> {
    let mut session = resource.open().await?;
    say(&Report::Ready);
    orders.recv().await;
    let guard = acquire(task, store).await?;
    let fencing = fence.then(|| guard.fencing());
    let balance = session.read(fencing.as_ref()).await?;
    // Before the report: after it the process can be frozen, and the time of the freeze counts as work.
    let done_at = now() + work;
    happened(Action::Read { value: balance });
    orders.recv().await;
    alarm(done_at).await;
    let value = balance + amount;
    match session.write(value, fencing.as_ref()).await {
        Ok(()) => happened(Action::Wrote { value }),
        Err(LabError::Lock(error)) if error.kind() == ErrorKind::Stale => {
            happened(Action::Refused { value, why: error.one_line() });
        }
        Err(error) => return Err(error),
    }
    release(guard).await
}

async fn job(
    task: &Task,
    store: &Fencepost,
    resource: &Resource,
    method: Method,
    orders: &mut UnboundedReceiver<String>,
) -> Result<()> {
    let mut session = resource.open().await?;
    say(&Report::Ready);
    while let Some(tick) = orders.recv().await {
        let start = now();
        let (ran, steps) = match method {
            Method::Key => (session.run_if_absent(&tick).await?, 1),
            Method::Lock => {
                let lock = store.lock(&task.name).ttl(Duration::from_millis(task.ttl_ms));
                match lock.label(&task.label).try_acquire().await? {
                    // The holder runs the job.
                    None => (false, 1),
                    Some(guard) => {
                        let (ran, steps) = run_if_not_done(&mut session, &tick).await?;
                        guard.release().await?;
                        (ran, steps + 2)
                    }
                }
            }
            Method::CheckOnly => run_if_not_done(&mut session, &tick).await?,
        };
        let micros = now().since(start).as_micros() as u64;
        say(&Report::Ticked { ran, steps, micros });
    }
    Ok(())
}

/// Runs the job if it is not done. Check and run are two transactions: between them only the lock excludes others.
async fn run_if_not_done(session: &mut Session, tick: &str) -> Result<(bool, u64)> {
    if session.runs(tick).await? > 0 {
        return Ok((false, 1));
    }
    session.run(tick).await?;
    Ok((true, 2))
}

fn happened(what: Action) {
    say(&Report::Happened { at: now().as_nanos(), what });
}

fn say(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        worker::say(&line);
    }
}
