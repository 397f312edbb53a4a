//! The connections to one server, and the calls on them.
//!
//! What must hold: no call hangs for ever. A call without a reply for [`HANG`] abandons its connection and is retried on
//! another. A connection serves one call at a time, and after an abandoned call it serves no other.
//! A call may be made from anywhere: connections are driven by the client's own runtime. Only a caller on a multi-threaded
//! runtime, which drives its sockets at any time, gets connections there, because the hop to the client's thread and back
//! is a good part of a call. They serve no other caller, so heartbeats do not depend on it.
//!
//! Before its first call that touches the schema `fencepost`, a connection checks whether trusted roles own it (trust.rs).
//! That is checked again now and then; if it fails, no older connection is used any more.
//!
//! A few connections are reserved for renewals, and as many for releases: calls that wait for a row cannot block them, and
//! neither can many calls of the other kind.

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
use tokio_util::task::AbortOnDropHandle;

use super::address::{Opened, Server};
use super::error::{Kind, explain, no_schema};
use super::trust::{self, Schema};
use crate::block_on::is_waiting;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::retry::{CALL_TIMEOUT, StoreResult, retry};
use crate::store_error::{Outcome, StoreError, StoreErrorKind};

/// How long a connection may be silent during a call.
const HANG: Duration = Duration::from_millis(1500);
/// The timeout of a connect: shorter than an attempt, so that the error names the connect.
const CONNECT: Duration = Duration::from_millis(1900);
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);
/// How many connections are reserved for renewals, and for releases.
const KEEPING: usize = 2;

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To acquire or to read.
    Asking,
    /// To renew.
    Renewing,
    /// To release.
    Releasing,
}

/// A parameter of a call, and its type.
pub type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connections to one server.
pub struct Pool {
    server: Server,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    idle: Mutex<Vec<Conn>>,
    /// Raised when the schema is no longer trusted: connections of an earlier era are not used.
    era: AtomicU64,
    asking: Semaphore,
    renewing: Semaphore,
    releasing: Semaphore,
}

