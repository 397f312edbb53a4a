//! Work that is done once per key, by one of many processes that may all be killed.

use std::path::Path;
use std::time::Duration;

use fencepost::{Begun, Error, ErrorKind, Fencepost};
use fencepost_process::worker::say;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::diary::Diary;
use crate::scene::{Dice, Stop, Verdict, pass};

/// How long the work of one key takes at most.
pub(crate) const WORK: Duration = Duration::from_millis(120);

/// The keys of this many, by name.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

/// Does each key once, in an order of its own.
pub(super) async fn run_all(
    client: &Fencepost,
    diary: &Path,
    count: usize,
    ttl: Duration,
    seed: u64,
) -> Verdict {
    let (diary, mut dice, mut keys) = (Diary::at(diary), Dice::new(seed), keys(count));
    for last in (1..keys.len()).rev() {
        keys.swap(last, dice.next() as usize % (last + 1));
    }
    for key in keys {
        while !run_one(client, &diary, &key, ttl, &mut dice).await? {}
    }
    Ok(())
}

/// Whether the key is done now.
async fn run_one(
    client: &Fencepost,
    diary: &Diary,
    key: &str,
    ttl: Duration,
    dice: &mut Dice,
) -> Verdict<bool> {
    let (before, after) = (dice.below(WORK / 4), dice.below(WORK / 4 * 3));
    let once = client.once(key).may_repeat().ttl(ttl);
    let recorded = once.run(|run| async move {
        pass(before).await;
        diary.begin(key, &run)?;
        pass(after).await;
        Ok::<_, std::io::Error>(format!("{key} by {}", run.token()))
    });
    let recorded = match recorded.await {
        Ok(recorded) => recorded,
        Err(error) if passes(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if recorded.ran {
        diary.done(key, recorded.token)?;
    }
    let expected = format!("{key} by {}", recorded.token);
    if recorded.result != expected.as_bytes() {
        let result = String::from_utf8_lossy(&recorded.result).into_owned();
        return Err(Stop::Failed(format!("wanted \"{expected}\", got \"{result}\"")));
    }
    Ok(true)
}

/// Whether one who tries again may have more luck.
fn passes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost(_) | ErrorKind::Unreachable)
}

/// Claims items and does them until all are done. One that hangs stops at its first.
pub(super) async fn claim_all(
    client: &Fencepost,
    diary: &Path,
    count: usize,
    ttl: Duration,
    hangs: bool,
) -> Verdict {
    let (diary, items) = (Diary::at(diary), keys(count));
    let claims = client.claim(items).may_repeat().ttl(ttl);
    loop {
        let turn = match claims.take().await {
            Ok(turn) => turn,
            Err(error) if passes(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(turn) = turn else {
            let settled = client.once_entries().await?;
            if settled.iter().filter(|(_, entry)| entry.is_settled()).count() == count {
                return Ok(());
            }
            pass(Duration::from_millis(20)).await;
            continue;
        };
        let (key, token) = (turn.key().to_owned(), turn.token());
        diary.begin(&key, &turn)?;
        if hangs {
            say(&format!("at {key}"));
            std::future::pending::<()>().await;
        }
        pass(Duration::from_millis(5)).await;
        match turn.done("").await {
            Ok(()) => diary.done(&key, token)?,
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Begins a key, and says that it is done when it is told to.
pub(super) async fn begin(
    client: &Fencepost,
    key: &str,
    ttl: Duration,
    orders: &mut UnboundedReceiver<String>,
) -> Verdict {
    let turn = match client.once(key).may_repeat().ttl(ttl).begin().await? {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => return Err(Stop::Failed(format!("settled: {entry:?}"))),
    };
    say(&format!("begun {}", turn.token()));
    orders.recv().await;
    match turn.done("the first one").await {
        Ok(()) => say("recorded"),
        Err(error) => say(&format!("not recorded: {error}")),
    }
    Ok(())
}
