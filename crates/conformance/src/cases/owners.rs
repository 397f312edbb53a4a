//! P3 and the idempotence of P6: only the owner can renew and release, and may repeat both.

use fencepost::backend::{Acquired, GrantId, Liveness, Outcome, Renewal};
use fencepost::bounded_store::Wait;
use fencepost::{ErrorKind, Fencepost};
use fencepost_core::{LockName, OwnerId, Token, Ttl};

use super::{Verdict, cases};
use crate::fixture::{
    Cancelled, Fixture, LONG, SHORT, SOON, Stop, cancel_after, ensure, ensure_kind, lease_end, now,
    pass, request, shown_token, until_free, until_queued, until_waiting,
};

cases![
    unknown_owner_can_neither_renew_nor_release,
    former_owner_can_neither_renew_nor_release,
    repeated_acquire_is_one_grant,
    repeated_renewal_succeeds,
    renewal_extends_a_lease_and_never_shortens_it,
    repeated_release_releases_once,
    released_grant_is_not_revived,
    release_withdraws_a_queued_acquire,
    batch_renewal_answers_each_grant,
    owner_id_works_from_another_client,
];

/// An owner that holds nothing here gets `NotHeld` from both calls, and the holder stays.
async fn changes_nothing(client: &Fencepost, name: &str, owner: OwnerId, who: &str) -> Verdict {
    let before = shown_token(client, name).await?;
    ensure_kind!(client.renew(name, owner, None).await, ErrorKind::NotHeld, who);
    ensure_kind!(client.release(name, owner).await, ErrorKind::NotHeld, who);
    let after = shown_token(client, name).await?;
    ensure!(before == after, "{who} changed the holder from {before:?} to {after:?}");
    Ok(())
}

async fn unknown_owner_can_neither_renew_nor_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let third_party = fixture.rng().owner();
    changes_nothing(&ours, "p3", third_party, "an unknown owner on a free lock").await?;
    let guard = ours.lock("p3").ttl(LONG).acquire().await?;
    changes_nothing(&theirs, "p3", third_party, "an unknown owner").await?;
    ensure!(guard.check().is_ok(), "an unknown owner's release ended the grant");
    // An owner is valid for its own name only.
    let other = ours.lock("p3/other").ttl(LONG).acquire().await?;
    changes_nothing(&theirs, "p3", other.owner(), "the owner of another lock").await?;
    other.release().await?;
    Ok(guard.release().await?)
}

async fn former_owner_can_neither_renew_nor_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    // An owner that released, one whose lease ran out, one that was broken.
    let guard = ours.lock("old").ttl(LONG).acquire().await?;
    let released = guard.owner();
    guard.release().await?;
    let guard = ours.lock("old").ttl(SHORT).lease_only().acquire().await?;
    let end = lease_end(&guard);
    let expired = guard.detach();
    let broken =
        theirs.lock("old").ttl(LONG).wait_timeout(end.since(now()) + SOON).acquire().await?;
    ours.break_lock("old").await?;
    let holder = theirs.lock("old").ttl(LONG).wait_timeout(SOON).acquire().await?;
    for (who, owner) in [
        ("an owner that released", released),
        ("an owner whose lease ran out", expired),
        ("an owner that was broken", broken.owner()),
    ] {
        changes_nothing(&ours, "old", owner, who).await?;
    }
    // The drop of the broken guard changes nothing either.
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
    let request = request(name, owner, LONG)?.with_liveness(liveness);
    match client.store().acquire(&request, wait).await?.value {
        Acquired::Granted(grant) => Ok(grant.token),
        other => Err(Stop::Failed(format!("not granted: {other:?}"))),
    }
}

fn renewal(name: &str, owner: OwnerId) -> Verdict<Renewal> {
    let grant = GrantId { name: LockName::new(name)?, owner };
    Ok(Renewal::new(grant))
}

