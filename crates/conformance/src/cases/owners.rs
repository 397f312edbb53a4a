//! P3 and the idempotence of P6: only the owner renews and releases, and may do both twice.

use fencepost::backend::{Acquired, GrantId, Liveness, Renewal, Request};
use fencepost::bounded_store::Wait;
use fencepost::{ErrorKind, Fencepost};
use fencepost_core::{LockName, OwnerId, Token, Ttl};

use super::{Verdict, cases};
use crate::scene::{
    Cancelled, LONG, SHORT, SOON, Scene, Stop, cancel_after, ensure, ensure_kind, lease_end, now,
    pass, request, shown_token, store, until_free, until_queued, until_waiting,
};

cases![
    a_stranger_neither_renews_nor_releases,
    an_old_owner_neither_renews_nor_releases,
    acquire_twice_is_one_grant,
    renew_twice_is_fine,
    a_renewal_lengthens_a_lease_and_never_shortens_it,
    release_twice_is_one_release,
    a_released_grant_is_not_revived,
    release_withdraws_a_queued_acquire,
    a_batch_is_answered_in_order,
    an_owner_works_from_another_client,
];

/// Both calls of somebody who holds nothing here say `NotHeld`, and the holder stays.
async fn changes_nothing(client: &Fencepost, name: &str, owner: OwnerId, who: &str) -> Verdict {
    let before = shown_token(client, name).await?;
    ensure_kind!(client.renew(name, owner, None).await, ErrorKind::NotHeld(_), who);
    ensure_kind!(client.release(name, owner).await, ErrorKind::NotHeld(_), who);
    let after = shown_token(client, name).await?;
    ensure!(before == after, "{who} changed the holder from {before:?} to {after:?}");
    Ok(())
}

async fn a_stranger_neither_renews_nor_releases(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let stranger = scene.dice().owner();
    changes_nothing(&ours, "p3", stranger, "a stranger on a free lock").await?;
    let guard = ours.lock("p3").ttl(LONG).acquire().await?;
    changes_nothing(&theirs, "p3", stranger, "a stranger").await?;
    ensure!(guard.check().is_ok(), "a stranger's release ended the grant");
    // An owner is good for its own name only.
    let other = ours.lock("p3/other").ttl(LONG).acquire().await?;
    changes_nothing(&theirs, "p3", other.owner(), "the owner of another lock").await?;
    other.release().await?;
    Ok(guard.release().await?)
}

async fn an_old_owner_neither_renews_nor_releases(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    // One who released, one whose lease ran out, one who was broken.
    let guard = ours.lock("old").ttl(LONG).acquire().await?;
    let released = guard.owner();
    guard.release().await?;
    let guard = ours.lock("old").ttl(SHORT).lease_only().acquire().await?;
    let end = lease_end(&guard);
    let expired = guard.detach();
    let broken = theirs.lock("old").ttl(LONG).acquire_within(end.since(now()) + SOON).await?;
    ours.break_lock("old").await?;
    let holder = theirs.lock("old").ttl(LONG).acquire_within(SOON).await?;
    for (who, owner) in [
        ("one who released", released),
        ("one whose lease ran out", expired),
        ("one who was broken", broken.owner()),
    ] {
        changes_nothing(&ours, "old", owner, who).await?;
    }
    // Nor does the guard of the broken one, when it goes.
    drop(broken);
    theirs.lock("unrelated").ttl(LONG).acquire().await?.release().await?;
    ensure!(holder.check().is_ok(), "the new holder lost its grant to an old one");
    Ok(holder.release().await?)
}

async fn granted(client: &Fencepost, name: &str, owner: OwnerId, wait: Wait) -> Verdict<Token> {
    granted_as(client, name, owner, wait, Liveness::LeaseOnly).await
}

async fn granted_as(
    client: &Fencepost,
    name: &str,
    owner: OwnerId,
    wait: Wait,
    liveness: Liveness,
) -> Verdict<Token> {
    let request = Request { liveness, ..request(name, owner, LONG)? };
    match store(client).acquire(&request, wait).await?.value {
        Acquired::Granted(grant) => Ok(grant.token),
        other => Err(Stop::Failed(format!("not granted: {other:?}"))),
    }
}

