//! Once per key, in one process: one success is recorded, and every other caller gets its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::guarantees::Records;
use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost, OnFailure, Once, RunGuard, Start};
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::fixture::{
    Cancelled, Fixture, LONG, SOON, Stop, cancel_after, claimed, ensure, ensure_kind, ledger, pass,
    until, until_free, until_waiting, within,
};

cases![
    once_runs_once_and_later_callers_get_the_result,
    once_one_of_many_callers_runs,
    once_failure_is_retried_or_recorded,
    once_forgotten_key_runs_again,
    once_wait_ends_at_its_timeout,
    once_keys_are_listed,
    once_is_refused_where_records_may_be_lost,
    once_cancelled_at_any_await_leaves_no_stuck_key,
    once_cancelled_wait_leaves_no_stuck_key,
    once_on_a_cut_off_store_is_unreachable,
];

const KEY: &str = "billing/2026-11";
/// More awaits than any call here has.
const MANY: usize = 1000;

/// A key that accepts stores that can lose records, so that this works on every store with a ledger.
fn once(client: &Fencepost, key: &str) -> Once {
    client.once(key).may_repeat().ttl(LONG).retain_for(LONG)
}

/// The result of a run, and whether this call ran the work.
async fn run(client: &Fencepost, key: &str, result: &str) -> Verdict<(Vec<u8>, bool)> {
    let once = once(client, key);
    let recorded = once.run(|_| async { Ok::<_, std::io::Error>(result.to_owned()) });
    let recorded = within(SOON, "a run ends", recorded).await??;
    Ok((recorded.result, recorded.ran))
}

async fn begin(client: &Fencepost, key: &str) -> Verdict<RunGuard> {
    claimed(within(SOON, "a run begins", once(client, key).begin()).await??)
}

async fn two_clients(fixture: &Fixture) -> Verdict<(Fencepost, Fencepost)> {
    let clients = fixture.two_clients().await?;
    ledger(&clients.0)?;
    Ok(clients)
}

async fn once_runs_once_and_later_callers_get_the_result(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    ensure!(run(&ours, KEY, "one").await? == (b"one".to_vec(), true), "the first did not run");
    for client in [&ours, &theirs, &fixture.client().await?] {
        let (result, ran) = run(client, KEY, "two").await?;
        ensure!(!ran && result == b"one", "a late comer ran, or got {result:?}");
    }
    until_free(&ours, &format!("once/{KEY}")).await?;
    // A caller that comes during the run waits for the result.
    let run_guard = begin(&ours, "slow").await?;
    let token = run_guard.token();
    let record = once(&theirs, "slow").record().await?;
    let running =
        record.is_some_and(|record| record.state == State::Running && record.token == token);
    ensure!(running, "a running key is not shown as running");
    let client = theirs.clone();
    let late = tokio::spawn(async move { run(&client, "slow", "two").await });
    until_waiting(&ours, "once/slow", 1).await?;
    run_guard.done("one").await?;
    let (result, ran) = within(SOON, "the late comer is answered", late).await???;
    ensure!(!ran && result == b"one", "a late comer ran, or got {result:?}");
    Ok(())
}

async fn once_one_of_many_callers_runs(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    for round in 0..4 {
        let (ran, mut callers) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        for number in 0..20 {
            let client = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
            let ran = Arc::clone(&ran);
            callers.spawn(async move {
                let once = once(&client, &format!("many/{round}"));
                let recorded = once.run(|run| async move {
                    ran.fetch_add(1, Ordering::SeqCst);
                    // Long enough for the others to arrive.
                    pass(Duration::from_millis(20)).await;
                    Ok::<_, std::io::Error>(run.token().to_string())
                });
                recorded.await
            });
        }
        let mut reported = 0;
        let mut results = Vec::new();
        while let Some(recorded) = within(SOON * 2, "a caller ends", callers.join_next()).await? {
            let recorded = recorded??;
            reported += usize::from(recorded.ran);
            let own = recorded.token.to_string().into_bytes();
            ensure!(recorded.result == own, "the result of another run: {recorded:?}");
            results.push(recorded.result);
        }
        results.dedup();
        let ran = ran.load(Ordering::SeqCst);
        ensure!((ran, reported, results.len()) == (1, 1, 1), "{ran} ran, {reported} report that");
    }
    Ok(())
}

