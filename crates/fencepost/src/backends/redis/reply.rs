//! The replies of the scripts as types. No other code reads their status numbers.

use std::time::Duration;

use fencepost_core::{Label, LockName, OwnerId, Token, Ttl};
use redis::{FromRedisValue, Value, from_redis_value, from_redis_value_ref};

use super::{POLL_INTERVAL, THIRD_PARTY_POLL_INTERVAL};
use crate::backend::{
    Acquired, Grant, HolderInfo, LockInfo, LossCause, NotHeld, Outcome, Renewed, StoreError,
    WaiterInfo,
};
use crate::backends::polling::Polled;
use crate::ledger::{Claimed, RecordInfo, State};

/// The reply of a script: a status, the server's time, and the fields of that status. On the fast path a script
/// returns only 1, and `acquire` only its token, which is the time.
#[derive(Debug)]
pub(in crate::backends) struct ScriptReply {
    status: i64,
    /// Microseconds on the server's clock; 0 if the reply has no time.
    pub(in crate::backends) time: u64,
    rest: Vec<Value>,
    /// The script that sent this reply.
    verb: &'static str,
}

/// The result of a break.
pub(super) enum Broke {
    /// It broke the grant, and drew this token above the broken one.
    Now(Token),
    /// The request was sent twice, and the first one broke it.
    Before,
    /// The grant had ended before.
    Nothing,
}

impl ScriptReply {
    pub(super) fn read(value: Value, verb: &'static str) -> Result<Self, StoreError> {
        let mut values = match value {
            Value::Array(values) if values.len() >= 2 => values,
            Value::Int(1) => return Ok(Self { status: 1, time: 0, rest: vec![], verb }),
            Value::BulkString(_) => {
                let time = from_redis_value_ref(&value).map_err(|_| unexpected_reply(verb))?;
                return Ok(Self { status: 1, time, rest: vec![value], verb });
            }
            _ => return Err(unexpected_reply(verb)),
        };
        let rest = values.split_off(2);
        match (&values[0], &values[1]) {
            (Value::Int(status), Value::Int(time)) => {
                let time = u64::try_from(*time).map_err(|_| unexpected_reply(verb))?;
                Ok(Self { status: *status, time, rest, verb })
            }
            _ => Err(unexpected_reply(verb)),
        }
    }

    /// The field at an index after the status and the time.
    fn get<T: FromRedisValue>(&self, index: usize) -> Result<T, StoreError> {
        let value = self.rest.get(index).cloned().ok_or_else(|| unexpected_reply(self.verb))?;
        from_redis_value(value).map_err(|_| unexpected_reply(self.verb))
    }

    /// Of a script that only returns whether it succeeded.
    pub(in crate::backends) const fn is_done(&self) -> bool {
        self.status == 1
    }

    /// Of `acquire` with this TTL.
    pub(super) fn polled(&self, asked: Ttl) -> Result<Polled, StoreError> {
        let mut poll_after = POLL_INTERVAL;
        let acquired = match self.status {
            1 => {
                let (token, ttl) = self.granted(asked)?;
                Acquired::Granted(Grant::new(token, ttl))
            }
            2 => {
                let (left, ahead, third_party) = (left(self.get(0)?), self.get(1)?, self.get(2)?);
                // Only the first waiter polls at the lease's end: one is enough. Nobody notifies it when a
                // third-party client releases.
                if ahead == 0 {
                    let look = if third_party { THIRD_PARTY_POLL_INTERVAL } else { POLL_INTERVAL };
                    poll_after = left.unwrap_or(look).min(look);
                }
                Acquired::Queued { ahead }
            }
            0 => Acquired::Held(self.holder()?),
            // It was released before it arrived.
            3 => Acquired::PositionLost,
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
            1 => Ok(Broke::Now(Token::new(self.get(0)?).map_err(|_| unexpected_reply(self.verb))?)),
            5 => Ok(Broke::Before),
            _ => Err(no_tokens()),
        }
    }

