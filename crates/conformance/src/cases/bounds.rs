//! Bounds for a holder that hangs. Without them it renewed for ever: python-redis-lock#106, #114, RedLock.net#68.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::backend::LossCause;

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, ensure, ensure_kind, lease_end, now, pass, within,
};

cases![max_hold_ends_a_renewed_guard, guard_without_progress_is_not_renewed];

async fn max_hold_ends_a_renewed_guard(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let asked = now();
    let guard = ours.lock("max").ttl(SHORT).wait_timeout(SOON).acquire().await?;
    let ttl = guard.ttl().as_duration();
    guard.release().await?;
    let max = ttl + ttl / 2;
    let guard = ours.lock("max").ttl(SHORT).max_hold(max).acquire().await?;
    let held = now();
    let cause = within(max + SOON, "the guard is lost", guard.lost()).await?;
    ensure!(cause == LossCause::MaxHold, "the cause is \"{cause}\"");
    ensure!(now().since(asked) >= max, "lost before max_hold was reached");
    ensure!(now().since(held) <= max + Duration::from_millis(250), "lost long after max_hold");
    let error = ensure_kind!(guard.check(), ErrorKind::Lost, "a guard past its max_hold");
    ensure!(error.loss_cause() == Some(LossCause::MaxHold), "{error}");
    // It is no longer renewed, so the next holder gets it at the end of the lease at the latest.
    drop(theirs.lock("max").ttl(LONG).wait_timeout(ttl + SOON).acquire().await?);
    Ok(())
}

async fn guard_without_progress_is_not_renewed(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("progress").ttl(SHORT).progress_within(SHORT).acquire().await?;
    let ttl = guard.ttl().as_duration();
    let end = now() + ttl * 2;
    while now() < end {
        guard.progress();
        guard.check()?;
        pass(ttl / 10).await;
    }
    let last = now();
    let cause = within(ttl * 2 + SOON, "the guard is lost", guard.lost()).await?;
    ensure!(cause == LossCause::NoProgress, "the cause is \"{cause}\"");
    let hung = now().since(last);
    ensure!(hung < SHORT + ttl + Duration::from_millis(250), "a hung holder kept it for {hung:?}");
    let end = lease_end(&guard);
    drop(theirs.lock("progress").ttl(LONG).wait_timeout(end.since(now()) + SOON).acquire().await?);
    ensure!(guard.check().is_err(), "a lost guard came back");
    Ok(())
}
