//! Records of what was done, on one server. The map of a record is in scripts/book.lua.
//!
//! *Why one success is recorded:* each step is one script, and the server runs one script at a time. A record is
//! settled only where it is running with the runner's own token, and whoever overtook it claimed it under a
//! higher one: tokens rise (see the backend). So of all runs one at most settles it, and it is not
//! claimed again until its key has expired or was deleted.
//! *Why a call can be sent twice:* a claim and an end are known by their token, whatever became of the answer
//! to the first.
//! *Where that ends:* with the key. A server that restarts or fails over without its last writes, evicts, or is
//! flushed forgets what was done, and it is done again. A record ends by the server's wall clock: a leap
//! forwards ends it early. So records are kept only where a lock is for correctness (found.rs).

use std::time::Duration;

use fencepost_core::{Label, LockName, Token};

use super::answers::{Answer, names_from};
use super::link::STEPS;
use super::{Fault, FaultKind, Redis};
use crate::backend::BoxFuture;
use crate::error::Result;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State};

/// How many records are asked about at once: one after the other is slow, all at once would flood the server.
const BUNCH: usize = 64;

impl Redis {
    async fn record(&self, name: &LockName, brief: bool) -> Result<Option<Entry>> {
        let mut call = STEPS.look_up.on(self.prefix.keys(name)?.once());
        if brief {
            call = call.arg("brief");
        }
        let answer = self.run(call).await.map_err(Fault::into_error)?;
        match answer.status {
            0 => Ok(None),
            _ => entry(&answer, name).map(Some).map_err(Fault::into_error),
        }
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
                2 => entry(&answer, &name).map(Claimed::Settled).map_err(Fault::into_error),
                _ => Ok(Claimed::Overtaken),
            }
        })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let Finish { name, token, label, outcome, keep, over } = finish;
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
            Ok(self.run(call).await.map_err(Fault::into_error)?.status == 1)
        })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move { self.record(&name, false).await })
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
                for entry in futures_util::future::join_all(asked).await {
                    // One that is over meanwhile is none.
                    entries.extend(entry?);
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

fn entry(answer: &Answer, name: &LockName) -> Result<Entry, Fault> {
    let damaged = || Fault {
        kind: FaultKind::Refused,
        message: format!("the record of \"{name}\" is damaged: delete its key fencepost:once:..."),
    };
    let state = match answer.get::<String>(0)?.as_str() {
        "running" => State::Running,
        "done" => State::Done,
        "failed" => State::Failed,
        _ => return Err(damaged()),
    };
    let since = answer.time.saturating_sub(answer.get(3)?);
    let left: i64 = answer.get(4)?;
    Ok(Entry {
        name: name.clone(),
        state,
        token: Token::new(answer.get(1)?).map_err(|_| damaged())?,
        label: Label::new(&answer.get::<String>(2)?).map_err(|_| damaged())?,
        result: answer.get(5)?,
        since: Duration::from_micros(since),
        kept_for: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
    })
}
