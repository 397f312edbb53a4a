//! Records of what was done, in etcd. A record is one key (keys.rs) whose value is a line and the result:
//!
//! ```text
//! fencepost once 1 STATE TOKEN SECONDS LABEL \n RESULT
//!
//! STATE    running, done or failed
//! TOKEN    of the last runner
//! SECONDS  the TTL of the lease that the key is tied to
//! RESULT   what came of it, any bytes; none while it runs
//! ```
//!
//! *Why one success is recorded:* a step reads the record through the cluster, decides, and writes what it
//! decided only if the key is still at the revision that it read; else it begins anew. So steps happen one
//! after the other. A record is settled only where it is running with the runner's own token, and whoever
//! overtook it claimed it under a higher one. It is in the log of a majority before anybody is told.
//! *When it ends:* each state has a lease of its own, which nobody renews; when it ends, etcd deletes the key. A
//! new leader gives every lease its full time again, so a record may stay longer than was asked, never
//! shorter. How old it is comes from what is left of the lease: in whole seconds, and from the last change of
//! leaders at most. No clock of a client has a part in it.
//! *Why a call can be sent twice:* every write has a lease that nobody else has. A write that is found undone is
//! looked for by that.
//! *Where that ends:* a cluster that is restored from a backup has the records of that time, and what was done
//! since is done again.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, Token};
use futures_util::future::join_all;

use super::api;
use super::calls::{changed_at, delete, found, get, put, range_of};
use super::faults::Fault;
use super::{Desk, Etcd, OUTAGE, PATIENCE};
use crate::backend::BoxFuture;
use crate::error::Result;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State};

/// How often a step begins anew because somebody else changed the record.
const TRIES: usize = 16;
/// How many records are read at once: with the longest results they fit into one message.
const PAGE: i64 = 32;
const MARK: &str = "fencepost once 1";

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    state: State,
    token: Token,
    /// The TTL of its lease.
    seconds: i64,
    label: Label,
    result: Vec<u8>,
}

impl Record {
    fn write(&self) -> Vec<u8> {
        let Self { state, token, seconds, label, result } = self;
        let mut text = format!("{MARK} {} {token} {seconds} {label}\n", state.word()).into_bytes();
        text.extend_from_slice(result);
        text
    }

    fn read(value: &[u8]) -> Option<Self> {
        let (line, result) = value.split_at(value.iter().position(|byte| *byte == b'\n')?);
        let line = std::str::from_utf8(line).ok()?.strip_prefix(MARK)?.strip_prefix(' ')?;
        let mut words = line.splitn(4, ' ');
        let state = match words.next()? {
            "running" => State::Running,
            "done" => State::Done,
            "failed" => State::Failed,
            _ => return None,
        };
        let token = Token::new(words.next()?.parse().ok()?).ok()?;
        let seconds = words.next()?.parse().ok()?;
        let label = Label::new(words.next()?).ok()?;
        Some(Self { state, token, seconds, label, result: result[1..].to_vec() })
    }
}

/// A record as it was at one revision.
#[derive(Clone, Debug, Default)]
struct Seen {
    record: Option<Record>,
    /// When it was last changed; zero if it is not there.
    changed: i64,
    lease: i64,
}

impl Seen {
    fn of(kv: Option<&api::KeyValue>) -> Result<Self, Fault> {
        let Some(kv) = kv else { return Ok(Self::default()) };
        let record = Record::read(&kv.value).ok_or_else(|| {
            let key = String::from_utf8_lossy(&kv.key);
            Fault::Refused(format!(
                "the record \"{}\" can not be read: delete it with etcdctl, or update fencepost",
                key.escape_debug()
            ))
        })?;
        Ok(Self { record: Some(record), changed: kv.mod_revision, lease: kv.lease })
    }
}

/// What a step comes to.
enum Decision<T> {
    /// Nothing is to be written.
    Answer(T),
    /// The record is to be this, or to go; then that is the answer.
    Write(Option<Record>, T),
}

impl Desk {
    async fn seen(&self, name: &LockName, limit: Moment) -> Result<Seen, Fault> {
        let range = range_of((self.prefix.record(name), Vec::new()));
        Seen::of(self.link.range(&range, limit).await?.kvs.first())
    }

