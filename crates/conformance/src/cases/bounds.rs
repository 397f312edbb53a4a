//! What bounds a holder that hangs: python-redis-lock#106, #114, RedLock.net#68: it renewed for ever.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::backend::LossCause;

use super::{Verdict, cases};
use crate::scene::{LONG, SHORT, SOON, Scene, ensure, ensure_kind, lease_end, now, pass, within};

cases![max_hold_ends_a_guard_that_is_renewed, a_guard_without_progress_is_not_renewed];

async fn max_hold_ends_a_guard_that_is_renewed(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let asked = now();
    let guard = ours.lock("max").ttl(SHORT).acquire_within(SOON).await?;
    let ttl = guard.ttl().as_duration();
    guard.release().await?;
    let max = ttl + ttl / 2;
    let guard = ours.lock("max").ttl(SHORT).max_hold(max).acquire().await?;
    let held = now();
    let cause = within(max + SOON, "the guard is lost", guard.lost()).await?;
    ensure!(cause == LossCause::MaxHold, "the cause is given as \"{cause}\"");
    ensure!(now().since(asked) >= max, "lost before max_hold was reached");
    ensure!(now().since(held) <= max + Duration::from_millis(250), "lost long after max_hold");
    ensure_kind!(guard.check(), ErrorKind::Lost(LossCause::MaxHold), "a guard past its max_hold");
    // Nobody renews it any more, so the next one has it at the end of the lease at the latest.
    drop(theirs.lock("max").ttl(LONG).acquire_within(ttl + SOON).await?);
    Ok(())
}

async fn a_guard_without_progress_is_not_renewed(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
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
    ensure!(cause == LossCause::NoProgress, "the cause is given as \"{cause}\"");
    let hung = now().since(last);
    ensure!(hung < SHORT + ttl + Duration::from_millis(250), "a hung holder kept it for {hung:?}");
    let end = lease_end(&guard);
    drop(theirs.lock("progress").ttl(LONG).acquire_within(end.since(now()) + SOON).await?);
    ensure!(guard.check().is_err(), "a lost guard came back");
    Ok(())
}
