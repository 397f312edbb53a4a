//! `postgres://USER@HOST/DATABASE` a PostgreSQL that is there already.
//!
//! A lock is a row of the schema `fencepost` (`locks_1.sql`), which is made when the first client connects. It shares
//! nothing with advisory locks: those end with a connection and have no token, and a PgBouncer in transaction
//! mode strands them.
//!
//! *Why grants exclude:* each step is one function, in a transaction of its own, and what it does about a name it does
//! under the lock of that name's row. A grant is made only where the row has no owner, or one whose lease is
//! over by the server's clock, read after the row was locked. A guard counts its deadline from before its
//! request, so it is lost before the lease is over.
//! *Why tokens rise:* one sequence draws them all, in the very UPDATE that makes the grant. If that had to wait for
//! the row, PostgreSQL evaluates it again on the row it then finds, and draws again. So a token is drawn while the
//! row is locked, and a later grant of the name has a later one. (Drawn before the row is locked, they fall:
//! tests/postgres/hammer.rs shows both.)
//! *Where that ends:* a server that comes back without its last commits, because it does not sync them, was
//! restored from a backup, or because a standby took over that did not have them, has old locks and an old
//! sequence. A jump of its clock ends leases early or late; tokens rise all the same. So a lock here is for
//! correctness only on a server that syncs, and that no standby can follow at a distance (server_info.rs).
//!
//! *Waiting:* who waits stands in a queue beside the lock, by arrival, and keeps its place with a word every 250 ms.
//! A release tells the first of them, and only that one (NOTIFY, which is not free: it is sent only if
//! somebody waits); a free lock is given to nobody else while the first one's place is kept. A client
//! LISTENs on a connection of its own from its first wait on. Where that can not work, as behind a PgBouncer in
//! transaction mode, its waiters look every 250 ms.
//! *Values* of elections and *records* are a component of their own (`records_1.sql`), for clients that lead or keep
//! records: who only locks does without it. A value counts under the token that it was said with (values.rs).
//! *Breaks:* the holder is notified and learns of it at once, and confirms it (breaks.rs); the next renewal is the fall-back.
//! *Lateness:* a request may be carried out after the one that should undo it: the two may go over different
//! connections. A release that finds nothing, or that knows of an acquire without an answer, leaves a note for
//! its owner, and a late acquire finds it.

mod breaks;
mod listen;
mod maintenance;
mod records;
mod renew;
mod reply;
mod schema;
mod server_info;
mod values;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token, Ttl, Value};
use futures_util::future::join;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::AbortHandle;
use tokio_postgres::types::Type;

use self::breaks::{BROKEN, Breaks, CONFIRMED};
use self::listen::Listener;
use self::maintenance::keep_up;
use self::reply::{Holder, number, text};
pub use self::schema::{Installed, install};
use self::schema::{LOCKS, RECORDS};
use self::server_info::Found;
use super::ears::{Ears, client_id};
use super::polling::{Polled, wait_by_polling};
use super::unanswered::Unanswered;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, GrantId, LockInfo, LossCause, NotHeld,
    Observe, Queue, Renewal, Renewed, Reply, Request, StoreCall, StoreResult, Surroundings,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};
use crate::postgres::error::{is_missing, no_schema};
use crate::postgres::{Parameter, Pool, PostgresUrl, Use};
use crate::race::{First, race};
use crate::store_error::{Outcome, StoreError};

/// How long a waiter or an observer trusts what it saw.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long an owner is remembered that was released before it came, in milliseconds.
const REMEMBER: i64 = 60_000;
/// How long after it left an acquire may be carried out: far more than a request spends under way.
const LATE: Duration = Duration::from_mins(10);
/// How many leases are renewed in one transaction: more would keep their rows from others for too long.
const BATCH: usize = 500;
const ACQUIRE: &str = "SELECT * FROM fencepost.acquire($1, $2::uuid, $3, $4, $5)";
const RELEASE: &str = "SELECT * FROM fencepost.release($1, $2::uuid, $3, $4)";
/// It notifies in the transaction that breaks. If it was sent twice, it notifies again.
const BREAK: &str = "SELECT b.*, CASE WHEN b.status OPERATOR(pg_catalog.>) 0 \
                     THEN pg_catalog.pg_notify($3, $2::pg_catalog.text) END \
                     FROM fencepost.break_lock($1, $2) b";