async fn once_failure_is_retried_or_recorded(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    let fail = async |client: &Fencepost, key: &str, on: OnFailure| {
        let once = once(client, key).on_failure(on);
        once.run(|_| async { Err::<&str, _>(std::io::Error::other("broken")) }).await
    };
    let error = fail(&ours, KEY, OnFailure::Retry).await;
    let error = ensure_kind!(error, ErrorKind::Failed, "work that failed");
    ensure!(error.one_line().contains("broken"), "\"{error}\" does not say why");
    ensure!(once(&ours, KEY).record().await?.is_none(), "a failure to retry left a record");
    ensure!(run(&theirs, KEY, "better").await?.1, "a failed key was not tried again");

    let error = fail(&ours, "for good", OnFailure::Record).await;
    ensure_kind!(error, ErrorKind::Failed, "work that failed");
    let record = once(&theirs, "for good").record().await?;
    let failed =
        record.is_some_and(|record| record.state == State::Failed && record.result == b"broken");
    ensure!(failed, "a failure was not recorded");
    let again = once(&theirs, "for good").run(|_| async { Ok::<_, std::io::Error>("no") }).await;
    let error = ensure_kind!(again, ErrorKind::Failed, "a key that is recorded as failed");
    ensure!(error.one_line().contains("broken"), "\"{error}\" does not say why");
    ensure!(once(&theirs, "for good").forget().await?, "a failure cannot be forgotten");
    ensure!(run(&theirs, "for good", "yes").await?.1, "a forgotten failure was not tried again");

    // A result that is too long is recorded as a failure: the work was done, and must not be repeated for that.
    let run_guard = begin(&ours, "long").await?;
    let long = run_guard.done(vec![0; 64 * 1024 + 1]).await;
    ensure_kind!(long, ErrorKind::Invalid, "a result of more than 64 KiB");
    let record = once(&theirs, "long").record().await?;
    ensure!(record.is_some_and(|record| record.state == State::Failed), "it may be repeated");
    Ok(())
}

async fn once_forgotten_key_runs_again(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    ensure!(!once(&ours, KEY).forget().await?, "forgot a record that was never there");
    let run_guard = begin(&ours, KEY).await?;
    let error = once(&theirs, KEY).forget().await;
    ensure_kind!(error, ErrorKind::Held, "forgetting a running key");
    run_guard.done("one").await?;
    ensure!(once(&theirs, KEY).forget().await?, "the record cannot be forgotten");
    ensure!(once(&ours, KEY).record().await?.is_none(), "a forgotten record is still there");
    until_free(&ours, &format!("once/{KEY}")).await?;
    ensure!(run(&ours, KEY, "two").await? == (b"two".to_vec(), true), "it did not run again");
    Ok(())
}

async fn once_wait_ends_at_its_timeout(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    let run_guard = begin(&ours, KEY).await?;
    for limit in [Duration::ZERO, Duration::from_millis(300)] {
        let brief = once(&theirs, KEY).wait_timeout(limit);
        let error = within(SOON, "the wait times out", brief.begin()).await?;
        ensure_kind!(error, ErrorKind::Held, "a key that is running");
    }
    until_waiting(&ours, &format!("once/{KEY}"), 0).await?;
    // After the drop the key is free, and its record does not block the next run.
    drop(run_guard);
    ensure!(run(&theirs, KEY, "two").await?.1, "a dropped run was not taken over");
    for retention in [Duration::ZERO, Duration::from_hours(20 * 366 * 24)] {
        let bad = once(&ours, "bad").retain_for(retention).begin().await;
        ensure_kind!(bad, ErrorKind::Invalid, "an invalid retention");
    }
    Ok(())
}

async fn once_keys_are_listed(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    run(&ours, "b", "result").await?;
    run(&theirs, "a/1", "result").await?;
    let run_guard = begin(&ours, "c").await?;
    let flight = ours.single_flight("a/2");
    flight.get_or(|| async { Ok::<_, std::io::Error>("not a key of once") }).await?;
    let listed = theirs.once_records().await?;
    let shown: Vec<_> = listed.iter().map(|(key, record)| (key.as_str(), record.state)).collect();
    let wanted = [("a/1", State::Done), ("b", State::Done), ("c", State::Running)];
    ensure!(shown == wanted, "listed are {shown:?}");
    run_guard.give_up().await?;
    ensure!(theirs.once_records().await?.len() == 2, "a key that was given up is listed");
    Ok(())
}

