//! The replies of the scripts, as the types that the rest works with. Nobody else reads their status numbers.

use std::time::Duration;

use fencepost_core::{Label, LockName, OwnerId, Token, Ttl};
use redis::{FromRedisValue, Value, from_redis_value, from_redis_value_ref};

use super::{LOOK_AGAIN, LOOK_AT_STRANGERS};
use crate::backend::{
    Acquired, Grant, HolderInfo, LockInfo, LossCause, NotHeld, Outcome, Renewed, StoreError,
    WaiterInfo,
};
use crate::backends::polling::Polled;
use crate::ledger::{Claimed, Entry, State};

/// The reply of a script: a status, the server's time, and what the status brings with it. On its short way
/// a script says 1 alone when it is done, and `acquire` its token alone, which is the time.
#[derive(Debug)]
pub(in crate::backends) struct ScriptReply {
    status: i64,
    /// Microseconds on the server's clock; 0 if it does not say.
    pub(in crate::backends) time: u64,
    rest: Vec<Value>,
    /// Which script this is the reply of.
    verb: &'static str,
}

/// What a break did.
pub(super) enum Broke {
    /// It drew this token above the broken one.
    Now(Token),
    /// The request was sent twice, and the first one broke it.
    Before,
    /// The grant was not there any more.
    Nothing,
}

impl ScriptReply {
    pub(super) fn read(value: Value, verb: &'static str) -> Result<Self, StoreError> {
        let mut values = match value {
            Value::Array(values) if values.len() >= 2 => values,
            Value::Int(1) => return Ok(Self { status: 1, time: 0, rest: vec![], verb }),
            Value::BulkString(_) => {
                let time = from_redis_value_ref(&value).map_err(|_| odd(verb))?;
                return Ok(Self { status: 1, time, rest: vec![value], verb });
            }
            _ => return Err(odd(verb)),
        };
        let rest = values.split_off(2);
        match (&values[0], &values[1]) {
            (Value::Int(status), Value::Int(time)) => {
                let time = u64::try_from(*time).map_err(|_| odd(verb))?;
                Ok(Self { status: *status, time, rest, verb })
            }
            _ => Err(odd(verb)),
        }
    }

    /// The value at a place behind status and time.
    fn get<T: FromRedisValue>(&self, place: usize) -> Result<T, StoreError> {
        let value = self.rest.get(place).cloned().ok_or_else(|| odd(self.verb))?;
        from_redis_value(value).map_err(|_| odd(self.verb))
    }

    /// Of a script that only says whether it was done.
    pub(in crate::backends) const fn is_done(&self) -> bool {
        self.status == 1
    }

    /// Of `acquire`, which asked for this TTL.
    pub(super) fn polled(&self, asked: Ttl) -> Result<Polled, StoreError> {
        let mut poll_after = LOOK_AGAIN;
        let acquired = match self.status {
            1 => {
                let (token, ttl) = self.granted(asked)?;
                Acquired::Granted(Grant { token, ttl, queued: false, presence: None })
            }
            2 => {
                let (left, ahead, foreign) = (left(self.get(0)?), self.get(1)?, self.get(2)?);
                // Only the first in line counts on the lease's end: one is enough to see it. Nobody notifies
                // it when a third-party client releases.
                if ahead == 0 {
                    let look = if foreign { LOOK_AT_STRANGERS } else { LOOK_AGAIN };
                    poll_after = left.unwrap_or(look).min(look);
                }
                Acquired::Queued { ahead }
            }
            0 => Acquired::Held(self.holder()?),
            // It was released before it arrived.
            3 => Acquired::PlaceLost,
            _ => return Err(no_tokens()),
        };
        Ok(Polled { acquired, poll_after })
    }

    /// Of `renew` and `extend`.
    pub(in crate::backends) fn renewed(&self) -> Result<Result<Renewed, NotHeld>, StoreError> {
        if !self.is_done() {
            return Ok(Err(NotHeld(self.why_not())));
        }
        let (token, ttl) = self.granted(Ttl::MAX)?;
        Ok(Ok(Renewed { token, ttl }))
    }

    /// Of `release`.
    pub(in crate::backends) fn released(&self) -> Result<(), NotHeld> {
        if self.is_done() { Ok(()) } else { Err(NotHeld(self.why_not())) }
    }

    /// Of `break`.
    pub(super) fn broke(&self) -> Result<Broke, StoreError> {
        match self.status {
            0 => Ok(Broke::Nothing),
            1 => Ok(Broke::Now(Token::new(self.get(0)?).map_err(|_| odd(self.verb))?)),
            5 => Ok(Broke::Before),
            _ => Err(no_tokens()),
        }
    }

    /// The token, and the TTL if it is not what was asked for.
    fn granted(&self, asked: Ttl) -> Result<(Token, Ttl), StoreError> {
        let token = Token::new(self.get(0)?).map_err(|_| odd(self.verb))?;
        if self.rest.len() == 1 {
            return Ok((token, asked));
        }
        let ttl = Ttl::new(Duration::from_millis(self.get(1)?)).map_err(|_| odd(self.verb))?;
        Ok((token, ttl))
    }

