//! Checks the token and runs commands, in one step of the server.

use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use fencepost_core::{FencingToken, Label};
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, FromRedisValue, Pipeline, ToRedisArgs, ToSingleRedisArg, Value};

use super::mark_keys::{MarkKeys, is_ours, shown};
use super::script::ACT;
use super::{Fence, commands, error, records};

/// Commands that run only if the token is not stale, all in one step. [`run`](Self::run) sends them.
#[derive(Debug)]
#[must_use = "nothing is sent until `run` is awaited"]
pub struct Checked {
    fencing: FencingToken,
    mark_keys: MarkKeys,
    retention_ms: u64,
    keys: Vec<Vec<u8>>,
    commands: Vec<Cmd>,
    /// The error of the first invalid command. `run` returns it, so that calls can be chained.
    wrong: Option<Error>,
}

impl Checked {
    pub(super) fn new(fence: &Fence, fencing: &FencingToken) -> Self {
        let (fencing, mark_keys) = (fencing.clone(), fence.mark_keys(fencing.name()));
        let retention_ms = fence.retention_ms();
        let (keys, commands) = (Vec::new(), Vec::new());
        Self { fencing, mark_keys, retention_ms, keys, commands, wrong: None }
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

    /// `DEL key`; replies how many keys existed
    pub fn del(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("DEL").arg(key), key)
    }

    /// `HSET key field value`; replies how many fields are new
    pub fn hset(
        self,
        key: impl AsRef<[u8]>,
        field: impl ToSingleRedisArg,
        value: impl ToSingleRedisArg,
    ) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("HSET").arg(key).arg(field).arg(value), key)
    }

    /// `INCRBY key by`; replies the sum (rounded above 2^53, see [`command`](Self::command))
    pub fn incr(self, key: impl AsRef<[u8]>, by: i64) -> Self {
        let key = key.as_ref();
        self.command(redis::cmd("INCRBY").arg(key).arg(by), key)
    }

    /// Any command, with all of its keys: `command(redis::cmd("LPUSH").arg("jobs").arg(7), "jobs")`. Several keys are an
    /// array, none is `&[] as &[&str]`.
    ///
    /// A key that is not named is not checked: if it is in another slot than the mark, a cluster may refuse it in the
    /// middle of the step, with the commands before it done.
    ///
    /// Refused are commands that block, that belong to a connection, or that would delete the marks, and any argument
    /// that begins like a key of the fence (`fencepost:mark:`, `fencepost:resets:`). A script sees RESP2 replies
    /// (`HGETALL` is a list of pairs), and integers as doubles: those above 2^53 are rounded.
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

    /// All commands of a pipeline, with all of their keys. Its settings for transactions and ignored replies have no
    /// effect.
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
            self.wrong = Some(not_an_argument(key, "any command of the pipeline"));
        }
        self
    }

    fn admit(&self, command: &Cmd, keys: &[Vec<u8>]) -> Result<()> {
        let words: Option<Vec<_>> = command.args_iter().map(simple).collect();
        let words = words.ok_or_else(|| {
            Error::invalid("a command with a cursor cannot be checked: run it without the fence")
        })?;
        commands::admit(&words)?;
        // Named as a key or not: deleting a mark lets a stale token in.
        if let Some(own) = words[1..].iter().find(|word| is_ours(word)) {
            return Err(Error::invalid(format!(
                "{} has the argument {}, which is a key of the fence: use another key, or \
                 Fence::reset",
                shown(words[0]),
                shown(own)
            )));
        }
        for key in keys {
            if !words[1..].contains(&key.as_slice()) {
                return Err(not_an_argument(key, &shown(words[0])));
            }
            self.mark_keys.admit(key)?;
        }
        Ok(())
    }

    /// Sends the commands, and returns their replies, one per command, as a pipeline does: `run::<(i64, String)>`,
    /// `run::<(i64,)>` for one command, `run::<()>` to ignore them.
    ///
    /// An error of the kind [`Stale`](crate::ErrorKind::Stale) means that nothing was executed. If a command fails, the
    /// commands before it are done; the error says which one failed, and its kind follows the server's reply
    /// ([`Unreachable`](crate::ErrorKind::Unreachable) if it is out of memory, for example). After any other error of
    /// the kind `Unreachable` the outcome is unknown: the reply may have been lost.
    pub async fn run<T: FromRedisValue>(self, connection: &mut impl ConnectionLike) -> Result<T> {
        self.run_as(connection, &default_label()?).await
    }

    /// [`run`](Self::run), with a label that says who entered, for people.
    pub(super) async fn run_as<T: FromRedisValue>(
        self,
        connection: &mut impl ConnectionLike,
        who: &Label,
    ) -> Result<T> {
        let Self { fencing, mark_keys, retention_ms, keys: named, commands, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let name = fencing.name();
        let mut keys = vec![mark_keys.mark(name)];
        keys.extend(named);
        let answer = ACT
            .call(connection, &keys, |call| {
                call.arg(fencing.token().get()).arg(who.as_str()).arg(retention_ms);
                for command in &commands {
                    call.arg(command.args_iter().len());
                    for word in command.args_iter().filter_map(simple) {
                        call.arg(word);
                    }
                }
            })
            .await?;
        let Value::Array(mut parts) = answer else { return Err(error::not_ours()) };
        let rest = parts.split_off(1.min(parts.len()));
        let Some(Value::BulkString(word)) = parts.first() else { return Err(error::not_ours()) };
        match (word.as_slice(), &*rest) {
            (b"done", _) => {
                redis::from_redis_value(Value::Array(rest)).map_err(records::wrong_type)
            }
            (b"stale", [Value::BulkString(mark)]) => {
                Err(records::mark(name, mark)?.refuses(&fencing))
            }
            (b"damaged", [Value::BulkString(_)]) => Err(records::damaged(name)),
            (b"failed", [Value::Int(which), Value::BulkString(server_message)]) => {
                let (which, server_message) = (
                    usize::try_from(*which).unwrap_or_default(),
                    String::from_utf8_lossy(server_message),
                );
                Err(match commands.get(which.wrapping_sub(1)) {
                    Some(command) => {
                        error::of_command(which, &commands::name(command), &server_message)
                    }
                    None => error::of_mark(&server_message),
                })
            }
            _ => Err(error::not_ours()),
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

fn not_an_argument(key: &[u8], of: &str) -> Error {
    Error::invalid(format!(
        "the key {} is not an argument of {of}: name the keys that the command uses",
        shown(key)
    ))
}
