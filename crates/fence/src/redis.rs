//! The fence in a Redis, for the crate `redis`, on any of its async connections: plain, pooled or to a cluster.
//!
//! ```no_run
//! use fencepost::fences::redis::Fence;
//! use fencepost::redis::{AsyncCommands as _, Client};
//! # async fn shown(guard: fencepost::Guard) -> Result<(), Box<dyn std::error::Error>> {
//! let mut redis = Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
//! let fence = Fence::new();
//!
//! fence.enter(&mut redis, guard.name(), guard.token()).await?; // before the first read
//! let sum: Option<i64> = redis.get("cart:7:sum").await?;
//!
//! // Check and write are one step: nobody can enter in between.
//! let checked = fence.checked(guard.name(), guard.token());
//! checked.set("cart:7:sum", sum.unwrap_or(0) + 1).run::<()>(&mut redis).await?;
//! # Ok(()) }
//! ```
//!
//! *What must hold:* a command of a holder runs only if no higher token has entered. *Why it does:* check, mark and
//! commands are one script, and a server runs one script at a time. *Where that ends:* with the mark. A server
//! that restarts without it, evicts it, or is replaced by a replica that lacks it lets a stale token in; [`fit`]
//! tells whether that can happen. So does a mark that ran out, where a [retention](Fence::retain) was set. And a
//! command that is sent without the fence is not stopped.
//!
//! *What a failure leaves:* a script does not roll back. The mark is raised first. If a command fails, those before
//! it are done and those behind it are not; the error says which one it was. If the connection breaks, nobody
//! knows: enter again with the same token, and look.
//!
//! *In a cluster* one script reaches one slot, so the mark has to lie in the slot of the data: name a key of it with
//! [`Fence::beside`]. **One lock, one place**: the same name beside keys of different tags has a mark for each, and
//! who enters at one is not seen at the other. The keys:
//!
//! | key | type | what | until |
//! |---|---|---|---|
//! | `fencepost:mark:{TAG}NAME` | string | `TOKEN MILLIS WHO`: the highest token, when it came (since 1970, by the server's clock), who brought it | for ever, or the retention |
//! | `fencepost:resets:{TAG}NAME` | list | one `FROM TO MILLIS`, `BY`, `WHY` on three lines per reset, the last 1000 | for ever |
//!
//! `TAG` decides the slot: it is the hash tag of the key that the mark lies beside, or all of that key if it has no
//! tag. Without `beside` the name of the lock is taken for that key.

mod checked;
mod commands;
mod connect;
mod faults;
mod place;
mod records;
mod script;

use std::time::Duration;

use fencepost_core::{Label, LockName, Token};
use redis::aio::ConnectionLike;
use redis::{RedisError, Value};

pub use self::checked::Checked;
pub use self::connect::{Connected, connect};
pub use self::faults::explain;
use fencepost_base::clock::wall;
use fencepost_base::guarantees::Correctness;
use fencepost_base::redis::server_info::{Found, questions};
use fencepost_base::{Error, Result};

use self::place::Place;
use self::script::RESET;
use super::contract::{Mark, Reset, checked_reset};

/// The shortest and the longest retention.
const RETENTION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(24 * 3650));

/// The fence of the data on a server: where the marks lie, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    /// None: where the key of the lock's name would lie.
    place: Option<Place>,
    retention: Option<Duration>,
}

impl Fence {
    /// The fence on a server that stands alone. Nothing is asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the mark in the slot of `key`, which is a key of the data: `beside("{user:7}:cart")`, or only
    /// `beside("{user:7}")`. A command on keys of another slot is then refused before anything is sent.
    ///
    /// All holders of the lock have to name the same tag. Two tags that share a slot still have a mark each.
    pub fn beside(mut self, key: impl AsRef<[u8]>) -> Result<Self> {
        self.place = Some(Place::beside(key.as_ref())?);
        Ok(self)
    }

    /// Lets the mark run out so long after the last call with an accepted token. Else it stays for ever.
    ///
    /// This weakens the fence: a holder that was paused for longer than the retention, while nobody else came,
    /// finds no mark and gets in. Take a time longer than any pause you want to survive, a day rather than a
    /// minute. The last call decides: one without a retention makes the mark stay again.
    pub fn retain(mut self, retention: Duration) -> Result<Self> {
        if retention < RETENTION.0 || retention > RETENTION.1 {
            return Err(Error::invalid(format!(
                "a mark can not be kept for {retention:?}: give one second to ten years"
            )));
        }
        self.retention = Some(retention);
        Ok(self)
    }

