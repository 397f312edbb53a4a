//! The path and the data of a record. No I/O.
//!
//! ```text
//! path    PATH/.fencepost/records/<shard>/<name>
//! shard   the first byte of the name's SHA-256, as two hex digits
//! name    the lock's name as one part: `%`, `/`, a lone `.` or `..`, and what ZooKeeper refuses are `%XX`
//! data    fencepost 1 <state> <token> <retention in ms> LF <label> LF <result, any bytes>
//! state   running | done | failed
//! ```
//!
//! The time of its state is not in the data: that is the node's `mtime`, the leader's clock at the write. The record
//! expires at `mtime + retention`, and counts as absent from then on.

use std::time::Duration;

use fencepost_core::records;
use fencepost_core::{Label, LockName, Token};
use ring::digest::{SHA256, digest};

use super::names::one_part;
use super::nodes::hex;
use super::wire::Stat;
use crate::ledger::{RecordInfo, State};

/// The node of a record, and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) shard: String,
    pub(super) node: String,
}

impl Site {
    pub(super) fn of(records: &str, name: &LockName) -> Self {
        let hash = digest(&SHA256, name.as_str().as_bytes());
        let shard = format!("{records}/{}", hex(&hash.as_ref()[..1]));
        let node = format!("{shard}/{}", one_part(name));
        Self { shard, node }
    }
}

/// A record as read from its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record(pub(super) records::Record);

impl Record {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let records::Record { state, token, label, result, retention } = &self.0;
        let (state, retention) = (state.as_str(), retention.as_millis());
        let head = format!("fencepost 1 {state} {token} {retention}\n{label}\n");
        [head.as_bytes(), result].concat()
    }

    /// `None` for data that is not a record.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let mut lines = data.splitn(3, |byte| *byte == b'\n');
        let mut line = || lines.next();
        let head = std::str::from_utf8(line()?).ok()?.strip_prefix("fencepost 1 ")?;
        let label = Label::new(std::str::from_utf8(line()?).ok()?).ok()?;
        let result = line()?.to_vec();
        let mut words = head.split(' ');
        let (state, token, retention) = (words.next()?, words.next()?, words.next()?);
        let state = State::parse(state)?;
        let retention = Duration::from_millis(retention.parse().ok()?);
        let record =
            records::Record { state, token: token.parse().ok()?, label, result, retention };
        words.next().is_none().then_some(Self(record))
    }

    /// The run that finished it, if one has.
    pub(super) fn finished_by(&self) -> Option<Token> {
        (self.0.state != State::Running).then_some(self.0.token)
    }

    /// Whether it has expired, `now` by the leader's clock.
    pub(super) fn is_over(&self, stat: &Stat, now: i64) -> bool {
        self.left(stat, now).is_zero()
    }

    fn left(&self, stat: &Stat, now: i64) -> Duration {
        let retention = i64::try_from(self.0.retention.as_millis()).unwrap_or(i64::MAX);
        millis(stat.mtime.saturating_add(retention).saturating_sub(now))
    }

    pub(super) fn info(&self, name: &LockName, stat: &Stat, now: i64) -> RecordInfo {
        let records::Record { state, token, label, result, .. } = self.0.clone();
        let (since, kept_for) = (millis(now.saturating_sub(stat.mtime)), self.left(stat, now));
        RecordInfo::new(name.clone(), state, token, label)
            .with_result(result)
            .with_times(since, kept_for)
    }
}

/// Zero if it is negative: the leader's clock may have been set back.
fn millis(span: i64) -> Duration {
    Duration::from_millis(u64::try_from(span).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn record(state: State, number: u64) -> Record {
        let (label, retention) = (Label::new("host:1 ü").unwrap(), Duration::from_mins(1));
        let result = b"\nany\n\0\xff\n".to_vec();
        Record(records::Record { state, token: token(number), label, result, retention })
    }

    fn stat(mtime: i64) -> Stat {
        Stat { czxid: 1, ctime: 0, mtime, version: 0, session: 0 }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        for state in [State::Running, State::Done, State::Failed] {
            let record = record(state, 42);
            assert_eq!(Record::read(&record.bytes()), Some(record.clone()));
            for cut in 0..record.bytes().len() - record.0.result.len() {
                assert_eq!(Record::read(&record.bytes()[..cut]), None, "{cut}");
            }
        }
        for bad in [
            &b"fencepost 2 done 1 1\nme\n"[..],
            b"fencepost 1 lost 1 1\nme\n",
            b"fencepost 1 done 0 1\nme\n",
            b"fencepost 1 done 1 -1\nme\n",
            b"fencepost 1 done 1 1 1\nme\n",
            b"fencepost 1 done 1 1\n\n",
            b"\xff\nme\n",
        ] {
            assert_eq!(Record::read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn retention_counts_from_the_write() {
        let record = record(State::Done, 1);
        assert!(!record.is_over(&stat(1_000), 60_999));
        assert!(record.is_over(&stat(1_000), 61_000));
        let info = record.info(&LockName::new("once/a").unwrap(), &stat(1_000), 11_000);
        assert_eq!((info.since.as_secs(), info.kept_for.as_secs()), (10, 50));
        // If the clock was set back, the record stays longer.
        let info = record.info(&LockName::new("once/a").unwrap(), &stat(1_000), 0);
        assert_eq!((info.since.as_secs(), info.kept_for.as_secs()), (0, 61));
    }

    #[test]
    fn each_name_has_its_own_node() {
        let mut seen = std::collections::HashSet::new();
        for name in ["a", "a/b", "a%2Fb", ".", "..", "🔒", "once/x-lock-0000000001", "/"] {
            let name = LockName::new(name).unwrap();
            let site = Site::of("/c/.fencepost/records", &name);
            assert_eq!(site.node.matches('/').count(), 5, "{site:?}");
            assert!(site.node.starts_with(&site.shard));
            let part = site.node.rsplit('/').next().unwrap();
            assert_eq!(super::super::names::name_of_part(part), Some(name));
            assert!(seen.insert(site.node));
        }
    }
}