    /// The token, and the TTL if it is not the requested one.
    fn granted(&self, asked: Ttl) -> Result<(Token, Ttl), StoreError> {
        let token = Token::new(self.get(0)?).map_err(|_| unexpected_reply(self.verb))?;
        if self.rest.len() == 1 {
            return Ok((token, asked));
        }
        let ttl = Ttl::new(Duration::from_millis(self.get(1)?))
            .map_err(|_| unexpected_reply(self.verb))?;
        Ok((token, ttl))
    }

    /// The holder, from a lease, a value and a state.
    fn holder(&self) -> Result<Option<HolderInfo>, StoreError> {
        let (state, candidate_value) =
            (self.get::<Option<String>>(2)?, CandidateValue::parse(self.get(3)?));
        Ok(holder(self.time, self.get(0)?, self.get(1)?, state.as_deref(), candidate_value))
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
                let (last, mine) = (self.get(0)?, self.get(1)?);
                Ok(Ballot::Ours { last, time: self.time, mine })
            }
            0 => {
                let key: Option<Vec<u8>> = self.get(1)?;
                let value_number = CandidateValue::parse(self.get(3)?)
                    .map(|candidate_value| candidate_value.number);
                let holder = self.holder()?.map(|info| KeyHolder {
                    key: key.unwrap_or_default(),
                    info,
                    value_number,
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
            2 => self.info(name).map(Claimed::Finished),
            _ => Ok(Claimed::Overtaken),
        }
    }

    /// Of `look_up`: the record, if there is one that can be read.
    pub(super) fn record(&self, name: &LockName) -> Result<Option<RecordInfo>, StoreError> {
        match self.status {
            0 => Ok(None),
            1 => self.info(name).map(Some),
            _ => Err(damaged(name)),
        }
    }

    /// Of `finish` and `forget`, which changed nothing: there was no record at all.
    pub(super) fn is_no_record(&self) -> bool {
        !self.is_done() && self.get(0).ok() == Some(0_u8)
    }

    fn info(&self, name: &LockName) -> Result<RecordInfo, StoreError> {
        let read = || {
            let since = self.time.saturating_sub(self.get(3).ok()?);
            let left: i64 = self.get(4).ok()?;
            let state = State::parse(&self.get::<String>(0).ok()?)?;
            let token = Token::new(self.get(1).ok()?).ok()?;
            let label = Label::new(&self.get::<String>(2).ok()?).ok()?;
            let since = Duration::from_micros(since);
            let kept_for = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            let record =
                RecordInfo::new(name.clone(), state, token, label).with_times(since, kept_for);
            Some(record.with_result(self.get(5).ok()?))
        };
        read().ok_or_else(|| damaged(name))
    }
}

/// A reply that our scripts do not send.
pub(super) fn unexpected_reply(verb: &str) -> StoreError {
    StoreError::refused(format!(
        "unexpected reply to {verb}: check that the URL names a Redis server"
    ))
    .with_outcome(Outcome::Unknown)
}

fn no_tokens() -> StoreError {
    StoreError::refused("the server has no tokens left for this name")
}

fn damaged(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "the record of \"{name}\" is damaged: delete its key fencepost:record:{{...}}"
    ))
}

/// A lease in milliseconds, as `PTTL` returns it: below zero it does not expire, or there is none.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// The state of a lock (scripts/common.lua).
#[derive(Debug)]
pub(in crate::backends) struct Listed {
    pub(in crate::backends) last: u64,
    owner: Option<OwnerId>,
    ttl: Option<Ttl>,
    granted: u64,
    label: Option<Label>,
}

impl Listed {
    pub(in crate::backends) fn parse(state: &str) -> Option<Self> {
        let mut fields = state.strip_prefix("2 ")?.splitn(7, ' ');
        let last = fields.next()?.parse().ok()?;
        let (_slow, _broken) = (fields.next()?, fields.next()?);
        let owner = fields.next()?.parse().ok();
        let ttl = Ttl::new(Duration::from_millis(fields.next()?.parse().ok()?)).ok();
        let granted = fields.next()?.parse().ok()?;
        let granted = if granted == 0 { last } else { granted };
        Some(Self { last, owner, ttl, granted, label: Label::new(fields.next()?).ok() })
    }
}

