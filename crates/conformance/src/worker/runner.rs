//! Work that is done once per key, by one of many processes that may all be killed.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Result};
use fencepost_process::worker::say;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::diary::Diary;
use crate::scene::{Dice, Verdict, ensure, ours, pass};

/// How long the work of one key takes at most.
pub(crate) const WORK: Duration = Duration::from_millis(120);

/// The keys of this many, by name.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

/// One of them: what it works on, where it writes down what it does, and how long it may be silent.
pub(super) struct Runner<'a> {
    pub(super) client: &'a Fencepost,
    pub(super) diary: Diary,
    pub(super) ttl: Duration,
}

impl Runner<'_> {
    /// Does each key once, in an order of its own.
    pub(super) async fn run_all(&self, count: usize, seed: u64) -> Verdict {
        let (mut dice, mut keys) = (Dice::new(seed), keys(count));
        for last in (1..keys.len()).rev() {
            keys.swap(last, dice.next() as usize % (last + 1));
        }
        for key in keys {
            while !self.run_one(&key, &mut dice).await? {}
        }
        Ok(())
    }

    /// Whether the key is done now.
    async fn run_one(&self, key: &str, dice: &mut Dice) -> Verdict<bool> {
        let (before, after) = (dice.below(WORK / 4), dice.below(WORK / 4 * 3));
        let once = self.client.once(key).may_repeat().ttl(self.ttl);
        let recorded = once.run(|run| async move {
            pass(before).await;
            self.diary.begin(key, &run)?;
            pass(after).await;
            Ok::<_, std::io::Error>(format!("{key} by {}", run.token()))
        });
        let Some(recorded) = unless_passing(recorded.await)? else { return Ok(false) };
        if recorded.ran {
            self.diary.done(key, recorded.token)?;
        }
        let expected = format!("{key} by {}", recorded.token);
        let result = String::from_utf8_lossy(&recorded.result);
        ensure!(result == expected, "wanted \"{expected}\", got \"{result}\"");
        Ok(true)
    }

    /// Claims items and does them until all are done. One that hangs stops at its first.
    pub(super) async fn claim_all(&self, count: usize, hangs: bool) -> Verdict {
        let claims = self.client.claim(keys(count)).may_repeat().ttl(self.ttl);
        loop {
            let Some(turn) = unless_passing(claims.take().await)?.flatten() else {
                let settled = self.client.once_entries().await?;
                if settled.iter().filter(|(_, entry)| entry.is_settled()).count() == count {
                    return Ok(());
                }
                pass(Duration::from_millis(20)).await;
                continue;
            };
            let (key, token) = (turn.key().to_owned(), turn.token());
            self.diary.begin(&key, &turn)?;
            if hangs {
                say(&format!("at {key}"));
                std::future::pending::<()>().await;
            }
            pass(Duration::from_millis(5)).await;
            if unless_passing(turn.done("").await)?.is_some() {
                self.diary.done(&key, token)?;
            }
        }
    }
}

/// What was answered; none if one who tries again may have more luck.
fn unless_passing<T>(answer: Result<T>) -> Verdict<Option<T>> {
    match answer {
        Err(error) if matches!(error.kind(), ErrorKind::Lost(_) | ErrorKind::Unreachable) => {
            Ok(None)
        }
        answer => Ok(Some(answer?)),
    }
}

/// Begins a key, and says that it is done when it is told to.
pub(super) async fn begin(
    client: &Fencepost,
    key: &str,
    ttl: Duration,
    orders: &mut UnboundedReceiver<String>,
) -> Verdict {
    let turn = ours(client.once(key).may_repeat().ttl(ttl).begin().await?)?;
    say(&format!("begun {}", turn.token()));
    orders.recv().await;
    match turn.done("the first one").await {
        Ok(()) => say("recorded"),
        Err(error) => say(&format!("not recorded: {error}")),
    }
    Ok(())
}
