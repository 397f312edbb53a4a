//! The three ways to ask for a lock, and the guard that they return.

use std::time::Duration;

use fencepost::{ErrorKind, GuardStatus};
use fencepost_core::Ttl;

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SHORT, SOON, ensure, ensure_kind, now, unless_refused, until_free,
    until_waiting, within,
};

cases![
    try_acquire_grants_only_a_free_lock,
    timeout_error_names_the_holder,
    timed_out_wait_leaves_no_position,
    acquire_waits_for_the_release,
    guard_reports_its_state,
    run_returns_the_value_of_the_work,
    closed_client_refuses_new_locks,
    blocking_api_uses_the_same_locks,
    watch_reports_grant_and_release,
    drop_releases,
    drop_of_the_client_releases,
    drop_at_the_end_of_main_releases,
];

async fn try_acquire_grants_only_a_free_lock(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("try").ttl(LONG).try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was not granted");
    ensure!(theirs.lock("try").try_acquire().await?.is_none(), "a held lock was granted again");
    ensure!(
        ours.lock("try").try_acquire().await?.is_none(),
        "a lock was granted to its holder again"
    );
    if let Some(guard) = guard {
        guard.release().await?;
    }
    let again = theirs.lock("try").try_acquire().await?;
    ensure!(again.is_some(), "a released lock was not granted");
    Ok(())
}

/// node-redlock#43, #284: contention and outage looked alike. `Held` names the holder.
async fn timeout_error_names_the_holder(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("within").ttl(LONG).label("the holder").acquire().await?;
    // The store has a second for the try, and a fifth of a second after the limit to name the holder. A busy one may need
    // several attempts.
    let (limit, begun) = (Duration::from_secs(1), now());
    let error = loop {
        let asked = now();
        let refused = theirs.lock("within").wait_timeout(limit).acquire().await;
        let took = now().since(asked);
        let error = ensure_kind!(refused, ErrorKind::Held, "a held lock, asked for with a limit");
        ensure!(took >= limit, "gave up after {took:?}, before its limit of {limit:?}");
        ensure!(took < limit + SOON, "gave up after {took:?}, long after its limit of {limit:?}");
        if error.holder().is_some() || now().since(begun) > SOON {
            break error;
        }
    };
    match error.holder() {
        Some(holder) => {
            ensure!(holder.label.as_str() == "the holder", "the holder is named {}", holder.label);
            ensure!(holder.token == Some(guard.token()), "the holder is {holder:?}");
            ensure!(holder.remaining <= holder.ttl.map(Ttl::as_duration), "{holder:?}");
            ensure!(error.one_line().contains("the holder"), "\"{error}\" does not name it");
        }
        None => ensure!(false, "the error does not name the holder"),
    }
    Ok(())
}

async fn timed_out_wait_leaves_no_position(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("left").ttl(LONG).acquire().await?;
    // Long enough for a busy store to answer the try.
    let limit = Duration::from_secs(1);
    ensure_kind!(
        theirs.lock("left").ttl(LONG).wait_timeout(limit).acquire().await,
        ErrorKind::Held,
        "a held lock"
    );
    until_waiting(&ours, "left", 0).await?;
    guard.release().await?;
    until_free(&ours, "left").await
}

async fn acquire_waits_for_the_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("wait").ttl(LONG).acquire().await?;
    let waiter = theirs.clone();
    let waiting =
        tokio::spawn(async move { waiter.lock("wait").ttl(LONG).label("next").acquire().await });
    until_waiting(&ours, "wait", 1).await?;
    ensure!(!waiting.is_finished(), "a waiter came back while the lock was held");
    let released = now();
    let first = guard.token();
    guard.release().await?;
    let next = within(SOON, "the waiter is granted after the release", waiting).await???;
    ensure!(next.token() > first, "token {} after {first}", next.token());
    ensure!(now().since(released) < SOON, "the hand-over took {:?}", now().since(released));
    let info = ours.inspect("wait").await?;
    let label = info.holder.map(|holder| holder.label.to_string());
    ensure!(label.as_deref() == Some("next"), "the store shows {label:?} as the holder");
    // A node that learned of the release late may show it as a waiter until that position's lease ends.
    until_waiting(&ours, "wait", 0).await?;
    Ok(next.release().await?)
}

