//! Once per key, in one process: one success is recorded, and everybody else gets its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::guarantees::Records;
use fencepost::ledger::State;
use fencepost::{Begun, ErrorKind, Fencepost, OnFailure, Once, Turn};
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::scene::{
    Cancelled, LONG, SOON, Scene, Stop, cancel_after, ensure, ensure_kind, ledger, ours, pass,
    until, until_free, until_waiting, within,
};

cases![
    once_runs_once_and_late_comers_get_the_result,
    once_of_many_callers_one_runs,
    once_a_failure_is_retried_or_recorded,
    once_forgets,
    once_waits_no_longer_than_it_is_told,
    once_is_listed,
    once_is_refused_where_records_may_be_lost,
    once_cancelled_at_any_await_leaves_no_stuck_key,
    once_cancelled_while_it_waits_leaves_no_stuck_key,
    once_of_a_store_that_is_cut_off_is_unreachable,
];

const KEY: &str = "billing/2026-11";
/// More awaits than any call here has.
const MANY: usize = 1000;

/// A key that may be run again if the store forgets, so that every store with a ledger can show what it does.
fn once(client: &Fencepost, key: &str) -> Once {
    client.once(key).may_repeat().ttl(LONG).keep(LONG)
}

/// What a run gives, and whether it was this one that ran.
async fn run(client: &Fencepost, key: &str, result: &str) -> Verdict<(Vec<u8>, bool)> {
    let once = once(client, key);
    let recorded = once.run(|_| async { Ok::<_, std::io::Error>(result.to_owned()) });
    let recorded = within(SOON, "a run comes to its end", recorded).await??;
    Ok((recorded.result, recorded.ran))
}

async fn begin(client: &Fencepost, key: &str) -> Verdict<Turn> {
    ours(within(SOON, "a run begins", once(client, key).begin()).await??)
}

async fn two_clients(scene: &Scene) -> Verdict<(Fencepost, Fencepost)> {
    let clients = scene.two_clients().await?;
    ledger(&clients.0)?;
    Ok(clients)
}

async fn once_runs_once_and_late_comers_get_the_result(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    ensure!(run(&ours, KEY, "one").await? == (b"one".to_vec(), true), "the first did not run");
    for client in [&ours, &theirs, &scene.client().await?] {
        let (result, ran) = run(client, KEY, "two").await?;
        ensure!(!ran && result == b"one", "a late comer ran, or got {result:?}");
    }
    until_free(&ours, &format!("once/{KEY}")).await?;
    // One that comes while it runs waits for the result.
    let turn = begin(&ours, "slow").await?;
    let token = turn.token();
    let entry = once(&theirs, "slow").entry().await?;
    let running = entry.is_some_and(|entry| entry.state == State::Running && entry.token == token);
    ensure!(running, "a key at work is not shown as running");
    let client = theirs.clone();
    let late = tokio::spawn(async move { run(&client, "slow", "two").await });
    until_waiting(&ours, "once/slow", 1).await?;
    turn.done("one").await?;
    let (result, ran) = within(SOON, "the late comer is answered", late).await???;
    ensure!(!ran && result == b"one", "a late comer ran, or got {result:?}");
    Ok(())
}

async fn once_of_many_callers_one_runs(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    for round in 0..4 {
        let (ran, mut callers) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        for number in 0..20 {
            let client = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
            let ran = Arc::clone(&ran);
            callers.spawn(async move {
                let once = once(&client, &format!("many/{round}"));
                let recorded = once.run(|run| async move {
                    ran.fetch_add(1, Ordering::SeqCst);
                    // Long enough for the others to come.
                    pass(Duration::from_millis(20)).await;
                    Ok::<_, std::io::Error>(run.token().to_string())
                });
                recorded.await
            });
        }
        let mut told = 0;
        let mut results = Vec::new();
        while let Some(recorded) = within(SOON * 2, "a caller ends", callers.join_next()).await? {
            let recorded = recorded??;
            told += usize::from(recorded.ran);
            let own = recorded.token.to_string().into_bytes();
            ensure!(recorded.result == own, "the result of another run: {recorded:?}");
            results.push(recorded.result);
        }
        results.dedup();
        let ran = ran.load(Ordering::SeqCst);
        ensure!((ran, told, results.len()) == (1, 1, 1), "{ran} ran, {told} were told so");
    }
    Ok(())
}