/// One connection. Dropping it closes it, even during a call.
pub struct Conn {
    pub client: Client,
    driver: AbortHandle,
    /// The runtime that drives it.
    home: Id,
    /// When it was last returned.
    used: Moment,
    /// The schema was there, and trusted.
    trusted: bool,
    era: u64,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Pool {
    pub fn new(server: Server, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        let asking = Semaphore::new(server.pool);
        let [renewing, releasing] = [KEEPING; 2].map(Semaphore::new);
        let (idle, era) = (Mutex::default(), AtomicU64::new(0));
        Self { server, clock, runtime, idle, era, asking, renewing, releasing }
    }

    /// `host:port/database`, for people.
    pub fn shown(&self) -> &str {
        &self.server.shown
    }

    /// The role that the options trust with the schema.
    pub fn owner(&self) -> Option<&str> {
        self.server.owner()
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The default limit of a call.
    pub fn call_limit(&self) -> Moment {
        self.clock.now() + CALL_TIMEOUT
    }

    /// Runs one statement in a trusted schema. It must be safe to run twice: it is sent again on another connection if one
    /// breaks.
    pub async fn call(
        &self,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: Moment,
    ) -> StoreResult<Vec<Row>> {
        self.call_in(true, usage, sql, parameters, limit).await
    }

    /// The same, for a statement that does not touch the schema.
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

    /// A connection for the statement.
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
            let look = trust::look(&conn.client, self.server.owner(), self.shown());
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
                // Close this one: if the server was demoted, a new connection may lead to the new primary.
                if error.is_interrupted() && error.outcome() == Outcome::NotApplied {
                    self.put_back(conn);
                }
                Err(error)
            }
            First::Right(()) => {
                // The other idle connections may be dead too, and a second attempt on one would waste time. Keep those of
                // another runtime, and all of them if the caller's limit came first.
                if self.clock.now() >= sent + HANG {
                    self.idle.lock().retain(|conn| conn.home != home);
                }
                Err(StoreError::no_reply(self.silence()))
            }
        }
    }

    fn silence(&self) -> String {
        format!("{} did not reply in time", self.shown())
    }

    /// Checks the schema again. If another role could have changed it, no older connection is used.
    pub async fn recheck_schema(&self) {
        let owner = self.server.owner();
        let looked = self.call_outside(trust::TRUST, &[(&owner, Type::TEXT)]).await;
        match looked.and_then(|reply| trust::judge(&reply.value, self.shown())) {
            // Any role could create it next.
            Ok(Schema::Missing) => {}
            Err(error) if error.kind() == StoreErrorKind::Refused => {}
            Ok(Schema::Trusted) | Err(_) => return,
        }
        self.era.fetch_add(1, Ordering::Relaxed);
        self.idle.lock().clear();
    }

    /// A connection of the caller's own.
    pub async fn open(&self, limit: Moment) -> Result<Conn, StoreError> {
        self.open_at(&self.runtime, limit).await
    }

    async fn open_at(&self, home: &Handle, limit: Moment) -> Result<Conn, StoreError> {
        let (client, connection) = self.open_raw_at(home, limit).await?;
        let driver = home.spawn(async move {
            // The caller sees the end of the connection in its next call.
            let _ = connection.await;
        });
        let (driver, home) = (driver.abort_handle(), home.id());
        let (used, era) = (self.clock.now(), self.era.load(Ordering::Relaxed));
        Ok(Conn { client, driver, home, used, trusted: false, era })
    }

    /// The same, for a caller that drives the connection itself, on the client's runtime.
    pub async fn open_raw(&self, limit: Moment) -> Result<Opened, StoreError> {
        self.open_raw_at(&self.runtime, limit).await
    }

    async fn open_raw_at(&self, home: &Handle, limit: Moment) -> Result<Opened, StoreError> {
        let server = self.server.clone();
        // On that runtime, because a socket belongs to the runtime that opened it.
        // Aborted if the caller gives up: a server that accepts and does not reply would keep it for ever.
        let mut opening = AbortOnDropHandle::new(home.spawn(async move { server.open().await }));
        let limit = limit.min(self.clock.now() + CONNECT);
        // Nothing was sent. The caller's runtime may be blocked or ending, so the next attempt runs on ours.
        let away: Kind =
            if home.id() == self.runtime.id() { StoreError::unavailable } else { StoreError::busy };
        match race(&mut opening, self.clock.alarm(limit)).await {
            First::Left(Ok(opened)) => opened.map_err(|error| explain(error, self.shown(), away)),
            First::Left(Err(_)) => {
                Err(away(format!("no connection to {}: this client ends", self.shown())))
            }
            First::Right(()) => Err(away(format!("{} does not answer", self.shown()))),
        }
    }

    /// Closes connections that were unused for a while.
    pub fn let_go(&self) {
        let now = self.clock.now();
        self.idle.lock().retain(|conn| now.since(conn.used) < IDLE && !conn.client.is_closed());
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

    /// The runtime that drives the caller's connections.
    fn home(&self) -> Handle {
        // A thread that blocks in a call drives nothing meanwhile, even in a runtime.
        let caller = (!is_waiting()).then(|| Handle::try_current().ok()).flatten();
        let caller = caller.filter(|caller| caller.runtime_flavor() == RuntimeFlavor::MultiThread);
        caller.unwrap_or_else(|| self.runtime.clone())
    }

    /// The most recently used idle connection, so that the others can expire.
    fn idle_one(&self, home: Id) -> Option<Conn> {
        let mut idle = self.idle.lock();
        idle.retain(|conn| !conn.client.is_closed());
        let last = idle.iter().rposition(|conn| conn.home == home)?;
        Some(idle.remove(last))
    }

    /// Closes an idle connection of another runtime if one more would exceed the pool's size.
    fn make_room(&self) {
        let taken = |room: &Semaphore, all: usize| all.saturating_sub(room.available_permits());
        let in_use = taken(&self.asking, self.server.pool)
            + taken(&self.renewing, KEEPING)
            + taken(&self.releasing, KEEPING);
        let mut idle = self.idle.lock();
        if in_use + idle.len() > self.server.pool + 2 * KEEPING {
            idle.remove(0);
        }
    }

    fn put_back(&self, mut conn: Conn) {
        conn.used = self.clock.now();
        if !conn.client.is_closed() && conn.era == self.era.load(Ordering::Relaxed) {
            self.idle.lock().push(conn);
        }
    }
}