async fn guard_reports_its_state(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let before = now();
    let guard = client.lock("state").ttl(SHORT * 4).acquire().await?;
    let ttl = guard.ttl().as_duration();
    ensure!(ttl >= SHORT * 4, "the store keeps {ttl:?}, less than it was asked for");
    ensure!(guard.name().as_str() == "state", "the guard is of {}", guard.name());
    ensure!(guard.status() == GuardStatus::Held, "a new guard is {:?}", guard.status());
    ensure!(guard.check()? == guard.fencing(), "check gives another token");
    ensure!(guard.remaining() < ttl, "{:?} remain of {ttl:?}", guard.remaining());
    ensure!(guard.deadline() < now() + ttl, "the deadline lies behind the lease's end");
    ensure!(guard.deadline() > before, "the deadline lies before the request");
    // Held for longer than its TTL, it is renewed and stays the same grant.
    let mut changes = guard.changes();
    let end = now() + ttl * 2;
    while now() < end {
        let (state, deadline) =
            within(ttl, "a renewal every third of the TTL", changes.next()).await?;
        ensure!(state == GuardStatus::Held, "an undisturbed guard is {state:?}");
        ensure!(deadline > now(), "a renewal that was late already");
    }
    let shown = client.inspect("state").await?.holder.and_then(|holder| holder.token);
    ensure!(shown == Some(guard.token()), "renewals changed the token to {shown:?}");
    Ok(guard.release().await?)
}

async fn run_returns_the_value_of_the_work(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let guard = client.lock("run").ttl(LONG).acquire().await?;
    let answer = guard.run(async { 6 * 7 }).await?;
    ensure!(answer == 42, "run returned {answer}");
    // If the work is dropped halfway, the guard stays.
    let cut_short =
        within(Duration::from_millis(20), "", guard.run(std::future::pending::<()>())).await;
    ensure!(cut_short.is_err(), "work that never ends came back");
    ensure!(guard.check().is_ok(), "dropping the work lost the guard");
    Ok(guard.release().await?)
}

async fn closed_client_refuses_new_locks(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("closed").ttl(LONG).acquire().await?;
    let other = ours.lock("other").ttl(LONG).acquire().await?;
    drop(other);
    within(SOON, "close drains what was dropped", ours.close()).await?;
    ensure!(theirs.inspect("other").await?.holder.is_none(), "close did not wait for a release");
    ensure_kind!(ours.lock("x").try_acquire().await, ErrorKind::Closed, "a closed client");
    ensure!(guard.check().is_ok(), "close lost a guard that was held");
    Ok(guard.release().await?)
}

async fn blocking_api_uses_the_same_locks(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("blocking").ttl(LONG).acquire().await?;
    let token = guard.token();
    let (tried, try_is_over) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let client = fencepost::blocking::Fencepost::from(theirs);
        let refused = client.lock("blocking").try_acquire()?.is_none();
        let _ = tried.send(());
        let guard = client.lock("blocking").ttl(LONG).wait_timeout(LONG).acquire()?;
        let token = guard.check()?.token();
        guard.release()?;
        client.close();
        Ok::<_, fencepost::Error>((refused, token))
    });
    // On some stores a try has a position for a moment. It would count as the waiter, and find the lock free.
    let over = async || Ok(try_is_over.try_recv().is_ok());
    crate::fixture::until(SOON, "the thread has tried", over).await?;
    until_waiting(&ours, "blocking", 1).await?;
    guard.release().await?;
    let done = async || Ok(thread.is_finished());
    crate::fixture::until(SOON, "the thread is granted the lock", done).await?;
    let outcome = thread.join().unwrap_or_else(|_| Err(fencepost::Error::invalid("it panicked")));
    let (refused, next) = outcome?;
    ensure!(refused, "a held lock was granted to a thread");
    ensure!(next > token, "token {next} after {token}");
    until_free(&ours, "blocking").await
}

async fn watch_reports_grant_and_release(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let mut watch = unless_refused(theirs.watch("watched"))?;
    let first = within(SOON, "the first value", watch.next()).await??;
    ensure!(first.holder.is_none(), "a free lock is shown as held");
    let guard = ours.lock("watched").ttl(LONG).acquire().await?;
    let held = within(SOON, "the grant is seen", watch.next()).await??;
    let seen = held.holder.and_then(|holder| holder.token);
    ensure!(seen == Some(guard.token()), "the watch saw {seen:?}, not {}", guard.token());
    guard.release().await?;
    let free = within(SOON, "the release is seen", watch.next()).await??;
    ensure!(free.holder.is_none(), "the watch did not see the release: {free:?}");
    Ok(())
}

async fn drop_releases(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    drop(ours.lock("drop").ttl(LONG).acquire().await?);
    let next = theirs.lock("drop").wait_timeout(SOON).acquire().await?;
    next.release().await?;
    until_free(&theirs, "drop").await
}

/// Client and guard are dropped together: the release must still be sent.
async fn drop_of_the_client_releases(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock("drop").ttl(LONG).acquire().await?;
    drop(ours);
    drop(guard);
    theirs.lock("drop").wait_timeout(SOON).acquire().await?.release().await?;
    Ok(())
}

/// The process ends right after the guard was dropped: the release must not be lost with it.
async fn drop_at_the_end_of_main_releases(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let mut holder = fixture.worker("hold", &["exit", &LONG.as_millis().to_string(), "exit"])?;
    holder.go().await?;
    holder.granted(SOON).await?;
    holder.send("drop")?;
    until_free(&client, "exit").await
}
