//! `postgres://USER@HOST/DATABASE` an existing PostgreSQL.
//!
//! A lock is a row of the schema `fencepost` (`locks.sql`), which the first client creates when it connects. It shares
//! nothing with advisory locks: those end with a connection and have no token, and get stuck behind a PgBouncer in
//! transaction mode.
//!
//! *Why grants exclude:* each step is one function, in a transaction of its own, and reads and writes a name under the
//! lock of its row. A grant is made only if the row has no owner, or one whose lease has ended by the server's clock, read
//! after the row was locked. A guard counts its deadline from before its request, so it is lost before the lease ends.
//! *Why tokens rise:* one sequence issues them all, in the UPDATE that makes the grant. If that had to wait for the row,
//! PostgreSQL evaluates it again on the row it then finds, and draws again. So a token is drawn while the row is locked,
//! and a later grant of the name has a higher one. (Tokens that are drawn before the row is locked can fall:
//! `tests/postgres/token_order.rs` shows both.)
//! *Where that ends:* a server that comes back without its last commits, because it does not sync them, was restored
//! from a backup, or because a standby without them took over, has old locks and an old sequence. A jump of its clock ends
//! leases early or late; tokens still rise. So a lock here is fit for correctness only on a server that syncs, and whose
//! standbys, if any, are all synchronous (`server_info.rs`).
//!
//! *What is synced:* every grant, renewal and break, before it is answered. A release that hands a grant over to a waiter is committed
//! without a sync, so that the waiter does not wait for two: the sync of its grant includes the release, which comes before
//! it in the log. The release is answered after a sync of its own; if a crash undid it, it is repeated (locks.rs).
//!
//! *Waiting:* waiters are in a queue beside the lock, by arrival, and each poll, every 250 ms, keeps a position alive. A
//! release notifies the first waiter only (NOTIFY is not free, so it is sent only if there is a waiter); nobody else gets
//! the free lock while the first one's position is kept. A client LISTENs on a connection of its own from its first wait
//! on. If that cannot work, as behind a PgBouncer in transaction mode, its waiters rely on the poll.
//! *Values* of elections and *records* are a component of their own (`records.sql`), for clients that lead or keep
//! records: plain locks do not need it. A value counts only with the token under which it was published (values.rs).
//! *Breaks:* the holder is notified and learns of it at once, and confirms it (breaks.rs); the fall-back is its next
//! renewal.
//! *Late requests:* a request may be executed after the one that should undo it: the two may use different connections. A
//! release that finds nothing, or that follows an acquire without a reply, leaves a note for its owner, and a late acquire
//! finds it.
//!
//! No config.rs, connection.rs or error.rs: options, connections and errors are those of `crate::postgres`, which the fence
//! uses too. No layout.rs: `locks.sql` and `records.sql` have the tables and every operation. Also: schema.rs creates them,
//! maintenance.rs removes expired rows, reply.rs reads the rows that the functions return, listen.rs and breaks.rs
//! receive notifications.

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
use self::maintenance::maintain;
pub use self::schema::{Installed, install};
use self::schema::{LOCKS, RECORDS};
use self::server_info::ServerInfo;
use super::unanswered::Unanswered;
use super::until_changed::inspect_until_changed;
use super::waiter_registry::{WaiterRegistry, client_id};
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName};
use crate::postgres::{Pool, Server};
/// ```no_run
/// # async fn connect(secret: String) -> fencepost::Result<()> {
/// use fencepost::Fencepost;
/// use fencepost::backends::postgres::{PostgresOptions, SslMode};
///
/// let options = PostgresOptions::new("db.internal").user("shop").password(secret).database("shop");
/// let fp = Fencepost::connect(options.ssl_mode(SslMode::VerifyFull)).await?;
/// # Ok(()) }
/// ```
#[doc(inline)]
pub use fencepost_base::postgres::PostgresOptions;
#[doc(inline)]
pub use fencepost_base::postgres::{ChannelBinding, SslMode};

/// For how long after it left an acquire may still be executed: far longer than a request is under way.
const LATE: Duration = Duration::from_mins(10);

/// A store on one PostgreSQL server.
pub struct Postgres {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    listener: Arc<Listener>,
    waiters: Arc<WaiterRegistry>,
    breaks: Arc<Breaks>,
    unanswered: Unanswered,
    /// Whether to create what is missing. If not, a store that does not exist is shown as an empty one.
    create: bool,
    server_info: Arc<Mutex<ServerInfo>>,
    /// The component "records" is known to exist.
    records_there: AtomicBool,
    /// The id of this store, from the last claim of a record.
    store_id: Mutex<Option<String>>,
    maintenance: AbortHandle,
}

impl Postgres {
    pub(crate) async fn open(
        options: PostgresOptions,
        context: &BackendContext,
    ) -> Result<Arc<Self>> {
        let server = Server::new(options)?;
        let clock = Arc::clone(&context.clock);
        let pool = Arc::new(Pool::new(server, Arc::clone(&clock), context.runtime.clone()));
        let mut server_info = ServerInfo::read(&pool).await?;
        server_info.check(pool.shown())?;
        if !context.create {
            LOCKS.installed_version(&pool).await?;
        } else if LOCKS.ready(&pool).await?.before == 0 {
            // A role that creates the one creates the other too, so that it exists for roles that may not.
            RECORDS.ready(&pool).await?;
            server_info = ServerInfo::read(&pool).await?;
        }
        let server_info = Arc::new(Mutex::new(server_info));
        let waiters = Arc::new(WaiterRegistry::default());
        let breaks = Arc::new(Breaks::default());
        let listener = Listener::new(&client_id()?, &pool, &waiters, &breaks, context);
        let maintaining = maintain(Arc::downgrade(&pool), Arc::clone(&server_info), context.create);
        let maintenance = context.runtime.spawn(maintaining).abort_handle();
        Ok(Arc::new(Self {
            pool,
            clock,
            listener,
            waiters,
            breaks,
            unanswered: Unanswered::new(LATE),
            create: context.create,
            server_info,
            records_there: AtomicBool::new(false),
            store_id: Mutex::default(),
            maintenance,
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
        guarantees::of(&self.server_info.lock())
    }
}

impl Observe for Postgres {
    fn inspect(&self, name: LockName, limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect::inspect(self, name, limit))
    }

    fn list(&self, page: PageRequest, limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(async move { inspect::list(self, &page, limit).await })
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, &*self.clock, queue::POLL_INTERVAL, name, seen))
    }
}

impl Ledger for Postgres {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(records::claim(self, claim, limit))
    }

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::finish(self, finish, limit))
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        Box::pin(records::look_up(self, names, limit))
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        Box::pin(records::list_records(self, prefix.to_owned(), limit))
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::forget(self, name, token, limit))
    }

    fn store_id(&self) -> Option<String> {
        self.store_id.lock().clone()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.maintenance.abort();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.pool.shown())
    }
}