/// How long a break waits until it could hear a confirmation.
const READY: Duration = Duration::from_millis(500);
const INSPECT: &str = "SELECT * FROM fencepost.inspect($1, $2)";
const LIST: &str = "SELECT * FROM fencepost.list()";

/// A store on one PostgreSQL server.
pub struct Postgres {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    listener: Arc<Listener>,
    ears: Arc<Ears>,
    breaks: Arc<Breaks>,
    unanswered: Unanswered,
    /// Whether to make what is missing. If not, a store that is not there is shown as an empty one.
    create: bool,
    found: Arc<Mutex<Found>>,
    /// The component "records" was seen to be there.
    records_there: AtomicBool,
    /// Which store this is, as the last claim of a record heard.
    place: Mutex<Option<String>>,
    upkeep: AbortHandle,
}

impl Postgres {
    pub(crate) async fn open(url: PostgresUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let pool = Pool::new(url, Arc::clone(&around.clock), around.runtime.clone());
        let pool = Arc::new(pool);
        let mut found = Found::read(&pool).await?;
        found.check(pool.shown())?;
        if !around.create {
            LOCKS.found(&pool).await?;
        } else if LOCKS.ready(&pool).await?.before == 0 {
            // Who makes the one makes the other too, so that it is there for those who may not.
            RECORDS.ready(&pool).await?;
            found = Found::read(&pool).await?;
        }
        let found = Arc::new(Mutex::new(found));
        let ears = Arc::new(Ears::default());
        let breaks = Arc::new(Breaks::default());
        let listener = Listener::new(&client_id()?, &pool, &ears, &breaks, around);
        let keeping = keep_up(Arc::downgrade(&pool), Arc::clone(&found), around.create);
        let upkeep = around.runtime.spawn(keeping);
        let (upkeep, clock) = (upkeep.abort_handle(), Arc::clone(&around.clock));
        Ok(Arc::new(Self {
            pool,
            clock,
            listener,
            ears,
            breaks,
            unanswered: Unanswered::new(LATE),
            create: around.create,
            found,
            records_there: AtomicBool::new(false),
            place: Mutex::default(),
            upkeep,
        }))
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock()
    }

