//! The fence in a Redis, for the crate `redis`, on any of its async connections: plain, pooled or to a cluster.
//!
//! ```no_run
//! use fencepost::fences::redis::Fence;
//! use fencepost::fences::redis::redis::{AsyncCommands as _, Client};
//! # async fn shown(guard: fencepost::Guard) -> Result<(), Box<dyn std::error::Error>> {
//! let mut redis = Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
//! let fence = Fence::new();
//!
//! fence.enter(&mut redis, &guard.fencing()).await?; // before the first read
//! let sum: Option<i64> = redis.get("cart:7:sum").await?;
//!
//! // Check and write are one step: nobody can enter in between.
//! let checked = fence.checked(&guard.fencing());
//! checked.set("cart:7:sum", sum.unwrap_or(0) + 1).run::<()>(&mut redis).await?;
//! # Ok(()) }
//! ```
//!
//! *What must hold:* a command of a holder runs only if no higher token has entered. *Why it does:* check, mark and
//! commands are one script, and a server runs one script at a time. *When it does not hold:* without the mark. A server
//! that restarts without it, evicts it, or is replaced by a replica that lacks it lets a stale token in; [`fit`] says
//! whether that can happen. So does an expired mark, if a [retention](Fence::retain) was set. And a command that is
//! sent without the fence is not stopped.
//!
//! *After a failure:* a script does not roll back. The mark is raised first. If a command fails, the commands before it
//! are done and those after it are not; the error says which one failed. If the connection breaks, the outcome is
//! unknown: enter again with the same token, and read the data.
//!
//! *In a cluster* one script reaches one slot, so the mark must be in the slot of the data: name a key of that slot
//! with [`Fence::beside`]. **One lock, one tag**: the same name beside keys of different tags has a mark for each, and
//! a holder that enters at one is not seen at the other. The keys:
//!
//! | key | type | what | kept |
//! |---|---|---|---|
//! | `fencepost:mark:{TAG}NAME` | string | `TOKEN MILLIS WHO`: the highest token, when it entered (since 1970, by the server's clock), and who entered | for ever, or the retention |
//! | `fencepost:resets:{TAG}NAME` | list | one `FROM TO MILLIS`, `BY`, `WHY` on three lines per reset, the last 1000 | for ever |
//!
//! `TAG` decides the slot: it is the hash tag of the key that was given to `beside`, or all of that key if it has no tag.
//! Without `beside` it is that of the lock's name.

mod checked;
mod commands;
mod connect;
mod error;
mod mark_keys;
mod records;
mod script;

use std::time::Duration;

use fencepost_core::{FencingToken, Label, LockName, Token};
use redis::aio::ConnectionLike;
use redis::{RedisError, Value};

pub use self::checked::Checked;
pub use self::connect::{Connected, connect};
pub use self::error::explain;
use fencepost_base::clock::wall;
use fencepost_base::guarantees::Correctness;
use fencepost_base::redis::server_info::{ServerInfo, questions};
use fencepost_base::{Error, Result};

use self::mark_keys::MarkKeys;
use self::script::RESET;
use super::contract::{Mark, Reset, checked_reset};

/// The driver of this fence. Your connection must be of this version. A new major version of the driver is a breaking
/// change of this crate.
pub use ::redis;

/// The shortest and the longest retention.
const RETENTION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(24 * 3650));

/// The fence of the data on a server: which slot the marks are in, and for how long they are kept.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    /// None: in the slot of the lock's name.
    mark_keys: Option<MarkKeys>,
    retention: Option<Duration>,
}

impl Fence {
    /// The fence on a server without a cluster. Sends nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the mark in the slot of `key`, a key of the data: `beside("{user:7}:cart")`, or only `beside("{user:7}")`. A
    /// command on keys of another slot is then refused before anything is sent.
    ///
    /// All holders of the lock must use the same tag. Two tags in one slot still have a mark each.
    pub fn beside(mut self, key: impl AsRef<[u8]>) -> Result<Self> {
        self.mark_keys = Some(MarkKeys::beside(key.as_ref())?);
        Ok(self)
    }

    /// Expires the mark this long after the last call with an accepted token. Otherwise it is kept for ever.
    ///
    /// This weakens the fence: a holder that was paused for longer than the retention, while no other holder entered,
    /// finds no mark and gets in. Choose a time that no pause reaches, a day rather than a minute. The last call
    /// decides: a call without a retention keeps the mark for ever again.
    pub fn retain(mut self, retention: Duration) -> Result<Self> {
        if retention < RETENTION.0 || retention > RETENTION.1 {
            return Err(Error::invalid(format!(
                "retention {retention:?} is out of range: give one second to ten years"
            )));
        }
        self.retention = Some(retention);
        Ok(self)
    }

