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
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::address::{Opened, PostgresUrl};
use super::error::{Fault, FaultKind};
use super::trust::{self, Schema};
use crate::backend::{Reply, Surroundings, short};
use crate::block_on::is_waiting;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::retry::CALL_TIMEOUT;

/// How long a connection may be without an answer.
const HANG: Duration = Duration::from_millis(1500);
/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// How long to leave a server alone that can not do it now.
const BREATH: Duration = Duration::from_millis(20);
/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(30);
/// How many connections there are for renewals alone, and for releases.
const KEEPING: usize = 2;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To get something, or to look at it.
    Asking,
    /// To keep what one has.
    Renewing,
    /// To give it back.
    Releasing,
}

/// A parameter of a call, and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connections to one server.
pub(crate) struct Pool {
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
pub(crate) struct Conn {
    pub(crate) client: Client,
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
    pub(crate) fn new(url: PostgresUrl, around: &Surroundings) -> Self {
        let (clock, runtime) = (Arc::clone(&around.clock), around.runtime.clone());
        let asking = Semaphore::new(url.pool);
        let [renewing, releasing] = [KEEPING; 2].map(Semaphore::new);
        let (idle, era) = (Mutex::default(), AtomicU64::new(0));
        Self { url, clock, runtime, idle, era, asking, renewing, releasing }
    }

    /// `host:port/database`, for people.
    pub(crate) fn shown(&self) -> &str {
        &self.url.shown
    }

    /// The role that the URL trusts with the schema.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.url.owner()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The limit of a call that nobody set one for.
    pub(crate) fn call_limit(&self) -> Moment {
        self.clock.now() + CALL_TIMEOUT
    }

    /// Runs one statement, over connections that break in between. Only in a schema that is in trusted hands.
    pub(crate) async fn call(
        &self,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: Moment,
    ) -> Result<Reply<Vec<Row>>, Fault> {
        self.call_in(true, usage, sql, parameters, limit).await
    }

