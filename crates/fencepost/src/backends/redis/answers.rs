//! What the scripts answer, as the types that the rest works with.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl};
use redis::{FromRedisValue, Value, from_redis_value, from_redis_value_ref};

use super::faults::{Fault, FaultKind};
use super::keys::Prefix;
use super::link::{Heard, Link};
use crate::backend::{HolderInfo, LockInfo, LossCause, WaiterInfo};

/// The answer of a step: a status, the server's time, and what the status brings with it. On its short way
/// a step says 1 alone when it is done, and `acquire` its token alone, which is the time.
#[derive(Debug)]
pub(in crate::backends) struct Answer {
    pub(in crate::backends) status: i64,
    /// Microseconds on the server's clock; 0 if it does not say.
    pub(in crate::backends) time: u64,
    pub(in crate::backends) sent: Moment,
    /// See [`Heard::again`].
    pub(in crate::backends) again: bool,
    rest: Vec<Value>,
    /// Which step this is the answer of.
    from: &'static str,
}

impl Answer {
    pub(in crate::backends) fn read(heard: Heard, verb: &'static str) -> Result<Self, Fault> {
        let Heard { value, sent, again } = heard;
        let from = verb;
        let mut values = match value {
            Value::Array(values) if values.len() >= 2 => values,
            Value::Int(1) => {
                return Ok(Self { status: 1, time: 0, sent, again, rest: vec![], from });
            }
            Value::BulkString(_) => {
                let time = from_redis_value_ref(&value).map_err(|_| odd(from))?;
                return Ok(Self { status: 1, time, sent, again, rest: vec![value], from });
            }
            _ => return Err(odd(from)),
        };
        let rest = values.split_off(2);
        match (&values[0], &values[1]) {
            (Value::Int(status), Value::Int(time)) => {
                let time = u64::try_from(*time).map_err(|_| odd(from))?;
                Ok(Self { status: *status, time, sent, again, rest, from })
            }
            _ => Err(odd(from)),
        }
    }

    /// The value at a place behind status and time.
    pub(in crate::backends) fn get<T: FromRedisValue>(&self, place: usize) -> Result<T, Fault> {
        let value = self.rest.get(place).cloned().ok_or_else(|| odd(self.from))?;
        from_redis_value(value).map_err(|_| odd(self.from))
    }

    /// The token, and the TTL if it is not what was asked for.
    pub(in crate::backends) fn granted(&self, asked: Ttl) -> Result<(Token, Ttl), Fault> {
        let token = Token::new(self.get(0)?).map_err(|_| odd(self.from))?;
        if self.rest.len() == 1 {
            return Ok((token, asked));
        }
        let ttl = Ttl::new(Duration::from_millis(self.get(1)?)).map_err(|_| odd(self.from))?;
        Ok((token, ttl))
    }

    /// What is left of the holder's lease, how many are in line before us, and whether the holder is
    /// another make of client.
    pub(in crate::backends) fn in_line(&self) -> Result<(Option<Duration>, u64, bool), Fault> {
        Ok((left(self.get(0)?), self.get(1)?, self.get::<u8>(2)? == 1))
    }

    /// The token that a break drew.
    pub(in crate::backends) fn floor(&self) -> Result<Token, Fault> {
        Token::new(self.get(0)?).map_err(|_| odd(self.from))
    }

    /// The value of the key, where a holder comes with it.
    pub(in crate::backends) fn value(&self) -> Result<Option<Vec<u8>>, Fault> {
        self.get(1)
    }

    /// Who holds, from a lease, a value and a record.
    pub(in crate::backends) fn holder(&self) -> Result<Option<HolderInfo>, Fault> {
        let record: Option<String> = self.get(2)?;
        let holder = holder(self.time, self.get(0)?, self.get(1)?, record.as_deref());
        let value = self.said()?.map(|said| said.value);
        Ok(holder.map(|holder| HolderInfo { value, ..holder }))
    }

    /// What that holder says of itself, if it is a candidate.
    pub(in crate::backends) fn said(&self) -> Result<Option<Said>, Fault> {
        Ok(Said::parse(self.get(3)?))
    }

    pub(in crate::backends) fn why_not(&self) -> Option<LossCause> {
        match self.get::<String>(0).as_deref() {
            Ok("broken") => Some(LossCause::Broken),
            Ok("taken") => Some(LossCause::TakenOver),
            _ => None,
        }
    }
}

fn odd(verb: &str) -> Fault {
    Fault {
        kind: FaultKind::Refused,
        message: format!("the server gave an odd answer to {verb}: is it a Redis?"),
    }
}

/// A lease's milliseconds as `PTTL` has them: below zero it has no end, or there is none.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// What the record beside a lock says (scripts/slow.lua).
#[derive(Debug)]
pub(in crate::backends) struct Listed {
    pub(in crate::backends) last: u64,
    pub(in crate::backends) owner: Option<OwnerId>,
    ttl: Option<Ttl>,
    granted: u64,
    label: Option<Label>,
}

