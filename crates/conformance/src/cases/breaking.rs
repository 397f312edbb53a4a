//! An operator ends a grant: its holder is told, and the fence can shut it out before the next one comes.

use std::time::Duration;

use fencepost::backend::LossCause;
use fencepost::{ErrorKind, Fencepost};

use super::{Verdict, cases};
use crate::scene::{
    LONG, SHORT, SOON, Scene, Stop, ensure, ensure_kind, now, pass, queue_up, shown_token,
    unless_refused, until_free, until_waiting, within,
};

cases![
    break_tells_the_holder,
    break_hands_over_to_the_waiter,
    break_of_a_free_lock_is_nothing,
    broken_holder_learns_at_once_and_confirms,
    break_of_an_abandoned_grant_is_not_confirmed,
    break_with_a_token_ends_only_that_grant,
];

async fn break_tells_the_holder(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("break").ttl(SHORT).label("the holder").acquire().await?;
    let ttl = guard.ttl().as_duration();
    let broken = theirs.break_lock("break").await?;
    let broken = broken.ok_or_else(|| Stop::Failed("a held lock was not broken".into()))?;
    ensure!(broken.label.as_str() == "the holder", "broke the lock of {}", broken.label);
    ensure!(broken.token == Some(guard.token()), "broke {broken:?}, not {}", guard.token());
    // The next one need not wait for the holder to notice.
    let next = theirs.lock("break").ttl(LONG).acquire_within(SOON).await?;
    ensure!(next.token() >= broken.floor, "token {}, floor {}", next.token(), broken.floor);
    let cause = within(ttl + SOON, "the holder is told", guard.lost()).await?;
    ensure!(cause == LossCause::Broken, "the cause is given as \"{cause}\"");
    let released = guard.release().await;
    let error = ensure_kind!(released, ErrorKind::Lost(_), "the release of a broken guard");
    ensure!(*error.kind() == ErrorKind::Lost(LossCause::Broken), "{error}");
    ensure!(next.check().is_ok(), "the broken holder's release ended the next one's grant");
    next.release().await?;
    until_free(&ours, "break").await
}

async fn break_hands_over_to_the_waiter(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("break").ttl(LONG).acquire().await?;
    let waiting = queue_up(&theirs, "break", LONG, 1).await?;
    until_waiting(&ours, "break", 1).await?;
    let broken = theirs.break_lock("break").await?;
    let broken = broken.ok_or_else(|| Stop::Failed("a held lock was not broken".into()))?;
    let next = within(SOON, "the waiter is granted", waiting).await???;
    ensure!(next.token() >= broken.floor, "token {}, floor {}", next.token(), broken.floor);
    // It ends the grant that was there, not the one that follows.
    drop(guard);
    let other = theirs.lock("other").acquire().await?;
    ensure!(next.check().is_ok(), "the next holder's grant is gone");
    other.release().await?;
    Ok(next.release().await?)
}

async fn break_of_a_free_lock_is_nothing(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    ensure!(client.break_lock("free").await?.is_none(), "a free lock was broken");
    client.lock("free").ttl(LONG).acquire_within(SOON).await?.release().await?;
    ensure!(client.break_lock("free").await?.is_none(), "a released lock was broken");
    Ok(())
}

/// With a TTL this long the next renewal is a third of a minute away: only a notification comes sooner.
async fn broken_holder_learns_at_once_and_confirms(scene: &Scene) -> Verdict {
    scene.site.notifies()?;
    let (ours, theirs) = scene.two_clients().await?;
    // The holder subscribes in the background, for a grant that it has had for a moment: each round gives it longer.
    for round in 0..12 {
        let guard = ours.lock("notified").ttl(LONG).acquire_within(SOON).await?;
        let ttl = guard.ttl().as_duration();
        if ttl / 3 < SOON {
            return Err(Stop::Skipped(format!("the store keeps a TTL of {ttl:?} at most")));
        }
        pass(Duration::from_millis(50) * round).await;
        let broken = theirs.break_lock("notified").await?;
        let broken = broken.ok_or_else(|| Stop::Failed("a held lock was not broken".into()))?;
        if broken.confirmed {
            let cause = within(SOON, "the holder learns of it", guard.lost()).await?;
            ensure!(cause == LossCause::Broken, "the cause is given as \"{cause}\"");
            return measured(scene, &ours, &theirs).await;
        }
    }
    Err(Stop::Failed("no break was confirmed: the holder was never notified".into()))
}

/// `FENCEPOST_BREAK_ROUNDS=50` reports how long it takes from the break to the holder's loss.
async fn measured(scene: &Scene, ours: &Fencepost, theirs: &Fencepost) -> Verdict {
    let rounds = std::env::var("FENCEPOST_BREAK_ROUNDS").map_or(Ok(0), |rounds| rounds.parse())?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let guard = ours.lock("measured").ttl(LONG).acquire_within(SOON).await?;
        pass(Duration::from_millis(200)).await;
        let lost = guard.lost();
        let start = now();
        let end = async {
            lost.await;
            now()
        };
        let (end, broken) = tokio::join!(end, theirs.break_lock("measured"));
        ensure!(broken?.is_some_and(|broken| broken.confirmed), "a break was not confirmed");
        took.push(end.since(start));
    }
    took.sort_unstable();
    if let Some(longest) = took.last() {
        let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
        scene.report(&format!(
            "break to loss, {rounds} rounds: p50 {:?}, p99 {:?}, longest {longest:?}",
            at(50),
            at(99),
        ));
    }
    Ok(())
}

/// Nobody in any process looks after a grant that was detached.
async fn break_of_an_abandoned_grant_is_not_confirmed(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("abandoned").ttl(LONG).lease_only().acquire().await;
    // A store that keeps shorter leases refuses this one.
    let owner = unless_refused(guard)?.detach();
    let broken = theirs.break_lock("abandoned").await?;
    let broken = broken.ok_or_else(|| Stop::Failed("a held lock was not broken".into()))?;
    ensure!(!broken.confirmed, "confirmed by nobody: {broken:?}");
    let late = theirs.release("abandoned", owner).await;
    ensure_kind!(late, ErrorKind::NotHeld(_), "the release of a broken grant");
    Ok(())
}

async fn break_with_a_token_ends_only_that_grant(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let first = ours.lock("exactly").ttl(LONG).acquire().await?;
    let old = first.token();
    first.release().await?;
    let second = ours.lock("exactly").ttl(LONG).acquire_within(SOON).await?;
    let broken = theirs.break_grant("exactly", old).await?;
    ensure!(broken.is_none(), "the grant of {old} is over, and {broken:?} was broken");
    second.check()?;
    let shown = shown_token(&theirs, "exactly").await?;
    ensure!(shown == Some(second.token()), "the store shows {shown:?}");
    let broken = theirs.break_grant("exactly", second.token()).await?;
    let broken = broken.ok_or_else(|| Stop::Failed("its own token did not break it".into()))?;
    ensure!(broken.token == Some(second.token()), "broke {broken:?}");
    Ok(())
}
