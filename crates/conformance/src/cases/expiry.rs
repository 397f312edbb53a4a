//! A lease that is not renewed ends, not before its time and not long after. Then the next client gets the lock.

use fencepost::ErrorKind;
use fencepost_core::OwnerId;

use super::{History, Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, ensure, ensure_kind, lease_end, now, pass, shown_token,
    until_waiting, within,
};

cases![
    lease_ends_after_its_ttl_and_not_before,
    waiter_takes_over_at_the_end_of_the_lease,
    lease_keeps_its_own_ttl,
    renewed_lease_does_not_end,
    expired_grant_is_gone,
];

async fn lease_ends_after_its_ttl_and_not_before(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("ttl").ttl(SHORT).lease_only().acquire().await?;
    let (token, end) = (guard.token(), lease_end(&guard));
    let _ = guard.detach();
    ensure!(theirs.lock("ttl").try_acquire().await?.is_none() || now() >= end, "granted too early");
    // Retried without a position in the queue.
    let next = loop {
        if let Some(next) = theirs.lock("ttl").ttl(LONG).try_acquire().await? {
            break next;
        }
        ensure!(now() < end + SOON, "the lease did not end");
        pass(SHORT / 50).await;
    };
    ensure!(now() >= end, "granted {:?} before the lease was over", end.since(now()));
    ensure!(next.token() > token, "token {} after {token}", next.token());
    Ok(())
}

async fn waiter_takes_over_at_the_end_of_the_lease(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let history = History::of("takeover")?;
    let guard = ours.lock("takeover").ttl(SHORT).lease_only().acquire().await?;
    let end = lease_end(&guard);
    history.add(guard.token(), now(), guard.deadline());
    let _ = guard.detach();
    let waiting = tokio::spawn(async move { theirs.lock("takeover").ttl(LONG).acquire().await });
    let next = within(end.since(now()) + SOON, "the waiter takes over", waiting).await???;
    ensure!(now() >= end, "granted {:?} before the lease was over", end.since(now()));
    history.add(next.token(), now(), now());
    history.check()
}

/// fabric8 PR#7249: the challenger applied its own TTL to the holder's lease.
async fn lease_keeps_its_own_ttl(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("own").ttl(LONG).lease_only().acquire().await?;
    let token = guard.token();
    let owner = guard.detach();
    let limit = SHORT * 2;
    let refused = theirs.lock("own").ttl(SHORT).wait_timeout(limit).acquire().await;
    ensure_kind!(refused, ErrorKind::Held, "a challenger with a short TTL");
    ensure!(shown_token(&ours, "own").await? == Some(token), "the challenger ended the lease");
    ours.release("own", owner).await?;
    Ok(())
}

/// The reverse of etcd#17132: a guard that is renewed outlives its TTL several times, while a waiter waits.
async fn renewed_lease_does_not_end(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("renewed").ttl(SHORT).acquire().await?;
    let ttl = guard.ttl().as_duration();
    let waiting = tokio::spawn(async move { theirs.lock("renewed").ttl(SHORT).acquire().await });
    until_waiting(&ours, "renewed", 1).await?;
    let end = now() + ttl * 3;
    while now() < end {
        pass(ttl / 10).await;
        guard.check()?;
        ensure!(!waiting.is_finished(), "the waiter was granted a lock that is held and renewed");
        let waiting = ours.inspect("renewed").await?.waiting;
        ensure!(waiting == 1, "the waiter lost its position: {waiting} waiting");
    }
    guard.release().await?;
    drop(within(SOON, "the waiter is granted at last", waiting).await???);
    Ok(())
}

async fn expired_grant_is_gone(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("gone").ttl(SHORT).lease_only().acquire().await?;
    let end = lease_end(&guard);
    let owner: OwnerId = guard.detach();
    crate::fixture::until(end.since(now()) + SOON, "the lease ends", async || {
        Ok(shown_token(&theirs, "gone").await?.is_none())
    })
    .await?;
    ensure!(now() >= end, "shown as free before the lease was over");
    // etcd PR#20813: a renewal succeeded on a lease that was revoked.
    ensure_kind!(ours.renew("gone", owner, None).await, ErrorKind::NotHeld, "a late renewal");
    ensure_kind!(ours.release("gone", owner).await, ErrorKind::NotHeld, "a late release");
    ensure!(theirs.list().await?.is_empty(), "an expired grant is still listed");
    Ok(())
}
