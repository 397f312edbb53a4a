//! A record of what was done: where it lies, what is written in it, and what a step does to it. No I/O.
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
use fencepost_core::{Label, LockName, Token};

use super::names::one_part;
use super::nodes::hex;
use super::wire::Stat;
use crate::ledger::{Claim, Claimed, Entry, Finish, Outcome, Over, State};

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
    fn bytes(&self) -> Vec<u8> {
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

/// What is to be done to a record, and what is answered once it is.
#[derive(Debug, PartialEq)]
pub(super) enum Next<T> {
    Put(Vec<u8>, T),
    Remove(T),
    Tell(T),
}

/// What is known besides a record that stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    /// Who settled it, if it was settled and its time is over.
    pub(super) settled_by: Option<Token>,
    /// An earlier attempt of this step may have removed it.
    pub(super) removed: bool,
}

/// `found` is none if there is no record, or its time is over.
pub(super) fn claim(found: Option<Entry>, claim: &Claim) -> Next<Claimed> {
    match found {
        Some(entry) if entry.is_settled() => Next::Tell(Claimed::Settled(entry)),
        Some(entry) if entry.token > claim.token => Next::Tell(Claimed::Overtaken),
        _ => {
            let (token, label) = (claim.token, claim.label.clone());
            let (state, keep, result) = (State::Running, claim.keep, Vec::new());
            Next::Put(Record { state, token, label, keep, result }.bytes(), Claimed::Ours)
        }
    }
}

/// The same for the end of a run.
pub(super) fn finish(found: Option<&Entry>, past: Past, finish: &Finish) -> Next<bool> {
    let Finish { name: _, token, label, outcome, keep, over } = finish;
    let (token, keep) = (*token, *keep);
    let allowed = match (over, found) {
        // Settled by us already: the answer to that got lost.
        (Over::OwnClaim, Some(entry)) if entry.token == token && entry.is_settled() => {
            return Next::Tell(true);
        }
        (Over::OwnClaim, Some(entry)) => entry.token == token,
        // The same, but it was to be kept for a moment only.
        (Over::OwnClaim, None) if past.settled_by == Some(token) => return Next::Tell(true),
        (Over::OwnClaim, None) => *outcome == Outcome::Abandoned,
        (Over::Older, entry) => entry.is_none_or(|entry| entry.token <= token),
    };
    if !allowed {
        // It went, and the next one came: the answer to that got lost.
        return Next::Tell(*outcome == Outcome::Abandoned && past.removed);
    }
    let (state, result) = match outcome {
        Outcome::Done(result) => (State::Done, result.clone()),
        Outcome::Failed(message) => (State::Failed, message.clone()),
        Outcome::Abandoned if found.is_some() => return Next::Remove(true),
        Outcome::Abandoned => return Next::Tell(true),
    };
    Next::Put(Record { state, token, label: label.clone(), keep, result }.bytes(), true)
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

    #[test]
    fn who_may_settle_it() {
        let by = |number: u64, outcome: Outcome, over: Over| Finish {
            name: LockName::new("once/a").unwrap(),
            token: token(number),
            label: Label::new("me").unwrap(),
            outcome,
            keep: Duration::from_secs(9),
            over,
        };
        let done = || Outcome::Done(b"x".to_vec());
        let name = LockName::new("once/a").unwrap();
        let [running, settled] =
            [State::Running, State::Done].map(|state| record(state, 5).entry(&name, &stat(0), 0));
        let says = |next: Next<bool>| match next {
            Next::Put(data, true) => {
                assert_eq!(Record::read(&data).unwrap().result, b"x");
                "put"
            }
            Next::Remove(true) => "remove",
            Next::Tell(true) => "as it is",
            _ => "no",
        };
        for (found, number, outcome, over, expected) in [
            (None, 5, done(), Over::OwnClaim, "no"),
            (None, 5, Outcome::Abandoned, Over::OwnClaim, "as it is"),
            (Some(&running), 5, done(), Over::OwnClaim, "put"),
            (Some(&running), 5, Outcome::Abandoned, Over::OwnClaim, "remove"),
            (Some(&running), 4, done(), Over::OwnClaim, "no"),
            (Some(&running), 6, done(), Over::OwnClaim, "no"),
            (Some(&running), 4, Outcome::Abandoned, Over::OwnClaim, "no"),
            (Some(&settled), 5, done(), Over::OwnClaim, "as it is"),
            (Some(&settled), 6, done(), Over::OwnClaim, "no"),
            (None, 5, done(), Over::Older, "put"),
            (Some(&settled), 5, done(), Over::Older, "put"),
            (Some(&settled), 4, done(), Over::Older, "no"),
        ] {
            let past = Past::default();
            assert_eq!(says(finish(found, past, &by(number, outcome, over))), expected);
        }
        // Attempts whose answers were lost.
        let over = |number| Past { settled_by: Some(token(number)), removed: false };
        let removed = Past { settled_by: None, removed: true };
        for (found, past, number, outcome, expected) in [
            (None, over(5), 5, done(), "as it is"),
            (None, over(6), 5, done(), "no"),
            (Some(&running), over(5), 6, done(), "no"),
            (Some(&running), removed, 4, Outcome::Abandoned, "as it is"),
            (Some(&running), removed, 4, done(), "no"),
            (Some(&running), Past::default(), 4, Outcome::Abandoned, "no"),
        ] {
            let next = finish(found, past, &by(number, outcome, Over::OwnClaim));
            assert_eq!(says(next), expected);
        }
    }
}
