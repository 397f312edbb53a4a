//! P4 and P5: when the store is out of reach, or the holder freezes or dies, the guard is lost in time, no lock is granted
//! twice, and the next holder has a higher token.

use std::time::Duration;

use fencepost::backend::LossCause;
use fencepost::guarantees::Fault;
use fencepost::{ErrorKind, GuardStatus};

use super::tokens::skip_unless_promised;
use super::{History, Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, ensure, ensure_kind, lease_end, now, queue_up, shown_token,
    until_free, within,
};

cases![
    cut_off_guard_is_lost_in_time,
    cut_that_heals_in_time_loses_nothing,
    no_lock_is_granted_while_cut_off,
    release_while_cut_off_is_applied_later,
    @own_server guard_is_lost_in_time_when_the_store_stops,
    frozen_holder_learns_of_its_loss_at_its_first_read,
    killed_holder_is_replaced,
];

/// How late a wake-up may be on a busy machine. The guard's state reads the clock and is never late.
const WAKE_UP: Duration = Duration::from_millis(250);

/// Long enough for a failed renewal and another that succeeds.
const ROOMY: Duration = Duration::from_millis(1500);

/// redisson#4698, #775: renewal failed, was logged, and the holder kept working. etcd#5571: the client relied on its
/// transport to notice.
async fn cut_off_guard_is_lost_in_time(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let history = History::of("cut")?;
    let guard = ours.lock("cut").ttl(SHORT * 2).acquire().await?;
    let from = now();
    fixture.site.cut().await?;
    let ttl = guard.ttl().as_duration();
    let mut changes = guard.changes();
    let mut failing = false;
    let (cause, deadline) = loop {
        let before = guard.deadline();
        match within(ttl * 2, "the guard is lost", changes.next()).await? {
            (GuardStatus::Held, _) => ensure!(!failing, "renewed while cut off"),
            (GuardStatus::RenewalFailing, _) => failing = true,
            (GuardStatus::Lost(cause), _) => break (cause, before),
            (state, _) => ensure!(false, "the guard was not released, and is {state:?}"),
        }
    };
    let lost_at = now();
    ensure!(failing, "lost without reporting RenewalFailing");
    ensure!(cause == LossCause::StoreUnreachable, "the cause is \"{cause}\"");
    ensure!(lost_at >= deadline, "lost {:?} before its time", deadline.since(lost_at));
    ensure!(lost_at < deadline + WAKE_UP, "lost {:?} too late", lost_at.since(deadline));
    ensure_kind!(guard.check(), ErrorKind::Lost, "a lost guard");
    ensure!(guard.remaining().is_zero(), "a lost guard has {:?} left", guard.remaining());
    let dropped = guard.run(async {}).await;
    ensure_kind!(dropped, ErrorKind::Lost, "work under a lost guard");
    history.add(guard.token(), from, deadline);
    fixture.site.heal().await?;
    // A lost guard stays lost when the store is back.
    let next = theirs.lock("cut").ttl(LONG).wait_timeout(ttl + SOON).acquire().await?;
    history.add(next.token(), now(), now());
    ensure!(guard.check().is_err(), "a lost guard came back");
    drop(guard);
    ensure!(next.check().is_ok(), "the old guard's end took the new one's grant");
    history.check()
}

async fn cut_that_heals_in_time_loses_nothing(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let guard = client.lock("heal").ttl(ROOMY).acquire().await?;
    fixture.site.cut().await?;
    let mut changes = guard.changes();
    let limit = guard.ttl().as_duration();
    let failing = async { while changes.next().await.0 != GuardStatus::RenewalFailing {} };
    within(limit, "the guard reports RenewalFailing", failing).await?;
    let before = guard.deadline();
    ensure!(guard.check().is_ok(), "failing renewals are not yet a loss");
    fixture.site.heal().await?;
    let (state, deadline) = within(limit, "the guard is renewed again", changes.next()).await?;
    ensure!(state == GuardStatus::Held, "after the cut the guard is {state:?}");
    ensure!(deadline > before, "the renewal did not move the deadline");
    Ok(guard.release().await?)
}