async fn once_is_refused_where_records_may_be_lost(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let answer = client.once(KEY).ttl(LONG).begin().await;
    let flight = client.single_flight(KEY).get_or(|| async { Ok::<_, std::io::Error>("") }).await;
    let (why, remedy) = match client.guarantees().records {
        Records::Kept => {
            ensure!(matches!(answer?, Start::Claimed(_)), "a fresh store has a record");
            flight?;
            return Ok(());
        }
        Records::MayBeLost { why, remedy } => {
            flight?;
            begin(&client, KEY).await?.done("").await?;
            (why, remedy)
        }
        Records::None { why, remedy } => {
            ensure_kind!(flight, ErrorKind::Refused, "a value where there are no records");
            let repeated = once(&client, KEY).begin().await;
            ensure_kind!(repeated, ErrorKind::Refused, "a key where there are no records");
            (why, remedy)
        }
    };
    let error = ensure_kind!(answer, ErrorKind::Refused, "a store that may lose its records");
    let said = error.one_line();
    ensure!(!why.is_empty() && said.contains(&why), "\"{said}\" does not say why");
    ensure!(!remedy.is_empty() && said.contains(&remedy), "\"{said}\": no remedy");
    Ok(())
}

/// P6 for keys: the TTL is a minute and the next run must start within seconds, so the key was given up and did not expire.
async fn once_cancelled_at_any_await_leaves_no_stuck_key(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    for polls in 0..MANY {
        let key = format!("cancelled/{polls}");
        let once = once(&ours, &key);
        let run_it = once.run(|_| async {
            tokio::task::yield_now().await;
            Ok::<_, std::io::Error>("ours")
        });
        let recorded = cancel_after(polls, SOON, run_it).await.ok().transpose()?;
        let done = recorded.is_some();
        ensure!(recorded.is_none_or(|recorded| recorded.ran), "a fresh key did not run");
        let (result, ran) = run(&theirs, &key, "theirs").await?;
        // If it was dropped after the finish was sent, it is done all the same.
        let fits = if ran { result == b"theirs" } else { result == b"ours" };
        ensure!(fits && !(done && ran), "after poll {polls}: ran {ran}, result {result:?}");
        until_free(&theirs, &format!("once/{key}")).await?;
        if done {
            return Ok(());
        }
    }
    Err(Stop::Failed(format!("a run was not done after {MANY} polls")))
}

async fn once_cancelled_wait_leaves_no_stuck_key(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    let run_guard = begin(&theirs, KEY).await?;
    let name = format!("once/{KEY}");
    for polls in 0..MANY {
        let once = once(&ours, KEY);
        match cancel_after(polls, Duration::from_millis(150), once.begin()).await {
            Ok(begun) => {
                return Err(Stop::Failed(format!("a running key gave {begun:?}")));
            }
            Err(Cancelled::Dropped) => {}
            // It waits for the other run to end.
            Err(Cancelled::Stalled) => break,
        }
        until_waiting(&theirs, &name, 0).await?;
    }
    until_waiting(&theirs, &name, 0).await?;
    run_guard.check()?;
    run_guard.done("theirs").await?;
    ensure!(run(&ours, KEY, "ours").await? == (b"theirs".to_vec(), false), "it ran again");
    until_free(&ours, &name).await
}

async fn once_on_a_cut_off_store_is_unreachable(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = two_clients(fixture).await?;
    run(&ours, "before", "one").await?;
    let at_work = begin(&ours, "at work").await?;
    fixture.site.cut().await?;
    let fresh = once(&ours, KEY).wait_timeout(SOON);
    let settling = tokio::spawn(at_work.done("done"));
    // Without a limit it would wait until the store is back.
    let fresh = within(SOON * 3, "the call ends", fresh.begin()).await?;
    ensure_kind!(fresh, ErrorKind::Unreachable, "a store that is cut off");
    // Work that is done is retried until it is recorded, and its lock is not released before.
    ensure!(!settling.is_finished(), "the finish gave up while the store was cut off");
    fixture.site.heal().await?;
    within(SOON * 8, "the finish is recorded after the cut", settling).await???;
    ensure!(run(&theirs, "at work", "again").await? == (b"done".to_vec(), false), "repeated");
    // No key is stuck.
    for (client, key) in [(&theirs, KEY), (&ours, KEY)] {
        let what = format!("\"{key}\" can be run after the cut");
        until(SOON * 2, &what, async || {
            let once = once(client, key).wait_timeout(SOON);
            match once.run(|_| async { Ok::<_, std::io::Error>("after") }).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::Unreachable => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
    }
    ensure!(run(&theirs, "before", "two").await? == (b"one".to_vec(), false), "forgotten");
    Ok(())
}