    /// The same, for a statement that touches nothing in the schema.
    pub(crate) async fn call_outside(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply<Vec<Row>>, Fault> {
        self.call_in(false, Use::Asking, sql, parameters, self.call_limit()).await
    }

    async fn call_in(
        &self,
        schema: bool,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        give_up: Moment,
    ) -> Result<Reply<Vec<Row>>, Fault> {
        let mut again = false;
        let mut last: Option<Fault> = None;
        loop {
            let tried = self.try_once(schema, usage, sql, parameters, give_up, &mut again).await;
            let fault = match tried {
                Ok((value, sent, retried)) => return Ok(Reply { value, sent, retried }),
                Err(fault) => fault,
            };
            let over = self.clock.now() >= give_up;
            let fault = match last.take() {
                // The last try had no time left: what the others failed of says more.
                Some(told) if over && told.state.is_some() && fault.state.is_none() => told,
                _ => fault,
            };
            if over || fault.kind.is_final() {
                return Err(Fault { unanswered: again, ..fault });
            }
            if fault.kind == FaultKind::NotNow {
                self.clock.alarm((self.clock.now() + BREATH).min(give_up)).await;
            }
            last = Some(fault);
        }
    }

    /// One try. `again` is told whether any was sent without an answer; the rows come with what it was before.
    async fn try_once(
        &self,
        schema: bool,
        usage: Use,
        sql: &str,
        parameters: &[Parameter<'_>],
        give_up: Moment,
        again: &mut bool,
    ) -> Result<(Vec<Row>, Moment, bool), Fault> {
        let _room = self.room(usage, give_up).await?;
        // A try that had no answer may have waited for the caller's runtime, not for the server.
        let home = if *again { self.runtime.clone() } else { self.home() };
        let mut conn = match self.idle_one(home.id()) {
            Some(conn) => conn,
            None => self.open_near(&home, give_up).await?,
        };
        if schema && !conn.trusted {
            match self.look(&conn, give_up).await {
                Ok(Schema::Trusted) => conn.trusted = true,
                Ok(Schema::Missing) => {
                    self.put_back(conn);
                    return Err(trust::missing(self.shown()));
                }
                // The call itself was not sent.
                Err(fault) => return Err(fault),
            }
        }
        let before = *again;
        let sent = self.clock.now();
        let limit = self.clock.alarm((sent + HANG).min(give_up));
        match race(conn.client.query_typed(sql, parameters), limit).await {
            First::Left(Ok(rows)) => {
                self.put_back(conn);
                Ok((rows, sent, before))
            }
            First::Left(Err(error)) => {
                let fault = Fault::of(&error, self.shown());
                match fault.kind {
                    FaultKind::Cut | FaultKind::Away => *again = true,
                    FaultKind::Again | FaultKind::NotNow => self.put_back(conn),
                    // One that was demoted stays it: the name may lead to the new primary by now.
                    FaultKind::ReadOnly | FaultKind::Refused => {}
                }
                Err(fault)
            }
            First::Right(()) => {
                *again = true;
                // The others may be as dead: on none of them is a second try worth the time. Those of another
                // runtime are not judged by this one's silence.
                self.idle().retain(|conn| conn.home != home.id());
                let span = short(self.clock.now().since(sent));
                Err(Fault::new(
                    FaultKind::Cut,
                    format!("{} did not answer within {span}", self.shown()),
                ))
            }
        }
    }

    /// Whether the schema is there, and in trusted hands.
    async fn look(&self, conn: &Conn, give_up: Moment) -> Result<Schema, Fault> {
        let asking = trust::look(&conn.client, self.url.owner(), self.shown());
        let limit = self.clock.alarm((self.clock.now() + HANG).min(give_up));
        match race(asking, limit).await {
            First::Left(looked) => looked,
            First::Right(()) => {
                Err(Fault::new(FaultKind::Cut, format!("{} did not answer", self.shown())))
            }
        }
    }

    /// Looks again. If somebody else could have got hold of the schema, no connection from before is used.
    pub(crate) async fn look_again(&self) {
        let owner = self.url.owner();
        let looked = self.call_outside(trust::TRUST, &[(&owner, Type::TEXT)]).await;
        match looked.and_then(|heard| trust::judge(&heard.value, self.shown())) {
            // Whoever makes it next may be anybody.
            Ok(Schema::Missing) => {}
            Err(fault) if fault.kind == FaultKind::Refused => {}
            Ok(Schema::Trusted) | Err(_) => return,
        }
        self.era.fetch_add(1, Ordering::Relaxed);
        self.idle().clear();
    }

    /// A connection of the caller's own, by the end of this time.
    pub(crate) async fn open(&self, limit: Moment) -> Result<Conn, Fault> {
        self.open_at(&self.runtime, limit).await
    }

    /// One that the caller's runtime drives if it can: it may be blocked, or about to end.
    async fn open_near(&self, home: &Handle, limit: Moment) -> Result<Conn, Fault> {
        self.make_room();
        match self.open_at(home, limit).await {
            Err(fault) if fault.kind == FaultKind::Away && home.id() != self.runtime.id() => {
                self.open(limit).await
            }
            done => done,
        }
    }

    async fn open_at(&self, home: &Handle, limit: Moment) -> Result<Conn, Fault> {
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
    pub(crate) async fn open_raw(&self, limit: Moment) -> Result<Opened, Fault> {
        self.open_raw_at(&self.runtime, limit).await
    }

    async fn open_raw_at(&self, home: &Handle, limit: Moment) -> Result<Opened, Fault> {
        let url = self.url.clone();
        // There, because a socket belongs to the runtime that made it.
        let mut opening = home.spawn(async move { url.open().await });
        let limit = limit.min(self.clock.now() + CONNECT);
        let away = |message: String| Fault::new(FaultKind::Away, message);
        match race(&mut opening, self.clock.alarm(limit)).await {
            First::Left(Ok(Ok(opened))) => Ok(opened),
            First::Left(Ok(Err(error))) => {
                let fault = Fault::of(&error, self.shown());
                // Nothing was asked yet.
                let kind = if fault.kind == FaultKind::Cut { FaultKind::Away } else { fault.kind };
                Err(Fault { kind, ..fault })
            }
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
    pub(crate) fn let_go(&self) {
        let now = self.clock.now();
        self.idle().retain(|conn| now.since(conn.used) < IDLE && !conn.client.is_closed());
    }

    async fn room(
        &self,
        usage: Use,
        limit: Moment,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, Fault> {
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
            _ => Err(Fault::new(
                FaultKind::Away,
                format!("all connections to {} are busy: use a larger pool (?pool=)", self.shown()),
            )),
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
