//! The other process: somebody to freeze, to kill, and to contend with.
//!
//! The lab and a worker talk in lines of JSON. The first line that a worker is told is its [`Task`] (not an
//! argument: a URL may carry a password, and `ps` shows arguments to everybody). It answers with
//! [`Report`]s. Further lines are orders. When the lab goes away the worker's standard input ends, and so does
//! the worker.

use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Guard, GuardState, LockName, Moment};
use fencepost_process::worker::{self, end_with_parent, orders};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::event::What;
use crate::fault::{Fault, Result};
use crate::resource::{Fence, Resource, Session};
use crate::scene::{alarm, now};

/// The hidden command.
pub const WORKER: &str = "__lab-worker";

/// What a worker is to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// The lock store.
    pub(crate) store: String,
    /// The lock.
    pub(crate) name: String,
    pub(crate) label: String,
    pub(crate) ttl_ms: u64,
    /// How long to wait for the lock at most.
    pub(crate) patience_ms: u64,
    pub(crate) role: Role,
}

/// The kinds of work.
#[derive(Serialize, Deserialize)]
pub(crate) enum Role {
    /// Adds to a balance: reads it, works, writes it. Waits for an order before it begins and one before it
    /// writes; the second is how the lab makes sure that the freeze comes between.
    Add { resource: Resource, amount: i64, work_ms: u64, fence: bool },
    /// Takes the lock, and holds it until it is killed or told to release.
    Hold,
    /// Runs a job once per tick; each order is a tick.
    Job { resource: Resource, way: Way },
}

/// How the copies of a job see to it that it runs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// Insert-if-absent.
    Key,
    /// The lock.
    Lock,
    /// As with the lock, but without it: the control.
    Look,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It is connected.
    Ready,
    /// Something happened.
    Happened { at: u64, what: What },
    /// The lock is good until then, as far as it knows. `presence`: the store sees this process end. `ttl_ms`: the TTL
    /// that the store keeps, which may be longer than the one it was asked for.
    Good { until: u64, presence: bool, ttl_ms: u32 },
    /// A job's tick is over for this copy: whether it ran the job, its calls to store and resource, its time.
    Ticked { ran: bool, steps: u64, micros: u64 },
    /// It can not go on.
    Failed { kind: Kind, message: String },
}

/// The kinds of errors that make a difference for the exit code.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Held,
    Unreachable,
    Refused,
    Invalid,
    System,
}

/// The whole of a worker process, on a current-thread runtime. Returns its exit code.
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
        Err(fault) => {
            let kind = match &fault {
                Fault::System(_) => Kind::System,
                Fault::Lock(error) => match error.kind() {
                    ErrorKind::Held(_) => Kind::Held,
                    ErrorKind::Refused => Kind::Refused,
                    ErrorKind::Invalid => Kind::Invalid,
                    _ => Kind::Unreachable,
                },
            };
            say(&Report::Failed { kind, message: fault.to_string() });
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
            let guard = take(&task, &store).await?;
            orders.recv().await;
            give_back(guard).await?;
        }
        Role::Job { resource, way } => job(&task, &store, resource, *way, orders).await?,
    }
    store.close().await;
    Ok(())
}

async fn take(task: &Task, store: &Fencepost) -> Result<Guard> {
    happened(What::Asked);
    let lock = store.lock(&task.name).ttl(Duration::from_millis(task.ttl_ms)).label(&task.label);
    let guard = lock.acquire_within(Duration::from_millis(task.patience_ms)).await?;
    let (presence, ttl_ms) = (guard.presence().is_some(), guard.ttl().as_millis());
    let good =
        move |until: Moment| say(&Report::Good { until: until.as_nanos(), presence, ttl_ms });
    // First: who hears of the grant knows how long it is good for.
    good(guard.deadline());
    happened(What::Granted { token: guard.token().get() });
    let mut changes = guard.changes();
    tokio::spawn(async move {
        loop {
            match changes.next().await {
                (GuardState::Lost(cause), _) => {
                    return happened(What::Lost { cause: cause.to_string() });
                }
                (_, until) => good(until),
            }
        }
    });
    Ok(guard)
}

async fn give_back(guard: Guard) -> Result<()> {
    match guard.release().await {
        Ok(()) => happened(What::Released),
        Err(error) if matches!(error.kind(), ErrorKind::Lost(_) | ErrorKind::NotHeld(_)) => {
            happened(What::NotHeld { why: error.to_string() });
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Reads, works, writes. It does not look at its guard before it writes, on purpose: between a look and the
/// write a process can freeze as well, and then the look was worth nothing.
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
    let name = LockName::new(&task.name).map_err(fencepost::Error::from)?;
    say(&Report::Ready);
    orders.recv().await;
    let guard = take(task, store).await?;
    let fence: Fence<'_> = fence.then(|| (&name, guard.token()));
    let balance = session.read(fence).await?;
    // Before it says so: from then on it can be frozen, and the time of the freeze counts.
    let done_at = now() + work;
    happened(What::Read { value: balance });
    orders.recv().await;
    alarm(done_at).await;
    let value = balance + amount;
    match session.write(value, fence).await {
        Ok(()) => happened(What::Wrote { value }),
        Err(Fault::Lock(error)) if *error.kind() == ErrorKind::Stale => {
            happened(What::Refused { value, why: error.to_string() });
        }
        Err(fault) => return Err(fault),
    }
    give_back(guard).await
}

async fn job(
    task: &Task,
    store: &Fencepost,
    resource: &Resource,
    way: Way,
    orders: &mut UnboundedReceiver<String>,
) -> Result<()> {
    let mut session = resource.open().await?;
    say(&Report::Ready);
    while let Some(tick) = orders.recv().await {
        let began = now();
        let (ran, steps) = match way {
            Way::Key => (session.run_if_absent(&tick).await?, 1),
            Way::Lock => {
                let lock = store.lock(&task.name).ttl(Duration::from_millis(task.ttl_ms));
                match lock.label(&task.label).try_acquire().await? {
                    // Who holds it sees to the job.
                    None => (false, 1),
                    Some(guard) => {
                        let (ran, steps) = run_if_not_done(&mut session, &tick).await?;
                        guard.release().await?;
                        (ran, steps + 2)
                    }
                }
            }
            Way::Look => run_if_not_done(&mut session, &tick).await?,
        };
        let micros = now().since(began).as_micros() as u64;
        say(&Report::Ticked { ran, steps, micros });
    }
    Ok(())
}

/// Looks, and runs the job if it is not done. In two transactions: between them the lock alone keeps others out.
async fn run_if_not_done(session: &mut Session, tick: &str) -> Result<(bool, u64)> {
    if session.runs(tick).await? > 0 {
        return Ok((false, 1));
    }
    session.act(tick).await?;
    Ok((true, 2))
}

fn happened(what: What) {
    say(&Report::Happened { at: now().as_nanos(), what });
}

fn say(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        worker::say(&line);
    }
}