    /// Enters: raises the mark of the lock to the token, or refuses. A holder calls it first, before it reads.
    pub async fn enter(
        &self,
        connection: &mut impl ConnectionLike,
        fencing: &FencingToken,
    ) -> Result<()> {
        self.checked(fencing).run(connection).await
    }

    /// [`enter`](Self::enter), with a label that says who entered, for people.
    pub async fn enter_as(
        &self,
        connection: &mut impl ConnectionLike,
        fencing: &FencingToken,
        who: &Label,
    ) -> Result<()> {
        self.checked(fencing).run_as(connection, who).await
    }

    /// Collects commands that run only if the token is not stale. Running them enters, too.
    pub fn checked(&self, fencing: &FencingToken) -> Checked {
        Checked::new(self, fencing)
    }

    /// The mark of `name`, if any holder has entered.
    pub async fn mark(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
    ) -> Result<Option<Mark>> {
        let mut get = redis::cmd("GET");
        get.arg(self.mark_keys(name).mark(name));
        let record: Option<Vec<u8>> = get.query_async(connection).await.map_err(failed)?;
        record.map(|record| records::mark(name, &record)).transpose()
    }

    /// Sets the mark of `name` to `to`, or deletes it, and logs the reset. Returns the previous mark.
    ///
    /// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left.
    pub async fn reset(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        checked_reset(by, why)?;
        let mark_keys = self.mark_keys(name);
        let keys = [mark_keys.mark(name), mark_keys.resets(name)];
        let to = to.map_or(0, Token::get);
        let answer = RESET
            .call(connection, &keys, |command| {
                command.arg(to).arg(by).arg(why).arg(self.retention_ms());
            })
            .await?;
        let record: Option<Vec<u8>> =
            redis::from_redis_value(answer).map_err(records::wrong_type)?;
        // A damaged mark is a reason to reset it.
        Ok(record.and_then(|record| records::mark(name, &record).ok()))
    }

    fn mark_keys(&self, name: &LockName) -> MarkKeys {
        self.mark_keys.clone().unwrap_or_else(|| MarkKeys::of(name))
    }

    /// As the scripts take it: 0 is for ever.
    fn retention_ms(&self) -> u64 {
        self.retention.map_or(0, |retention| retention.as_millis() as u64)
    }
}

/// The marks of `name`, one for each tag that it was entered with, or those of all names. It searches (SCAN): use
/// [`Fence::mark`] for a single lock. In a cluster it covers only the node of this connection.
pub async fn show(
    connection: &mut impl ConnectionLike,
    name: Option<&LockName>,
) -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    for found in mark_keys::search(connection, mark_keys::MARK, name).await? {
        let record = redis::cmd("GET").arg(&found.key).query_async(connection).await;
        let record: Option<Vec<u8>> = record.map_err(failed)?;
        marks.extend(record.map(|record| records::mark(&found.name, &record)).transpose()?);
    }
    marks.sort_by(|a, b| a.name.cmp(&b.name).then(a.token.cmp(&b.token)));
    Ok(marks)
}

/// The logged resets, oldest first: those of `name`, or all. The last 1000 of each mark are kept. Searches as
/// [`show`] does, on the node of this connection.
pub async fn audit(
    connection: &mut impl ConnectionLike,
    name: Option<&LockName>,
) -> Result<Vec<Reset>> {
    let mut resets = Vec::new();
    for found in mark_keys::search(connection, mark_keys::RESETS, name).await? {
        let records = redis::cmd("LRANGE").arg(&found.key).arg(0).arg(-1).take();
        let records: Vec<Vec<u8>> = records.query_async(connection).await.map_err(failed)?;
        for record in records {
            resets.push(records::reset(&found.name, &record)?);
        }
    }
    // Times of equal length sort as text; the sort is stable, and each list is in order already.
    resets.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(resets)
}

/// Whether the marks on this server survive a crash, an eviction and a failover; if not, why, and the remedy. Needs the
/// right to INFO and CONFIG GET, and says so if it is missing. In a cluster call it for each node, on a connection to
/// it.
pub async fn fit(connection: &mut impl ConnectionLike) -> Result<Correctness> {
    let mut answers = Vec::new();
    for question in questions() {
        answers.push(match connection.req_packed_command(&question).await {
            Ok(answer) => answer,
            // A setting that this user may not read stays unknown.
            Err(error) if error.code().is_some() && !error.is_io_error() => Value::Nil,
            Err(error) => return Err(explain(&error)),
        });
    }
    Ok(ServerInfo::read(answers, wall()).keeps_marks())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: RedisError) -> Error {
    explain(&error)
}