/// What a candidate publishes (scripts/common.lua).
#[derive(Clone, Debug)]
pub(in crate::backends) struct CandidateValue {
    /// Rises with each value.
    pub(in crate::backends) number: u64,
    pub(in crate::backends) value: fencepost_core::Value,
}

impl CandidateValue {
    fn parse(text: Option<Vec<u8>>) -> Option<Self> {
        let text = text?;
        let (number, value) = text.split_at(text.iter().position(|byte| *byte == b' ')?);
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some(Self { number, value: fencepost_core::Value::from_store(&value[1..]) })
    }
}

/// The answer of a node in phase 1 of Redlock.
pub(in crate::backends) enum Ballot {
    /// Its key is ours, with the highest token that it has accepted, its time, and whether that token is this owner's.
    Ours { last: u64, time: u64, mine: bool },
    /// Its key belongs to another owner.
    Theirs(Option<KeyHolder>),
}

/// The holder of the key at a node.
pub(in crate::backends) struct KeyHolder {
    /// The key's value.
    pub(in crate::backends) key: Vec<u8>,
    pub(in crate::backends) info: HolderInfo,
    /// The number of the latest value that this node has, if it is a candidate.
    pub(in crate::backends) value_number: Option<u64>,
}

fn holder(
    time: u64,
    left_ms: i64,
    value: Option<Vec<u8>>,
    state: Option<&str>,
    candidate_value: Option<CandidateValue>,
) -> Option<HolderInfo> {
    let owner: Option<OwnerId> =
        String::from_utf8(value?).ok().and_then(|value| value.parse().ok());
    let remaining = left(left_ms);
    let no_expiry = remaining.is_none();
    let value = candidate_value.map(|candidate_value| candidate_value.value);
    let third_party = HolderInfo::third_party()
        .with_remaining(remaining)
        .with_no_expiry(no_expiry)
        .with_value(value);
    // A state with another owner is of an earlier grant: the holder is a third-party client.
    let listed = state.and_then(Listed::parse);
    let Some(listed) = listed.filter(|listed| owner.is_some() && listed.owner == owner) else {
        return Some(third_party);
    };
    let mut ours = third_party
        .with_token(Token::new(listed.last).ok())
        .with_ttl(listed.ttl)
        .with_held_for(Duration::from_micros(time.saturating_sub(listed.granted)));
    if let Some(label) = listed.label {
        ours.label = label;
    }
    Some(ours)
}

/// A lock as one server reports it.
#[derive(Debug)]
pub(in crate::backends) struct LockSnapshot {
    pub(in crate::backends) time: u64,
    pub(in crate::backends) value: Option<Vec<u8>>,
    left_ms: i64,
    pub(in crate::backends) state: Option<String>,
    pub(in crate::backends) candidate_value: Option<CandidateValue>,
    pub(in crate::backends) waiting: usize,
    waiters: Vec<String>,
}

impl LockSnapshot {
    pub(in crate::backends) fn read(reply: &ScriptReply) -> Result<Self, StoreError> {
        Ok(Self {
            time: reply.time,
            value: reply.get(0)?,
            left_ms: reply.get(1)?,
            state: reply.get(2)?,
            candidate_value: CandidateValue::parse(reply.get(3)?),
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
            Some(WaiterInfo::new(Label::new(&waiter[1]).ok()?).with_waiting_for(waited))
        });
        let waiters = waiters.collect();
        let state = self.state.as_deref();
        let holder = holder(self.time, self.left_ms, self.value, state, self.candidate_value);
        LockInfo::free(name).with_holder(holder).with_waiters(self.waiting, waiters)
    }
}
