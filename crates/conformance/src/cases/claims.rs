//! Claims: many workers, many items, each done once by one.

use std::time::Duration;

use super::{Verdict, cases};
use crate::diary::Diary;
use crate::process::Worker;
use crate::scene::{LONG, SOON, Scene, Stop, ensure, ledger, now};
use crate::worker::runner::keys;

cases![claims_give_the_first_free_item, @alone claims_of_many_workers_are_done_once_each,];

const WORKERS: usize = 8;
const ITEMS: usize = 40;
const TTL: Duration = Duration::from_secs(2);

async fn claims_give_the_first_free_item(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    ledger(&ours)?;
    let items = ["b", "a", "c"];
    let (ours, theirs) = (ours.claim(items), theirs.claim(items));
    let (ours, theirs) = (ours.may_repeat().ttl(LONG), theirs.may_repeat().ttl(LONG));
    let first = ours.take().await?.ok_or_else(|| Stop::Failed("nothing is free".into()))?;
    ensure!(first.key() == "b", "the first of {items:?} is {}", first.key());
    first.check()?;
    let second = theirs.take().await?;
    let second = second.filter(|turn| turn.key() == "a");
    ensure!(second.is_some(), "the next free one was not given");
    first.done("").await?;
    // Given up, it is free again, and comes before the third.
    if let Some(turn) = second {
        turn.give_up().await?;
    }
    let third = ours.take().await?;
    ensure!(third.as_ref().is_some_and(|turn| turn.key() == "a"), "gave {third:?}");
    let fourth = theirs.take().await?;
    ensure!(fourth.as_ref().is_some_and(|turn| turn.key() == "c"), "gave {fourth:?}");
    ensure!(ours.take().await?.is_none(), "gave one that is in work or done");
    // One that failed for good is not given again; one that was dropped is.
    if let Some(turn) = third {
        turn.failed("broken").await?;
    }
    drop(fourth);
    let end = now() + SOON;
    let last = loop {
        match ours.take().await? {
            None => ensure!(now() < end, "a dropped item is not free again"),
            Some(turn) => break turn,
        }
    };
    ensure!(last.key() == "c", "gave {last:?}");
    last.done("").await?;
    ensure!(theirs.take().await?.is_none(), "there was nothing left to do");
    Ok(())
}

async fn claims_of_many_workers_are_done_once_each(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    ledger(&client)?;
    let path = scene.file("diary");
    let (file, ttl) = (path.to_string_lossy(), TTL.as_millis().to_string());
    let items = ITEMS.to_string();
    let start = |how: &str| scene.worker("claim", &[&file, &items, &ttl, how]);
    let mut victim = start("hangs")?;
    victim.go().await?;
    let at = victim.hear(SOON * 2).await?;
    let mut workers = Worker::start_together(WORKERS, || start("works")).await?;
    let from = now();
    victim.kill()?;
    for worker in &mut workers {
        worker.done().await?;
    }
    let took = now().since(from);
    let entries = client.once_entries().await?;
    let begun = Diary::at(&path).check(&keys(ITEMS), &entries)?;
    scene.report(&format!(
        "{ITEMS} items by {WORKERS} workers, {begun} runs, in {took:.1?}; one died {at}"
    ));
    // The one that was killed, and nobody else, left an item to be done again. A machine that stands still
    // for a whole lease can add to that.
    ensure!(begun > ITEMS, "the killed worker's item was not taken over");
    Ok(())
}
