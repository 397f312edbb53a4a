//! `sqlite:PATH` a file that many processes on one host share. The default, under the user's state
//! directory.
//!
//! *Why grants exclude:* every step is one transaction, and SQLite lets one write at a time. A grant is
//! made only where no row of that name is left whose lease runs, judged at a time that is read inside
//! the transaction on `CLOCK_BOOTTIME`, which all processes of a host share and which no one can set. A
//! guard counts its deadline from before its request, so it is lost before the row is.
//! *Why tokens rise:* the counter is a row of the same file, raised in the same transaction, and synced
//! (`synchronous=FULL`) before the answer. Nothing but losing the file takes it back.
//! *Taking over at once:* a grant's row names a file that the holder's processes have locked. Once nobody
//! has, they are all gone, and the next need not wait for the lease (presence.rs).
//! *Values* of elections and *records* are tables of their own (values.rs, records.rs), which other steps do not touch.
//! *Who can undo that:* whoever can write the file, or put another in its place. So it is refused unless that is the user
//! alone, or the members of one group (access.rs).
//! *Where that ends:* with the host. A file of another machine, or on a network file system, is refused;
//! after a reboot every lease is void. A file restored from a backup, or copied, has its old counter:
//! tokens can repeat. A disk that acknowledges syncs it has not done can lose the counter in a power cut.
//! A process that is frozen inside a transaction keeps everybody out until it goes on or is killed: then
//! nobody is granted, and guards say that renewal is failing (P5). On tmpfs or a container's layer the counter ends with
//! the file system, so the table says that it is not for correctness (guarantees.rs).
//!
//! *Waiting:* FIFO, by the waiter's ticket. Whoever frees the lock tells the oldest waiter (wake.rs), which
//! takes it in a transaction of its own. All look again every 250 ms, and the oldest watches the holder's
//! process, so a crash, an expiry and a lost message are found as well. A waiter that is told and does not
//! come within a second is passed over.
//!
//! *Breaks:* the holder's client gets a datagram, renews, learns that the grant was broken, and releases it: that is its
//! confirmation, for which the break looks in the table `broken`.
//!
//! No config.rs: url.rs parses the path and its options. No `server_info.rs`: host.rs says which machine and boot a file is
//! of. Besides: operations.rs has the lock rules as transactions, desk.rs runs them in batches; file.rs opens a file,
//! `new_file.rs` makes one, access.rs says who may write it (users.rs: who is who); presence.rs shows that a holder lives,
//! wake.rs reaches the processes that wait or hold; absent.rs is a file that is not there yet.

mod absent;
mod access;
mod connection;
mod desk;
mod error;
mod file;
mod guarantees;
mod host;
mod inspect;
mod layout;
mod locks;
mod new_file;
mod operations;
mod presence;
mod queue;
mod records;
mod users;
mod values;
mod wake;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencepost_core::{LockName, Moment, OwnerId, Token};
use parking_lot::Mutex;

pub(crate) use self::absent::open;
use self::desk::Desk;
pub use self::guarantees::guarantees_of;
pub(crate) use self::records::finish_in;
use self::users::user;
use self::wake::{Bell, Post};
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, GrantId, LockInfo, NotHeld, Observe, Queue,
    Renewal, Renewals, Request, StoreCall, StoreError, Surroundings,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};
pub use crate::store_url::SqliteOptions as Options;

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    /// Which file this is, whatever it is called.
    place: String,
    around: Surroundings,
    desk: Arc<Desk>,
    post: Arc<Post>,
    guarantees: Guarantees,
    /// Whose store it is, if it is another user's, opened by root.
    other_user: Option<u32>,
    /// The positions of this client in the queues, and by what each is woken.
    positions: Mutex<HashMap<OwnerId, Arc<Bell>>>,
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there. Waits for the disk.
    pub fn open(path: &Path, options: Options, around: &Surroundings) -> Result<Arc<Self>> {
        let file::Opened { path, db, file, marks, access, other_user } =
            file::open(path, options, around.create, &*around.clock)?;
        let guarantees = guarantees::of(&path, access.group_name());
        let place = file.place();
        let post = Arc::new(Post::new(marks, around.runtime.clone()));
        let desk = Desk::new(path.clone(), db, file, around.clone(), Arc::clone(&post));
        let (around, desk) = (around.clone(), Arc::new(desk));
        let positions = Mutex::default();
        Ok(Arc::new(Self { path, place, around, desk, post, guarantees, other_user, positions }))
    }

    /// Refuses to lock in another user's store: root trusts what it looks at there, but its locks must not depend on it.
    fn refuse_other_user(&self) -> Result<(), StoreError> {
        match self.other_user {
            None => Ok(()),
            Some(owner) => Err(StoreError::refused(format!(
                "{} belongs to {}: root can look and break there, but not lock; name a file of root's \
                 own, or share one with a group (sqlite:PATH?shared=group)",
                self.path.display(),
                user(owner)
            ))),
        }
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.around.clock
    }
}

impl Backend for Sqlite {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(locks::try_acquire(self, request, queue))
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(queue::wait(self, request, limit))
    }

    fn renew(&self, batch: Vec<Renewal>, _limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(locks::renew(self, batch))
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(locks::release(self, grant))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(locks::break_lock(self, name, token, confirm_until))
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }
}

impl Observe for Sqlite {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(self.desk.read(move |sheet| inspect::inspect(sheet, &name)))
    }

    fn list(&self, _limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(self.desk.read(|sheet| inspect::list(sheet)))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, self.clock(), queue::LOOK_AGAIN, name, seen))
    }
}

impl Ledger for Sqlite {
    fn claim(&self, claim: Claim, _limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(records::claim(self, claim))
    }

    fn finish(&self, finish: Finish, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::finish(self, finish))
    }

    fn look_up(&self, name: LockName, _limit: Moment) -> StoreCall<'_, Option<Entry>> {
        Box::pin(records::look_up(self, name))
    }

    fn entries(&self, prefix: &str, _limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        Box::pin(records::entries(self, prefix.to_owned()))
    }

    fn forget(&self, name: LockName, token: Token, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(records::forget(self, name, token))
    }

    fn place(&self) -> Option<String> {
        Some(self.place.clone())
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.path.display())
    }
}
