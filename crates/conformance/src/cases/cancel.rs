//! P6: a future that is dropped, at whichever await, leaves nothing behind at the store.
//!
//! redis-py#3847, sqlx#4198, rslock#30, curator#600: a cancelled acquire or release left the lock, or a position in the
//! queue, until its TTL. The TTL here is a minute and the next grant must come within seconds, so it was undone and
//! did not expire.

use std::future::pending;
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_base::race::{First, race};

use super::{Verdict, cases};
use crate::fixture::{
    Cancelled, Fixture, LONG, SOON, Stop, cancel_after, ensure, pass, until_free, until_queued,
    until_waiting, within,
};

cases![
    cancelled_acquire_leaves_nothing,
    acquire_cancelled_at_any_time_leaves_nothing,
    cancelled_wait_leaves_nothing,
    wait_cancelled_as_it_is_granted_leaves_nothing,
    cancelled_try_acquire_leaves_nothing,
    cancelled_release_still_releases,
    cancelled_run_keeps_the_guard,
    work_of_a_lost_guard_is_not_polled_again,
];

/// More awaits than any call here has.
const MANY: usize = 1000;
/// How long a future may stall before it counts as parked.
const PARKED: Duration = Duration::from_millis(300);

/// Another client gets the lock at once, and then nothing is left at the store.
async fn nothing_is_left(other: &Fencepost, name: &str, after: &str) -> Verdict {
    match other.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await {
        Ok(guard) => guard.release().await?,
        Err(error) => return Err(Stop::Failed(format!("after {after}: {}", error.one_line()))),
    }
    until_free(other, name).await
}

/// Closes the client that cancelled. After that nothing is left either: no late call has left a grant or a position.
async fn nothing_comes_late(client: Fencepost, other: &Fencepost, name: &str) -> Verdict {
    within(SOON, "the client settles everything", client.close()).await?;
    drop(client);
    pass(Duration::from_millis(50)).await;
    let info = other.inspect(name).await?;
    ensure!(info.holder.is_none() && info.waiting == 0, "a late call left {info:?}");
    Ok(())
}

async fn cancelled_acquire_leaves_nothing(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    for polls in 0..MANY {
        let acquire = ours.lock("free").ttl(LONG).acquire();
        if let Ok(guard) = cancel_after(polls, SOON, acquire).await {
            guard?.release().await?;
            ensure!(polls > 0, "granted without being polled");
            return nothing_comes_late(ours, &theirs, "free").await;
        }
        nothing_is_left(&theirs, "free", &format!("an acquire dropped at poll {polls}")).await?;
    }
    Err(Stop::Failed(format!("an acquire was not done after {MANY} polls")))
}

async fn cancelled_try_acquire_leaves_nothing(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    for polls in 0..MANY {
        let acquire = ours.lock("try").ttl(LONG).try_acquire();
        if let Ok(guard) = cancel_after(polls, SOON, acquire).await {
            ensure!(guard?.is_some(), "a free lock was not granted");
            return nothing_comes_late(ours, &theirs, "try").await;
        }
        nothing_is_left(&theirs, "try", &format!("a try dropped at poll {polls}")).await?;
    }
    Err(Stop::Failed(format!("a try was not done after {MANY} polls")))
}

/// Polls happen when the store replies; a drop can happen at any time in between.
async fn acquire_cancelled_at_any_time_leaves_nothing(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let mut rng = fixture.rng();
    for _ in 0..30 {
        let delay = rng.below(Duration::from_millis(2));
        // If the grant comes first, the guard is dropped.
        let _ = race(ours.lock("any").ttl(LONG).acquire(), pass(delay)).await;
        nothing_is_left(&theirs, "any", &format!("an acquire dropped after {delay:?}")).await?;
    }
    nothing_comes_late(ours, &theirs, "any").await
}