/// P5, and the acquire leaves no orphan.
async fn no_lock_is_granted_while_cut_off(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    fixture.site.cut().await?;
    let limit = Duration::from_millis(300);
    let asked = now();
    let answer = client.lock("closed").ttl(LONG).wait_timeout(limit).acquire().await;
    let error = ensure_kind!(answer, ErrorKind::Unreachable, "a store that is cut off");
    let took = now().since(asked);
    ensure!(took < limit + SOON, "the error took {took:?}");
    ensure!(!error.one_line().contains('\n'), "\"{error}\" is not one line");
    fixture.site.heal().await?;
    // A client that was cut off is usable again, and its earlier acquire is undone.
    client.lock("closed").ttl(LONG).wait_timeout(SOON).acquire().await?.release().await?;
    until_free(&client, "closed").await
}

/// redis-py#3847, rslock#30: a release that failed left the lock until its TTL.
async fn release_while_cut_off_is_applied_later(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("late").ttl(LONG).acquire().await?;
    fixture.site.cut().await?;
    drop(guard);
    fixture.site.heal().await?;
    theirs.lock("late").ttl(LONG).wait_timeout(SOON).acquire().await?.release().await?;
    until_free(&theirs, "late").await
}

/// A frozen server is worse than one that is gone: connections stay open, and nothing replies.
async fn guard_is_lost_in_time_when_the_store_stops(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("stopped").ttl(SHORT * 2).acquire().await?;
    let token = guard.token();
    fixture.site.stop().await?;
    let ttl = guard.ttl().as_duration();
    let cause = within(ttl * 2, "the guard is lost", guard.lost()).await?;
    let late = now().since(guard.deadline());
    ensure!(late < WAKE_UP, "lost {late:?} too late");
    ensure!(cause == LossCause::StoreUnreachable, "the cause is \"{cause}\"");
    fixture.site.resume().await?;
    let next = theirs.lock("stopped").ttl(LONG).wait_timeout(ttl + SOON).acquire().await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    ensure!(guard.check().is_err(), "a lost guard came back");
    Ok(())
}

/// Why fencing exists: a holder freezes past its lease and wakes up sure of its lock.
async fn frozen_holder_learns_of_its_loss_at_its_first_read(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    skip_unless_promised(&client, Fault::HolderPause)?;
    let ttl = (SHORT * 2).as_millis().to_string();
    let mut holder = fixture.worker("hold", &["frozen", &ttl, "frozen"])?;
    holder.go().await?;
    let (token, _) = holder.granted(SOON).await?;
    holder.stop().await?;
    let stopped = now();
    let lease = client.inspect("frozen").await?.holder.and_then(|holder| holder.remaining);
    let lease = lease.unwrap_or(SHORT);
    let next = client.lock("frozen").ttl(LONG).wait_timeout(lease + SOON).acquire().await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    // The order is in the pipe before it wakes, so its reply is the holder's first read of its guard.
    holder.send("state")?;
    holder.resume()?;
    let first = holder.read_line(SOON).await?;
    let lost = first.starts_with("lost ") || first.starts_with("state lost ");
    ensure!(lost, "{:?} after it froze the holder says \"{first}\"", now().since(stopped));
    // What it does with its old grant changes nothing.
    holder.send("release")?;
    let released = loop {
        let line = holder.read_line(SOON).await?;
        if !line.starts_with("lost ") && !line.starts_with("state ") {
            break line;
        }
    };
    ensure!(released.starts_with("not released"), "a lost guard's release said \"{released}\"");
    ensure!(next.check().is_ok(), "the woken holder ended the next one's grant");
    let shown = shown_token(&client, "frozen").await?;
    ensure!(shown == Some(next.token()), "the store shows {shown:?}");
    Ok(())
}

async fn killed_holder_is_replaced(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    skip_unless_promised(&client, Fault::HolderCrash)?;
    let ttl = Duration::from_secs(6);
    let mut holder = fixture.worker("hold", &["killed", &ttl.as_millis().to_string(), "killed"])?;
    holder.go().await?;
    let (token, presence) = holder.granted(SOON).await?;
    let waiting = queue_up(&client, "killed", LONG, 1).await?;
    holder.kill()?;
    let killed = now();
    let remaining = client.inspect("killed").await?.holder.and_then(|holder| holder.remaining);
    let limit = if presence { ttl / 3 } else { remaining.unwrap_or(ttl) + SOON };
    let next = within(limit, "the next one is granted", waiting).await???;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    let took = now().since(killed);
    ensure!(took < limit, "{took:?} after the holder's end");
    ensure!(lease_end(&next) > now(), "a grant that is over already");
    Ok(())
}
