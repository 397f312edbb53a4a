//! A record of what was done: where it lies, and what is written in it. No I/O.
//!
//! ```text
//! path    PATH/.fencepost/records/<shard>/<name>
//! shard   the first byte of the name's SHA-256, as two hex digits
//! name    the lock's name as one part: `%`, `/`, a lone `.` or `..`, and what ZooKeeper refuses are `%XX`
//! data    fencepost 1 <state> <token> <keep in ms> LF <label> LF <result, any bytes>
//! state   running | done | failed
//! ```
//!
//! Since when it stands so is not in there: that is the node's `mtime`, the leader's clock in the very write that
//! made it so. Its time is over at `mtime + keep`, and from then on it counts as absent.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use fencepost_core::records;
use fencepost_core::{Label, LockName, Token};

use super::names::one_part;
use super::nodes::hex;
use super::wire::Stat;
use crate::ledger::{Entry, State};

/// The node of a record, and the directory that it lies in.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    state: State,
    token: Token,
    label: Label,
    keep: Duration,
    result: Vec<u8>,
}

impl Record {
    pub(super) fn of(record: records::Record) -> Self {
        let records::Record { state, token, label, result, retention } = record;
        Self { state, token, label, keep: retention, result }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (state, keep) = (self.state.word(), self.keep.as_millis());
        let head = format!("fencepost 1 {state} {} {keep}\n{}\n", self.token, self.label);
        [head.as_bytes(), &self.result].concat()
    }

    /// `None` for what is none of ours.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let mut lines = data.splitn(3, |byte| *byte == b'\n');
        let mut line = || lines.next();
        let head = std::str::from_utf8(line()?).ok()?.strip_prefix("fencepost 1 ")?;
        let label = Label::new(std::str::from_utf8(line()?).ok()?).ok()?;
        let result = line()?.to_vec();
        let mut words = head.split(' ');
        let (state, token, keep) = (words.next()?, words.next()?, words.next()?);
        let states = [State::Running, State::Done, State::Failed];
        let state = states.into_iter().find(|known| known.word() == state)?;
        let keep = Duration::from_millis(keep.parse().ok()?);
        words.next().is_none().then_some(Self {
            state,
            token: token.parse().ok()?,
            label,
            keep,
            result,
        })
    }

    /// Who settled it, if anybody has.
    pub(super) fn settled_by(&self) -> Option<Token> {
        (self.state != State::Running).then_some(self.token)
    }

    /// Whether its time is over, `now` by the leader's clock.
    pub(super) fn is_over(&self, stat: &Stat, now: i64) -> bool {
        self.left(stat, now).is_zero()
    }

    fn left(&self, stat: &Stat, now: i64) -> Duration {
        let keep = i64::try_from(self.keep.as_millis()).unwrap_or(i64::MAX);
        millis(stat.mtime.saturating_add(keep).saturating_sub(now))
    }

    pub(super) fn entry(&self, name: &LockName, stat: &Stat, now: i64) -> Entry {
        Entry {
            name: name.clone(),
            state: self.state,
            token: self.token,
            label: self.label.clone(),
            result: self.result.clone(),
            since: millis(now.saturating_sub(stat.mtime)),
            kept_for: self.left(stat, now),
        }
    }
}

/// None at all if it is negative: the leader's clock may have been set back.
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
        let (label, keep) = (Label::new("host:1 ü").unwrap(), Duration::from_mins(1));
        let result = b"\nany\n\0\xff\n".to_vec();
        Record { state, token: token(number), label, keep, result }
    }

    fn stat(mtime: i64) -> Stat {
        Stat { czxid: 1, ctime: 0, mtime, version: 0, session: 0 }
    }

    #[test]
    fn a_record_comes_back() {
        for state in [State::Running, State::Done, State::Failed] {
            let record = record(state, 42);
            assert_eq!(Record::read(&record.bytes()), Some(record.clone()));
            for cut in 0..record.bytes().len() - record.result.len() {
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
    fn its_time_counts_from_the_write() {
        let record = record(State::Done, 1);
        assert!(!record.is_over(&stat(1_000), 60_999));
        assert!(record.is_over(&stat(1_000), 61_000));
        let entry = record.entry(&LockName::new("once/a").unwrap(), &stat(1_000), 11_000);
        assert_eq!((entry.since.as_secs(), entry.kept_for.as_secs()), (10, 50));
        // A clock that was set back keeps it for longer, and breaks nothing.
        let entry = record.entry(&LockName::new("once/a").unwrap(), &stat(1_000), 0);
        assert_eq!((entry.since.as_secs(), entry.kept_for.as_secs()), (0, 61));
    }

    #[test]
    fn names_have_one_node_each() {
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
