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
//! forwards ends it early. So records are kept only where a lock is for correctness (`server_info.rs`).

use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::Redis;
use super::inspect::{BATCH, scan};
use super::scripts::STEPS;
use crate::backend::{self, Reply, StoreCall, StoreError, StoreResult};
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State, nobody_knows};

impl Redis {
    async fn claim_now(&self, claim: &Claim, limit: Moment) -> StoreResult<Claimed> {
        let Claim { name, token, label, keep } = claim;
        let call = STEPS.claim.on(self.prefix.keys(name)?.once());
        let call = call.arg(token.get()).arg(label.as_str()).arg(millis(*keep));
        self.connection.call(&call, limit).await?.try_map(|reply| reply.claimed(name))
    }

    async fn finish_now(&self, finish: &Finish, limit: Moment) -> StoreResult<bool> {
        let Finish { name, token, label, outcome, keep, over } = finish;
        let (word, result) = match outcome {
            Outcome::Done(result) => (State::Done.word(), &**result),
            Outcome::Failed(message) => (State::Failed.word(), &**message),
            Outcome::Abandoned => ("abandoned", &[][..]),
        };
        let over = match over {
            Over::OwnClaim => "own",
            Over::Older => "older",
        };
        let call = STEPS.finish.on(self.prefix.keys(name)?.once());
        let call = call.arg(token.get()).arg(label.as_str()).arg(word);
        let call = call.arg(result).arg(millis(*keep)).arg(over);
        let reply = self.connection.call(&call, limit).await?;
        let retried = reply.retried;
        reply.try_map(|reply| match outcome {
            // The first request may have done it. By now the record may be the next one's, or be gone.
            Outcome::Abandoned if retried => Ok(true),
            _ if retried && reply.is_no_record() => {
                Err(StoreError::unavailable(nobody_knows(name))
                    .with_outcome(backend::Outcome::Unknown))
            }
            _ => Ok(reply.is_done()),
        })
    }

    /// The record, or that it can not be read.
    async fn record(
        &self,
        name: &LockName,
        brief: bool,
        limit: Moment,
    ) -> StoreResult<Result<Option<Entry>, StoreError>> {
        let mut call = STEPS.look_up.on(self.prefix.keys(name)?.once());
        if brief {
            call = call.arg("brief");
        }
        Ok(self.connection.call(&call, limit).await?.map(|reply| reply.record(name)))
    }

    async fn list_records(&self, prefix: &str, limit: Moment) -> StoreResult<Vec<Entry>> {
        let sent = self.clock.now();
        let pattern = self.prefix.once_pattern(prefix);
        let names = scan(&self.connection, &pattern, |key| self.prefix.once_in(key), limit).await?;
        let names: Vec<_> = names.into_iter().collect();
        let mut entries = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH) {
            let found = join_all(batch.iter().map(|name| self.record(name, true, limit))).await;
            for found in found {
                match found?.value {
                    // None if it is over meanwhile.
                    Ok(entry) => entries.extend(entry),
                    Err(damaged) => tracing::warn!(error = %damaged, "left out of a list"),
                }
            }
        }
        Ok(Reply::new(entries, sent))
    }
}

impl Ledger for Redis {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.claim_now(&claim, limit).await })
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.finish_now(&finish, limit).await })
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(
            async move { self.record(&name, false, limit).await?.try_map(std::convert::identity) },
        )
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.list_records(&prefix, limit).await })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let call = STEPS.forget.on(self.prefix.keys(&name)?.once()).arg(token.get());
            let reply = self.connection.call(&call, limit).await?;
            let retried = reply.retried;
            // The first request may have done it.
            Ok(reply.map(|reply| reply.is_done() || retried && reply.is_no_record()))
        })
    }
}

/// As the scripts are told; never less.
fn millis(keep: Duration) -> u64 {
    u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