    /// Enters with `token`: raises the mark of `name`, or refuses. A holder's first act, before it reads.
    pub async fn enter(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
        token: Token,
    ) -> Result<()> {
        self.checked(name, token).run(connection).await
    }

    /// [`enter`](Self::enter), with what a person shall read as the one who entered.
    pub async fn enter_as(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
        token: Token,
        who: &Label,
    ) -> Result<()> {
        self.checked(name, token).run_as(connection, who).await
    }

    /// Starts to collect commands that run only if `token` may. They enter by themselves, too.
    pub fn checked(&self, name: &LockName, token: Token) -> Checked {
        Checked::new(self, name, token)
    }

    /// The mark of `name`, if anybody has entered.
    pub async fn mark(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
    ) -> Result<Option<Mark>> {
        let mut get = redis::cmd("GET");
        get.arg(self.place(name).mark(name));
        let record: Option<Vec<u8>> = get.query_async(connection).await.map_err(failed)?;
        record.map(|record| records::mark(name, &record)).transpose()
    }

    /// Sets the mark of `name` to `to`, or forgets it, and keeps a record of it. Returns the mark that was there.
    ///
    /// A mark that is lowered or forgotten lets holders in that it had kept out: see that none is left.
    pub async fn reset(
        &self,
        connection: &mut impl ConnectionLike,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        checked_reset(by, why)?;
        let place = self.place(name);
        let keys = [place.mark(name), place.resets(name)];
        let to = to.map_or(0, Token::get);
        let answer = RESET
            .call(connection, &keys, |command| {
                command.arg(to).arg(by).arg(why).arg(self.retention_ms());
            })
            .await?;
        let record: Option<Vec<u8>> = redis::from_redis_value(answer).map_err(records::strange)?;
        // It may be reset because it was damaged.
        Ok(record.and_then(|record| records::mark(name, &record).ok()))
    }

    fn place(&self, name: &LockName) -> Place {
        self.place.clone().unwrap_or_else(|| Place::of(name))
    }

    /// For the scripts: 0 is for ever.
    fn retention_ms(&self) -> u64 {
        self.retention.map_or(0, |retention| retention.as_millis() as u64)
    }
}

/// The marks of `name`, one for each place that it has been entered at, or those of all names. They are searched for
/// (SCAN): use [`Fence::mark`] for the one of a lock. In a cluster this covers the node that `connection` asks.
pub async fn show(
    connection: &mut impl ConnectionLike,
    name: Option<&LockName>,
) -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    for found in place::search(connection, place::MARK, name).await? {
        let record = redis::cmd("GET").arg(&found.key).query_async(connection).await;
        let record: Option<Vec<u8>> = record.map_err(failed)?;
        marks.extend(record.map(|record| records::mark(&found.name, &record)).transpose()?);
    }
    marks.sort_by(|a, b| a.name.cmp(&b.name).then(a.token.cmp(&b.token)));
    Ok(marks)
}

/// The records of resets, oldest first: those of `name`, or all. Of each mark the last 1000 are kept. What [`show`]
/// says of searching and of clusters holds here too.
pub async fn audit(
    connection: &mut impl ConnectionLike,
    name: Option<&LockName>,
) -> Result<Vec<Reset>> {
    let mut resets = Vec::new();
    for found in place::search(connection, place::RESETS, name).await? {
        let records = redis::cmd("LRANGE").arg(&found.key).arg(0).arg(-1).take();
        let records: Vec<Vec<u8>> = records.query_async(connection).await.map_err(failed)?;
        for record in records {
            resets.push(records::reset(&found.name, &record)?);
        }
    }
    // Their times have the same length, so they sort as text; those of one list are in order already.
    resets.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(resets)
}

/// Whether the marks on this server outlive a crash, an eviction and a failover; if not, why not, and what would
/// change that. Needs the right to INFO and CONFIG GET, and says so where it is missing. In a cluster ask each node, on a
/// connection of its own.
pub async fn fit(connection: &mut impl ConnectionLike) -> Result<Correctness> {
    let mut answers = Vec::new();
    for question in questions() {
        answers.push(match connection.req_packed_command(&question).await {
            Ok(answer) => answer,
            // What this user may not read is left open.
            Err(error) if error.code().is_some() && !error.is_io_error() => Value::Nil,
            Err(error) => return Err(explain(&error)),
        });
    }
    Ok(Found::read(answers, wall()).keeps_marks())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: RedisError) -> Error {
    explain(&error)
}