/// The reply to an acquire was lost and it is sent again: it must not treat itself as another holder.
async fn repeated_acquire_is_one_grant(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let mut rng = fixture.rng();
    for liveness in [Liveness::LeaseOnly, Liveness::Process] {
        let owner = rng.owner();
        let first = granted_as(&ours, "twice", owner, Wait::No, liveness).await?;
        for wait in [Wait::No, Wait::Until(now() + SOON), Wait::Forever] {
            let again = granted_as(&ours, "twice", owner, wait, liveness).await?;
            ensure!(again == first, "{liveness:?}: the same owner got {first} and then {again}");
            // A retry whose reply is dropped does not end the first grant.
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

/// dynamolock#280, pglock#175: a renewal was applied, its reply was lost, and the retry reported that the lock was gone.
async fn repeated_renewal_succeeds(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let owner = fixture.rng().owner();
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

/// A renewal asks for the same time or more. If it asks for less, the lease is not shortened: a guard in another process may
/// rely on it.
async fn renewal_extends_a_lease_and_never_shortens_it(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let owner = fixture.rng().owner();
    let token = granted(&ours, "less", owner, Wait::No).await?;
    let can_extend = ours.guarantees().can_extend;
    let less = ours.renew("less", owner, Some(Ttl::new(SHORT)?)).await?.value;
    ensure!(less.token == token, "a renewal changed {token} to {}", less.token);
    let guard = ours.lock("more").ttl(SHORT).lease_only().acquire().await?;
    let (token, end) = (guard.token(), lease_end(&guard));
    let owner = guard.detach();
    if !can_extend {
        let more = ours.renew("more", owner, Some(Ttl::new(LONG)?)).await;
        ensure_kind!(more, ErrorKind::Refused, "a store that cannot extend a TTL");
        ours.renew("more", owner, None).await?;
        pass(end.since(now()) + SHORT).await;
        ensure!(theirs.lock("less").try_acquire().await?.is_none(), "\"less\" ended early");
        return Ok(());
    }
    let more = ours.renew("more", owner, Some(Ttl::new(LONG)?)).await?.value;
    ensure!(more.token == token, "a renewal changed {token} to {}", more.token);
    ensure!(more.ttl.as_duration() >= LONG, "asked for {LONG:?}, got {:?}", more.ttl);
    // Both outlive the shorter of their two TTLs.
    pass(end.since(now()) + SHORT).await;
    for name in ["less", "more"] {
        ensure!(theirs.lock(name).try_acquire().await?.is_none(), "\"{name}\" ended early");
    }
    Ok(ours.release("more", owner).await?)
}

async fn repeated_release_releases_once(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let owner = fixture.rng().owner();
    granted(&ours, "release", owner, Wait::No).await?;
    ours.release("release", owner).await?;
    ensure_kind!(ours.release("release", owner).await, ErrorKind::NotHeld, "a second release");
    let next = theirs.lock("release").ttl(LONG).wait_timeout(SOON).acquire().await?;
    changes_nothing(&ours, "release", owner, "a third release").await?;
    Ok(next.release().await?)
}

/// amazon-dynamodb-lock-client PR#116: a heartbeat that was under way revived a released lock.
async fn released_grant_is_not_revived(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let guard = client.lock("revived").ttl(SHORT).acquire().await?;
    let owner = guard.owner();
    guard.release().await?;
    ensure_kind!(client.renew("revived", owner, None).await, ErrorKind::NotHeld, "a late renewal");
    until_free(&client, "revived").await?;
    // The guard's own heartbeat does not revive it either: a renewal would be due in this time.
    pass(SHORT / 2).await;
    let shown = shown_token(&client, "revived").await?;
    ensure!(shown.is_none(), "a released lock came back as {shown:?}");
    Ok(())
}

async fn release_withdraws_a_queued_acquire(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("withdraw").ttl(LONG).acquire().await?;
    let owner = fixture.rng().owner();
    {
        let request = request("withdraw", owner, LONG)?;
        let queued = theirs.store().acquire(&request, Wait::Forever);
        until_queued(queued, &ours, "withdraw").await?;
    }
    // An owner is valid for its own name only, in the queue too.
    ensure_kind!(theirs.release("elsewhere", owner).await, ErrorKind::NotHeld, "another name");
    match theirs.release("withdraw", owner).await {
        Ok(()) => {}
        // The backend may have cleaned up when its future was dropped.
        Err(error) if error.kind() == ErrorKind::NotHeld => {}
        Err(error) => return Err(error.into()),
    }
    until_waiting(&ours, "withdraw", 0).await?;
    ensure!(guard.check().is_ok(), "a waiter's release ended the holder's grant");
    guard.release().await?;
    until_free(&ours, "withdraw").await?;
    // Before the request was sent: nothing to release, and nothing stays behind.
    let request = request("withdraw", owner, LONG)?;
    let never = theirs.store().acquire(&request, Wait::Forever);
    let never = cancel_after(0, SOON, never).await;
    let dropped = matches!(never, Err(Cancelled::Dropped));
    ensure!(dropped, "a future that was not polled came to its end");
    ensure_kind!(theirs.release("withdraw", owner).await, ErrorKind::NotHeld, "nothing asked");
    Ok(())
}

async fn batch_renewal_answers_each_grant(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let mut rng = fixture.rng();
    let (first, third_party, second) = (rng.owner(), rng.owner(), rng.owner());
    let first_token = granted(&client, "batch/1", first, Wait::No).await?;
    let second_token = granted(&client, "batch/2", second, Wait::No).await?;
    let batch = vec![
        renewal("batch/2", second)?,
        renewal("batch/1", third_party)?,
        renewal("batch/3", second)?,
        renewal("batch/1", first)?,
    ];
    let grants: Vec<_> = batch.iter().map(|renewal| renewal.grant.clone()).collect();
    let answers = client.store().renew_batch(batch, SOON).await;
    ensure!(answers.count() == 4, "{} answers to 4 renewals", answers.count());
    let mut tokens = Vec::new();
    for grant in &grants {
        tokens.push(answers.to(grant)?.value.ok().map(|renewed| renewed.token));
    }
    let wanted = [Some(second_token), None, None, Some(first_token)];
    ensure!(tokens == wanted, "the batch was answered with {tokens:?}, not with {wanted:?}");
    let none = client.store().renew_batch(Vec::new(), SOON).await;
    ensure!(none.count() == 0, "{} answers to no renewals", none.count());
    let missing = none.to(&grants[0]);
    ensure!(
        matches!(&missing, Err(error) if error.outcome() == Outcome::Unknown),
        "a missing answer counts as {missing:?}"
    );
    Ok(())
}

/// The owner is a handle for scripts: acquire in one process, renew and release in others.
async fn owner_id_works_from_another_client(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("script").ttl(LONG).lease_only().acquire().await?;
    let token = guard.token();
    let owner: OwnerId = guard.detach().reveal().parse()?;
    drop(ours);
    ensure!(theirs.renew("script", owner, None).await?.value.token == token, "another token");
    theirs.release("script", owner).await?;
    until_free(&theirs, "script").await
}
