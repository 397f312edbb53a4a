//! The worker process, which the suite starts in order to kill it, freeze it or contend with it.
//!
//! The suite and a worker exchange lines. A worker first says `ready`; the suite replies `go`. When the suite ends, the
//! worker's standard input ends, and so does the worker.
//!
//! | role | arguments | says | understands |
//! |---|---|---|---|
//! | `count` | name, file, log, rounds, `locked` or `unlocked` | `done` | |
//! | `hold` | name, TTL in ms, label | `granted TOKEN presence\|lease`, `lost CAUSE` | `state`, `release`, `drop` |
//! | `candidate` | name, TTL in ms, label, resource | `leading TERM wrote\|stale`, `lost CAUSE` | `write`, `write unchecked`, `write unfenced`, `campaign`, `resign` |
//! | `once` | history, count of keys, TTL in ms, seed | `done` | |
//! | `claim` | history, count of items, TTL in ms, `works` or `hangs` | `at KEY` if it hangs, `done` | |
//! | `begin` | key, TTL in ms | `begun TOKEN`, `recorded` or `not recorded: WHY` | `finish` |

mod leader;
pub(super) mod runner;

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::backend::{BoxFuture, LossCause};
use fencepost::{Fencepost, Guard, GuardStatus, Result};
use fencepost_base::race::{First, race};
use fencepost_process::worker::{end_with_parent, orders, say};
use tokio::sync::mpsc::UnboundedReceiver;

use self::leader::Candidate;
use self::runner::Runner;
use super::fixture::{Stop, Verdict, ensure, now, pass};
use super::history::RunHistory;

/// The name of the harness. If it is set, this process is a worker.
pub(super) const WORKER: &str = "FENCEPOST_CONFORMANCE_WORKER";

/// The main function of a worker process. `connect` gets the URL that the store's [`Site`](super::Site) named.
///
/// You need it only for a separate worker binary: [`main`](super::main) calls it when it runs in a worker.
pub fn worker_main<F>(connect: impl FnOnce(String) -> F) -> ExitCode
where
    F: Future<Output = Result<Fencepost>>,
{
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Stop::from)
        .and_then(|runtime| runtime.block_on(work(connect)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            say(&format!("failed {}", why.replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
}

async fn work<F>(connect: impl FnOnce(String) -> F) -> Verdict
where
    F: Future<Output = Result<Fencepost>>,
{
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [role, url, rest @ ..] = arguments.as_slice() else {
        return Err(Stop::Failed("a worker needs a role and a URL".into()));
    };
    end_with_parent();
    let mut orders = orders();
    let client = connect((*url).to_owned()).await?;
    say("ready");
    orders.recv().await;
    let millis = |text: &str| text.parse().map(Duration::from_millis);
    let runner =
        |history, ttl| Runner { client: &client, history: RunHistory::at(Path::new(history)), ttl };
    match (*role, rest) {
        ("count", [name, file, log, rounds, how]) => {
            for _ in 0..rounds.parse::<u32>()? {
                count(&client, name, Path::new(file), Path::new(log), *how == "locked").await?;
            }
            say("done");
        }
        ("hold", [name, ttl, label]) => {
            let lock = client.lock(name).ttl(millis(ttl)?).label(*label);
            hold(lock.acquire().await?, &mut orders).await;
        }
        ("candidate", [name, ttl, label, resource]) => {
            let (ttl, resource) = (millis(ttl)?, Path::new(resource));
            Candidate { name, ttl, label, resource }.campaign(&client, &mut orders).await?;
        }
        ("once", [history, count, ttl, seed]) => {
            runner(history, millis(ttl)?).run_all(count.parse()?, seed.parse()?).await?;
            say("done");
        }
        ("claim", [history, count, ttl, how]) => {
            runner(history, millis(ttl)?).claim_all(count.parse()?, *how == "hangs").await?;
            say("done");
        }
        ("begin", [key, ttl]) => runner::begin(&client, key, millis(ttl)?, &mut orders).await?,
        _ => ensure!(false, "no such role: {role} with {} arguments", rest.len()),
    }
    Ok(())
}

/// One round of the read-modify-write that a lock must protect: nothing in it is atomic.
async fn count(client: &Fencepost, name: &str, file: &Path, log: &Path, locked: bool) -> Verdict {
    let guard = if locked { Some(client.lock(name).acquire().await?) } else { None };
    let from = now();
    // Without the lock a reader may find the file half written; that loses updates, too.
    let read = std::fs::read_to_string(file)?.trim().parse::<u64>();
    let value = if locked { read? } else { read.unwrap_or(0) };
    // The control has only a few rounds to collide in, so its gap is wide.
    pass(Duration::from_millis(if locked { 1 } else { 4 })).await;
    std::fs::write(file, (value + 1).to_string())?;
    if let Some(guard) = guard {
        let mut log = OpenOptions::new().append(true).create(true).open(log)?;
        let line = format!("{} {} {}\n", guard.token(), from.as_nanos(), now().as_nanos());
        log.write_all(line.as_bytes())?;
        guard.release().await?;
    }
    Ok(())
}

/// Reports once that a grant is lost, while its holder waits for orders.
struct LossWatch(Option<BoxFuture<'static, LossCause>>);

impl LossWatch {
    fn over(guard: &Guard) -> Self {
        Self(Some(Box::pin(guard.lost())))
    }

    async fn order(&mut self, orders: &mut UnboundedReceiver<String>) -> Option<String> {
        if let Some(lost) = &mut self.0 {
            match race(orders.recv(), lost).await {
                First::Left(order) => return order,
                First::Right(cause) => say(&format!("lost {}", cause.as_str())),
            }
            self.0 = None;
        }
        orders.recv().await
    }
}

/// Holds the lock until it is ordered to release; reports when the guard is lost.
async fn hold(guard: Guard, orders: &mut UnboundedReceiver<String>) {
    let by = if guard.presence().is_some() { "presence" } else { "lease" };
    say(&format!("granted {} {by}", guard.token()));
    let mut watch = LossWatch::over(&guard);
    loop {
        match watch.order(orders).await.as_deref() {
            Some("state") => match guard.status() {
                GuardStatus::Lost(cause) => say(&format!("state lost {}", cause.as_str())),
                state => say(&format!("state {state:?}")),
            },
            Some("release") => {
                match guard.release().await {
                    Ok(()) => say("released"),
                    Err(error) => say(&format!("not released: {}", error.one_line())),
                }
                return;
            }
            // The process ends right after this.
            Some("drop") => return,
            _ => {}
        }
    }
}
