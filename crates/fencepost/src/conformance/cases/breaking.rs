//! An operator ends a grant: its holder is told, and the fence can shut it out before the next one comes.

use super::{Verdict, cases};
use crate::backend::LossCause;
use crate::conformance::scene::{
    LONG, SHORT, SOON, Scene, Stop, ensure, ensure_kind, until_free, until_waiting, within,
};
use crate::error::ErrorKind;

cases![break_tells_the_holder, break_hands_over_to_the_waiter, break_of_a_free_lock_is_nothing,];

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
    let waiter = theirs.clone();
    let waiting = tokio::spawn(async move { waiter.lock("break").ttl(LONG).acquire().await });
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
