//! P2: a later grant of a name has a higher token, whatever ended the one before.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost::guarantees::{Fault, Holds};
use fencepost_core::Token;

use super::{History, Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, Stop, break_held, ensure, lease_end, now, shown_token,
};

cases![
    tokens_rise_across_release,
    tokens_rise_across_expiry,
    tokens_rise_across_break,
    tokens_rise_across_reconnect,
    @own_server tokens_rise_across_store_restart,
    tokens_rise_on_every_name,
];

/// Acquires the lock, records the grant, and releases it.
async fn round(client: &Fencepost, history: &History, name: &str) -> Verdict {
    let guard = client.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await?;
    let from = now();
    history.add(guard.token(), from, now());
    Ok(guard.release().await?)
}

async fn tokens_rise_across_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let history = History::of("release")?;
    for _ in 0..20 {
        // Twice by the same client: client-go's LeaderTransitions was not raised for the same identity.
        round(&ours, &history, "release").await?;
        round(&ours, &history, "release").await?;
        round(&theirs, &history, "release").await?;
    }
    history.check()
}

async fn tokens_rise_across_expiry(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let history = History::of("expiry")?;
    let mut timeout = SOON;
    for _ in 0..3 {
        let guard =
            ours.lock("expiry").ttl(SHORT).lease_only().wait_timeout(timeout).acquire().await?;
        let from = now();
        history.add(guard.token(), from, guard.deadline().max(from));
        timeout = lease_end(&guard).since(now()) + SOON;
        let _ = guard.detach();
    }
    let guard = theirs.lock("expiry").ttl(LONG).wait_timeout(timeout).acquire().await?;
    history.add(guard.token(), now(), now());
    history.check()
}

async fn tokens_rise_across_break(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let mut last = None;
    for _ in 0..3 {
        let guard = ours.lock("break").ttl(LONG).wait_timeout(SOON).acquire().await?;
        ensure!(Some(guard.token()) >= last, "token {} after floor {last:?}", guard.token());
        let broken = break_held(&theirs, "break").await?;
        ensure!(broken.token == Some(guard.token()), "broke {broken:?}, not {}", guard.token());
        ensure!(broken.floor > guard.token(), "floor {} for {}", broken.floor, guard.token());
        last = Some(broken.floor);
    }
    Ok(())
}

/// consul's `LockIndex` restarts at 1 when the key is deleted. A name that every client has released continues where it was.
async fn tokens_rise_across_reconnect(fixture: &Fixture) -> Verdict {
    let history = History::of("reconnect")?;
    for _ in 0..5 {
        let client = fixture.client().await?;
        round(&client, &history, "reconnect").await?;
        client.close().await;
    }
    history.check()
}

async fn tokens_rise_across_store_restart(fixture: &Fixture) -> Verdict {
    let history = History::of("restart")?;
    let client = fixture.client().await?;
    skip_unless_promised(&client, Fault::StoreCrash)?;
    round(&client, &history, "restart").await?;
    // One grant is in force while the store is down. Afterwards it is still there, and excludes.
    let kept = client.lock("restart/kept").ttl(LONG).lease_only().acquire().await?;
    let token = kept.token();
    let owner = kept.detach();
    for _ in 0..3 {
        fixture.site.restart().await?;
        let client = fixture.client().await?;
        round(&client, &history, "restart").await?;
        let shown = shown_token(&client, "restart/kept").await?;
        ensure!(shown == Some(token), "after a restart {token} is {shown:?}");
        ensure!(client.lock("restart/kept").try_acquire().await?.is_none(), "granted twice");
        client.close().await;
    }
    let client = fixture.client().await?;
    client.release("restart/kept", owner).await?;
    let next = client.lock("restart/kept").ttl(LONG).wait_timeout(SOON).acquire().await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    history.check()
}

/// Skips the case if the backend does not promise exclusion and rising tokens under this fault.
pub(super) fn skip_unless_promised(client: &Fencepost, fault: Fault) -> Verdict {
    let guarantees = client.guarantees();
    let kept = guarantees.rows().find(|(row, _)| *row == fault).map(|(_, kept)| kept);
    match kept {
        Some(kept) if kept.exclusion == Holds::No || kept.tokens == Holds::No => {
            Err(Stop::Skipped(format!("declared as not promised under {fault}: {}", kept.note)))
        }
        _ => Ok(()),
    }
}

/// Names may share a counter or have their own. Each one's tokens rise, whatever is granted in between.
async fn tokens_rise_on_every_name(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let names = ["a", "a/b", "b"];
    let mut last = [None; 3];
    for turn in 0..12 {
        let guard = client.lock(names[turn % 3]).ttl(LONG).wait_timeout(SOON).acquire().await?;
        let token = guard.token();
        ensure!(Some(token) > last[turn % 3], "token {token} after {:?}", last[turn % 3]);
        ensure!(token.get() <= Token::MAX, "token {token} is not safe in JSON");
        last[turn % 3] = Some(token);
        drop(guard);
        crate::fixture::pass(Duration::from_millis(1)).await;
    }
    Ok(())
}
