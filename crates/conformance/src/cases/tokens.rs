//! P2: a later grant of a name has a higher token, whatever ended the one before.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost::guarantees::{Fault, Holds};
use fencepost_core::Token;

use super::{History, Verdict, cases};
use crate::scene::{LONG, SHORT, SOON, Scene, Stop, ensure, lease_end, now, shown_token};

cases![
    tokens_rise_over_release,
    tokens_rise_over_expiry,
    tokens_rise_over_break,
    tokens_rise_over_reconnect,
    @own_server tokens_rise_over_store_restart,
    tokens_rise_on_every_name,
];

/// Takes the lock, writes it into the history, gives it back.
async fn round(client: &Fencepost, history: &History, name: &str) -> Verdict {
    let guard = client.lock(name).ttl(LONG).acquire_within(SOON).await?;
    let from = now();
    history.add(guard.token(), from, now());
    Ok(guard.release().await?)
}

async fn tokens_rise_over_release(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let history = History::of("release")?;
    for _ in 0..20 {
        // Twice by the same one: client-go's LeaderTransitions was not bumped for the same identity.
        round(&ours, &history, "release").await?;
        round(&ours, &history, "release").await?;
        round(&theirs, &history, "release").await?;
    }
    history.check()
}

async fn tokens_rise_over_expiry(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let history = History::of("expiry")?;
    let mut patience = SOON;
    for _ in 0..3 {
        let guard = ours.lock("expiry").ttl(SHORT).lease_only().acquire_within(patience).await?;
        let from = now();
        history.add(guard.token(), from, guard.deadline().max(from));
        patience = lease_end(&guard).since(now()) + SOON;
        let _ = guard.detach();
    }
    let guard = theirs.lock("expiry").ttl(LONG).acquire_within(patience).await?;
    history.add(guard.token(), now(), now());
    history.check()
}

async fn tokens_rise_over_break(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let mut last = None;
    for _ in 0..3 {
        let guard = ours.lock("break").ttl(LONG).acquire_within(SOON).await?;
        ensure!(Some(guard.token()) >= last, "token {} after floor {last:?}", guard.token());
        let broken = theirs.break_lock("break").await?;
        let broken = broken.ok_or_else(|| Stop::Failed("a held lock was not broken".into()))?;
        ensure!(broken.token == Some(guard.token()), "broke {broken:?}, not {}", guard.token());
        ensure!(broken.floor > guard.token(), "floor {} for {}", broken.floor, guard.token());
        last = Some(broken.floor);
    }
    Ok(())
}

/// consul's `LockIndex` starts at 1 when the key is deleted: a name that was let go, by everybody, goes on
/// where it was.
async fn tokens_rise_over_reconnect(scene: &Scene) -> Verdict {
    let history = History::of("reconnect")?;
    for _ in 0..5 {
        let client = scene.client().await?;
        round(&client, &history, "reconnect").await?;
        client.close().await;
    }
    history.check()
}

async fn tokens_rise_over_store_restart(scene: &Scene) -> Verdict {
    let history = History::of("restart")?;
    let client = scene.client().await?;
    promised(&client, Fault::StoreCrash)?;
    round(&client, &history, "restart").await?;
    // One grant is in force while the store is away: it is still there afterwards, and excludes.
    let kept = client.lock("restart/kept").ttl(LONG).lease_only().acquire().await?;
    let token = kept.token();
    let owner = kept.detach();
    for _ in 0..3 {
        scene.site.restart().await?;
        let client = scene.client().await?;
        round(&client, &history, "restart").await?;
        let shown = shown_token(&client, "restart/kept").await?;
        ensure!(shown == Some(token), "after a restart {token} is {shown:?}");
        ensure!(client.lock("restart/kept").try_acquire().await?.is_none(), "granted twice");
        client.close().await;
    }
    let client = scene.client().await?;
    client.release("restart/kept", owner).await?;
    let next = client.lock("restart/kept").ttl(LONG).acquire_within(SOON).await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    history.check()
}

/// Skips the case where the backend does not promise exclusion and tokens under this fault.
pub(super) fn promised(client: &Fencepost, fault: Fault) -> Verdict {
    let guarantees = client.guarantees();
    let kept = guarantees.rows().find(|(row, _)| *row == fault).map(|(_, kept)| kept);
    match kept {
        Some(kept) if kept.exclusion == Holds::No || kept.tokens == Holds::No => {
            Err(Stop::Skipped(format!("declared as not kept under {fault}: {}", kept.note)))
        }
        _ => Ok(()),
    }
}

/// Names may share a counter or have their own; each rises, and many in between change nothing.
async fn tokens_rise_on_every_name(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let names = ["a", "a/b", "b"];
    let mut last = [None; 3];
    for turn in 0..12 {
        let guard = client.lock(names[turn % 3]).ttl(LONG).acquire_within(SOON).await?;
        let token = guard.token();
        ensure!(Some(token) > last[turn % 3], "token {token} after {:?}", last[turn % 3]);
        ensure!(token.get() <= Token::MAX, "token {token} is not safe in JSON");
        last[turn % 3] = Some(token);
        drop(guard);
        crate::scene::pass(Duration::from_millis(1)).await;
    }
    Ok(())
}
