//! Records of what was done, on one server. The map of a record is in scripts/book.lua.
//!
//! *Why one success is recorded:* each step is one script, and the server runs one script at a time. A record is
//! settled only where it is running with the runner's own token, and whoever overtook it claimed it under a
//! higher one: tokens rise (see the backend). So of all runs one at most settles it, and it is not
//! claimed again until its key has expired or was deleted.
//! *Why a call can be sent twice:* a claim and an end are known by their token, whatever became of the answer
//! to the first. Only an end that finds no record the second time can not tell, and says so.
//! *Where that ends:* with the key. A server that restarts or fails over without its last writes, evicts, or is
//! flushed forgets what was done, and it is done again. A record ends by the server's wall clock: a leap
//! forwards ends it early. So records are kept only where a lock is for correctness (found.rs).

use std::time::Duration;

use fencepost_core::{Label, LockName, Token};

use super::answers::{Answer, names_from};
use super::link::STEPS;
use super::{Fault, Redis};
use crate::backend::BoxFuture;
use crate::backends::bridge::Ledger;
use crate::error::{Error, Result};
use crate::ledger::{Claim, Claimed, Entry, Finish, Outcome, Over, State, nobody_knows};

/// How many records are asked about at once: one after the other is slow, all at once would flood the server.
const BUNCH: usize = 64;

/// What lies where a record is looked for.
enum Found {
    Nothing,
    Record(Entry),
    /// Something that can not be read.
    Damaged,
}

impl Redis {
    async fn record(&self, name: &LockName, brief: bool) -> Result<Found> {
        let mut call = STEPS.look_up.on(self.prefix.keys(name)?.once());
        if brief {
            call = call.arg("brief");
        }
        let answer = self.run(call).await.map_err(Fault::into_error)?;
        Ok(match answer.status {
            0 => Found::Nothing,
            1 => entry(&answer, name).map_or(Found::Damaged, Found::Record),
            _ => Found::Damaged,
        })
    }
}

impl Ledger for Redis {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        Box::pin(async move {
            let Claim { name, token, label, keep } = claim;
            let call = STEPS.claim.on(self.prefix.keys(&name)?.once());
            let call = call.arg(token.get()).arg(label.as_str()).arg(millis(keep));
            let answer = self.run(call).await.map_err(Fault::into_error)?;
            match answer.status {
                1 => Ok(Claimed::Ours),
                2 => entry(&answer, &name).map(Claimed::Settled).ok_or_else(|| damaged(&name)),
                _ => Ok(Claimed::Overtaken),
            }
        })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let Finish { name, token, label, outcome, keep, over } = finish;
            let gives_up = outcome == Outcome::Abandoned;
            let (outcome, result) = match outcome {
                Outcome::Done(result) => (State::Done.word(), result),
                Outcome::Failed(message) => (State::Failed.word(), message),
                Outcome::Abandoned => ("abandoned", Vec::new()),
            };
            let over = match over {
                Over::OwnClaim => "own",
                Over::Older => "older",
            };
            let call = STEPS.finish.on(self.prefix.keys(&name)?.once());
            let call = call.arg(token.get()).arg(label.as_str()).arg(outcome);
            let call = call.arg(result.as_slice()).arg(millis(keep)).arg(over);
            let answer = self.run(call).await.map_err(Fault::into_error)?;
            match answer.status {
                1 => Ok(true),
                // The connection broke after the server had done it. By now it may be the next one's, or be gone.
                _ if answer.again && gives_up => Ok(true),
                _ if answer.again && answer.get(0).ok() == Some(0_u8) => {
                    Err(Error::unreachable(nobody_knows(&name)))
                }
                _ => Ok(false),
            }
        })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move {
            match self.record(&name, false).await? {
                Found::Nothing => Ok(None),
                Found::Record(entry) => Ok(Some(entry)),
                Found::Damaged => Err(damaged(&name)),
            }
        })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            let pattern = self.prefix.once_pattern(&prefix);
            let names = names_from(&self.link, &pattern, |key| self.prefix.once_in(key)).await;
            let names: Vec<_> = names.map_err(Fault::into_error)?.into_iter().collect();
            let mut entries = Vec::with_capacity(names.len());
            for bunch in names.chunks(BUNCH) {
                let asked = bunch.iter().map(|name| self.record(name, true));
                let found = futures_util::future::join_all(asked).await;
                for (name, found) in bunch.iter().zip(found) {
                    match found? {
                        Found::Record(entry) => entries.push(entry),
                        // It is over meanwhile.
                        Found::Nothing => {}
                        Found::Damaged => {
                            tracing::warn!(error = %damaged(name), "left out of a list");
                        }
                    }
                }
            }
            Ok(entries)
        })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let call = STEPS.forget.on(self.prefix.keys(&name)?.once()).arg(token.get());
            let answer = self.run(call).await.map_err(Fault::into_error)?;
            // The connection broke after the server had done it.
            let done_before =
                answer.status == 0 && answer.again && answer.get(0).ok() == Some(0_u8);
            Ok(answer.status == 1 || done_before)
        })
    }
}

/// As the scripts are told; never less.
fn millis(keep: Duration) -> u64 {
    u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn damaged(name: &LockName) -> Error {
    Error::refused(format!(
        "the record of \"{name}\" is damaged: delete its key fencepost:once:..."
    ))
}

/// `None` if it can not be read.
fn entry(answer: &Answer, name: &LockName) -> Option<Entry> {
    let state = match answer.get::<String>(0).ok()?.as_str() {
        "running" => State::Running,
        "done" => State::Done,
        "failed" => State::Failed,
        _ => return None,
    };
    let since = answer.time.saturating_sub(answer.get(3).ok()?);
    let left: i64 = answer.get(4).ok()?;
    Some(Entry {
        name: name.clone(),
        state,
        token: Token::new(answer.get(1).ok()?).ok()?,
        label: Label::new(&answer.get::<String>(2).ok()?).ok()?,
        result: answer.get(5).ok()?,
        since: Duration::from_micros(since),
        kept_for: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
    })
}
