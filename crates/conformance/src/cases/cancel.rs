//! P6: a future that is dropped, at whichever await, leaves nothing behind at the store.
//!
//! redis-py#3847, sqlx#4198, rslock#30, curator#600: a cancelled acquire or release left the lock, or a
//! place in the queue, until its TTL. The TTL here is a minute and the next one must be granted in
//! seconds, so what passes was undone and did not run out.

use std::future::pending;
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_base::race::{First, race};

use super::{Verdict, cases};
use crate::scene::{
    Cancelled, LONG, SOON, Scene, Stop, cancel_after, ensure, pass, until_free, until_queued,
    until_waiting, within,
};

cases![
    a_cancelled_acquire_leaves_nothing,
    an_acquire_cancelled_at_any_time_leaves_nothing,
    a_cancelled_wait_leaves_nothing,
    a_wait_cancelled_when_its_turn_comes_leaves_nothing,
    a_cancelled_try_leaves_nothing,
    a_cancelled_release_still_releases,
    a_cancelled_run_keeps_the_guard,
    cancelled_work_is_not_polled_again,
];

/// More awaits than any call here has.
const MANY: usize = 1000;
/// How long a future may stand still before it counts as parked.
const PARKED: Duration = Duration::from_millis(300);

/// The lock can be taken at once by somebody else, and then nothing is left of anybody.
async fn nothing_is_left(other: &Fencepost, name: &str, after: &str) -> Verdict {
    match other.lock(name).ttl(LONG).acquire_within(SOON).await {
        Ok(guard) => guard.release().await?,
        Err(error) => return Err(Stop::Failed(format!("after {after}: {error}"))),
    }
    until_free(other, name).await
}

/// When the client that cancelled has settled everything, nothing is left either: no call that was under
/// way came in late and stayed.
async fn nothing_comes_late(client: Fencepost, other: &Fencepost, name: &str) -> Verdict {
    within(SOON, "the client settles everything", client.close()).await?;
    drop(client);
    pass(Duration::from_millis(50)).await;
    let info = other.inspect(name).await?;
    ensure!(info.holder.is_none() && info.waiting == 0, "a late call left {info:?}");
    Ok(())
}

async fn a_cancelled_acquire_leaves_nothing(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
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

async fn a_cancelled_try_leaves_nothing(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
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

/// Polls come when the store answers; a drop may come at any time in between.
async fn an_acquire_cancelled_at_any_time_leaves_nothing(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let mut dice = scene.dice();
    for _ in 0..30 {
        let delay = dice.below(Duration::from_millis(2));
        // A grant that comes first is dropped just so.
        let _ = race(ours.lock("any").ttl(LONG).acquire(), pass(delay)).await;
        nothing_is_left(&theirs, "any", &format!("an acquire dropped after {delay:?}")).await?;
    }
    nothing_comes_late(ours, &theirs, "any").await
}

async fn a_cancelled_wait_leaves_nothing(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = theirs.lock("held").ttl(LONG).acquire().await?;
    for polls in 0..MANY {
        let acquire = ours.lock("held").ttl(LONG).acquire();
        let cancelled = cancel_after(polls, PARKED, acquire).await;
        until_waiting(&theirs, "held", 0).await?;
        match cancelled {
            Ok(answer) => {
                return Err(Stop::Failed(format!("a held lock was answered with {answer:?}")));
            }
            Err(Cancelled::Dropped) => {}
            // It waits for the release now, and was woken by nothing: that was its last await.
            Err(Cancelled::Stalled) => break,
        }
    }
    ensure!(guard.check().is_ok(), "a cancelled waiter ended the holder's grant");
    guard.release().await?;
    nothing_is_left(&theirs, "held", "cancelled waiters").await?;
    nothing_comes_late(ours, &theirs, "held").await
}

/// The grant, its confirmation and the cancellation meet: dropped at each await after the release.
async fn a_wait_cancelled_when_its_turn_comes_leaves_nothing(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    for polls in 0..MANY {
        let guard = theirs.lock("turn").ttl(LONG).acquire_within(SOON).await?;
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

async fn a_cancelled_release_still_releases(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    for polls in 0..MANY {
        let guard = ours.lock("release").ttl(LONG).acquire_within(SOON).await?;
        let released = cancel_after(polls, SOON, guard.release()).await.ok().transpose()?;
        nothing_is_left(&theirs, "release", &format!("a release dropped at poll {polls}")).await?;
        if released.is_some() {
            return nothing_comes_late(ours, &theirs, "release").await;
        }
    }
    Err(Stop::Failed(format!("a release was not done after {MANY} polls")))
}

async fn a_cancelled_run_keeps_the_guard(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("run").ttl(LONG).acquire().await?;
    for polls in 0..5 {
        let work = guard.run(async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            pending::<()>().await;
        });
        let cancelled = cancel_after(polls, PARKED, work).await;
        ensure!(cancelled.is_err(), "work without end came to its end");
        guard.check()?;
        ensure!(theirs.lock("run").try_acquire().await?.is_none(), "the lock was let go");
    }
    guard.release().await?;
    nothing_is_left(&theirs, "run", "cancelled work").await
}

/// The work of a guard that is lost is dropped there and then.
async fn cancelled_work_is_not_polled_again(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
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
    crate::scene::ensure_kind!(outcome, fencepost::ErrorKind::Lost(_), "broken work");
    ensure!(steps > 0, "the work never ran");
    ensure!(guard.check().is_err(), "a broken guard can be trusted");
    Ok(())
}