    /// Who holds, from a lease, a value and a record.
    fn holder(&self) -> Result<Option<HolderInfo>, StoreError> {
        let (record, said) = (self.get::<Option<String>>(2)?, Said::parse(self.get(3)?));
        Ok(holder(self.time, self.get(0)?, self.get(1)?, record.as_deref(), said))
    }

    fn why_not(&self) -> Option<LossCause> {
        match self.get::<String>(0).as_deref() {
            Ok("broken") => Some(LossCause::Broken),
            Ok("taken") => Some(LossCause::TakenOver),
            _ => None,
        }
    }

    /// Of `vote`.
    pub(in crate::backends) fn ballot(&self) -> Result<Ballot, StoreError> {
        match self.status {
            1 => {
                let (mark, mine) = (self.get(0)?, self.get(1)?);
                Ok(Ballot::Ours { mark, time: self.time, mine })
            }
            0 => {
                let key: Option<Vec<u8>> = self.get(1)?;
                let word = Said::parse(self.get(3)?).map(|said| said.number);
                let holder = self.holder()?.map(|info| KeyHolder {
                    key: key.unwrap_or_default(),
                    info,
                    word,
                });
                Ok(Ballot::Theirs(holder))
            }
            _ => Err(StoreError::busy("the acquire was withdrawn before it arrived")),
        }
    }

    /// Of `claim`.
    pub(super) fn claimed(&self, name: &LockName) -> Result<Claimed, StoreError> {
        match self.status {
            1 => Ok(Claimed::Ours),
            2 => self.entry(name).map(Claimed::Settled),
            _ => Ok(Claimed::Overtaken),
        }
    }

    /// Of `look_up`: the record, if there is one that can be read.
    pub(super) fn record(&self, name: &LockName) -> Result<Option<Entry>, StoreError> {
        match self.status {
            0 => Ok(None),
            1 => self.entry(name).map(Some),
            _ => Err(damaged(name)),
        }
    }

    /// Of `finish` and `forget`, which did nothing: there was no record at all.
    pub(super) fn is_no_record(&self) -> bool {
        !self.is_done() && self.get(0).ok() == Some(0_u8)
    }

    fn entry(&self, name: &LockName) -> Result<Entry, StoreError> {
        let read = || {
            let state = match self.get::<String>(0).ok()?.as_str() {
                "running" => State::Running,
                "done" => State::Done,
                "failed" => State::Failed,
                _ => return None,
            };
            let since = self.time.saturating_sub(self.get(3).ok()?);
            let left: i64 = self.get(4).ok()?;
            Some(Entry {
                name: name.clone(),
                state,
                token: Token::new(self.get(1).ok()?).ok()?,
                label: Label::new(&self.get::<String>(2).ok()?).ok()?,
                result: self.get(5).ok()?,
                since: Duration::from_micros(since),
                kept_for: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
            })
        };
        read().ok_or_else(|| damaged(name))
    }
}

/// A reply that our scripts do not give. What the request did is anybody's guess.
pub(super) fn odd(verb: &str) -> StoreError {
    StoreError::refused(format!("the server gave an odd answer to {verb}: is it a Redis?"))
        .with_outcome(Outcome::Unknown)
}

fn no_tokens() -> StoreError {
    StoreError::refused("the server has no tokens left for this name")
}

fn damaged(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "the record of \"{name}\" is damaged: delete its key fencepost:once:..."
    ))
}

/// A lease's milliseconds as `PTTL` has them: below zero it has no end, or there is none.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// What the record beside a lock says (scripts/slow.lua).
#[derive(Debug)]
pub(in crate::backends) struct Listed {
    pub(in crate::backends) last: u64,
    owner: Option<OwnerId>,
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

/// What a node of several says in phase 1.
pub(in crate::backends) enum Ballot {
    /// Its key is ours: with the highest token it has accepted, its time, and whether that token is this owner's.
    Ours { mark: u64, time: u64, mine: bool },
    /// Its key is somebody else's.
    Theirs(Option<KeyHolder>),
}

/// Who has the key at a node.
pub(in crate::backends) struct KeyHolder {
    /// The key's value.
    pub(in crate::backends) key: Vec<u8>,
    pub(in crate::backends) info: HolderInfo,
    /// The number of its last word that this node has heard, if it is a candidate.
    pub(in crate::backends) word: Option<u64>,
}

fn holder(
    time: u64,
    left_ms: i64,
    value: Option<Vec<u8>>,
    record: Option<&str>,
    said: Option<Said>,
) -> Option<HolderInfo> {
    let owner: Option<OwnerId> =
        String::from_utf8(value?).ok().and_then(|value| value.parse().ok());
    let remaining = left(left_ms);
    let endless = remaining.is_none();
    let value = said.map(|said| said.value);
    let stranger = HolderInfo { remaining, endless, value, ..HolderInfo::stranger() };
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
        ..stranger
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
    pub(in crate::backends) fn read(reply: &ScriptReply) -> Result<Self, StoreError> {
        Ok(Self {
            time: reply.time,
            value: reply.get(0)?,
            left_ms: reply.get(1)?,
            record: reply.get(2)?,
            said: Said::parse(reply.get(3)?),
            waiting: reply.get(4)?,
            waiters: reply.get(5)?,
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
        let record = self.record.as_deref();
        let holder = holder(self.time, self.left_ms, self.value, record, self.said);
        LockInfo { name, holder, waiting: self.waiting, waiters }
    }
}
