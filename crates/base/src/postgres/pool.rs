//! The connections to one server, and the calls on them.
//!
//! What must hold: no call hangs for ever. One that has no answer for [`HANG`] gives its connection up and is made
//! again on another. A connection serves one call at a time, and one whose call was given up serves no other.
//! A call may be made from anywhere: connections are driven by the client's own runtime. Only a caller on a runtime
//! of several threads, which drives its sockets at any time, gets connections there, since the hop to the client's
//! thread and back would be a good part of a call. They serve no other caller, so heartbeats do not depend on it.
//!
//! Before its first call that touches the schema `fencepost`, a connection asks whether that is in trusted hands
//! (trust.rs). It is asked again now and then: if it is not any more, no connection from before is used.
//!
//! A few connections are for renewals alone, and as many for releases: those who wait for a row can not keep them
//! out, and neither can a crowd of the other kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::address::{Opened, PostgresUrl};
use super::error::{Kind, explain, no_schema};
use super::trust::{self, Schema};
use crate::block_on::is_waiting;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::retry::{CALL_TIMEOUT, StoreResult, retry};
use crate::store_error::{Outcome, StoreError, StoreErrorKind};

/// How long a connection may be without an answer.
const HANG: Duration = Duration::from_millis(1500);
/// How long it may take to connect: less than an attempt, so that the error says that it was this.
const CONNECT: Duration = Duration::from_millis(1900);
/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(30);
/// How many connections there are for renewals alone, and for releases.
const KEEPING: usize = 2;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To get something, or to look at it.
    Asking,
    /// To keep what one has.
    Renewing,
    /// To give it back.
    Releasing,
}

/// A parameter of a call, and its type.
pub type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connections to one server.
pub struct Pool {
    url: PostgresUrl,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    idle: Mutex<Vec<Conn>>,
    /// Rises when the schema is not trusted any more: connections of an earlier one are not used.
    era: AtomicU64,
    asking: Semaphore,
    renewing: Semaphore,
    releasing: Semaphore,
}

