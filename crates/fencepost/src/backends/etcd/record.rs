//! The format of a record in etcd. It is one key (layout.rs) whose value is a line and the result:
//!
//! ```text
//! fencepost once 1 STATE TOKEN SECONDS LABEL \n RESULT
//!
//! STATE    running, done or failed
//! TOKEN    of the last runner
//! SECONDS  the TTL of the lease that the key is tied to
//! RESULT   any bytes; none while it runs
//! ```

use std::time::Duration;

use fencepost_core::records;
use fencepost_core::{Label, LockName, Token};

use super::api;
use crate::backend::StoreError;
use crate::ledger::{RecordInfo, State};

const RECORD_PREFIX: &str = "fencepost once 1";

/// The contents of a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) token: Token,
    /// The TTL of its lease.
    pub(super) seconds: i64,
    pub(super) label: Label,
    pub(super) result: Vec<u8>,
}

impl Record {
    pub(super) fn of(record: records::Record) -> Self {
        let records::Record { state, token, label, result, retention } = record;
        // The TTL to request for a lease that must last at least this long.
        let seconds = i64::try_from(retention.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        Self { state, token, seconds, label, result }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let Self { state, token, seconds, label, result } = self;
        let mut text =
            format!("{RECORD_PREFIX} {} {token} {seconds} {label}\n", state.as_str()).into_bytes();
        text.extend_from_slice(result);
        text
    }

    fn read(value: &[u8]) -> Option<Self> {
        let (line, result) = value.split_at(value.iter().position(|byte| *byte == b'\n')?);
        let line =
            std::str::from_utf8(line).ok()?.strip_prefix(RECORD_PREFIX)?.strip_prefix(' ')?;
        let mut words = line.splitn(4, ' ');
        let state = State::parse(words.next()?)?;
        let token = Token::new(words.next()?.parse().ok()?).ok()?;
        let seconds = words.next()?.parse().ok()?;
        let label = Label::new(words.next()?).ok()?;
        Some(Self { state, token, seconds, label, result: result[1..].to_vec() })
    }

    /// With its age: `left` is the rest of its lease. Whole seconds, rounded down: neither is overstated.
    pub(super) fn info(self, name: &LockName, left: u64) -> RecordInfo {
        let Self { state, token, seconds, label, result } = self;
        let granted = u64::try_from(seconds).unwrap_or(0);
        let [since, kept_for] = [granted.saturating_sub(left + 1), left].map(Duration::from_secs);
        RecordInfo::new(name.clone(), state, token, label)
            .with_result(result)
            .with_times(since, kept_for)
    }
}

/// A record at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordSnapshot {
    pub(super) record: Option<Record>,
    /// The revision of its last change; zero if it does not exist.
    pub(super) changed: i64,
    pub(super) lease: i64,
}

impl RecordSnapshot {
    pub(super) fn of(kv: Option<&api::KeyValue>) -> Result<Self, StoreError> {
        let Some(kv) = kv else { return Ok(Self::default()) };
        let record = Record::read(&kv.value).ok_or_else(|| {
            let key = String::from_utf8_lossy(&kv.key);
            StoreError::refused(format!(
                "the record \"{}\" has another layout or is damaged: update fencepost, or delete it with etcdctl if its \
                 work may run again",
                key.escape_debug()
            ))
        })?;
        Ok(Self { record: Some(record), changed: kv.mod_revision, lease: kv.lease })
    }

    /// The record for the rules, which do not use its age.
    pub(super) fn info(&self, name: &LockName) -> Option<RecordInfo> {
        self.record.clone().map(|record| record.info(name, 0))
    }
}

/// The state of a lease, as reported by a member that leads, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseRemaining {
    /// It has this many whole seconds left.
    Seconds(u64),
    /// It has expired, and was not revoked yet. The leader at its grant, or a later one, has counted all of it: so it
    /// is over, even if another member leads by now.
    Over,
    /// That member does not have it: it is gone, or so young that a deposed leader has not received it.
    Unknown,
}

impl LeaseRemaining {
    pub(super) fn of(lease: &api::LeaseTimeToLiveResponse) -> Self {
        match (u64::try_from(lease.ttl), lease.granted_ttl) {
            (Ok(seconds), _) => Self::Seconds(seconds),
            (Err(_), 1..) => Self::Over,
            (Err(_), _) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_it_was_written() {
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

    /// A lease that a member does not have may be one that a deposed leader has not received. Its key must not count as
    /// expired.
    #[test]
    fn expired_lease_is_not_an_unknown_lease() {
        let of = |ttl, granted_ttl| {
            LeaseRemaining::of(&api::LeaseTimeToLiveResponse {
                ttl,
                granted_ttl,
                ..Default::default()
            })
        };
        assert_eq!(of(59, 60), LeaseRemaining::Seconds(59));
        assert_eq!(of(0, 60), LeaseRemaining::Seconds(0));
        assert_eq!(of(-2, 60), LeaseRemaining::Over);
        assert_eq!(of(-1, 0), LeaseRemaining::Unknown);
    }
}
