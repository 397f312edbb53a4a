//! An operator breaks a grant: its holder learns of it, and a fence can shut it out before the next grant.

use std::time::Duration;

use fencepost::backend::LossCause;
use fencepost::{ErrorKind, Fencepost};

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, Stop, break_held, ensure, ensure_kind, now, pass, queue_up,
    shown_token, unless_refused, until_free, until_waiting, within,
};

cases![
    broken_guard_is_lost_and_cannot_release,
    break_grants_the_next_waiter,
    break_of_a_free_lock_changes_nothing,
    broken_holder_learns_at_once_and_confirms,
    break_of_an_abandoned_grant_is_not_confirmed,
    break_with_a_token_ends_only_that_grant,
];

async fn broken_guard_is_lost_and_cannot_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("break").ttl(SHORT).label("the holder").acquire().await?;
    let ttl = guard.ttl().as_duration();
    let broken = break_held(&theirs, "break").await?;
    ensure!(broken.label.as_str() == "the holder", "broke the lock of {}", broken.label);
    ensure!(broken.token == Some(guard.token()), "broke {broken:?}, not {}", guard.token());
    // The next holder need not wait for the broken one to notice.
    let next = theirs.lock("break").ttl(LONG).wait_timeout(SOON).acquire().await?;
    ensure!(next.token() >= broken.floor, "token {}, floor {}", next.token(), broken.floor);
    let cause = within(ttl + SOON, "the holder learns of the break", guard.lost()).await?;
    ensure!(cause == LossCause::Broken, "the cause is \"{cause}\"");
    let released = guard.release().await;
    let error = ensure_kind!(released, ErrorKind::Lost, "the release of a broken guard");
    ensure!(error.loss_cause() == Some(LossCause::Broken), "{error}");
    ensure!(next.check().is_ok(), "the broken holder's release ended the next one's grant");
    next.release().await?;
    until_free(&ours, "break").await
}

async fn break_grants_the_next_waiter(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("break").ttl(LONG).acquire().await?;
    let waiting = queue_up(&theirs, "break", LONG, 1).await?;
    until_waiting(&ours, "break", 1).await?;
    let broken = break_held(&theirs, "break").await?;
    let next = within(SOON, "the waiter is granted", waiting).await???;
    ensure!(next.token() >= broken.floor, "token {}, floor {}", next.token(), broken.floor);
    // The break ends the old grant, not the one that follows.
    drop(guard);
    let other = theirs.lock("other").acquire().await?;
    ensure!(next.check().is_ok(), "the next holder's grant is gone");
    other.release().await?;
    Ok(next.release().await?)
}

async fn break_of_a_free_lock_changes_nothing(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    ensure!(client.break_lock("free").await?.is_none(), "a free lock was broken");
    client.lock("free").ttl(LONG).wait_timeout(SOON).acquire().await?.release().await?;
    ensure!(client.break_lock("free").await?.is_none(), "a released lock was broken");
    Ok(())
}

/// With this TTL the next renewal is a third of a minute away: only a notification arrives sooner.
async fn broken_holder_learns_at_once_and_confirms(fixture: &Fixture) -> Verdict {
    fixture.site.notifies()?;
    let (ours, theirs) = fixture.two_clients().await?;
    // The holder subscribes in the background, once it has had the grant for a moment. Each round gives it longer.
    for round in 0..12 {
        let guard = ours.lock("notified").ttl(LONG).wait_timeout(SOON).acquire().await?;
        let ttl = guard.ttl().as_duration();
        if ttl / 3 < SOON {
            return Err(Stop::Skipped(format!("the store keeps a TTL of {ttl:?} at most")));
        }
        pass(Duration::from_millis(50) * round).await;
        let broken = break_held(&theirs, "notified").await?;
        if broken.confirmed {
            let cause = within(SOON, "the holder learns of the break", guard.lost()).await?;
            ensure!(cause == LossCause::Broken, "the cause is \"{cause}\"");
            return measured(fixture, &ours, &theirs).await;
        }
    }
    Err(Stop::Failed("no break was confirmed: the holder was never notified".into()))
}

/// `FENCEPOST_BREAK_ROUNDS=50` reports how long it takes from the break to the holder's loss.
async fn measured(fixture: &Fixture, ours: &Fencepost, theirs: &Fencepost) -> Verdict {
    let rounds = std::env::var("FENCEPOST_BREAK_ROUNDS").map_or(Ok(0), |rounds| rounds.parse())?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let guard = ours.lock("measured").ttl(LONG).wait_timeout(SOON).acquire().await?;
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
        fixture.report(&format!(
            "break to loss, {rounds} rounds: p50 {:?}, p99 {:?}, longest {longest:?}",
            at(50),
            at(99),
        ));
    }
    Ok(())
}

/// No process renews a detached grant, so none can confirm the break.
async fn break_of_an_abandoned_grant_is_not_confirmed(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("abandoned").ttl(LONG).lease_only().acquire().await;
    // A store with shorter leases refuses this one.
    let owner = unless_refused(guard)?.detach();
    let broken = break_held(&theirs, "abandoned").await?;
    ensure!(!broken.confirmed, "a break that nobody could confirm was confirmed: {broken:?}");
    let late = theirs.release("abandoned", owner).await;
    ensure_kind!(late, ErrorKind::NotHeld, "the release of a broken grant");
    Ok(())
}

async fn break_with_a_token_ends_only_that_grant(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.lock("exactly").ttl(LONG).acquire().await?;
    let old = first.token();
    first.release().await?;
    let second = ours.lock("exactly").ttl(LONG).wait_timeout(SOON).acquire().await?;
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
