//! P4 and P5: when the store is out of reach, or the holder stands still or dies, the guard is told in
//! time, nobody is granted twice, and the next holder has a higher token.

use std::time::Duration;

use fencepost::backend::LossCause;
use fencepost::guarantees::Fault;
use fencepost::{ErrorKind, GuardState};

use super::tokens::promised;
use super::{History, Verdict, cases};
use crate::scene::{
    LONG, SHORT, SOON, Scene, ensure, ensure_kind, lease_end, now, queue_up, shown_token,
    until_free, within,
};

cases![
    a_cut_off_guard_is_lost_in_time,
    a_cut_that_heals_in_time_loses_nothing,
    nobody_is_granted_while_cut_off,
    a_release_while_cut_off_is_made_up_for,
    @own_server a_stopped_store_loses_guards_in_time,
    a_frozen_holder_learns_of_its_loss_at_its_first_look,
    a_killed_holder_is_followed_by_the_next,
];

/// How late a wake-up may be on a busy machine. The guard's own state reads the clock and is never late.
const WAKE_UP: Duration = Duration::from_millis(250);

/// Long enough that a renewal can fail and another succeed before it runs out.
const ROOMY: Duration = Duration::from_millis(1500);

/// redisson#4698, #775: renewal failed, was logged, and the holder worked on. etcd#5571: the client waited
/// for its transport to tell it.
async fn a_cut_off_guard_is_lost_in_time(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let history = History::of("cut")?;
    let guard = ours.lock("cut").ttl(SHORT * 2).acquire().await?;
    let from = now();
    scene.site.cut().await?;
    let ttl = guard.ttl().as_duration();
    let mut changes = guard.changes();
    let mut failing = false;
    let (cause, deadline) = loop {
        let before = guard.deadline();
        match within(ttl * 2, "the guard is told", changes.next()).await? {
            (GuardState::Held, _) => ensure!(!failing, "renewed while cut off"),
            (GuardState::RenewalFailing, _) => failing = true,
            (GuardState::Lost(cause), _) => break (cause, before),
            (state, _) => ensure!(false, "nobody released, and it is {state:?}"),
        }
    };
    let told = now();
    ensure!(failing, "lost without a word that renewals fail");
    ensure!(cause == LossCause::StoreUnreachable, "the cause is given as \"{cause}\"");
    ensure!(told >= deadline, "lost {:?} before its time", deadline.since(told));
    ensure!(told < deadline + WAKE_UP, "told {:?} too late", told.since(deadline));
    ensure_kind!(guard.check(), ErrorKind::Lost(_), "a lost guard");
    ensure!(guard.remaining().is_zero(), "a lost guard has {:?} left", guard.remaining());
    let dropped = guard.run(async {}).await;
    ensure_kind!(dropped, ErrorKind::Lost(_), "work under a lost guard");
    history.add(guard.token(), from, deadline);
    scene.site.heal().await?;
    // Lost stays lost when the store is back.
    let next = theirs.lock("cut").ttl(LONG).acquire_within(ttl + SOON).await?;
    history.add(next.token(), now(), now());
    ensure!(guard.check().is_err(), "a lost guard came back");
    drop(guard);
    ensure!(next.check().is_ok(), "the old guard's end took the new one's grant");
    history.check()
}

async fn a_cut_that_heals_in_time_loses_nothing(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let guard = client.lock("heal").ttl(ROOMY).acquire().await?;
    scene.site.cut().await?;
    let mut changes = guard.changes();
    let limit = guard.ttl().as_duration();
    let failing = async { while changes.next().await.0 != GuardState::RenewalFailing {} };
    within(limit, "the guard says that renewals fail", failing).await?;
    let before = guard.deadline();
    ensure!(guard.check().is_ok(), "failing renewals are not yet a loss");
    scene.site.heal().await?;
    let (state, deadline) = within(limit, "the guard is renewed again", changes.next()).await?;
    ensure!(state == GuardState::Held, "after the cut the guard is {state:?}");
    ensure!(deadline > before, "the renewal did not move the deadline");
    Ok(guard.release().await?)
}

/// P5, and no orphan of what was asked for meanwhile.
async fn nobody_is_granted_while_cut_off(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    scene.site.cut().await?;
    let limit = Duration::from_millis(300);
    let asked = now();
    let answer = client.lock("closed").ttl(LONG).acquire_within(limit).await;
    let error = ensure_kind!(answer, ErrorKind::Unreachable, "a store that is cut off");
    let took = now().since(asked);
    ensure!(took < limit + SOON, "it took {took:?} to say so");
    ensure!(!error.to_string().contains('\n'), "\"{error}\" is not one line");
    scene.site.heal().await?;
    // A client that was cut off is usable again, and what it asked for then is undone.
    client.lock("closed").ttl(LONG).acquire_within(SOON).await?.release().await?;
    until_free(&client, "closed").await
}

/// redis-py#3847, rslock#30: a release that failed left the lock until its TTL.
async fn a_release_while_cut_off_is_made_up_for(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("late").ttl(LONG).acquire().await?;
    scene.site.cut().await?;
    drop(guard);
    scene.site.heal().await?;
    theirs.lock("late").ttl(LONG).acquire_within(SOON).await?.release().await?;
    until_free(&theirs, "late").await
}

/// A server that stands still is worse than one that is gone: connections stay, nothing answers.
async fn a_stopped_store_loses_guards_in_time(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("stopped").ttl(SHORT * 2).acquire().await?;
    let token = guard.token();
    scene.site.stop().await?;
    let ttl = guard.ttl().as_duration();
    let cause = within(ttl * 2, "the guard is told", guard.lost()).await?;
    let late = now().since(guard.deadline());
    ensure!(late < WAKE_UP, "told {late:?} too late");
    ensure!(cause == LossCause::StoreUnreachable, "the cause is given as \"{cause}\"");
    scene.site.resume().await?;
    let next = theirs.lock("stopped").ttl(LONG).acquire_within(ttl + SOON).await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    ensure!(guard.check().is_err(), "a lost guard came back");
    Ok(())
}

/// The story behind fencing: a holder freezes past its lease and wakes up sure of its lock.
async fn a_frozen_holder_learns_of_its_loss_at_its_first_look(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    promised(&client, Fault::HolderPause)?;
    let ttl = (SHORT * 2).as_millis().to_string();
    let mut holder = scene.worker("hold", &["frozen", &ttl, "frozen"])?;
    holder.go().await?;
    let (token, _) = holder.granted(SOON).await?;
    holder.stop().await?;
    let stopped = now();
    let lease = client.inspect("frozen").await?.holder.and_then(|holder| holder.remaining);
    let lease = lease.unwrap_or(SHORT);
    let next = client.lock("frozen").ttl(LONG).acquire_within(lease + SOON).await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    // The order is in the pipe before it wakes: its answer is the holder's first look at its guard.
    holder.tell("look")?;
    holder.resume()?;
    let first = holder.hear(SOON).await?;
    let lost = first.starts_with("lost ") || first.starts_with("state lost ");
    ensure!(lost, "{:?} after it froze the holder says \"{first}\"", now().since(stopped));
    // And what it does with its old grant changes nothing.
    holder.tell("release")?;
    let released = loop {
        let line = holder.hear(SOON).await?;
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

async fn a_killed_holder_is_followed_by_the_next(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    promised(&client, Fault::HolderCrash)?;
    let ttl = Duration::from_secs(6);
    let mut holder = scene.worker("hold", &["killed", &ttl.as_millis().to_string(), "killed"])?;
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
