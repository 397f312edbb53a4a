//! "Check, then run these commands", in one step of the server.

use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use fencepost_core::{Label, LockName, Token};
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, FromRedisValue, Pipeline, ToRedisArgs, ToSingleRedisArg, Value};

use super::place::{Place, is_ours, shown};
use super::script::ACT;
use super::{Fence, commands, faults, records};

/// Commands that run only if the token may, all in one step. [`run`](Self::run) sends them.
#[derive(Debug)]
#[must_use = "nothing is sent until `run` is awaited"]
pub struct Checked {
    name: LockName,
    token: Token,
    place: Place,
    retention_ms: u64,
    keys: Vec<Vec<u8>>,
    commands: Vec<Cmd>,
    /// What is wrong with the first command that is wrong: told by `run`, so that calls can be chained.
    wrong: Option<Error>,
}

impl Checked {
    pub(super) fn new(fence: &Fence, name: &LockName, token: Token) -> Self {
        let (name, place, retention_ms) = (name.clone(), fence.place(name), fence.retention_ms());
        let (keys, commands) = (Vec::new(), Vec::new());
        Self { name, token, place, retention_ms, keys, commands, wrong: None }
    }

    /// `GET key`
    pub fn get(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("GET").arg(key), key)
    }

    /// `SET key value`
    pub fn set(self, key: impl AsRef<[u8]>, value: impl ToSingleRedisArg) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("SET").arg(key).arg(value), key)
    }

    /// `DEL key`; its reply is how many there were
    pub fn del(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("DEL").arg(key), key)
    }

    /// `HSET key field value`; its reply is how many fields are new
    pub fn hset(
        self,
        key: impl AsRef<[u8]>,
        field: impl ToSingleRedisArg,
        value: impl ToSingleRedisArg,
    ) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("HSET").arg(key).arg(field).arg(value), key)
    }

    /// `INCRBY key by`; its reply is the sum (rounded above 2^53, see [`command`](Self::command))
    pub fn incr(self, key: impl AsRef<[u8]>, by: i64) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("INCRBY").arg(key).arg(by), key)
    }

    /// Any command, with all of its keys: `command(redis::cmd("LPUSH").arg("jobs").arg(7), "jobs")`. Several keys are an
    /// array, none is `&[] as &[&str]`.
    ///
    /// A key that is not named is not seen: whether it lies in the slot of the mark is not checked here, and a cluster
    /// may refuse it in the middle of the step, with the commands before it done.
    ///
    /// What waits, what belongs to a connection, what would wipe the marks, and any word that begins like a key of the
    /// fence (`fencepost:mark:`, `fencepost:resets:`) is refused. A script sees replies as
    /// RESP2 has them (`HGETALL` is a list of pairs), and whole numbers as doubles: those above 2^53 are rounded.
    pub fn command(mut self, command: &Cmd, keys: impl ToRedisArgs) -> Self {
        if self.wrong.is_none() {
            let keys = keys.to_redis_args();
            match self.admit(command, &keys) {
                Ok(()) => {
                    self.keys.extend(keys);
                    self.commands.push(command.clone());
                }
                Err(error) => self.wrong = Some(error),
            }
        }
        self
    }

    /// All commands of a pipeline, with all of their keys. What it says of transactions and of replies to be
    /// ignored does not count here.
    pub fn pipeline(mut self, pipeline: &Pipeline, keys: impl ToRedisArgs) -> Self {
        let keys = keys.to_redis_args();
        for command in pipeline.cmd_iter() {
            let words: Vec<_> = command.args_iter().filter_map(simple).collect();
            let its: Vec<&[u8]> =
                keys.iter().map(Vec::as_slice).filter(|key| words.contains(key)).collect();
            self = self.command(command, its);
        }
        let named = |key: &Vec<u8>| self.keys.contains(key);
        if let (None, Some(key)) = (&self.wrong, keys.iter().find(|key| !named(key))) {
            self.wrong = Some(not_a_word(key, "any command of the pipeline"));
        }
        self
    }

    fn admit(&self, command: &Cmd, keys: &[Vec<u8>]) -> Result<()> {
        let words: Option<Vec<_>> = command.args_iter().map(simple).collect();
        let words = words.ok_or_else(|| {
            Error::invalid("a command with a cursor can not be checked: run it without the fence")
        })?;
        commands::admit(&words)?;
        // Named as a key or not: who deletes a mark lets a stale token in.
        if let Some(own) = words[1..].iter().find(|word| is_ours(word)) {
            return Err(Error::invalid(format!(
                "{} has the word {}, which is a key of fencepost's own: name another, or use \
                 Fence::reset",
                shown(words[0]),
                shown(own)
            )));
        }
        for key in keys {
            if !words[1..].contains(&key.as_slice()) {
                return Err(not_a_word(key, &shown(words[0])));
            }
            self.place.admit(key)?;
        }
        Ok(())
    }

    /// Sends it all, and gives the replies, one per command, as a pipeline does: `run::<(i64, String)>`, `run::<(i64,)>`
    /// for one command, `run::<()>` to pass over them.
    ///
    /// An error of the kind [`Stale`](crate::ErrorKind::Stale) means that nothing was done. If a command fails, those
    /// before it are done; the error says which one it was, and its kind follows what the server said
    /// ([`Unreachable`](crate::ErrorKind::Unreachable) if it was out of memory, for one). After any other error of the kind
    /// `Unreachable` nobody knows whether they ran: the answer may have been lost.
    pub async fn run<T: FromRedisValue>(self, connection: &mut impl ConnectionLike) -> Result<T> {
        self.run_as(connection, &default_label()?).await
    }

    /// [`run`](Self::run), with what a person shall read as the one who entered.
    pub(super) async fn run_as<T: FromRedisValue>(
        self,
        connection: &mut impl ConnectionLike,
        who: &Label,
    ) -> Result<T> {
        let Self { name, token, place, retention_ms, keys: named, commands, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let mut keys = vec![place.mark(&name)];
        keys.extend(named);
        let answer = ACT
            .call(connection, &keys, |call| {
                call.arg(token.get()).arg(who.as_str()).arg(retention_ms);
                for command in &commands {
                    call.arg(command.args_iter().len());
                    for word in command.args_iter().filter_map(simple) {
                        call.arg(word);
                    }
                }
            })
            .await?;
        let Value::Array(mut parts) = answer else {
            return Err(faults::not_ours());
        };
        let rest = parts.split_off(1.min(parts.len()));
        let Some(Value::BulkString(word)) = parts.first() else {
            return Err(faults::not_ours());
        };
        match (word.as_slice(), &*rest) {
            (b"done", _) => redis::from_redis_value(Value::Array(rest)).map_err(records::strange),
            (b"stale", [Value::BulkString(mark)]) => {
                Err(records::mark(&name, mark)?.refuses(token))
            }
            (b"damaged", [Value::BulkString(_)]) => Err(records::damaged(&name)),
            (b"failed", [Value::Int(which), Value::BulkString(said)]) => {
                let (which, said) =
                    (usize::try_from(*which).unwrap_or_default(), String::from_utf8_lossy(said));
                Err(match commands.get(which.wrapping_sub(1)) {
                    Some(command) => faults::of_command(which, &commands::name(command), &said),
                    None => faults::of_mark(&said),
                })
            }
            _ => Err(faults::not_ours()),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map` takes")]
fn simple(word: Arg<&[u8]>) -> Option<&[u8]> {
    match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    }
}

fn not_a_word(key: &[u8], of: &str) -> Error {
    Error::invalid(format!(
        "the key {} is no argument of {of}: name the keys that the command uses",
        shown(key)
    ))
}
