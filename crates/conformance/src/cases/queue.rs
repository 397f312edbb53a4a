//! P7: one release wakes one waiter; a waiter that died, gave up or froze does not block the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_base::race::{First, race};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, Stop, ensure, join_all, now, queue_up, until, until_free,
    until_queued, until_waiting, within,
};

cases![
    one_release_grants_one_waiter,
    fifo_waiters_are_granted_in_order,
    fifo_try_acquire_does_not_overtake,
    cancelled_waiter_does_not_stall_the_queue,
    waiter_that_times_out_does_not_stall_the_queue,
    killed_waiter_does_not_stall_the_queue,
    unpolled_waiter_stalls_the_queue_for_a_bounded_time,
    frozen_waiter_stalls_the_queue_for_a_bounded_time,
];

const NAME: &str = "queue";
const WAITERS: usize = 6;

/// redisson and consul woke every waiter for every release, or none until a poll.
async fn one_release_grants_one_waiter(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let granted = Arc::new(AtomicUsize::new(0));
    let releases = Arc::new(Semaphore::new(0));
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        let client = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
        let (granted, releases) = (granted.clone(), releases.clone());
        waiters.spawn(async move {
            let guard = client.lock(NAME).ttl(LONG).acquire().await?;
            granted.fetch_add(1, Ordering::Relaxed);
            if let Ok(permit) = releases.acquire().await {
                permit.forget();
            }
            guard.release().await
        });
    }
    until_waiting(&ours, NAME, WAITERS).await?;
    first.release().await?;
    for served in 1..=WAITERS {
        let what = format!("release {served} leads to a grant");
        until(SOON, &what, async || Ok(granted.load(Ordering::Relaxed) >= served)).await?;
        until_waiting(&ours, NAME, WAITERS - served).await?;
        let count = granted.load(Ordering::Relaxed);
        ensure!(count == served, "{served} releases led to {count} grants");
        releases.add_permits(1);
    }
    join_all(SOON, waiters).await?;
    until_free(&ours, NAME).await
}

fn declared_fifo(client: &Fencepost) -> Verdict {
    if client.guarantees().fifo {
        return Ok(());
    }
    Err(Stop::Skipped("this store does not declare FIFO".into()))
}

async fn fifo_waiters_are_granted_in_order(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    declared_fifo(&ours)?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let (served, mut order) = unbounded_channel();
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        let client = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
        let served = served.clone();
        waiters.spawn(async move {
            let label = format!("waiter {number}");
            let guard = client.lock(NAME).ttl(LONG).label(label).acquire().await?;
            let _ = served.send((number, guard.token()));
            guard.release().await
        });
        // The next waiter comes only when the store has seen this one.
        until_waiting(&ours, NAME, number + 1).await?;
    }
    let shown = ours.inspect(NAME).await?.waiters;
    for (number, waiter) in shown.iter().enumerate() {
        let label = format!("waiter {number}");
        ensure!(waiter.label.as_str() == label, "position {number} is shown as {}", waiter.label);
    }
    let mut last = first.token();
    first.release().await?;
    for expected in 0..WAITERS {
        let next = within(SOON, "the next one is granted", order.recv()).await?;
        let (number, token) = next.ok_or_else(|| Stop::Failed("the waiters ended".into()))?;
        ensure!(number == expected, "waiter {number} was granted before waiter {expected}");
        ensure!(token > last, "token {token} after {last}");
        last = token;
    }
    join_all(SOON, waiters).await
}

/// A client that does not wait must not overtake waiters.
async fn fifo_try_acquire_does_not_overtake(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    declared_fifo(&ours)?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let waiting = queue_up(&theirs, NAME, LONG, 1).await?;
    until_waiting(&ours, NAME, 1).await?;
    first.release().await?;
    let overtook = ours.lock(NAME).try_acquire().await?;
    ensure!(overtook.is_none(), "a try was granted while a client waited");
    drop(within(SOON, "the waiter is granted", waiting).await???);
    Ok(())
}

