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
//! correctness only on a server that syncs, and that no standby can follow at a distance (`server_info.rs`).
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
//!
//! No config.rs and no connection.rs: the URL and the connections are those of `crate::postgres`, which the fence uses
//! too. No layout.rs: `locks_1.sql` and `records_1.sql` are what lies in the database, and every step. Besides:
//! schema.rs makes that, maintenance.rs cleans it up, reply.rs reads the rows that the steps return, listen.rs and
//! breaks.rs are how notifications come and whom they are for.

mod breaks;
mod guarantees;
mod inspect;
mod listen;
mod locks;
mod maintenance;
mod queue;
mod records;
mod reply;
mod schema;
mod server_info;
mod values;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use self::breaks::Breaks;
use self::listen::Listener;
use self::maintenance::keep_up;
pub use self::schema::{Installed, install};
use self::schema::{LOCKS, RECORDS};
use self::server_info::Found;
use super::ears::{Ears, client_id};
use super::unanswered::Unanswered;
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Request, StoreCall, Surroundings,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};
use crate::postgres::{Pool, PostgresUrl};

/// How long after it left an acquire may be carried out: far more than a request spends under way.
const LATE: Duration = Duration::from_mins(10);

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
        let clock = Arc::clone(&around.clock);
        let pool = Arc::new(Pool::new(url, Arc::clone(&clock), around.runtime.clone()));
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
        let upkeep = around.runtime.spawn(keeping).abort_handle();
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
}

impl Backend for Postgres {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(locks::try_acquire(self, request, queue, limit))
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(queue::wait(self, request, limit))
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(locks::renew(self, batch, limit))
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(locks::release(self, grant, limit))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(locks::break_lock(self, name, token, confirm_until, limit))
    }

    fn guarantees(&self) -> Guarantees {
        guarantees::of(&self.found.lock())
    }
}

impl Observe for Postgres {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect::inspect(self, name, limit))
    }

    fn list(&self, limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(inspect::list(self, limit))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, queue::LOOK_AGAIN, name, seen))
    }
}

impl Ledger for Postgres {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(records::claim(self, claim, limit))
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::finish(self, finish, limit))
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(records::look_up(self, name, limit))
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        Box::pin(records::entries(self, prefix.to_owned(), limit))
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::forget(self, name, token, limit))
    }

    fn place(&self) -> Option<String> {
        self.place.lock().clone()
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
