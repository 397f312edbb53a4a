//! Work that is done once per key, by one of many processes that may all be killed.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Result};
use fencepost_process::worker::say;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::fixture::{Rng, Verdict, claimed, ensure, pass};
use crate::history::RunHistory;

/// The longest time that the work of one key takes.
pub(crate) const WORK: Duration = Duration::from_millis(120);

/// The names of this many keys.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

/// A runner: its client, its history, and its TTL.
pub(super) struct Runner<'a> {
    pub(super) client: &'a Fencepost,
    pub(super) history: RunHistory,
    pub(super) ttl: Duration,
}

impl Runner<'_> {
    /// Does each key once, in random order.
    pub(super) async fn run_all(&self, count: usize, seed: u64) -> Verdict {
        let (mut rng, mut keys) = (Rng::new(seed), keys(count));
        for last in (1..keys.len()).rev() {
            keys.swap(last, rng.next() as usize % (last + 1));
        }
        for key in keys {
            while !self.run_one(&key, &mut rng).await? {}
        }
        Ok(())
    }

    /// Returns whether the key is done now.
    async fn run_one(&self, key: &str, rng: &mut Rng) -> Verdict<bool> {
        let (before, after) = (rng.below(WORK / 4), rng.below(WORK / 4 * 3));
        let once = self.client.once(key).may_repeat().ttl(self.ttl);
        let recorded = once.run(|run| async move {
            pass(before).await;
            self.history.begin(key, &run)?;
            pass(after).await;
            Ok::<_, std::io::Error>(format!("{key} by {}", run.token()))
        });
        let Some(recorded) = transient_as_none(recorded.await)? else { return Ok(false) };
        if recorded.ran {
            self.history.done(key, recorded.token)?;
        }
        let expected = format!("{key} by {}", recorded.token);
        let result = String::from_utf8_lossy(&recorded.result);
        ensure!(result == expected, "wanted \"{expected}\", got \"{result}\"");
        Ok(true)
    }

    /// Claims items and does them until all are done. A worker that hangs stops at its first.
    pub(super) async fn claim_all(&self, count: usize, hangs: bool) -> Verdict {
        let claims = self.client.claim(keys(count)).may_repeat().ttl(self.ttl);
        loop {
            let Some(run_guard) = transient_as_none(claims.take().await)?.flatten() else {
                let records = self.client.once_records().await?;
                if records.iter().filter(|(_, record)| record.is_finished()).count() == count {
                    return Ok(());
                }
                pass(Duration::from_millis(20)).await;
                continue;
            };
            let (key, token) = (run_guard.key().to_owned(), run_guard.token());
            self.history.begin(&key, &run_guard.handle())?;
            if hangs {
                say(&format!("at {key}"));
                std::future::pending::<()>().await;
            }
            pass(Duration::from_millis(5)).await;
            if transient_as_none(run_guard.done("").await)?.is_some() {
                self.history.done(&key, token)?;
            }
        }
    }
}

/// The value; none after an error that a retry may get past.
fn transient_as_none<T>(answer: Result<T>) -> Verdict<Option<T>> {
    match answer {
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable) => Ok(None),
        answer => Ok(Some(answer?)),
    }
}

/// Begins a key, and finishes it on order.
pub(super) async fn begin(
    client: &Fencepost,
    key: &str,
    ttl: Duration,
    orders: &mut UnboundedReceiver<String>,
) -> Verdict {
    let run_guard = claimed(client.once(key).may_repeat().ttl(ttl).begin().await?)?;
    say(&format!("begun {}", run_guard.token()));
    orders.recv().await;
    match run_guard.done("the first one").await {
        Ok(()) => say("recorded"),
        Err(error) => say(&format!("not recorded: {}", error.one_line())),
    }
    Ok(())
}
