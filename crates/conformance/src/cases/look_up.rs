//! Looking up many records in one call, as claims do.

use std::collections::BTreeSet;
use std::sync::Arc;

use fencepost::Fencepost;
use fencepost::ledger::{
    Completion, LOOK_UP_BATCH, Outcome, Precondition, RecordInfo, RecordsByName,
};
use fencepost_core::{Label, LockName, Token};
use tokio::task::JoinSet;

use super::ledger::{BRIEF, Key, client, done};
use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, Stop, ensure, join_all, ledger, until, within};

cases![look_up_answers_by_name, look_up_takes_a_whole_batch, claims_of_more_than_a_batch];

async fn look_up(client: &Fencepost, names: &[&str]) -> Verdict<RecordsByName> {
    let names = names.iter().map(|name| LockName::new(name)).collect::<Result<_, _>>()?;
    let ledger = ledger(client)?;
    let look = client.store().look_up_all(&*ledger, names);
    Ok(within(SOON, "a look-up is answered", look).await??)
}

/// What of a record does not change with time.
fn fixed(record: &RecordInfo) -> (&LockName, &str, u64, &str, &[u8]) {
    let RecordInfo { name, state, token, label, result, .. } = record;
    (name, state.as_str(), token.get(), label.as_str(), result.as_slice())
}

async fn look_up_answers_by_name(fixture: &Fixture) -> Verdict {
    let client = client(fixture).await?;
    let on = |name| Key::on(&client, name);
    let there = ["once/done", "once/ä'%_", "once/failed", "once/running"];
    for (name, outcome) in [
        (there[0], done(b"a result")),
        (there[1], done(&[0, 0xff])),
        (there[2], Outcome::Failed(b"a message".to_vec())),
    ] {
        on(name)?.finish_over(3, outcome, LONG, Precondition::Older).await?;
    }
    on(there[3])?.claim(5).await?;
    let expired = on("once/expired")?;
    expired.finish_over(3, done(b"brief"), BRIEF, Precondition::Older).await?;
    until(SOON * 2, "it expires", async || Ok(expired.look_up().await?.is_none())).await?;
    // Missing, expired, asked for twice, in no order, and one that begins as another does.
    let names = [
        "once/missing",
        there[3],
        there[0],
        "once/expired",
        there[1],
        there[2],
        there[0],
        "once/don",
        "once/missing",
    ];
    let records = look_up(&client, &names).await?;
    let found: BTreeSet<_> = records.keys().map(LockName::as_str).collect();
    ensure!(found == BTreeSet::from(there), "{found:?} are found, and {there:?} are there");
    for (name, record) in &records {
        let alone = on(name.as_str())?.look_up().await?;
        let alone = alone.ok_or_else(|| Stop::Failed(format!("{name} is gone")))?;
        let (one, other) = (fixed(record), fixed(&alone));
        ensure!(*name == record.name && one == other, "one of many: {one:?}, alone: {other:?}");
        ensure!(record.kept_for > LONG / 2, "{name} is kept for {:?}", record.kept_for);
    }
    let none = look_up(&client, &[]).await?;
    ensure!(none.is_empty(), "found {none:?} under no name");
    Ok(())
}

/// With results of the greatest length: a store must not run into a limit of its messages.
async fn look_up_takes_a_whole_batch(fixture: &Fixture) -> Verdict {
    let client = client(fixture).await?;
    let names: Vec<_> = (0..LOOK_UP_BATCH).map(|number| format!("once/batch/{number}")).collect();
    let result =
        |number: usize| vec![u8::try_from(number).unwrap_or(u8::MAX); RecordInfo::MAX_RESULT];
    finish(&client, names.iter().cloned().enumerate().map(|(at, name)| (name, result(at)))).await?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let records = look_up(&client, &names).await?;
    for (number, name) in names.iter().enumerate() {
        let record = records.get(&LockName::new(name)?);
        ensure!(record.is_some_and(|record| record.result == result(number)), "not found: {name}");
    }
    ensure!(records.len() == LOOK_UP_BATCH, "{} records of {LOOK_UP_BATCH}", records.len());
    Ok(())
}

/// The first item that is free is in the third batch.
async fn claims_of_more_than_a_batch(fixture: &Fixture) -> Verdict {
    let client = client(fixture).await?;
    let items: Vec<_> =
        (0..LOOK_UP_BATCH * 2 + 40).map(|number| format!("item/{number}")).collect();
    let free = [LOOK_UP_BATCH * 2 + 7, LOOK_UP_BATCH * 2 + 30];
    let finished = items.iter().enumerate().filter(|(at, _)| !free.contains(at));
    finish(&client, finished.map(|(_, item)| (format!("once/{item}"), Vec::new()))).await?;
    let claims = client.claim(&items).may_repeat().ttl(LONG);
    let left = within(SOON, "it is counted", claims.left()).await??;
    ensure!(left == free.len(), "{left} are left, not {}", free.len());
    for at in free {
        let taken = within(SOON, "a claim is answered", claims.take()).await??;
        let taken = taken.ok_or_else(|| Stop::Failed(format!("{} is not taken", items[at])))?;
        ensure!(taken.key() == items[at], "{} is taken, not {}", taken.key(), items[at]);
        taken.done("").await?;
    }
    ensure!(claims.take().await?.is_none() && claims.left().await? == 0, "one was taken twice");
    Ok(())
}

/// Records these results, several at a time.
async fn finish(client: &Fencepost, results: impl Iterator<Item = (String, Vec<u8>)>) -> Verdict {
    let (ledger, label) = (ledger(client)?, Label::new("runner")?);
    let results: Vec<_> = results.collect();
    for some in results.chunks(20) {
        let mut tasks = JoinSet::new();
        for (name, result) in some {
            let (name, label, outcome) = (LockName::new(name)?, label.clone(), done(result));
            let finish = Completion::new(name, Token::new(3)?, label, outcome, LONG)
                .with_precondition(Precondition::Older);
            let (client, ledger) = (client.clone(), Arc::clone(&ledger));
            tasks.spawn(async move { client.store().finish(&*ledger, finish).await.map(drop) });
        }
        join_all(SOON * 4, tasks).await?;
    }
    Ok(())
}