async fn once_a_failure_is_retried_or_recorded(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    let fail = async |client: &Fencepost, key: &str, on: OnFailure| {
        let once = once(client, key).on_failure(on);
        once.run(|_| async { Err::<&str, _>(std::io::Error::other("kaputt")) }).await
    };
    let error = fail(&ours, KEY, OnFailure::Retry).await;
    let error = ensure_kind!(error, ErrorKind::Failed, "work that failed");
    ensure!(error.to_string().contains("kaputt"), "\"{error}\" does not say why");
    ensure!(once(&ours, KEY).entry().await?.is_none(), "a failure to retry left a record");
    ensure!(run(&theirs, KEY, "better").await?.1, "a failed key was not tried again");

    let error = fail(&ours, "for good", OnFailure::Record).await;
    ensure_kind!(error, ErrorKind::Failed, "work that failed");
    let entry = once(&theirs, "for good").entry().await?;
    let failed =
        entry.is_some_and(|entry| entry.state == State::Failed && entry.result == b"kaputt");
    ensure!(failed, "a failure was not recorded");
    let again = once(&theirs, "for good").run(|_| async { Ok::<_, std::io::Error>("no") }).await;
    let error = ensure_kind!(again, ErrorKind::Failed, "a key that is recorded as failed");
    ensure!(error.to_string().contains("kaputt"), "\"{error}\" does not say why");
    ensure!(once(&theirs, "for good").forget().await?, "a failure can not be forgotten");
    ensure!(run(&theirs, "for good", "yes").await?.1, "a forgotten failure was not tried again");

    // What is too long is recorded as failed: the work was done, and must not be repeated for that.
    let turn = begin(&ours, "long").await?;
    let long = turn.done(vec![0; 64 * 1024 + 1]).await;
    ensure_kind!(long, ErrorKind::Invalid, "a result of more than 64 KiB");
    let entry = once(&theirs, "long").entry().await?;
    ensure!(entry.is_some_and(|entry| entry.state == State::Failed), "it may be repeated");
    Ok(())
}

async fn once_forgets(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    ensure!(!once(&ours, KEY).forget().await?, "forgot what was never there");
    let turn = begin(&ours, KEY).await?;
    let error = once(&theirs, KEY).forget().await;
    ensure_kind!(error, ErrorKind::Held(_), "forgetting a key that is at work");
    turn.done("one").await?;
    ensure!(once(&theirs, KEY).forget().await?, "it can not be forgotten");
    ensure!(once(&ours, KEY).entry().await?.is_none(), "it was forgotten, and is there");
    until_free(&ours, &format!("once/{KEY}")).await?;
    ensure!(run(&ours, KEY, "two").await? == (b"two".to_vec(), true), "it did not run again");
    Ok(())
}

async fn once_waits_no_longer_than_it_is_told(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    let turn = begin(&ours, KEY).await?;
    for limit in [Duration::ZERO, Duration::from_millis(300)] {
        let brief = once(&theirs, KEY).wait_at_most(limit);
        let error = within(SOON, "it gives up", brief.begin()).await?;
        ensure_kind!(error, ErrorKind::Held(_), "a key that is at work");
    }
    until_waiting(&ours, &format!("once/{KEY}"), 0).await?;
    // Dropped, it is free for the next, and the record does not keep anybody out.
    drop(turn);
    ensure!(run(&theirs, KEY, "two").await?.1, "a dropped turn was not taken over");
    for keep in [Duration::ZERO, Duration::from_hours(20 * 366 * 24)] {
        let bad = once(&ours, "bad").keep(keep).begin().await;
        ensure_kind!(bad, ErrorKind::Invalid, "a time that no record is kept for");
    }
    Ok(())
}

