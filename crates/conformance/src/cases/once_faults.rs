//! Once per key, in processes that are killed and frozen: every key ends with one recorded success.

use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{Fencepost, RunGuard};
use fencepost_core::Token;

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, Stop, claimed, ensure, ledger, now, pass, until, within,
};
use crate::history::RunHistory;
use crate::process::Worker;
use crate::worker::runner::{WORK, keys};

cases![
    @alone once_is_exact_while_processes_are_killed,
    once_frozen_runner_cannot_finish,
    once_killed_runner_is_taken_over,
];

const WORKERS: usize = 12;
const KEYS: usize = 200;
const KILLS: usize = 16;
const TTL: Duration = Duration::from_secs(1);

async fn once_is_exact_while_processes_are_killed(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    ledger(&client)?;
    let (path, mut rng) = (fixture.file("history"), fixture.rng());
    let history = RunHistory::at(&path);
    let (file, count) = (path.to_string_lossy(), KEYS.to_string());
    let ttl = TTL.as_millis().to_string();
    let start = |seed: u64| fixture.worker("once", &[&file, &count, &ttl, &seed.to_string()]);
    let mut workers = Worker::start_together(WORKERS, || start(rng.next())).await?;
    let from = now();
    // Spread over the work however fast the store is, and each at a random point of a run.
    for kill in 1..=KILLS {
        let begun = kill * KEYS / (KILLS + 2);
        let what = format!("{begun} runs have begun");
        until(SOON * 5, &what, async || Ok(history.count_begun() >= begun)).await?;
        pass(rng.below(WORK)).await;
        let victim = rng.next() as usize % workers.len();
        workers.swap_remove(victim).kill()?;
        let mut next = start(rng.next())?;
        next.send("go")?;
        workers.push(next);
    }
    for worker in &mut workers {
        worker.done().await?;
    }
    let took = now().since(from);
    let records = client.once_records().await?;
    let begun = history.check(&keys(KEYS), &records)?;
    fixture.report(&format!(
        "{KEYS} keys by {WORKERS} processes, {KILLS} killed, {begun} runs, in {took:.1?}"
    ));
    // A process that was killed while it waited may have left its position, but that blocks nobody.
    for info in client.list().await? {
        let name = info.name.as_str();
        let guard = client.lock(name).ttl(LONG).wait_timeout(SOON * 5).acquire().await;
        let guard = guard
            .map_err(|error| Stop::Failed(format!("{name} is stuck: {}", error.one_line())))?;
        guard.release().await?;
    }
    Ok(())
}

/// Starts a runner in another process that has begun.
async fn begun(fixture: &Fixture, key: &str, ttl: Duration) -> Verdict<(Worker, Token)> {
    let mut worker = fixture.worker("begin", &[key, &ttl.as_millis().to_string()])?;
    worker.go().await?;
    let line = worker.read_line(SOON).await?;
    let token = line.strip_prefix("begun ");
    let token = token.ok_or_else(|| Stop::Failed(format!("a runner said \"{line}\"")))?;
    Ok((worker, token.parse()?))
}

/// Takes over from a runner that does not renew.
async fn take_over(
    client: &Fencepost,
    key: &str,
    first: Token,
    ttl: Duration,
) -> Verdict<RunGuard> {
    let once = client.once(key).may_repeat().ttl(LONG);
    let run_guard = claimed(within(ttl * 2 + SOON, "the key is taken over", once.begin()).await??)?;
    ensure!(run_guard.token() > first, "token {} after {first}", run_guard.token());
    Ok(run_guard)
}

/// The frozen runner wakes up sure that it has done the work, once while the next one runs and once after that is done.
async fn once_frozen_runner_cannot_finish(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    ledger(&client)?;
    for (key, after) in [("while it runs", false), ("after it is done", true)] {
        let (mut frozen, first) = begun(fixture, key, SHORT * 2).await?;
        frozen.stop().await?;
        let next = take_over(&client, key, first, SHORT * 4).await?;
        let second = next.token();
        let next = if after {
            next.done("the second one").await?;
            None
        } else {
            Some(next)
        };
        frozen.send("finish")?;
        frozen.resume()?;
        let said = frozen.read_line(SOON).await?;
        ensure!(said.starts_with("not recorded: "), "the woken runner's finish was \"{said}\"");
        if let Some(next) = next {
            next.check()?;
            next.done("the second one").await?;
        }
        let record = client.once(key).record().await?;
        let kept = record.as_ref().is_some_and(|record| {
            let by = record.state == State::Done && record.token == second;
            by && record.result == b"the second one"
        });
        ensure!(kept, "recorded is {record:?}");
    }
    Ok(())
}

async fn once_killed_runner_is_taken_over(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    ledger(&client)?;
    let (mut killed, first) = begun(fixture, "killed", TTL).await?;
    killed.kill()?;
    let from = now();
    let next = take_over(&client, "killed", first, TTL * 2).await?;
    fixture.report(&format!("a killed runner was taken over after {:.2?}", now().since(from)));
    next.done("").await?;
    Ok(())
}