impl Listed {
    pub(in crate::backends) fn parse(record: &str) -> Option<Self> {
        let mut fields = record.splitn(7, ' ');
        let last = fields.next()?.parse().ok()?;
        let (_more, _broken) = (fields.next()?, fields.next()?);
        let owner = fields.next()?.parse().ok();
        let ttl = Ttl::new(Duration::from_millis(fields.next()?.parse().ok()?)).ok();
        let granted = fields.next()?.parse().ok()?;
        let granted = if granted == 0 { last } else { granted };
        Some(Self { last, owner, ttl, granted, label: Label::new(fields.next()?).ok() })
    }
}

/// What a candidate says of itself (scripts/slow.lua).
#[derive(Clone, Debug)]
pub(in crate::backends) struct Said {
    /// Rises with each thing that it says.
    pub(in crate::backends) number: u64,
    pub(in crate::backends) value: fencepost_core::Value,
}

impl Said {
    fn parse(text: Option<Vec<u8>>) -> Option<Self> {
        let text = text?;
        let (number, value) = text.split_at(text.iter().position(|byte| *byte == b' ')?);
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some(Self { number, value: fencepost_core::Value::found(&value[1..]) })
    }
}

fn holder(
    time: u64,
    left_ms: i64,
    value: Option<Vec<u8>>,
    record: Option<&str>,
) -> Option<HolderInfo> {
    let owner: Option<OwnerId> =
        String::from_utf8(value?).ok().and_then(|value| value.parse().ok());
    let remaining = left(left_ms);
    let endless = remaining.is_none();
    let stranger = HolderInfo { remaining, endless, ..HolderInfo::stranger() };
    // A record that names somebody else is of an earlier grant: the holder is not one of ours.
    let listed = record.and_then(Listed::parse);
    let Some(listed) = listed.filter(|listed| owner.is_some() && listed.owner == owner) else {
        return Some(stranger);
    };
    Some(HolderInfo {
        label: listed.label.unwrap_or(stranger.label),
        token: Token::new(listed.last).ok(),
        ttl: listed.ttl,
        held_for: Some(Duration::from_micros(time.saturating_sub(listed.granted))),
        remaining,
        endless,
        value: None,
    })
}

/// A lock as one server shows it.
#[derive(Debug)]
pub(in crate::backends) struct Seen {
    pub(in crate::backends) time: u64,
    pub(in crate::backends) value: Option<Vec<u8>>,
    left_ms: i64,
    pub(in crate::backends) record: Option<String>,
    pub(in crate::backends) said: Option<Said>,
    pub(in crate::backends) waiting: usize,
    waiters: Vec<String>,
}

impl Seen {
    pub(in crate::backends) fn read(answer: &Answer) -> Result<Self, Fault> {
        Ok(Self {
            time: answer.time,
            value: answer.get(0)?,
            left_ms: answer.get(1)?,
            record: answer.get(2)?,
            said: Said::parse(answer.get(3)?),
            waiting: answer.get(4)?,
            waiters: answer.get(5)?,
        })
    }

    pub(in crate::backends) fn into_info(self, name: LockName) -> LockInfo {
        let waiters = self.waiters.chunks_exact(2).filter_map(|waiter| {
            // A sorted set's score: a float, written as a whole number or with an exponent.
            let since = waiter[0].parse::<f64>().ok()?.max(0.0);
            #[expect(clippy::cast_sign_loss, reason = "it is not below zero")]
            let waited = Duration::from_micros(self.time.saturating_sub(since as u64));
            let waiting_for = Some(waited);
            Some(WaiterInfo { label: Label::new(&waiter[1]).ok()?, waiting_for })
        });
        let waiters = waiters.collect();
        let holder = holder(self.time, self.left_ms, self.value, self.record.as_deref());
        let value = self.said.map(|said| said.value);
        let holder = holder.map(|holder| HolderInfo { value, ..holder });
        LockInfo { name, holder, waiting: self.waiting, waiters }
    }
}

/// The names of all locks that a server has anything of ours of, in order, as they are on the server.
pub(in crate::backends) async fn locks_from(
    link: &Link,
    prefix: &Prefix,
) -> Result<BTreeSet<String>, Fault> {
    let mut names = BTreeSet::new();
    for pattern in prefix.patterns() {
        names.extend(names_from(link, &pattern, |key| prefix.name_in(key)).await?);
    }
    Ok(names)
}

/// The names of all keys that fit a pattern and are of something, in order.
pub(super) async fn names_from<T: Ord>(
    link: &Link,
    pattern: &str,
    name_of: impl Fn(&str) -> Option<T>,
) -> Result<BTreeSet<T>, Fault> {
    let mut names = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        let heard = link.command(&scan).await?;
        let (next, keys): (u64, Vec<Vec<u8>>) =
            from_redis_value(heard.value).map_err(|_| odd("list"))?;
        let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
        names.extend(keys.filter_map(&name_of));
        cursor = next;
        if cursor == 0 {
            return Ok(names);
        }
    }
}