async fn once_is_listed(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    run(&ours, "b", "result").await?;
    run(&theirs, "a/1", "result").await?;
    let turn = begin(&ours, "c").await?;
    let flight = ours.single_flight("a/2");
    flight.get_or(|| async { Ok::<_, std::io::Error>("no key of once") }).await?;
    let listed = theirs.once_entries().await?;
    let shown: Vec<_> = listed.iter().map(|(key, entry)| (key.as_str(), entry.state)).collect();
    let wanted = [("a/1", State::Done), ("b", State::Done), ("c", State::Running)];
    ensure!(shown == wanted, "listed are {shown:?}");
    turn.give_up().await?;
    ensure!(theirs.once_entries().await?.len() == 2, "what was given up is listed");
    Ok(())
}

async fn once_is_refused_where_records_may_be_lost(scene: &Scene) -> Verdict {
    let client = scene.client().await?;
    let answer = client.once(KEY).ttl(LONG).begin().await;
    let flight = client.single_flight(KEY).get_or(|| async { Ok::<_, std::io::Error>("") }).await;
    let (why, remedy) = match client.guarantees().records {
        Records::Kept => {
            ensure!(matches!(answer?, Begun::Ours(_)), "a fresh store has a record");
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
    let said = error.to_string();
    ensure!(!why.is_empty() && said.contains(&why), "\"{said}\" does not say why");
    ensure!(!remedy.is_empty() && said.contains(&remedy), "\"{said}\": no remedy");
    Ok(())
}

/// P6 for keys: the TTL is a minute and the next one must run in seconds, so what passes was given up.
async fn once_cancelled_at_any_await_leaves_no_stuck_key(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
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
        // Dropped after the mark was sent it is done all the same.
        let fits = if ran { result == b"theirs" } else { result == b"ours" };
        ensure!(fits && !(done && ran), "after poll {polls}: ran {ran}, result {result:?}");
        until_free(&theirs, &format!("once/{key}")).await?;
        if done {
            return Ok(());
        }
    }
    Err(Stop::Failed(format!("a run was not done after {MANY} polls")))
}

async fn once_cancelled_while_it_waits_leaves_no_stuck_key(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    let turn = begin(&theirs, KEY).await?;
    let name = format!("once/{KEY}");
    for polls in 0..MANY {
        let once = once(&ours, KEY);
        match cancel_after(polls, Duration::from_millis(150), once.begin()).await {
            Ok(begun) => return Err(Stop::Failed(format!("a key at work gave {begun:?}"))),
            Err(Cancelled::Dropped) => {}
            // It waits for the other one's end now.
            Err(Cancelled::Stalled) => break,
        }
        until_waiting(&theirs, &name, 0).await?;
    }
    until_waiting(&theirs, &name, 0).await?;
    turn.check()?;
    turn.done("theirs").await?;
    ensure!(run(&ours, KEY, "ours").await? == (b"theirs".to_vec(), false), "it ran again");
    until_free(&ours, &name).await
}

async fn once_of_a_store_that_is_cut_off_is_unreachable(scene: &Scene) -> Verdict {
    let (ours, theirs) = two_clients(scene).await?;
    run(&ours, "before", "one").await?;
    let at_work = begin(&ours, "at work").await?;
    scene.site.cut().await?;
    let fresh = once(&ours, KEY).wait_at_most(SOON);
    let settling = tokio::spawn(at_work.done("done"));
    // Without a limit it would wait until the store is back.
    let fresh = within(SOON * 3, "it is told", fresh.begin()).await?;
    ensure_kind!(fresh, ErrorKind::Unreachable, "a store that is cut off");
    // What was at work is done: it is tried again until that is recorded, and not let go before.
    ensure!(!settling.is_finished(), "it gave up on the record of what was done");
    scene.site.heal().await?;
    within(SOON * 8, "it is recorded after the cut", settling).await???;
    ensure!(run(&theirs, "at work", "again").await? == (b"done".to_vec(), false), "repeated");
    // Nothing is stuck.
    for (client, key) in [(&theirs, KEY), (&ours, KEY)] {
        let what = format!("\"{key}\" can be run after the cut");
        until(SOON * 2, &what, async || {
            let once = once(client, key).wait_at_most(SOON);
            match once.run(|_| async { Ok::<_, std::io::Error>("after") }).await {
                Ok(_) => Ok(true),
                Err(error) if *error.kind() == ErrorKind::Unreachable => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
    }
    ensure!(run(&theirs, "before", "two").await? == (b"one".to_vec(), false), "forgotten");
    Ok(())
}