fn renewal(name: &str, owner: OwnerId) -> Verdict<Renewal> {
    let grant = GrantId { name: LockName::new(name)?, owner };
    Ok(Renewal { grant, ttl: None, token: None, value: None })
}

/// The answer to an acquire got lost and it is sent again: it must not meet itself as the holder.
async fn acquire_twice_is_one_grant(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let mut dice = scene.dice();
    for liveness in [Liveness::LeaseOnly, Liveness::Process] {
        let owner = dice.owner();
        let first = granted_as(&ours, "twice", owner, Wait::No, liveness).await?;
        for wait in [Wait::No, Wait::Until(now() + SOON), Wait::Forever] {
            let again = granted_as(&ours, "twice", owner, wait, liveness).await?;
            ensure!(again == first, "{liveness:?}: the same owner got {first} and then {again}");
            // Nor does a retry whose answer nobody keeps end what the first one got.
            let shown = shown_token(&theirs, "twice").await?;
            ensure!(shown == Some(first), "{liveness:?}: after a retry {first} is {shown:?}");
        }
        if liveness == Liveness::LeaseOnly {
            let elsewhere = granted(&theirs, "twice", owner, Wait::No).await?;
            ensure!(elsewhere == first, "over another client it got {elsewhere}, not {first}");
        }
        let info = ours.inspect("twice").await?;
        ensure!(info.waiting == 0, "the retries left {} waiting", info.waiting);
        ours.release("twice", owner).await?;
        until_free(&ours, "twice").await?;
    }
    Ok(())
}

/// dynamolock#280, pglock#175: a renewal was applied, its answer was lost, and the retry was told that the
/// lock is gone.
async fn renew_twice_is_fine(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let owner = scene.dice().owner();
    let token = granted(&client, "renew", owner, Wait::No).await?;
    for _ in 0..3 {
        let before = now();
        let reply = client.renew("renew", owner, None).await?;
        let renewed = reply.value;
        ensure!(renewed.token == token, "a renewal changed {token} to {}", renewed.token);
        ensure!(reply.sent >= before && reply.sent <= now(), "credited to another time");
        ensure!(renewed.ttl.as_duration() >= LONG, "it keeps only {:?}", renewed.ttl);
    }
    Ok(client.release("renew", owner).await?)
}

/// A renewal asks for more time or for as much. One that asks for less takes nothing back: a guard in
/// another process may count on the lease that it was promised.
async fn a_renewal_lengthens_a_lease_and_never_shortens_it(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let owner = scene.dice().owner();
    let token = granted(&ours, "less", owner, Wait::No).await?;
    let lengthens = ours.guarantees().lengthens;
    let less = ours.renew("less", owner, Some(Ttl::new(SHORT)?)).await?.value;
    ensure!(less.token == token, "a renewal changed {token} to {}", less.token);
    let guard = ours.lock("more").ttl(SHORT).lease_only().acquire().await?;
    let (token, end) = (guard.token(), lease_end(&guard));
    let owner = guard.detach();
    if !lengthens {
        let more = ours.renew("more", owner, Some(Ttl::new(LONG)?)).await;
        ensure_kind!(more, ErrorKind::Refused, "a store that lengthens no lease");
        ours.renew("more", owner, None).await?;
        pass(end.since(now()) + SHORT).await;
        ensure!(theirs.lock("less").try_acquire().await?.is_none(), "\"less\" ended early");
        return Ok(());
    }
    let more = ours.renew("more", owner, Some(Ttl::new(LONG)?)).await?.value;
    ensure!(more.token == token, "a renewal changed {token} to {}", more.token);
    ensure!(more.ttl.as_duration() >= LONG, "asked for {LONG:?}, got {:?}", more.ttl);
    // Both outlive the shorter of their two terms.
    pass(end.since(now()) + SHORT).await;
    for name in ["less", "more"] {
        ensure!(theirs.lock(name).try_acquire().await?.is_none(), "\"{name}\" ended early");
    }
    Ok(ours.release("more", owner).await?)
}

