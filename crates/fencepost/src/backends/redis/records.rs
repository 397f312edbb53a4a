//! The records of `once` on one server. scripts/record.lua has the format.
//!
//! *Why one success is recorded:* each step is one script, and the server runs one script at a time. A record is
//! finished only if it is running with the runner's own token, and a runner that overtook it has claimed it under a
//! higher one: tokens rise (see the backend). So at most one run finishes it, and it is not claimed again until its key
//! has expired or was deleted.
//! *Why a call can be sent twice:* a retry of a claim or a finish is recognized by its token. Only a retried finish that
//! finds no record cannot know the outcome, and says so.
//! *Where that ends:* with the key. A server that restarts or fails over without its last writes, evicts, or is flushed
//! loses records, and their work runs again. A record expires by the server's wall clock: a jump forwards ends it
//! early. So records are reliable only where a lock is fit for correctness (`server_info.rs`).

use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use futures_util::future::join_all;

use super::Redis;
use super::inspect::{BATCH, LAYOUT_1_RECORDS, refuse_layout_1, scan};
use super::scripts::OPERATIONS;
use crate::backend::{self, Reply, StoreCall, StoreError, StoreResult};
use crate::ledger::{
    Claim, Claimed, Completion, Ledger, Outcome, Precondition, RecordInfo, RecordsByName, State,
    outcome_unknown,
};

impl Redis {
    async fn claim_now(&self, claim: &Claim, limit: Moment) -> StoreResult<Claimed> {
        let Claim { name, token, label, retention, .. } = claim;
        let call = OPERATIONS.claim.on(self.prefix.keys(name)?.record());
        let call = call.arg(token.get()).arg(label.as_str()).arg(millis(*retention));
        self.connection.call(&call, limit).await?.try_map(|reply| reply.claimed(name))
    }

    async fn finish_now(&self, finish: &Completion, limit: Moment) -> StoreResult<bool> {
        let Completion { name, token, label, outcome, retention, precondition, .. } = finish;
        let (word, result) = match outcome {
            Outcome::Done(result) => (State::Done.as_str(), &**result),
            Outcome::Failed(message) => (State::Failed.as_str(), &**message),
            Outcome::Abandoned => ("abandoned", &[][..]),
        };
        let precondition = match precondition {
            Precondition::OwnClaim => "own",
            Precondition::Older => "older",
        };
        let call = OPERATIONS.finish.on(self.prefix.keys(name)?.record());
        let call = call.arg(token.get()).arg(label.as_str()).arg(word);
        let call = call.arg(result).arg(millis(*retention)).arg(precondition);
        let reply = self.connection.call(&call, limit).await?;
        let retried = reply.retried;
        reply.try_map(|reply| match outcome {
            // The first request may have finished it. By now the record may belong to the next run, or be gone.
            Outcome::Abandoned if retried => Ok(true),
            _ if retried && reply.is_no_record() => {
                Err(StoreError::unavailable(outcome_unknown(name))
                    .with_outcome(backend::Outcome::Unknown))
            }
            _ => Ok(reply.is_done()),
        })
    }

    /// The record, or the error that it cannot be read.
    async fn record(
        &self,
        name: &LockName,
        brief: bool,
        limit: Moment,
    ) -> StoreResult<Result<Option<RecordInfo>, StoreError>> {
        let mut call = OPERATIONS.look_up.on(self.prefix.keys(name)?.record());
        if brief {
            call = call.arg("brief");
        }
        Ok(self.connection.call(&call, limit).await?.map(|reply| reply.record(name)))
    }

    async fn list_records(&self, prefix: &str, limit: Moment) -> StoreResult<Vec<RecordInfo>> {
        let sent = self.clock.now();
        let pattern = self.prefix.record_pattern(prefix);
        let starts_so = |name: &LockName| name.as_str().starts_with(prefix);
        let name_of = |key: &str| self.prefix.record_in(key).filter(starts_so);
        let old = self.prefix.layout_1_records(prefix);
        refuse_layout_1(&self.connection, &old, LAYOUT_1_RECORDS, limit).await?;
        let names = scan(&self.connection, &pattern, None, name_of, limit).await?;
        let names: Vec<_> = names.into_iter().collect();
        let mut records = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH) {
            let found = join_all(batch.iter().map(|name| self.record(name, true, limit))).await;
            for found in found {
                match found?.value {
                    // `None` if it has expired meanwhile.
                    Ok(record) => records.extend(record),
                    Err(damaged) => tracing::warn!(error = %damaged, "left out of a list"),
                }
            }
        }
        Ok(Reply::new(records, sent))
    }
}

impl Ledger for Redis {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move { self.claim_now(&claim, limit).await })
    }

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move { self.finish_now(&finish, limit).await })
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        Box::pin(async move {
            let sent = self.clock.now();
            // The connection sends them in few writes.
            let found = join_all(names.iter().map(|name| self.record(name, false, limit))).await;
            let mut records = RecordsByName::with_capacity(names.len());
            for (name, found) in names.into_iter().zip(found) {
                records.extend(found?.value?.map(|record| (name, record)));
            }
            Ok(Reply::new(records, sent))
        })
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.list_records(&prefix, limit).await })
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            let call = OPERATIONS.forget.on(self.prefix.keys(&name)?.record()).arg(token.get());
            let reply = self.connection.call(&call, limit).await?;
            let retried = reply.retried;
            // The first request may have deleted it.
            Ok(reply.map(|reply| reply.is_done() || retried && reply.is_no_record()))
        })
    }
}

/// As the scripts take it, rounded up.
fn millis(retention: Duration) -> u64 {
    u64::try_from(retention.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
