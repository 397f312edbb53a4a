//! The other process: what the suite starts to have somebody to kill, to stop, and to contend with.
//!
//! The suite and a worker talk in lines. A worker first says `ready`; the suite answers `go`. When the
//! suite goes away the worker's standard input ends, and so does the worker.
//!
//! | role | arguments | says | understands |
//! |---|---|---|---|
//! | `count` | name, file, log, rounds, `locked` or `unlocked` | `done` | |
//! | `hold` | name, TTL in ms, label | `granted TOKEN presence\|lease`, `lost CAUSE` | `look`, `release`, `drop` |
//! | `stand` | name, TTL in ms, label, resource | `leading TERM wrote\|stale`, `lost CAUSE` | `write`, `write unchecked`, `write unfenced`, `campaign`, `resign` |
//! | `once` | diary, count of keys, TTL in ms, seed | `done` | |
//! | `claim` | diary, count of items, TTL in ms, `works` or `hangs` | `at KEY` if it hangs, `done` | |
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
use fencepost::{Fencepost, Guard, GuardState, Result, Standing};
use fencepost_base::race::{First, race};
use fencepost_process::worker::{end_with_parent, orders, say};
use tokio::sync::mpsc::UnboundedReceiver;

use self::leader::Candidate;
use self::runner::Runner;
use super::diary::Diary;
use super::scene::{Stop, Verdict, ensure, now, pass};

/// Its value is the harness's name: this process is a worker of it, not the suite.
pub(super) const WORKER: &str = "FENCEPOST_CONFORMANCE_WORKER";

/// The whole of a worker process. `connect` is given the URL that the store's [`Site`](super::Site) named.
///
/// Only needed for a worker binary of your own: [`main`](super::main) calls it by itself when it finds that
/// it runs in a worker.
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
    let runner = |diary, ttl| Runner { client: &client, diary: Diary::at(Path::new(diary)), ttl };
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
        ("stand", [name, ttl, label, resource]) => {
            let (ttl, resource) = (millis(ttl)?, Path::new(resource));
            Candidate { name, ttl, label, resource }.stand(&client, &mut orders).await?;
        }
        ("once", [diary, count, ttl, seed]) => {
            runner(diary, millis(ttl)?).run_all(count.parse()?, seed.parse()?).await?;
            say("done");
        }
        ("claim", [diary, count, ttl, how]) => {
            runner(diary, millis(ttl)?).claim_all(count.parse()?, *how == "hangs").await?;
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
    // Without the lock a reader may find the file half written; that is one more way to lose updates.
    let read = std::fs::read_to_string(file)?.trim().parse::<u64>();
    let value = if locked { read? } else { read.unwrap_or(0) };
    // The control has only a few rounds to meet the others in: its gap is wide.
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

/// Says that a grant is lost, once, while its holder waits for orders.
struct LossWatch(Option<BoxFuture<'static, LossCause>>);

impl LossWatch {
    fn over(standing: &Standing) -> Self {
        Self(Some(Box::pin(standing.lost())))
    }

    async fn order(&mut self, orders: &mut UnboundedReceiver<String>) -> Option<String> {
        if let Some(lost) = &mut self.0 {
            match race(orders.recv(), lost).await {
                First::Left(order) => return order,
                First::Right(cause) => say(&format!("lost {}", cause.word())),
            }
            self.0 = None;
        }
        orders.recv().await
    }
}

/// Holds until told to release; says it when the guard is lost.
async fn hold(guard: Guard, orders: &mut UnboundedReceiver<String>) {
    let by = if guard.presence().is_some() { "presence" } else { "lease" };
    say(&format!("granted {} {by}", guard.token()));
    let mut watch = LossWatch::over(&guard);
    loop {
        match watch.order(orders).await.as_deref() {
            Some("look") => match guard.state() {
                GuardState::Lost(cause) => say(&format!("state lost {}", cause.word())),
                state => say(&format!("state {state:?}")),
            },
            Some("release") => {
                match guard.release().await {
                    Ok(()) => say("released"),
                    Err(error) => say(&format!("not released: {error}")),
                }
                return;
            }
            // The process ends right after it.
            Some("drop") => return,
            _ => {}
        }
    }
}