    /// Reads, decides and writes, until nobody came in between.
    async fn step<T>(
        self: &Arc<Self>,
        name: &LockName,
        decide: impl Fn(Option<Record>) -> Decision<T>,
    ) -> Result<(T, Seen), Fault> {
        let limit = self.now() + PATIENCE;
        for _ in 0..TRIES {
            let seen = self.seen(name, limit).await?;
            match decide(seen.record.clone()) {
                Decision::Answer(answer) => return Ok((answer, seen)),
                Decision::Write(record, answer) => {
                    if self.replace(name, &seen, record, limit).await? {
                        return Ok((answer, seen));
                    }
                }
            }
        }
        Err(changes_again_and_again(name))
    }

    /// Writes over what was seen. False if that is not there any more.
    async fn replace(
        self: &Arc<Self>,
        name: &LockName,
        seen: &Seen,
        record: Option<Record>,
        limit: Moment,
    ) -> Result<bool, Fault> {
        let key = self.prefix.record(name);
        let (lease, act) = match record {
            None => (0, delete(key.clone())),
            Some(mut record) => {
                let lease = fresh_lease()?;
                match self.link.grant(lease, record.seconds, limit).await {
                    Ok(granted) => record.seconds = granted.value.ttl,
                    // The answer to our first try got lost.
                    Err(Fault::LeaseExists) => {}
                    Err(fault) => return Err(fault),
                }
                (lease, put(key.clone(), record.write(), lease))
            }
        };
        let txn = api::TxnRequest {
            compare: vec![changed_at(key.clone(), seen.changed)],
            success: vec![act],
            failure: vec![get(range_of((key, Vec::new())))],
        };
        // If it fails nobody knows what became of it, and the lease may have a record by now.
        let answer = self.link.txn(&txn, limit).await?;
        let again = answer.again;
        let written = answer.value.succeeded || {
            // The answer to our first try may have been lost.
            match found(answer.value).into_iter().flatten().next() {
                Some(kv) => lease != 0 && kv.lease == lease,
                None => lease == 0 && again,
            }
        };
        // What has no key any more: its lease would stay for as long as the record was to be kept.
        self.let_go(if written { seen.lease } else { lease }).await;
        Ok(written)
    }

    /// Ends a lease that carries nothing, in the background.
    async fn let_go(self: &Arc<Self>, lease: i64) {
        if lease == 0 {
            return;
        }
        let under_way = self.under_way(lease).await;
        let desk = Arc::clone(self);
        self.around.runtime.spawn(async move {
            let limit = desk.now() + PATIENCE;
            // If it can not be told, the lease ends by itself.
            let _ = desk.link.revoke(lease, limit).await;
            drop(under_way);
        });
    }

    async fn claim(self: &Arc<Self>, claim: Claim) -> Result<Claimed, Fault> {
        let Claim { name, token, label, keep } = claim;
        for _ in 0..TRIES {
            let step = self.step(&name, |record| match record {
                Some(record) if record.state != State::Running => Decision::Answer(None),
                Some(record) if record.token > token => Decision::Answer(Some(Claimed::Overtaken)),
                _ => {
                    let (state, label, result) = (State::Running, label.clone(), Vec::new());
                    let seconds = whole_seconds(keep);
                    let record = Record { state, token, seconds, label, result };
                    Decision::Write(Some(record), Some(Claimed::Ours))
                }
            });
            let (claimed, seen) = step.await?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
            // How it stands; if it went between the two looks, it can be claimed.
            if let Some(entry) = self.entry(&name, seen, self.now() + PATIENCE).await? {
                return Ok(Claimed::Settled(entry));
            }
        }
        Err(changes_again_and_again(&name))
    }

    async fn finish(self: &Arc<Self>, finish: Finish) -> Result<bool, Fault> {
        let Finish { name, token, label, outcome, keep, over } = finish;
        let step = self.step(&name, |record| {
            let may = match (over, &record) {
                // Settled by us already: the answer to that got lost.
                (Over::OwnClaim, Some(record))
                    if record.token == token && record.state != State::Running =>
                {
                    return Decision::Answer(true);
                }
                (Over::OwnClaim, Some(record)) => record.token == token,
                (Over::OwnClaim, None) => {
                    return Decision::Answer(outcome == Outcome::Abandoned);
                }
                (Over::Older, record) => record.as_ref().is_none_or(|record| record.token <= token),
            };
            if !may {
                return Decision::Answer(false);
            }
            let (state, result) = match &outcome {
                Outcome::Done(result) => (State::Done, result.clone()),
                Outcome::Failed(message) => (State::Failed, message.clone()),
                Outcome::Abandoned => return Decision::Write(None, true),
            };
            let (label, seconds) = (label.clone(), whole_seconds(keep));
            Decision::Write(Some(Record { state, token, seconds, label, result }), true)
        });
        Ok(step.await?.0)
    }