    /// Sees that the component "records" is there, or makes it, once.
    async fn with_records(&self) -> Result<(), StoreError> {
        if self.records_there.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.create {
            let version = RECORDS.found(&self.pool).await?;
            self.records_there.store(version > 0, Ordering::Release);
            return if version > 0 { Ok(()) } else { Err(no_schema(self.pool.shown())) };
        }
        let done = RECORDS.ready(&self.pool).await?;
        if done.before != done.now {
            let read = Found::read(&self.pool).await?;
            let mut found = self.found();
            *found = read.after(&found);
        }
        self.records_there.store(true, Ordering::Release);
        Ok(())
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Whether this says that the store is not there, and it is not ours to make.
    fn is_absent(&self, error: &StoreError) -> bool {
        !self.create && is_missing(error)
    }

    /// One try, which stands in line if it is to.
    async fn poll(&self, request: &Request, queue: Queue, limit: Moment) -> StoreResult<Polled> {
        let Request { grant: GrantId { name, owner }, ttl, label, value, .. } = request;
        if value.is_some() {
            self.with_records().await?;
        }
        // Until there is an answer, it may yet be carried out: also if nobody waits for it any more.
        let known = !self.unanswered.note(*owner, self.now());
        let (ttl_ms, id) = (i64::from(ttl.as_millis()), owner.reveal());
        let channel = (queue == Queue::Join).then(|| self.listener.channel());
        let (named, called) = (name.as_str(), label.as_str());
        let value = value.as_ref().map(Value::as_bytes);
        let parameters: [Parameter<'_>; 6] = [
            (&named, Type::TEXT),
            (&id, Type::TEXT),
            (&ttl_ms, Type::INT8),
            (&called, Type::TEXT),
            (&channel, Type::TEXT),
            (&value, Type::BYTEA),
        ];
        let heard = match value {
            None => self.pool.call(Use::Asking, ACQUIRE, &parameters[..5], limit).await,
            Some(_) => self.pool.call(Use::Asking, values::CAMPAIGN, &parameters, limit).await,
        };
        // One that was sent before may still be under way.
        let late = known
            || heard
                .as_ref()
                .map_or_else(|error| error.outcome() == Outcome::Unknown, |reply| reply.retried);
        if !late {
            self.unanswered.clear(*owner);
        }
        heard?.try_map(|rows| {
            let row = rows.first().ok_or_else(|| reply::odd("acquire"))?;
            let mut poll_after = LOOK_AGAIN;
            let acquired = match reply::status(row, "acquire")? {
                1 => {
                    let token = reply::token(row, "r_token", "acquire")?;
                    let ttl = reply::ttl(row, "r_ttl", "acquire")?;
                    self.breaks.granted(*owner, token, request.loss.clone());
                    self.listener.start_if_held();
                    Acquired::Granted(Grant { token, ttl, queued: false, presence: None })
                }
                2 => {
                    let left = number(row, "r_left").map(Duration::from_millis);
                    let ahead = number(row, "r_ahead").unwrap_or(1);
                    // Only the first in line counts on the lease's end: one is enough to see it.
                    if ahead == 0 {
                        poll_after = left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
                    }
                    Acquired::Queued { ahead }
                }
                0 => Acquired::Held(Holder::read(row).into_info()),
                // It was released before it arrived.
                _ => Acquired::PlaceLost,
            };
            Ok(Polled { acquired, poll_after })
        })
    }

    /// Tries once. Most locks are free: a place in line, and the connection that listens, only if this one is not.
    async fn try_once(
        &self,
        request: &Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreResult<Acquired> {
        let mut reply = self.poll(request, Queue::Skip, limit).await?;
        if queue == Queue::Join && matches!(reply.value.acquired, Acquired::Held(_)) {
            let first = reply.retried;
            self.listener.start();
            reply = self.poll(request, Queue::Join, limit).await?;
            reply.retried |= first;
        }
        Ok(reply.map(|polled| polled.acquired))
    }

    async fn look(&self, name: &LockName, limit: Moment) -> StoreResult<LockInfo> {
        let shown = i32::try_from(LockInfo::SHOWN_WAITERS).unwrap_or(i32::MAX);
        let parameters: [_; 2] = [(&name.as_str() as _, Type::TEXT), (&shown as _, Type::INT4)];
        let sql = if self.sees_leaders() { values::INSPECT } else { INSPECT };
        let reply = match self.pool.call(Use::Asking, sql, &parameters, limit).await {
            Err(error) if self.is_absent(&error) => {
                let (name, waiters) = (name.clone(), Vec::new());
                let info = LockInfo { name, holder: None, waiting: 0, waiters };
                return Ok(Reply::new(info, self.now()));
            }
            reply => reply?,
        };
        let row = reply.value.first().ok_or_else(|| reply::odd("inspect"))?;
        let info = reply::lock_info(name.clone(), row);
        Ok(reply.map(|_| info))
    }

    async fn break_now(
        &self,
        name: &LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> Result<Option<Broken>, StoreError> {
        let ready = self.listener.is_ready(confirm_until.min(self.now() + READY));
        // Whom it is to hit is looked up first: sent again after a cut, it must not hit the next one.
        let (info, ready) = join(self.look(name, limit), ready).await;
        let Some(holder) = info?.value.holder else { return Ok(None) };
        let Some(seen) = holder.token.filter(|seen| token.is_none_or(|token| token == *seen))
        else {
            return Ok(None);
        };
        let confirmation = self.breaks.await_confirmation(seen);
        let token = seen.get().cast_signed();
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&token, Type::INT8), (&BROKEN, Type::TEXT)];
        let heard = self.pool.call(Use::Asking, BREAK, &parameters, limit).await?;
        let row = heard.value.first().ok_or_else(|| reply::odd("break"))?;
        let floor = match reply::status(row, "break")? {
            1 => reply::token(row, "r_floor", "break")?,
            // What the first of two drew is not known any more. Next to the broken token nothing was granted,
            // so that does as well.
            5 => Token::new(seen.get() + 1).map_err(|_| reply::odd("break"))?,
            _ => return Ok(None),
        };
        let confirmed = ready
            && matches!(
                race(confirmation.heard(), self.clock.alarm(confirm_until)).await,
                First::Left(())
            );
        Ok(Some(Broken { label: holder.label, token: Some(seen), floor, confirmed }))
    }

    /// Tells whoever broke the grant that its holder knows.
    async fn confirm(&self, token: Token) {
        let token = token.get().to_string();
        let ask = "SELECT pg_catalog.pg_notify($1, $2)";
        let parameters: [Parameter<'_>; 2] = [(&CONFIRMED, Type::TEXT), (&token, Type::TEXT)];
        if let Err(error) = self.pool.call_outside(ask, &parameters).await {
            tracing::debug!(server = %self.pool.shown(), why = %error, "cannot confirm a break");
        }
    }
}

fn why_not(row: &tokio_postgres::Row) -> Option<LossCause> {
    match text(row, "r_why").as_deref() {
        Some("broken") => Some(LossCause::Broken),
        Some("taken") => Some(LossCause::TakenOver),
        _ => None,
    }
}

impl Backend for Postgres {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move { self.try_once(&request, queue, limit).await })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let poll = |limit| self.poll(&request, Queue::Join, limit);
            wait_by_polling(&*self.clock, &self.ears, &request.grant, limit, poll).await
        })
    }

    fn renew(
        &self,
        batch: Vec<Renewal>,
        limit: Moment,
    ) -> BoxFuture<'_, Vec<StoreResult<Result<Renewed, NotHeld>>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for some in batch.chunks(BATCH) {
                match self.renew_all(some, limit).await {
                    Ok(renewed) => answers.extend(renewed),
                    Err(error) => answers.extend(some.iter().map(|_| Err(error.clone()))),
                }
            }
            answers
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move {
            let GrantId { name, owner } = grant;
            let late = self.unanswered.has(owner, self.now());
            let (name, id) = (name.as_str(), owner.reveal());
            let parameters: [Parameter<'_>; 4] = [
                (&name, Type::TEXT),
                (&id, Type::TEXT),
                (&REMEMBER, Type::INT8),
                (&late, Type::BOOL),
            ];
            let reply = self.pool.call(Use::Releasing, RELEASE, &parameters, limit).await?;
            if late {
                self.unanswered.clear(owner);
            }
            let token = self.breaks.released(owner);
            let row = reply.value.first().ok_or_else(|| reply::odd("release"))?;
            let why = why_not(row);
            if let (Some(LossCause::Broken), Some(token)) = (why, token) {
                self.confirm(token).await;
            }
            let ended = reply::status(row, "release")? == 1;
            Ok(reply.map(|_| if ended { Ok(()) } else { Err(NotHeld(why)) }))
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(async move {
            let sent = self.now();
            let broken = self.break_now(&name, token, confirm_until, limit).await?;
            Ok(Reply::new(broken, sent))
        })
    }

    fn guarantees(&self) -> Guarantees {
        let found = self.found().clone();
        Guarantees {
            records: Records::like(&found.correctness()),
            correctness: found.correctness(),
            found: found.lines(),
            ..guarantees(found.synced(), found.alone(), found.in_step())
        }
    }
}

