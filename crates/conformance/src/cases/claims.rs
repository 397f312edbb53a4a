//! Claims: many workers, many items, each item done once.

use std::time::Duration;

use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, Stop, ensure, ledger, now};
use crate::history::RunHistory;
use crate::process::Worker;
use crate::worker::runner::keys;

cases![claims_give_the_first_free_item, @alone claims_by_many_workers_are_done_once_each,];

const WORKERS: usize = 8;
const ITEMS: usize = 40;
const TTL: Duration = Duration::from_secs(2);

async fn claims_give_the_first_free_item(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    ledger(&ours)?;
    let items = ["b", "a", "c"];
    let (ours, theirs) = (ours.claim(items), theirs.claim(items));
    let (ours, theirs) = (ours.may_repeat().ttl(LONG), theirs.may_repeat().ttl(LONG));
    let first = ours.take().await?.ok_or_else(|| Stop::Failed("no item is free".into()))?;
    ensure!(first.key() == "b", "the first of {items:?} is {}", first.key());
    first.check()?;
    let second = theirs.take().await?;
    let second = second.filter(|run_guard| run_guard.key() == "a");
    ensure!(second.is_some(), "the next free item was not claimed");
    first.done("").await?;
    // When it is given up it is free again, and comes before the third.
    if let Some(run_guard) = second {
        run_guard.give_up().await?;
    }
    let third = ours.take().await?;
    ensure!(third.as_ref().is_some_and(|run_guard| run_guard.key() == "a"), "claimed {third:?}");
    let fourth = theirs.take().await?;
    ensure!(fourth.as_ref().is_some_and(|run_guard| run_guard.key() == "c"), "claimed {fourth:?}");
    ensure!(ours.take().await?.is_none(), "claimed an item that is running or done");
    // An item that is recorded as failed is not claimed again; a dropped one is.
    if let Some(run_guard) = third {
        run_guard.failed("broken").await?;
    }
    drop(fourth);
    let end = now() + SOON;
    let last = loop {
        match ours.take().await? {
            None => ensure!(now() < end, "a dropped item is not free again"),
            Some(run_guard) => break run_guard,
        }
    };
    ensure!(last.key() == "c", "claimed {last:?}");
    last.done("").await?;
    ensure!(theirs.take().await?.is_none(), "an item was claimed after all were done");
    Ok(())
}

async fn claims_by_many_workers_are_done_once_each(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    ledger(&client)?;
    let path = fixture.file("history");
    let (file, ttl) = (path.to_string_lossy(), TTL.as_millis().to_string());
    let items = ITEMS.to_string();
    let start = |how: &str| fixture.worker("claim", &[&file, &items, &ttl, how]);
    let mut victim = start("hangs")?;
    victim.go().await?;
    let at = victim.read_line(SOON * 2).await?;
    let mut workers = Worker::start_together(WORKERS, || start("works")).await?;
    let from = now();
    victim.kill()?;
    for worker in &mut workers {
        worker.done().await?;
    }
    let took = now().since(from);
    let records = client.once_records().await?;
    let begun = RunHistory::at(&path).check(&keys(ITEMS), &records)?;
    fixture.report(&format!(
        "{ITEMS} items by {WORKERS} workers, {begun} runs, in {took:.1?}; one died {at}"
    ));
    // Only the killed worker left an item to be done again. A machine that stalls for a whole lease can add to that.
    ensure!(begun > ITEMS, "the killed worker's item was not taken over");
    Ok(())
}