/// kazoo#760, curator#600: the contender of an interrupted waiter stayed in the queue.
async fn cancelled_waiter_does_not_stall_the_queue(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let cancelled = queue_up(&theirs, NAME, LONG, 1).await?;
    let next = queue_up(&theirs, NAME, LONG, 2).await?;
    cancelled.abort();
    until_waiting(&ours, NAME, 1).await?;
    first.release().await?;
    drop(within(SOON, "the next one is granted", next).await???);
    until_free(&ours, NAME).await
}

async fn waiter_that_times_out_does_not_stall_the_queue(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let client = ours.clone();
    let limit = Duration::from_millis(300);
    let brief =
        tokio::spawn(
            async move { client.lock(NAME).ttl(LONG).wait_timeout(limit).acquire().await },
        );
    until_waiting(&ours, NAME, 1).await?;
    let next = queue_up(&theirs, NAME, LONG, 2).await?;
    ensure!(within(SOON, "the wait times out", brief).await??.is_err(), "a held lock was granted");
    first.release().await?;
    drop(within(SOON, "the next one is granted", next).await???);
    until_free(&ours, NAME).await
}

/// redisson#2883, #3004, #6150: dead waiters stalled a fair queue. A waiter needs a lease too.
async fn killed_waiter_does_not_stall_the_queue(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let first = client.lock(NAME).ttl(LONG).acquire().await?;
    let mut dead = fixture.worker("hold", &[NAME, &SHORT.as_millis().to_string(), "dead"])?;
    dead.go().await?;
    until_waiting(&client, NAME, 1).await?;
    let next = queue_up(&client, NAME, LONG, 2).await?;
    dead.kill()?;
    first.release().await?;
    drop(within(SHORT * 2 + SOON, "the next one is granted", next).await???);
    until_free(&client, NAME).await
}

/// A waiter whose executor is stuck: nothing polls its future.
async fn unpolled_waiter_stalls_the_queue_for_a_bounded_time(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.lock(NAME).ttl(LONG).acquire().await?;
    let mut stuck = Box::pin(theirs.lock(NAME).ttl(SHORT).acquire());
    until_queued(&mut stuck, &ours, NAME).await?;
    let next = ours.clone();
    let next = tokio::spawn(async move { next.lock(NAME).ttl(LONG).acquire().await });
    until(SOON, "the next waiter queues", async || {
        // The stuck waiter's position may have expired by now.
        Ok(ours.inspect(NAME).await?.waiting >= 1)
    })
    .await?;
    first.release().await?;
    let next = within(SHORT * 3 + SOON, "the next one is granted", next).await???;
    ensure!(next.check().is_ok(), "the next one's grant is over already");
    // The stuck waiter continues: its grant was passed on, and it must not return one that is over.
    let early = race(&mut stuck, crate::fixture::pass(SHORT)).await;
    ensure!(matches!(early, First::Right(())), "the stuck waiter returned a grant that is over");
    let (from, token) = (now(), next.token());
    next.release().await?;
    let late = within(SHORT * 3 + SOON, "the stuck waiter is granted", stuck).await??;
    ensure!(late.token() > token, "token {} after {token}", late.token());
    ensure!(late.deadline() > from, "the stuck waiter returned an old grant");
    Ok(())
}

async fn frozen_waiter_stalls_the_queue_for_a_bounded_time(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let first = client.lock(NAME).ttl(LONG).acquire().await?;
    let mut frozen = fixture.worker("hold", &[NAME, &SHORT.as_millis().to_string(), "frozen"])?;
    frozen.go().await?;
    until_waiting(&client, NAME, 1).await?;
    let next = queue_up(&client, NAME, LONG, 2).await?;
    frozen.stop().await?;
    first.release().await?;
    let next = within(SHORT * 3 + SOON, "the next one is granted", next).await???;
    // etcd#11456: a waiter whose position had expired in the queue still returned a guard.
    frozen.resume()?;
    let early = frozen.granted(SHORT * 2).await;
    ensure!(early.is_err(), "the frozen waiter woke up and returned a guard");
    let token = next.token();
    next.release().await?;
    let (late, _) = frozen.granted(SHORT * 3 + SOON).await?;
    ensure!(late > token, "token {late} after {token}");
    Ok(())
}