    async fn forget(self: &Arc<Self>, name: LockName, token: Token) -> Result<bool, Fault> {
        let step = self.step(&name, |record| match record {
            Some(record) if record.token == token => Decision::Write(None, true),
            _ => Decision::Answer(false),
        });
        Ok(step.await?.0)
    }

    async fn look_up(&self, name: &LockName) -> Result<Option<Entry>, Fault> {
        let limit = self.now() + PATIENCE;
        let seen = self.seen(name, limit).await?;
        self.entry(name, seen, limit).await
    }

    /// A record with its age. `None` if there is none.
    async fn entry(
        &self,
        name: &LockName,
        mut seen: Seen,
        limit: Moment,
    ) -> Result<Option<Entry>, Fault> {
        for _ in 0..TRIES {
            let Some(record) = seen.record.clone() else { return Ok(None) };
            let lease = self.link.time_to_live(seen.lease, limit).await?;
            let left = u64::try_from(lease.ttl).ok();
            if left.is_none() {
                // The lease is gone, and the record is about to go, unless it has another one by now.
                let again = self.seen(name, limit).await?;
                if again.changed != seen.changed {
                    seen = again;
                    continue;
                }
            }
            // Whole seconds, rounded down: neither is more than it was.
            let granted = u64::try_from(record.seconds).unwrap_or(0);
            let since = left.map_or(granted, |left| granted.saturating_sub(left + 1));
            return Ok(Some(Entry {
                name: name.clone(),
                state: record.state,
                token: record.token,
                label: record.label,
                result: record.result,
                since: Duration::from_secs(since),
                kept_for: Duration::from_secs(left.unwrap_or(0)),
            }));
        }
        Err(changes_again_and_again(name))
    }

    async fn entries(&self, prefix: &str) -> Result<Vec<Entry>, Fault> {
        let limit = self.now() + OUTAGE;
        let (mut key, range_end) = self.prefix.records(prefix);
        let mut entries = Vec::new();
        loop {
            let range = range_of((key.clone(), range_end.clone()));
            let page = self.link.range(&api::RangeRequest { limit: PAGE, ..range }, limit).await?;
            let asked = page.kvs.iter().filter_map(|kv| {
                let name = self.prefix.name_of_record(&kv.key)?;
                Some(async move { self.entry(&name, Seen::of(Some(kv))?, limit).await })
            });
            for entry in join_all(asked).await {
                entries.extend(entry?.map(|entry| Entry { result: Vec::new(), ..entry }));
            }
            match page.kvs.last() {
                Some(last) if page.more => key = [&*last.key, &[0]].concat(),
                _ => break,
            }
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}

fn changes_again_and_again(name: &LockName) -> Fault {
    Fault::Unreachable(format!("the record of \"{name}\" changes again and again"))
}

/// What a lease is asked for that is to last this long at least.
fn whole_seconds(keep: Duration) -> i64 {
    i64::try_from(keep.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The id of a lease that nobody else has.
fn fresh_lease() -> Result<i64, Fault> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|error| {
        Fault::Unreachable(format!("the system gives no random numbers: {error}"))
    })?;
    // Zero would have etcd choose one.
    Ok((i64::from_be_bytes(id) & i64::MAX).max(1))
}

impl Ledger for Etcd {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        let desk = Arc::clone(&self.0);
        // To its end, even if nobody waits for it any more: no lease is left without a key.
        let step = self.0.through(async move { desk.claim(claim).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        let desk = Arc::clone(&self.0);
        let step = self.0.through(async move { desk.finish(finish).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move { self.0.look_up(&name).await.map_err(Fault::into_error) })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.entries(&prefix).await.map_err(Fault::into_error) })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        let desk = Arc::clone(&self.0);
        let step = self.0.through(async move { desk.forget(name, token).await });
        Box::pin(async move { step.await.map_err(Fault::into_error) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let label = Label::new("web-1:77 and a space").unwrap();
        let token = Token::new(42).unwrap();
        for (state, result) in [
            (State::Running, vec![]),
            (State::Done, vec![0, b'\n', 255]),
            (State::Failed, vec![b' ']),
        ] {
            let record = Record { state, token, seconds: 60, label: label.clone(), result };
            assert_eq!(Record::read(&record.write()), Some(record));
        }
        for damaged in
            ["", "\n", "fencepost once 1\n", "fencepost once 2 done 1 1 x\n", "x done 1 1 x\n"]
        {
            assert_eq!(Record::read(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