/// What a server keeps that syncs every commit, or does not; that has no standbys, or only such as have every
/// commit before it is answered.
fn guarantees(synced: bool, alone: bool, in_step: bool) -> Guarantees {
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "postgres",
        scope: "all who use this database",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "a release tells the first in line (NOTIFY); all look again every 250 ms",
        clock: "the server's wall clock",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::Kept,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            if synced {
                Kept::both("every grant is synced before it is answered")
            } else {
                neither("the last grants are forgotten, and their tokens drawn again")
            },
            if alone {
                Kept::none_such("it has no standbys")
            } else if in_step {
                Kept::both("every standby has a grant before it is answered")
            } else {
                neither(
                    "a standby without the last commits grants again, and draws their tokens again",
                )
            },
            Kept {
                exclusion: Holds::No,
                tokens: Holds::Yes,
                note: "forwards: leases and records end early; backwards: late",
            },
            Kept::both(
                "a holder that is cut off is told before its lease ends; nobody else is granted",
            ),
            neither(
                "a restored backup has its old sequence: held locks are forgotten and tokens fall",
            ),
        ],
    }
}

impl Observe for Postgres {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { self.look(&name, limit).await })
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(async move {
            let sql = if self.sees_leaders() { values::LIST } else { LIST };
            let reply = match self.pool.call(Use::Asking, sql, &[], limit).await {
                Err(error) if self.is_absent(&error) => {
                    return Ok(Reply::new(Vec::new(), self.now()));
                }
                reply => reply?,
            };
            Ok(reply.map(|rows| {
                let named = rows.iter().filter_map(|row| {
                    let name = LockName::new(&text(row, "r_name")?).ok()?;
                    Some(reply::lock_info(name, row))
                });
                named.collect()
            }))
        })
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(super::inspect_until_changed(self, &*self.clock, LOOK_AGAIN, name, seen))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.pool.shown())
    }
}
