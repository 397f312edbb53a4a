//! What a record of what was done looks like in etcd. It is one key (layout.rs) whose value is a line and the
//! result:
//!
//! ```text
//! fencepost once 1 STATE TOKEN SECONDS LABEL \n RESULT
//!
//! STATE    running, done or failed
//! TOKEN    of the last runner
//! SECONDS  the TTL of the lease that the key is tied to
//! RESULT   what came of it, any bytes; none while it runs
//! ```

use std::time::Duration;

use fencepost_core::records;
use fencepost_core::{Label, LockName, Token};

use super::api;
use crate::backend::StoreError;
use crate::ledger::{Entry, State};

const MARK: &str = "fencepost once 1";

/// What a record says.
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
        Self { state, token, seconds: whole_seconds(retention), label, result }
    }

    pub(super) fn write(&self) -> Vec<u8> {
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

    /// With its age: `left` is what its lease has left. Whole seconds, rounded down: neither is more than it was.
    pub(super) fn entry(self, name: &LockName, left: u64) -> Entry {
        let granted = u64::try_from(self.seconds).unwrap_or(0);
        Entry {
            name: name.clone(),
            state: self.state,
            token: self.token,
            label: self.label,
            result: self.result,
            since: Duration::from_secs(granted.saturating_sub(left + 1)),
            kept_for: Duration::from_secs(left),
        }
    }
}

/// What a lease is asked for that is to last this long at least.
fn whole_seconds(keep: Duration) -> i64 {
    i64::try_from(keep.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// A record as it was at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) record: Option<Record>,
    /// When it was last changed; zero if it is not there.
    pub(super) changed: i64,
    pub(super) lease: i64,
}

impl Seen {
    pub(super) fn of(kv: Option<&api::KeyValue>) -> Result<Self, StoreError> {
        let Some(kv) = kv else { return Ok(Self::default()) };
        let record = Record::read(&kv.value).ok_or_else(|| {
            let key = String::from_utf8_lossy(&kv.key);
            StoreError::refused(format!(
                "the record \"{}\" can not be read: delete it with etcdctl, or update fencepost",
                key.escape_debug()
            ))
        })?;
        Ok(Self { record: Some(record), changed: kv.mod_revision, lease: kv.lease })
    }

    /// The record for the rules, which do not look at its age.
    pub(super) fn entry(&self, name: &LockName) -> Option<Entry> {
        self.record.clone().map(|record| record.entry(name, 0))
    }
}

/// How it stands with a lease, as a member that leads, or did, tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// This many whole seconds are left of it.
    Seconds(u64),
    /// Its time is over, and it was not revoked yet. Whoever led when it was granted, or later, has counted all
    /// of it: so it is over, even if another leads by now.
    Over,
    /// That member does not know it: it is gone, or so young that a leader which was replaced has not heard of it.
    Unknown,
}

impl Left {
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

    /// A lease that nobody knows may be one that a leader which was replaced has not heard of: what is tied to it
    /// must not be taken for over.
    #[test]
    fn a_lease_that_is_over_is_told_from_one_that_is_not_known() {
        let of = |ttl, granted_ttl| {
            Left::of(&api::LeaseTimeToLiveResponse { ttl, granted_ttl, ..Default::default() })
        };
        assert_eq!(of(59, 60), Left::Seconds(59));
        assert_eq!(of(0, 60), Left::Seconds(0));
        assert_eq!(of(-2, 60), Left::Over);
        assert_eq!(of(-1, 0), Left::Unknown);
    }
}