/// One connection. Who drops it hangs up, in the middle of a call as well.
pub struct Conn {
    pub client: Client,
    driver: AbortHandle,
    /// The runtime that drives it.
    home: Id,
    /// When it was last put back.
    used: Moment,
    /// The schema was seen to be there, and in trusted hands.
    trusted: bool,
    era: u64,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Pool {
    pub fn new(url: PostgresUrl, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        let asking = Semaphore::new(url.pool);
        let [renewing, releasing] = [KEEPING; 2].map(Semaphore::new);
        let (idle, era) = (Mutex::default(), AtomicU64::new(0));
        Self { url, clock, runtime, idle, era, asking, renewing, releasing }
    }

    /// `host:port/database`, for people.
    pub fn shown(&self) -> &str {
        &self.url.shown
    }

    /// The role that the URL trusts with the schema.
    pub fn owner(&self) -> Option<&str> {
        self.url.owner()
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The limit of a call that nobody set one for.
    pub fn call_limit(&self) -> Moment {
        self.clock.now() + CALL_TIMEOUT
    }

    /// Runs one statement, in a schema that is in trusted hands. It must be safe to run twice: it is sent again over
    /// another connection if one breaks.
    pub async fn call(
        &self,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: Moment,
    ) -> StoreResult<Vec<Row>> {
        self.call_in(true, usage, sql, parameters, limit).await
    }

    /// The same, for a statement that touches nothing in the schema.
    pub async fn call_outside(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> StoreResult<Vec<Row>> {
        self.call_in(false, Use::Asking, sql, parameters, self.call_limit()).await
    }

    async fn call_in(
        &self,
        schema: bool,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: Moment,
    ) -> StoreResult<Vec<Row>> {
        let _room = self.room(usage, limit).await?;
        let caller = self.home();
        retry(&*self.clock, limit, |attempt| {
            // The first attempt may have waited for the caller's runtime, not for the server.
            let home = if attempt == 0 { caller.clone() } else { self.runtime.clone() };
            async move {
                let conn = self.connected(&home, schema, limit).await?;
                self.send(conn, sql, parameters, limit).await
            }
        })
        .await
    }

    /// A connection that the statement can be sent on.
    async fn connected(
        &self,
        home: &Handle,
        schema: bool,
        limit: Moment,
    ) -> Result<Conn, StoreError> {
        let mut conn = if let Some(conn) = self.idle_one(home.id()) {
            conn
        } else {
            self.make_room();
            self.open_at(home, limit).await?
        };
        if schema && !conn.trusted {
            let look = trust::look(&conn.client, self.url.owner(), self.shown());
            match race(look, self.clock.alarm(self.clock.now() + HANG)).await {
                First::Left(Ok(Schema::Trusted)) => conn.trusted = true,
                First::Left(Ok(Schema::Missing)) => {
                    self.put_back(conn);
                    return Err(no_schema(self.shown()));
                }
                First::Left(Err(error)) => return Err(error),
                // The statement itself was not sent.
                First::Right(()) => return Err(StoreError::busy(self.silence())),
            }
        }
        Ok(conn)
    }

    async fn send(
        &self,
        conn: Conn,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: Moment,
    ) -> Result<(Vec<Row>, Moment), StoreError> {
        let (home, sent) = (conn.home, self.clock.now());
        let hang = self.clock.alarm((sent + HANG).min(limit));
        match race(conn.client.query_typed(sql, parameters), hang).await {
            First::Left(Ok(rows)) => {
                self.put_back(conn);
                Ok((rows, sent))
            }
            First::Left(Err(error)) => {
                let error = explain(error, self.shown(), StoreError::no_reply);
                // Other connections go: if this server was demoted, a new one may lead to the new primary.
                if error.is_interrupted() && error.outcome() == Outcome::NotApplied {
                    self.put_back(conn);
                }
                Err(error)
            }
            First::Right(()) => {
                // The others may be as dead: on none of them is a second attempt worth the time. Those of another
                // runtime are not judged by this one's silence.
                self.idle().retain(|conn| conn.home != home);
                Err(StoreError::no_reply(self.silence()))
            }
        }
    }

    fn silence(&self) -> String {
        format!("{} did not answer in time", self.shown())
    }

    /// Looks again. If somebody else could have got hold of the schema, no connection from before is used.
    pub async fn look_again(&self) {
        let owner = self.url.owner();
        let looked = self.call_outside(trust::TRUST, &[(&owner, Type::TEXT)]).await;
        match looked.and_then(|heard| trust::judge(&heard.value, self.shown())) {
            // Whoever makes it next may be anybody.
            Ok(Schema::Missing) => {}
            Err(error) if error.kind() == StoreErrorKind::Refused => {}
            Ok(Schema::Trusted) | Err(_) => return,
        }
        self.era.fetch_add(1, Ordering::Relaxed);
        self.idle().clear();
    }

    /// A connection of the caller's own, by the end of this time.
    pub async fn open(&self, limit: Moment) -> Result<Conn, StoreError> {
        self.open_at(&self.runtime, limit).await
    }

    async fn open_at(&self, home: &Handle, limit: Moment) -> Result<Conn, StoreError> {
        let (client, connection) = self.open_raw_at(home, limit).await?;
        let driver = home.spawn(async move {
            // Whoever asks on it hears of its end.
            let _ = connection.await;
        });
        let (driver, home) = (driver.abort_handle(), home.id());
        let (used, era) = (self.clock.now(), self.era.load(Ordering::Relaxed));
        Ok(Conn { client, driver, home, used, trusted: false, era })
    }

    /// The same, for one who drives the connection by itself, on the client's runtime.
    pub async fn open_raw(&self, limit: Moment) -> Result<Opened, StoreError> {
        self.open_raw_at(&self.runtime, limit).await
    }

    async fn open_raw_at(&self, home: &Handle, limit: Moment) -> Result<Opened, StoreError> {
        let url = self.url.clone();
        // There, because a socket belongs to the runtime that made it.
        let mut opening = home.spawn(async move { url.open().await });
        let limit = limit.min(self.clock.now() + CONNECT);
        // Nothing was sent. The caller's runtime may be blocked, or about to end: the next attempt is made on ours.
        let away: Kind =
            if home.id() == self.runtime.id() { StoreError::unavailable } else { StoreError::busy };
        match race(&mut opening, self.clock.alarm(limit)).await {
            First::Left(Ok(opened)) => opened.map_err(|error| explain(error, self.shown(), away)),
            First::Left(Err(_)) => {
                Err(away(format!("no connection to {}: this client ends", self.shown())))
            }
            First::Right(()) => {
                opening.abort();
                Err(away(format!("{} does not answer", self.shown())))
            }
        }
    }

    /// Closes the connections that were not used for a while.
    pub fn let_go(&self) {
        let now = self.clock.now();
        self.idle().retain(|conn| now.since(conn.used) < IDLE && !conn.client.is_closed());
    }

    async fn room(&self, usage: Use, limit: Moment) -> Result<SemaphorePermit<'_>, StoreError> {
        let reserved = match usage {
            Use::Asking => None,
            Use::Renewing => Some(&self.renewing),
            Use::Releasing => Some(&self.releasing),
        };
        for room in [Some(&self.asking), reserved].into_iter().flatten() {
            if let Ok(permit) = room.try_acquire() {
                return Ok(permit);
            }
        }
        let any = async {
            match reserved {
                None => self.asking.acquire().await,
                Some(reserved) => match race(self.asking.acquire(), reserved.acquire()).await {
                    First::Left(permit) | First::Right(permit) => permit,
                },
            }
        };
        match race(any, self.clock.alarm(limit)).await {
            First::Left(Ok(permit)) => Ok(permit),
            _ => Err(StoreError::unavailable(format!(
                "all connections to {} are busy: use a larger pool (?pool=)",
                self.shown()
            ))),
        }
    }

    fn idle(&self) -> parking_lot::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock()
    }

    /// The runtime that drives the connections of whoever asks.
    fn home(&self) -> Handle {
        // A thread that blocks in a call drives nothing meanwhile, even if it is a runtime's.
        let caller = (!is_waiting()).then(|| Handle::try_current().ok()).flatten();
        let caller = caller.filter(|caller| caller.runtime_flavor() == RuntimeFlavor::MultiThread);
        caller.unwrap_or_else(|| self.runtime.clone())
    }

    /// The one that was used last, so that the others may go.
    fn idle_one(&self, home: Id) -> Option<Conn> {
        let mut idle = self.idle();
        idle.retain(|conn| !conn.client.is_closed());
        let last = idle.iter().rposition(|conn| conn.home == home)?;
        Some(idle.remove(last))
    }

    /// Lets an idle connection of another runtime go, if the next one would be more than were promised.
    fn make_room(&self) {
        let taken = |room: &Semaphore, all: usize| all.saturating_sub(room.available_permits());
        let in_use = taken(&self.asking, self.url.pool)
            + taken(&self.renewing, KEEPING)
            + taken(&self.releasing, KEEPING);
        let mut idle = self.idle();
        if in_use + idle.len() > self.url.pool + 2 * KEEPING {
            idle.remove(0);
        }
    }

    fn put_back(&self, mut conn: Conn) {
        conn.used = self.clock.now();
        if !conn.client.is_closed() && conn.era == self.era.load(Ordering::Relaxed) {
            self.idle().push(conn);
        }
    }
}
