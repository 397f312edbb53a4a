//! Once per key, over processes that are killed and frozen: every key ends with one recorded success.

use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{Fencepost, Turn};
use fencepost_core::Token;

use super::{Verdict, cases};
use crate::diary::Diary;
use crate::process::Worker;
use crate::scene::{
    LONG, SHORT, SOON, Scene, Stop, ensure, ledger, now, ours, pass, until, within,
};
use crate::worker::runner::{WORK, keys};

cases![
    @alone once_over_processes_that_are_killed,
    once_a_frozen_runner_can_not_mark_it,
    once_a_killed_runner_is_taken_over,
];

const WORKERS: usize = 12;
const KEYS: usize = 200;
const KILLS: usize = 16;
const TTL: Duration = Duration::from_secs(1);

async fn once_over_processes_that_are_killed(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    ledger(&client)?;
    let (path, mut dice) = (scene.file("diary"), scene.dice());
    let diary = Diary::at(&path);
    let (file, count) = (path.to_string_lossy(), KEYS.to_string());
    let ttl = TTL.as_millis().to_string();
    let start = |seed: u64| scene.worker("once", &[&file, &count, &ttl, &seed.to_string()]);
    let mut workers = Worker::start_together(WORKERS, || start(dice.next())).await?;
    let from = now();
    // Spread over the work, however fast the store is; and then at any point of a run.
    for kill in 1..=KILLS {
        let begun = kill * KEYS / (KILLS + 2);
        let what = format!("{begun} runs have begun");
        until(SOON * 5, &what, async || Ok(diary.count_begun() >= begun)).await?;
        pass(dice.below(WORK)).await;
        let victim = dice.next() as usize % workers.len();
        workers.swap_remove(victim).kill()?;
        let mut next = start(dice.next())?;
        next.tell("go")?;
        workers.push(next);
    }
    for worker in &mut workers {
        worker.done().await?;
    }
    let took = now().since(from);
    let entries = client.once_entries().await?;
    let begun = diary.check(&keys(KEYS), &entries)?;
    scene.report(&format!(
        "{KEYS} keys by {WORKERS} processes, {KILLS} killed, {begun} runs, in {took:.1?}"
    ));
    // One that was killed while it waited may have left its place, but it is in nobody's way.
    for info in client.list().await? {
        let name = info.name.as_str();
        let guard = client.lock(name).ttl(LONG).acquire_within(SOON * 5).await;
        let guard = guard.map_err(|error| Stop::Failed(format!("{name} is stuck: {error}")))?;
        guard.release().await?;
    }
    Ok(())
}

/// A runner in another process that has begun.
async fn begun(scene: &Scene, key: &str, ttl: Duration) -> Verdict<(Worker, Token)> {
    let mut worker = scene.worker("begin", &[key, &ttl.as_millis().to_string()])?;
    worker.go().await?;
    let line = worker.hear(SOON).await?;
    let token = line.strip_prefix("begun ");
    let token = token.ok_or_else(|| Stop::Failed(format!("a runner said \"{line}\"")))?;
    Ok((worker, token.parse()?))
}

/// Takes over from one that is not heard of.
async fn take_over(client: &Fencepost, key: &str, first: Token, ttl: Duration) -> Verdict<Turn> {
    let once = client.once(key).may_repeat().ttl(LONG);
    let turn = ours(within(ttl * 2 + SOON, "it is taken over", once.begin()).await??)?;
    ensure!(turn.token() > first, "token {} after {first}", turn.token());
    Ok(turn)
}

/// It wakes up sure that it has done the work, once while the next one runs and once after that is done.
async fn once_a_frozen_runner_can_not_mark_it(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    ledger(&client)?;
    for (key, after) in [("while it runs", false), ("after it is done", true)] {
        let (mut frozen, first) = begun(scene, key, SHORT * 2).await?;
        frozen.stop().await?;
        let next = take_over(&client, key, first, SHORT * 4).await?;
        let second = next.token();
        let next = if after {
            next.done("the second one").await?;
            None
        } else {
            Some(next)
        };
        frozen.tell("finish")?;
        frozen.resume()?;
        let said = frozen.hear(SOON).await?;
        ensure!(said.starts_with("not recorded: "), "the woken runner was told \"{said}\"");
        if let Some(next) = next {
            next.check()?;
            next.done("the second one").await?;
        }
        let entry = client.once(key).entry().await?;
        let kept = entry.as_ref().is_some_and(|entry| {
            let by = entry.state == State::Done && entry.token == second;
            by && entry.result == b"the second one"
        });
        ensure!(kept, "recorded is {entry:?}");
    }
    Ok(())
}

async fn once_a_killed_runner_is_taken_over(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    ledger(&client)?;
    let (mut killed, first) = begun(scene, "killed", TTL).await?;
    killed.kill()?;
    let from = now();
    let next = take_over(&client, "killed", first, TTL * 2).await?;
    scene.report(&format!("a killed runner was taken over after {:.2?}", now().since(from)));
    next.done("").await?;
    Ok(())
}