async fn cancelled_wait_leaves_nothing(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = theirs.lock("held").ttl(LONG).acquire().await?;
    for polls in 0..MANY {
        let acquire = ours.lock("held").ttl(LONG).acquire();
        let cancelled = cancel_after(polls, PARKED, acquire).await;
        until_waiting(&theirs, "held", 0).await?;
        match cancelled {
            Ok(answer) => {
                return Err(Stop::Failed(format!("a held lock returned {answer:?}")));
            }
            Err(Cancelled::Dropped) => {}
            // It waits for the release, so that was its last await.
            Err(Cancelled::Stalled) => break,
        }
    }
    ensure!(guard.check().is_ok(), "a cancelled waiter ended the holder's grant");
    guard.release().await?;
    nothing_is_left(&theirs, "held", "cancelled waiters").await?;
    nothing_comes_late(ours, &theirs, "held").await
}

/// The grant, its confirmation and the cancellation meet: cancelled at each await after the release.
async fn wait_cancelled_as_it_is_granted_leaves_nothing(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    for polls in 0..MANY {
        let guard = theirs.lock("turn").ttl(LONG).wait_timeout(SOON).acquire().await?;
        let mut acquire = Box::pin(ours.lock("turn").ttl(LONG).acquire());
        until_queued(&mut acquire, &theirs, "turn").await?;
        guard.release().await?;
        if let Ok(guard) = cancel_after(polls, SOON, acquire).await {
            guard?.release().await?;
            return nothing_comes_late(ours, &theirs, "turn").await;
        }
        nothing_is_left(&theirs, "turn", &format!("a waiter dropped at poll {polls}")).await?;
    }
    Err(Stop::Failed(format!("a granted waiter was not done after {MANY} polls")))
}

async fn cancelled_release_still_releases(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    for polls in 0..MANY {
        let guard = ours.lock("release").ttl(LONG).wait_timeout(SOON).acquire().await?;
        let released = cancel_after(polls, SOON, guard.release()).await.ok().transpose()?;
        nothing_is_left(&theirs, "release", &format!("a release dropped at poll {polls}")).await?;
        if released.is_some() {
            return nothing_comes_late(ours, &theirs, "release").await;
        }
    }
    Err(Stop::Failed(format!("a release was not done after {MANY} polls")))
}

async fn cancelled_run_keeps_the_guard(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("run").ttl(LONG).acquire().await?;
    for polls in 0..5 {
        let work = guard.run(async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            pending::<()>().await;
        });
        let cancelled = cancel_after(polls, PARKED, work).await;
        ensure!(cancelled.is_err(), "work that never ends has ended");
        guard.check()?;
        ensure!(theirs.lock("run").try_acquire().await?.is_none(), "the lock was released");
    }
    guard.release().await?;
    nothing_is_left(&theirs, "run", "cancelled work").await
}

/// The work of a lost guard is dropped at once.
async fn work_of_a_lost_guard_is_not_polled_again(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("lost").ttl(Duration::from_millis(600)).acquire().await?;
    let ttl = guard.ttl().as_duration();
    let mut steps = 0_u32;
    let outcome = {
        let work = guard.run(async {
            loop {
                steps += 1;
                pass(Duration::from_millis(5)).await;
            }
        });
        let breaker = async {
            pass(Duration::from_millis(30)).await;
            theirs.break_lock("lost").await
        };
        let both = async {
            let mut work = Box::pin(work);
            match race(&mut work, breaker).await {
                First::Left(ended) => ended,
                First::Right(broken) => match broken {
                    Ok(_) => work.await,
                    Err(error) => Err(error),
                },
            }
        };
        within(ttl + SOON, "the work is dropped", both).await?
    };
    let outcome: fencepost::Result<()> = outcome;
    crate::fixture::ensure_kind!(outcome, fencepost::ErrorKind::Lost, "broken work");
    ensure!(steps > 0, "the work never ran");
    ensure!(guard.check().is_err(), "a broken guard can be trusted");
    Ok(())
}