async fn release_twice_is_one_release(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let owner = scene.dice().owner();
    granted(&ours, "release", owner, Wait::No).await?;
    ours.release("release", owner).await?;
    ensure_kind!(ours.release("release", owner).await, ErrorKind::NotHeld(_), "a second release");
    let next = theirs.lock("release").ttl(LONG).acquire_within(SOON).await?;
    changes_nothing(&ours, "release", owner, "a third release").await?;
    Ok(next.release().await?)
}

/// amazon-dynamodb-lock-client PR#116: a heartbeat that was under way revived a released lock.
async fn a_released_grant_is_not_revived(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let guard = client.lock("revived").ttl(SHORT).acquire().await?;
    let owner = guard.owner();
    guard.release().await?;
    ensure_kind!(
        client.renew("revived", owner, None).await,
        ErrorKind::NotHeld(_),
        "a late renewal"
    );
    until_free(&client, "revived").await?;
    // Nor by a heartbeat of the guard's own: one would be due in this time.
    pass(SHORT / 2).await;
    let shown = shown_token(&client, "revived").await?;
    ensure!(shown.is_none(), "a released lock came back as {shown:?}");
    Ok(())
}

async fn release_withdraws_a_queued_acquire(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("withdraw").ttl(LONG).acquire().await?;
    let owner = scene.dice().owner();
    {
        let request = request("withdraw", owner, LONG)?;
        let queued = store(&theirs).acquire(&request, Wait::Forever);
        until_queued(queued, &ours, "withdraw").await?;
    }
    // An owner is good for its own name only, in the queue too.
    ensure_kind!(theirs.release("elsewhere", owner).await, ErrorKind::NotHeld(_), "another name");
    match theirs.release("withdraw", owner).await {
        Ok(()) => {}
        // The backend may have cleaned up when its future was dropped.
        Err(error) if matches!(error.kind(), ErrorKind::NotHeld(_)) => {}
        Err(error) => return Err(error.into()),
    }
    until_waiting(&ours, "withdraw", 0).await?;
    ensure!(guard.check().is_ok(), "a waiter's release ended the holder's grant");
    guard.release().await?;
    until_free(&ours, "withdraw").await?;
    // Before it was even asked: nothing to release, and nothing stays behind.
    let request = request("withdraw", owner, LONG)?;
    let never = store(&theirs).acquire(&request, Wait::Forever);
    let never = cancel_after(0, SOON, never).await;
    let dropped = matches!(never, Err(Cancelled::Dropped));
    ensure!(dropped, "a future that was not polled came to its end");
    ensure_kind!(theirs.release("withdraw", owner).await, ErrorKind::NotHeld(_), "nothing asked");
    Ok(())
}

async fn a_batch_is_answered_in_order(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let mut dice = scene.dice();
    let (first, stranger, second) = (dice.owner(), dice.owner(), dice.owner());
    let first_token = granted(&client, "batch/1", first, Wait::No).await?;
    let second_token = granted(&client, "batch/2", second, Wait::No).await?;
    let batch = vec![
        renewal("batch/2", second)?,
        renewal("batch/1", stranger)?,
        renewal("batch/3", second)?,
        renewal("batch/1", first)?,
    ];
    let answers = store(&client).renew_batch(batch, SOON).await;
    ensure!(answers.len() == 4, "{} answers to 4 renewals", answers.len());
    let mut tokens = Vec::new();
    for answer in answers {
        tokens.push(answer?.value.ok().map(|renewed| renewed.token));
    }
    let wanted = [Some(second_token), None, None, Some(first_token)];
    ensure!(tokens == wanted, "the batch was answered with {tokens:?}, not with {wanted:?}");
    ensure!(
        store(&client).renew_batch(Vec::new(), SOON).await.is_empty(),
        "answers to no renewals"
    );
    Ok(())
}

/// The owner is a handle for scripts: acquire in one process, renew and release in others.
async fn an_owner_works_from_another_client(scene: &Scene) -> Verdict {
    let (ours, theirs) = scene.two_clients().await?;
    let guard = ours.lock("script").ttl(LONG).lease_only().acquire().await?;
    let token = guard.token();
    let owner: OwnerId = guard.detach().reveal().parse()?;
    drop(ours);
    ensure!(theirs.renew("script", owner, None).await?.value.token == token, "another token");
    theirs.release("script", owner).await?;
    until_free(&theirs, "script").await
}
